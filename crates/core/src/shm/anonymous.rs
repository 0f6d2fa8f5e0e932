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
