//! Slots of given sequences, which a bridge writes frames into (bridge §6).
//!
//! Chunks are written while the commit word says that the slot is being written, so readers drop it. One
//! thread writes the frames of a stream, and never two into one slot at a time.

use std::sync::Arc;

use tensorpool_core::bridge::source::local_header;
use tensorpool_core::shm::copy;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::wire::layout::*;

use super::{Outcome, Pending, Producer, bump};

/// An open slot of a given sequence. Dropped without a commit, it stays unreadable until a later frame uses
/// it.
pub struct ClaimedSlot {
    pub seq: u64,
    pool: u16,
    len: u32,
    mapping: Arc<MappedEpoch>,
}

impl ClaimedSlot {
    /// Opens the slot of `seq` in the smallest pool that holds `len` bytes. `None` if none does.
    pub(crate) fn open(mapping: Arc<MappedEpoch>, seq: u64, len: u32) -> Option<Self> {
        let pool = mapping.smallest_pool(u64::from(len))?;
        mapping.begin(seq);
        Some(Self { seq, pool, len, mapping })
    }

    pub fn mapping(&self) -> &Arc<MappedEpoch> {
        &self.mapping
    }

    pub fn epoch(&self) -> u64 {
        self.mapping.epoch
    }

    pub fn nslots(&self) -> u32 {
        self.mapping.nslots
    }

    pub fn payload_length(&self) -> u32 {
        self.len
    }

    fn at(&self, offset: u32, len: usize) -> *mut u8 {
        assert!(offset as usize + len <= self.len as usize, "inside the payload");
        self.mapping.payload(self.pool, self.seq).wrapping_add(offset as usize)
    }

    pub fn write(&mut self, offset: u32, bytes: &[u8]) {
        // SAFETY: the slot holds the payload's length, against which offset and length were held.
        unsafe { copy::to_shared(self.at(offset, bytes.len()), bytes.as_ptr(), bytes.len()) };
    }

    /// Copies the whole payload from shared memory of another stream, whose writer may change it meanwhile: the
    /// caller checks afterwards that it did not.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes.
    pub unsafe fn copy_from(&mut self, src: *const u8, len: u32) {
        assert!(len <= self.len, "inside the payload");
        // SAFETY: the slot holds the payload's length, and `src` by the caller; they are of different streams.
        unsafe { self.mapping.target(self.pool, self.seq, None).write(src, len as usize) };
    }

    pub fn holds(&self, offset: u32, bytes: &[u8]) -> bool {
        // SAFETY: as above; only this producer writes here, and other processes only read.
        unsafe { std::slice::from_raw_parts(self.at(offset, bytes.len()), bytes.len()) == bytes }
    }

    /// Writes the header with the slot's own pool and index.
    pub fn describe(&mut self, header: &[u8; HEADER_SLOT_BYTES]) {
        let pool_id = self.mapping.pool_id(self.pool);
        let local = local_header(header, pool_id, self.mapping.index(self.seq));
        self.mapping.describe_bytes(self.seq, &local);
    }
}

impl Producer {
    pub fn nslots(&self) -> Option<u32> {
        self.lock().mapping.as_ref().map(|m| m.nslots)
    }

    /// Opens the slot of `seq` in the smallest pool that holds `len` bytes.
    pub fn claim_at(&self, seq: u64, len: u32) -> Result<ClaimedSlot, Outcome> {
        let Some(mapping) = self.lock().mapping.clone().filter(|m| !m.is_lost()) else {
            return Err(self.no_regions());
        };
        ClaimedSlot::open(mapping, seq, len).ok_or_else(|| {
            bump(&self.counters.no_pool);
            Outcome::NoPool
        })
    }

    /// Commits a complete frame and publishes it.
    pub fn commit_at(&self, slot: &ClaimedSlot, trace_id: u64) -> Result<Outcome, Outcome> {
        let mut state = self.lock();
        let ClaimedSlot { seq, len, mapping, .. } = slot;
        if !state.mapping.as_ref().is_some_and(|m| Arc::ptr_eq(m, mapping)) {
            return Err(self.no_regions());
        }
        let header = mapping.header_bytes(*seq);
        if !mapping.commit_described(*seq) {
            return Err(Outcome::SlotClaimed);
        }
        state.uncounted.committed += 1;
        state.uncounted.bytes += u64::from(*len);
        let pending = Pending {
            trace_id,
            meta_version: get_u32(&header, SLOT_HEADER_META_VERSION),
            timestamp_ns: get_u64(&header, SLOT_HEADER_TIMESTAMP_NS),
        };
        state.pending[mapping.index(*seq) as usize] = pending;
        state.sequencer.jump_past(*seq);
        let outcome = self.publish(&mut state, mapping, *seq);
        self.settle(&mut state);
        Ok(outcome)
    }
}
