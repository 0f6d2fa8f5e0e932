//! A mapped epoch: one header ring and its payload pools, for its writer or for a reader (wire §8, §9).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::checksum;
use crate::drop_reason::DropReason;
use crate::os::mapping_guard::LostMark;
use crate::shm::containment::AllowedBases;
use crate::shm::copy::{self, Target};
use crate::shm::copy_thread::CopyThread;
use crate::shm::region::{Access, Region, RegionError, RegionFault, ValidatedRegion};
use crate::shm::seqlock::{self, ReadRefusal};
use crate::shm::slot::{self, HeaderPattern, SlotFields, SlotInfo};
use crate::shm::superblock::{Expected, RegionKind};
use crate::wire::announce::{AnnouncedPool, PoolAnnounce};
use crate::wire::layout::*;

const CACHE_LINE_BYTES: usize = 64;
const PREFAULTED_AT_ONCE: usize = 64 << 20;
/// Bytes that are copied before their checksum is computed: source and copy fit the first-level cache.
const SUMMED_BLOCK: usize = 16 << 10;

/// Commit words ahead of all others that are left out: each takes a pass over the ring.
const MAX_FORGED: usize = 4;

/// Sequences by which a descriptor may be behind its slot: more than the largest log buffer of Aeron holds (3
/// terms of 1 GiB, 64 bytes each). A slot that is further ahead holds a stray number.
const MAX_BEHIND: u64 = 1 << 26;

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) pool_id: u16,
    pub(super) stride_bytes: u32,
    pub(super) region: Region,
    is_beyond_cache: bool,
}

impl Pool {
    pub(super) fn new(pool_id: u16, stride_bytes: u32, region: Region) -> Self {
        let is_beyond_cache = copy::is_beyond_cache(region.len());
        Self { pool_id, stride_bytes, region, is_beyond_cache }
    }
}

/// All regions of one epoch, validated against the announce.
#[derive(Debug)]
pub struct MappedEpoch {
    pub stream_id: u32,
    pub epoch: u64,
    pub nslots: u32,
    /// The owner's pid when the epoch was mapped. An epoch has one owner.
    pub(super) owner_pid: u64,
    pub(super) header: Region,
    /// Ordered by stride, smallest first: the first that fits is the right one.
    pub(super) pools: Vec<Pool>,
    /// Set when memory of any of these regions is lost.
    pub(super) lost: LostMark,
}

/// A frame that passed every check: its pool, and the contents of its slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotRef {
    pub seq: u64,
    pub pool: u16,
    pub info: SlotInfo,
}

fn expected(announce: &PoolAnnounce, kind: RegionKind) -> Expected {
    Expected {
        layout_version: announce.layout_version,
        epoch: announce.epoch,
        stream_id: announce.stream_id,
        kind,
        nslots: announce.header_nslots,
    }
}

impl MappedEpoch {
    /// Maps every announced region, or none.
    pub fn open(announce: &PoolAnnounce, bases: &AllowedBases, access: Access) -> Result<Self, RegionError> {
        let expected = |kind| expected(announce, kind);
        let header =
            ValidatedRegion::open(&announce.header_uri, &expected(RegionKind::HeaderRing), bases, access)?;
        let mut validated_pools = Vec::with_capacity(announce.pools.len());
        for AnnouncedPool { pool_id, nslots, stride_bytes, uri } in &announce.pools {
            // All pools have the ring's number of slots (wire §15.5).
            if *nslots != announce.header_nslots {
                return Err(RegionError { uri: uri.clone(), fault: RegionFault::Nslots(*nslots) });
            }
            let kind = RegionKind::PayloadPool { pool_id: *pool_id, stride_bytes: *stride_bytes };
            let validated = ValidatedRegion::open(uri, &expected(kind), bases, access)?;
            validated_pools.push((*pool_id, *stride_bytes, validated));
        }
        // All regions are valid: only now is anything mapped.
        let lost = LostMark::default();
        let header = header.map(&lost)?;
        let mut pools = Vec::with_capacity(validated_pools.len());
        for (pool_id, stride_bytes, validated) in validated_pools {
            pools.push(Pool::new(pool_id, stride_bytes, validated.map(&lost)?));
        }
        pools.sort_by_key(|p| p.stride_bytes);
        Ok(Self {
            stream_id: announce.stream_id,
            epoch: announce.epoch,
            nslots: announce.header_nslots,
            owner_pid: header.superblock().pid,
            header,
            pools,
            lost,
        })
    }

    /// Touches every page now, so that no frame pays for the first fault. Best effort.
    pub fn prefault(&self) {
        self.header.prefault();
        self.pools.iter().for_each(|p| p.region.prefault());
    }

    /// As [`Self::prefault`], on a thread of its own where that takes long: the caller serves other streams too.
    pub fn prefault_aside(self: &Arc<Self>) {
        if self.bytes() <= PREFAULTED_AT_ONCE {
            return self.prefault();
        }
        let mapping = self.clone();
        let _ = std::thread::Builder::new().name("tp-prefault".into()).spawn(move || mapping.prefault());
    }

    /// Locks every page of every region in memory.
    pub fn lock_memory(&self) -> std::io::Result<()> {
        self.header.lock_memory()?;
        self.pools.iter().try_for_each(|p| p.region.lock_memory())
    }

    /// Whether every superblock agrees with the latest announce (wire §15.1).
    pub fn is_intact(&self, announce: &PoolAnnounce) -> bool {
        let holds = |region: &Region, kind| region.superblock().check(&expected(announce, kind)).is_ok();
        let pool_holds = |announced: &AnnouncedPool| {
            let &AnnouncedPool { pool_id, stride_bytes, .. } = announced;
            let kind = RegionKind::PayloadPool { pool_id, stride_bytes };
            announced.nslots == self.nslots
                && self.pools.iter().any(|p| p.pool_id == pool_id && holds(&p.region, kind))
        };
        announce.pools.len() == self.pools.len()
            && holds(&self.header, RegionKind::HeaderRing)
            && announce.pools.iter().all(pool_holds)
    }

    /// Whether every superblock is still as it was when the epoch was mapped.
    pub fn is_as_mapped(&self) -> bool {
        let holds = |region: &Region, kind| {
            let (epoch, stream_id, nslots) = (self.epoch, self.stream_id, self.nslots);
            let expected = Expected { layout_version: LAYOUT_VERSION, epoch, stream_id, kind, nslots };
            region.superblock().check(&expected).is_ok()
        };
        let pool_holds = |pool: &Pool| {
            let (pool_id, stride_bytes) = (pool.pool_id, pool.stride_bytes);
            holds(&pool.region, RegionKind::PayloadPool { pool_id, stride_bytes })
        };
        holds(&self.header, RegionKind::HeaderRing) && self.pools.iter().all(pool_holds)
    }

    /// Whether memory of a region is lost, because its file was truncated: all reads give zeros from here on.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost.is_set()
    }

    /// Which region is lost, once one is.
    pub fn lost_reason(&self) -> Option<String> {
        if !self.is_lost() {
            return None;
        }
        let pool = self.pools.iter().find_map(|p| Some((p.pool_id, p.region.lost_at()?)));
        Some(match (self.header.lost_at(), pool) {
            (Some(at), _) => format!("the header ring was truncated: byte {at} of its file is gone"),
            (None, Some((id, at))) => format!("pool {id} was truncated: byte {at} of its file is gone"),
            (None, None) => "a region was truncated".to_owned(),
        })
    }

    /// Looks for files that were truncated, without waiting for a frame to find out. True if any is lost.
    pub fn probe(&self) -> bool {
        self.header.probe();
        self.pools.iter().for_each(|p| p.region.probe());
        self.is_lost()
    }

    /// Bytes of all mapped regions.
    pub fn bytes(&self) -> usize {
        self.header.len() + self.pools.iter().map(|p| p.region.len()).sum::<usize>()
    }

    /// Address and length of each mapped pool, smallest slots first.
    pub fn pool_memory(&self) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        self.pools.iter().map(|p| (p.region.at(0), p.region.len()))
    }

    pub fn activity_ns(&self) -> u64 {
        self.header.activity_ns()
    }

    pub fn pid(&self) -> u64 {
        self.header.superblock().pid
    }

    /// Whether another process took the regions over within the epoch (wire §15.14).
    pub fn owner_changed(&self) -> bool {
        self.pid() != self.owner_pid
    }

    /// Whether the regions were given to another epoch since they were mapped.
    pub fn is_reassigned(&self) -> bool {
        self.header.superblock().epoch != self.epoch
    }

    /// Refreshes the activity timestamp in every superblock.
    pub fn refresh_activity(&self, now_ns: u64) {
        self.header.set_activity_ns(now_ns);
        self.pools.iter().for_each(|p| p.region.set_activity_ns(now_ns));
    }

    #[inline]
    pub fn index(&self, seq: u64) -> u32 {
        (seq & u64::from(self.nslots - 1)) as u32
    }

    #[inline]
    fn slot_at(&self, index: u32) -> usize {
        SUPERBLOCK_SIZE + index as usize * HEADER_SLOT_BYTES
    }

    #[inline]
    pub fn commit_word(&self, seq: u64) -> &AtomicU64 {
        self.header.word(self.slot_at(self.index(seq)))
    }

    /// The sequence that the slot of `seq` belongs to now.
    pub fn seq_in_slot_of(&self, seq: u64) -> u64 {
        self.commit_word(seq).load(Ordering::Acquire) >> 1
    }

    /// The later sequence that overwrote `seq`, as its slot says. `None` if the slot holds no such sequence.
    ///
    /// Any process may have written the word, so a word alone moves a reader by no more than one ring.
    /// Further than that is believed only if the slot before it agrees: its writer fills slots in order.
    pub fn overwritten_by(&self, seq: u64) -> Option<u64> {
        let (newest, nslots) = (self.seq_in_slot_of(seq), u64::from(self.nslots));
        if newest <= seq || self.index(newest) != self.index(seq) {
            return None;
        }
        let is_alone = newest - seq > nslots && !self.has_reached(newest - 1);
        Some(if is_alone { seq + nslots } else { newest })
    }

    /// The newest committed sequence in the ring. Commit words that do not fit their slot are left out.
    ///
    /// Any process may have written a word. The writer fills slots in order, so one that is more than a ring ahead of
    /// all others is not believed.
    pub fn newest_committed(&self) -> Option<u64> {
        let committed = |index: u32| {
            let word = self.header.word(self.slot_at(index)).load(Ordering::Acquire);
            let seq = word >> 1;
            (word == seqlock::committed(seq) && self.index(seq) == index).then_some(seq)
        };
        let newest_below = |limit| (0..self.nslots).filter_map(committed).filter(|seq| *seq < limit).max();
        let mut newest = newest_below(u64::MAX)?;
        for _ in 0..MAX_FORGED {
            match newest_below(newest) {
                Some(next) if newest - next > u64::from(self.nslots) => newest = next,
                _ => break,
            }
        }
        Some(newest)
    }

    /// The first sequence from `from` on that was written, as far as the ring shows, and at most `seq`. `from` is
    /// later than all that the ring held at some time before.
    ///
    /// A ring that mirrors another host's begins anywhere, and continues anywhere: sequences before the first that it
    /// held were not published here. Once all slots have been written since, the ring shows no beginning.
    pub fn first_written(&self, from: u64, seq: u64) -> u64 {
        let holds = |s: &u64| {
            let word = self.commit_word(*s).load(Ordering::Acquire);
            word == seqlock::committed(*s) || (word == seqlock::in_progress(*s) && word != 0)
        };
        if seq <= from || holds(&from) {
            return from;
        }
        let oldest = from.max(seq.saturating_sub(u64::from(self.nslots) - 1));
        let first = (oldest..seq).find(holds).unwrap_or(seq);
        // Only then: what was searched may have been overwritten meanwhile.
        if self.is_written_since(from) { from } else { first }
    }

    /// Whether every slot was written with a sequence from `from` on. One stray word does not count: it is
    /// not where the oldest sequence meets the newest.
    fn is_written_since(&self, from: u64) -> bool {
        let word = |index: u32| self.header.word(self.slot_at(index)).load(Ordering::Acquire);
        let is_unwritten = |index: &u32| word(*index) == 0 || word(*index) >> 1 < from;
        let mut unwritten = (0..self.nslots).filter(is_unwritten);
        match (unwritten.next(), unwritten.next()) {
            (None, _) => true,
            (Some(index), None) => {
                let (before, after) = (
                    word(self.index(u64::from(index).wrapping_sub(1))),
                    word(self.index(u64::from(index) + 1)),
                );
                before < after
            }
            _ => false,
        }
    }

    /// Whether the slot of `seq` was opened for `seq` or for a later sequence of this slot. A descriptor is
    /// published after that, so one that fails this was not published by the owner of the regions.
    pub fn has_reached(&self, seq: u64) -> bool {
        let held = self.seq_in_slot_of(seq);
        (seq..=seq.saturating_add(MAX_BEHIND)).contains(&held) && self.index(held) == self.index(seq)
    }

    /// Whether the slot of `seq` holds this sequence, and no other one.
    pub fn holds(&self, seq: u64) -> bool {
        self.seq_in_slot_of(seq) == seq
    }

    /// The smallest pool whose stride holds `len` bytes (wire §9).
    #[inline]
    pub fn smallest_pool(&self, len: u64) -> Option<u16> {
        self.pools.iter().position(|p| u64::from(p.stride_bytes) >= len).map(|i| i as u16)
    }

    pub fn pool_id(&self, pool: u16) -> u16 {
        self.pools[usize::from(pool)].pool_id
    }

    /// Bytes from one slot of a pool to the next.
    pub fn pool_stride(&self, pool: u16) -> u32 {
        self.pools[usize::from(pool)].stride_bytes
    }

    /// The address of the payload of `seq` in a pool.
    #[inline]
    pub fn payload(&self, pool: u16, seq: u64) -> *mut u8 {
        let pool = &self.pools[usize::from(pool)];
        pool.region.at(SUPERBLOCK_SIZE + self.index(seq) as usize * pool.stride_bytes as usize)
    }

    /// Writer: where the payload of `seq` is written, and how.
    #[inline]
    pub fn target<'a>(&self, pool: u16, seq: u64, copy_thread: Option<&'a mut CopyThread>) -> Target<'a> {
        let is_beyond_cache = self.pools[usize::from(pool)].is_beyond_cache;
        Target::new(self.payload(pool, seq), is_beyond_cache, copy_thread)
    }

    /// Writer: prepares for the first frame: the copy of large ones is measured, once in a process.
    pub fn prepare_copies(&self) {
        if self.pools.iter().any(|p| p.stride_bytes as usize >= copy::LARGE_BYTES) {
            copy::choose_routine();
        }
    }

    /// Writer: opens the slot of `seq`. Readers of its previous frame drop that frame from here on.
    #[inline]
    pub fn begin(&self, seq: u64) {
        seqlock::begin(self.commit_word(seq), seq);
    }

    /// Writer: fills the header and commits. The payload is complete.
    #[inline]
    pub fn commit(&self, seq: u64, fields: &SlotFields) {
        self.describe(seq, fields);
        seqlock::commit(self.commit_word(seq), seq);
    }

    /// Writer: fills the header of an open slot. A consumer that reads progress reads it before the commit.
    ///
    /// A word that already has its value is not written. Frames of one stream differ mostly in the first of
    /// the header's four cache lines, so the others stay in the readers' caches.
    #[inline]
    pub fn describe(&self, seq: u64, fields: &SlotFields) {
        self.describe_bytes(seq, &fields.encode());
    }

    /// Writer: the same with the header of another host's slot. Its commit word is not copied.
    #[inline]
    pub fn describe_bytes(&self, seq: u64, bytes: &[u8; HEADER_SLOT_BYTES]) {
        let at = self.slot_at(self.index(seq));
        for (i, chunk) in bytes.as_chunks().0.iter().enumerate().skip(1) {
            let (word, value) = (self.header.word(at + 8 * i), u64::from_le_bytes(*chunk));
            // No other process writes here, so this value is what readers will read.
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Writer: prefetches those cache lines of the next slot that a reader may hold, while no frame waits.
    /// Otherwise a store to one of them would delay all later stores until the line has arrived.
    #[inline]
    pub fn prepare(&self, seq: u64, pool: u16, len: usize) {
        copy::prefetch_for_write(self.header.at(self.slot_at(self.index(seq))));
        let payload = self.payload(pool, seq);
        copy::prefetch_for_write(payload);
        copy::prefetch_for_write(payload.wrapping_add(len.saturating_sub(1)));
    }

    /// Writer: prefetches the complete next slot, when there is time for it. In a ring that is written
    /// rarely, a slot has left the caches before it is used again.
    pub fn prefetch_slot(&self, seq: u64, pool: u16, len: usize) {
        let header = self.header.at(self.slot_at(self.index(seq)));
        for (start, len) in [(header, HEADER_SLOT_BYTES), (self.payload(pool, seq), len)] {
            for at in (0..len).step_by(CACHE_LINE_BYTES) {
                copy::prefetch_for_write(start.wrapping_add(at));
            }
        }
    }

    /// Reader: validates the frame `seq` by every rule, without waiting and without touching its payload.
    #[inline]
    pub fn locate(&self, seq: u64) -> Result<SlotRef, DropReason> {
        let bytes =
            seqlock::read(self.commit_word(seq), seq, || self.slot_bytes(seq)).map_err(|refusal| {
                match refusal {
                    ReadRefusal::NotCommitted => DropReason::NotCommitted,
                    ReadRefusal::Overwritten => DropReason::Late,
                    ReadRefusal::Stale => DropReason::Stale,
                }
            })?;
        let slot_ref = self.validate_header(seq, &bytes)?;
        self.prefetch_ends(&slot_ref, seq);
        Ok(slot_ref)
    }

    /// Reader: the timestamp of the frame `seq`, if its header is like that of `frame`, a frame of this epoch with
    /// that `pattern`: `locate` would give the same but for the timestamp. `None`: only `locate` knows why.
    #[inline]
    pub fn locate_like(&self, frame: &SlotRef, pattern: &HeaderPattern, seq: u64) -> Option<u64> {
        seqlock::check(self.commit_word(seq), seq).ok()?;
        let (index, at) = (self.index(seq), self.slot_at(self.index(seq)));
        let word = |i: usize| self.header.word(at + 8 * i).load(Ordering::Relaxed);
        let timestamp_ns = pattern.timestamp_in(index, word)?;
        self.prefetch_ends(frame, seq);
        self.is_unchanged(seq).then_some(timestamp_ns)
    }

    /// The caller is about to read the frame, so the first and the last cache line are prefetched now.
    #[inline]
    fn prefetch_ends(&self, frame: &SlotRef, seq: u64) {
        let payload = self.payload(frame.pool, seq);
        copy::prefetch(payload);
        copy::prefetch(payload.wrapping_add((frame.info.values_len_bytes as usize).saturating_sub(1)));
    }

    /// Reader: prefetches the header of the frame `seq`.
    #[inline]
    pub fn prefetch_header(&self, seq: u64) {
        let header = self.header.at(self.slot_at(self.index(seq)));
        for line in (0..HEADER_SLOT_BYTES).step_by(CACHE_LINE_BYTES) {
            copy::prefetch(header.wrapping_add(line));
        }
    }

    /// Reader: validates the header of a frame that may still be written. Its timestamp and metadata version
    /// are final only after the commit.
    pub fn locate_in_progress(&self, seq: u64) -> Result<SlotRef, DropReason> {
        let word = self.commit_word(seq);
        let check = |belongs: bool| match self.seq_in_slot_of(seq) {
            _ if belongs => Ok(()),
            other if other < seq => Err(DropReason::Stale),
            _ => Err(DropReason::Late),
        };
        check(seqlock::belongs(word, seq))?;
        let bytes = self.slot_bytes(seq);
        check(seqlock::still_belongs(word, seq))?;
        self.validate_header(seq, &bytes)
    }

    /// Whether the slot still belongs to `seq`, complete or not: the check after the use of a partial frame.
    pub fn still_belongs(&self, seq: u64) -> bool {
        seqlock::still_belongs(self.commit_word(seq), seq) && !self.is_lost()
    }

    /// Reader: a copy of the frame's header. Valid only if `is_unchanged` returns true afterwards.
    pub fn header_bytes(&self, seq: u64) -> [u8; HEADER_SLOT_BYTES] {
        self.slot_bytes(seq)
    }

    /// Writer: commits an open slot whose header is written. False if the slot belongs to another frame by
    /// now.
    pub fn commit_described(&self, seq: u64) -> bool {
        let word = self.commit_word(seq);
        let is_ours = word.load(Ordering::Relaxed) == seqlock::in_progress(seq);
        if is_ours {
            seqlock::commit(word, seq);
        }
        is_ours
    }

    #[inline]
    fn slot_bytes(&self, seq: u64) -> [u8; HEADER_SLOT_BYTES] {
        let at = self.slot_at(self.index(seq));
        let mut bytes = [0u8; HEADER_SLOT_BYTES];
        for (i, chunk) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            *chunk = self.header.word(at + 8 * i).load(Ordering::Relaxed).to_le_bytes();
        }
        bytes
    }

    /// Applies the rules of a slot, and those of the pool that it names.
    #[inline]
    fn validate_header(&self, seq: u64, bytes: &[u8; HEADER_SLOT_BYTES]) -> Result<SlotRef, DropReason> {
        let info = slot::decode(bytes, self.index(seq))?;
        let pool = self.pools.iter().position(|p| p.pool_id == info.pool_id).ok_or(DropReason::PoolId)?;
        if info.values_len_bytes > self.pools[pool].stride_bytes {
            return Err(DropReason::ValuesLen);
        }
        Ok(SlotRef { seq, pool: pool as u16, info })
    }

    /// Whether the frame is unchanged: the check after use.
    #[inline]
    pub fn is_unchanged(&self, seq: u64) -> bool {
        // In this order: the payload was read before the mark, so a page that was lost in between shows here.
        seqlock::unchanged(self.commit_word(seq), seq) && !self.is_lost()
    }

    /// Copies the payload out; false if it was overwritten meanwhile.
    ///
    /// # Safety
    /// `dst` is writable for the payload's `values_len_bytes`.
    pub unsafe fn copy_out(&self, frame: &SlotRef, dst: *mut u8) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { self.copy_out_first(frame, dst, frame.info.values_len_bytes as usize) }
    }

    /// As [`Self::copy_out`], for the first `len` bytes of the payload.
    ///
    /// # Safety
    /// `dst` is writable for `len` bytes, which are no more than the payload's `values_len_bytes`.
    #[inline]
    pub unsafe fn copy_out_first(&self, frame: &SlotRef, dst: *mut u8, len: usize) -> bool {
        // SAFETY: `locate` held the length against the stride of this pool; `dst` by the caller.
        unsafe { copy::from_shared(dst, self.payload(frame.pool, frame.seq), len) };
        self.is_unchanged(frame.seq)
    }

    /// Copies the first `len` bytes of the frame `seq`, whose header is like that of `frame`, and gives its
    /// timestamp. `None` if the header differs, or the frame is not there or was overwritten meanwhile: then
    /// `locate` knows which, and what was copied counts for nothing.
    ///
    /// # Safety
    /// `pattern` is of the header of `frame`, a frame of this epoch; else as [`Self::copy_out_first`].
    #[inline]
    pub unsafe fn copy_out_like(
        &self,
        frame: &SlotRef,
        pattern: &HeaderPattern,
        seq: u64,
        dst: *mut u8,
        len: usize,
    ) -> Option<u64> {
        seqlock::check(self.commit_word(seq), seq).ok()?;
        let (index, at) = (self.index(seq), self.slot_at(self.index(seq)));
        let word = |i: usize| self.header.word(at + 8 * i).load(Ordering::Relaxed);
        let timestamp_ns = pattern.timestamp_in(index, word)?;
        // SAFETY: the pool and the length are those of the pattern, which `locate` held against the stride.
        unsafe { copy::from_shared(dst, self.payload(frame.pool, seq), len) };
        self.is_unchanged(seq).then_some(timestamp_ns)
    }

    /// Reader: prefetches what a batch reads of the frame `seq`.
    #[inline]
    pub fn prefetch_row(&self, seq: u64, pool: u16) {
        copy::prefetch(self.header.at(self.slot_at(self.index(seq))));
        copy::prefetch(self.payload(pool, seq));
    }

    /// As [`Self::copy_out`], and gives the payload's CRC32C, taken block by block while the copy is still in
    /// the nearest cache; None if it was overwritten meanwhile.
    ///
    /// # Safety
    /// `dst` is writable for the payload's `values_len_bytes`, and no other code uses it during the call.
    pub unsafe fn copy_out_summed(&self, frame: &SlotRef, dst: *mut u8) -> Option<u32> {
        let (src, len) = (self.payload(frame.pool, frame.seq), frame.info.values_len_bytes as usize);
        let mut sum = 0;
        for at in (0..len).step_by(SUMMED_BLOCK) {
            let block = SUMMED_BLOCK.min(len - at);
            // SAFETY: as for `copy_out`; what was just copied is the caller's own memory.
            let copied = unsafe {
                copy::from_shared(dst.add(at), src.add(at), block);
                std::slice::from_raw_parts(dst.add(at), block)
            };
            sum = checksum::crc32c_append(sum, copied);
        }
        self.is_unchanged(frame.seq).then_some(sum)
    }
}
