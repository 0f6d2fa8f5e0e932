//! An epoch in anonymous memory, which no other process can map; the layout is that of any other epoch. For
//! fallbacks (wire §15.12).

use std::fs::File;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::epoch::{MappedEpoch, Pool};
use crate::os::mapping_guard::LostMark;
use crate::os::time::monotonic_ns;
use crate::shm::create::{PoolSpec, check_layout, pool_kind};
use crate::shm::region::{Access, Region};
use crate::shm::superblock::{Expected, RegionKind, Superblock};
use crate::wire::layout::LAYOUT_VERSION;

impl MappedEpoch {
    /// Allocates an epoch for a writer and readers of this process. Pages are allocated when they are
    /// written. A layout larger than `max_bytes` is refused, because its size comes from an untrusted
    /// announce.
    pub fn anonymous(
        stream_id: u32,
        epoch: u64,
        nslots: u32,
        pools: &[PoolSpec],
        max_bytes: u64,
    ) -> Result<Self, String> {
        check_layout(nslots, pools).map_err(|e| e.to_string())?;
        let kinds = pools.iter().map(|p| pool_kind(*p)).chain([RegionKind::HeaderRing]);
        let bytes = kinds.map(|kind| kind.region_bytes(nslots)).fold(0, u64::saturating_add);
        if bytes > max_bytes {
            return Err(format!("the stream takes {bytes} bytes, and {max_bytes} are allowed"));
        }
        let lost = LostMark::default();
        let (pid, now_ns) = (u64::from(std::process::id()), monotonic_ns());
        let make = |kind: RegionKind| -> Result<Region, String> {
            let len = kind.region_bytes(nslots);
            let file = memfd_create("tensorpool", MemfdFlags::CLOEXEC).map_err(|e| e.to_string())?;
            ftruncate(&file, len).map_err(|e| e.to_string())?;
            let region =
                Region::map(&File::from(file), len, Access::Write, &lost).map_err(|e| format!("{e:?}"))?;
            let expected = Expected { layout_version: LAYOUT_VERSION, epoch, stream_id, kind, nslots };
            region.write_superblock(&Superblock::new(&expected, pid, now_ns));
            Ok(region)
        };
        let header = make(RegionKind::HeaderRing)?;
        let mut made_pools = Vec::with_capacity(pools.len());
        for &pool in pools {
            let PoolSpec { pool_id, stride_bytes } = pool;
            made_pools.push(Pool::new(pool_id, stride_bytes, make(pool_kind(pool))?));
        }
        made_pools.sort_by_key(|p| p.stride_bytes);
        Ok(Self { stream_id, epoch, nslots, owner_pid: pid, header, pools: made_pools, lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drop_reason::DropReason;

    const POOLS: [PoolSpec; 2] =
        [PoolSpec { pool_id: 2, stride_bytes: 4096 }, PoolSpec { pool_id: 1, stride_bytes: 64 }];

    #[test]
    fn anonymous_epoch_behaves_like_a_mapped_one() {
        let epoch = MappedEpoch::anonymous(5, 9, 8, &POOLS, 1 << 20).unwrap();
        assert_eq!((epoch.stream_id, epoch.epoch, epoch.nslots), (5, 9, 8));
        assert_eq!(epoch.smallest_pool(64), Some(0));
        assert_eq!(epoch.pool_id(1), 2, "the smallest comes first");
        assert!(!epoch.owner_changed());
        epoch.begin(3);
        assert!(matches!(epoch.locate(3), Err(DropReason::NotCommitted)));
        assert!(epoch.commit_described(3));
        // SAFETY: a page of the pool, which no other thread writes.
        unsafe { epoch.payload(1, 3).add(4095).write(7) };
    }

    #[test]
    fn forged_commit_word_does_not_move_the_newest_sequence() {
        assert_eq!(ring_of(0..0).newest_committed(), None);
        let epoch = ring_of(40..50);
        let commit = |seq| set_word(&epoch, seq, crate::shm::seqlock::committed(seq));
        assert_eq!(epoch.newest_committed(), Some(49));
        // Each fits its slot, and is far ahead of all others.
        let forged = [(1u64 << 60) + 3, (1 << 50) + 4, 2_048 + 5];
        forged.into_iter().for_each(commit);
        assert_eq!(epoch.newest_committed(), Some(49));
        (50..58).for_each(commit);
        assert_eq!(epoch.newest_committed(), Some(57));
    }

    /// A ring of 8 slots that holds some sequences.
    fn ring_of(seqs: impl Iterator<Item = u64>) -> MappedEpoch {
        let epoch = MappedEpoch::anonymous(5, 9, 8, &POOLS, 1 << 20).unwrap();
        seqs.for_each(|seq| set_word(&epoch, seq, crate::shm::seqlock::committed(seq)));
        epoch
    }

    fn set_word(epoch: &MappedEpoch, seq: u64, word: u64) {
        epoch.commit_word(seq).store(word, std::sync::atomic::Ordering::Relaxed);
    }

    #[test]
    fn mirror_of_another_hosts_ring_begins_anywhere() {
        assert_eq!(ring_of(0..0).first_written(0, 3), 3);
        let epoch = ring_of(102..107);
        assert_eq!(epoch.first_written(0, 106), 102);
        // Its writer is ahead of the descriptor.
        assert_eq!(epoch.first_written(0, 103), 102);
        assert_eq!(epoch.first_written(104, 106), 104);
        // It continues anywhere too.
        assert_eq!(ring_of((0..8).chain(1000..1003)).first_written(8, 1002), 1000);
        assert_eq!(ring_of(0..8).first_written(8, 1002), 1002);
        // One slot is left.
        assert_eq!(ring_of(100..107).first_written(0, 106), 100);
    }

    #[test]
    fn ring_that_was_written_all_over_shows_no_beginning() {
        assert_eq!(ring_of(0..30).first_written(0, 29), 0);
        assert_eq!(ring_of(0..30).first_written(0, 24), 0);
        assert_eq!(ring_of(0..30).first_written(9, 29), 9);
        assert_eq!(ring_of(0..5).first_written(0, 4), 0);
        assert_eq!(ring_of(0..5).first_written(2, 4), 2);
    }

    #[test]
    fn stray_commit_word_does_not_hide_what_was_written() {
        // Not the newest slot, nor the oldest: a zero there looks like one that was never written.
        for (top, stray) in (20..28).flat_map(|top| (2..8).map(move |back| (top, top - back))) {
            for word in [0, 1, stray & 7, u64::MAX, (1 << 60) | ((stray & 7) << 1) | 1] {
                let epoch = ring_of(0..top);
                set_word(&epoch, stray, word);
                assert_eq!(
                    epoch.first_written(0, top - 1),
                    0,
                    "word {word:#x} in place of {stray}, newest {top}"
                );
                assert_eq!(
                    epoch.first_written(9, top - 1),
                    9,
                    "word {word:#x} in place of {stray}, newest {top}"
                );
            }
        }
        let epoch = ring_of(102..107);
        set_word(&epoch, 105, 0);
        assert_eq!(epoch.first_written(0, 106), 102);
        set_word(&epoch, 102, 0);
        assert_eq!(epoch.first_written(0, 106), 103);
    }

    #[test]
    fn anonymous_epoch_refuses_size_and_layout() {
        let why = MappedEpoch::anonymous(5, 9, 8, &POOLS, 1000).unwrap_err();
        assert!(why.contains("1000 are allowed"), "{why}");
        let huge = [PoolSpec { pool_id: 1, stride_bytes: 1 << 31 }];
        assert!(
            MappedEpoch::anonymous(5, 9, 1 << 31, &huge, u64::MAX >> 1).is_err(),
            "more than there can be"
        );
        assert!(MappedEpoch::anonymous(5, 9, 7, &POOLS, u64::MAX).is_err(), "no power of two");
        assert!(MappedEpoch::anonymous(5, 9, 8, &[], u64::MAX).is_err());
    }
}
