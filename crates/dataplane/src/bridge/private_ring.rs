//! A private ring: the frames of a source for one consumer of this process, in anonymous memory, with a queue
//! of descriptors (wire §15.12).
//!
//! The receiver's thread writes, the consumer's threads read, by the rules of any other slot: a slow reader
//! finds its frames overwritten.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorpool_core::bridge::assembly::Loss;
use tensorpool_core::bridge::source::SourceLayout;
use tensorpool_core::os::time::monotonic_ns;
use tensorpool_core::shm::create::PoolSpec;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::wire::descriptor::FrameDescriptor;
use tensorpool_core::wire::layout::*;

use crate::producer::ClaimedSlot;

/// Descriptors that wait to be read. The slots of older ones are overwritten.
const MAX_WAITING: usize = 1024;

pub struct PrivateRing {
    stream_id: u32,
    /// Bound on the memory that an announce can allocate here.
    max_bytes: u64,
    state: Mutex<State>,
    waiting: AtomicUsize,
}

#[derive(Default)]
struct State {
    mapping: Option<Arc<MappedEpoch>>,
    /// Each with its mapping, because the source's epoch may change in between.
    queue: VecDeque<(Arc<MappedEpoch>, FrameDescriptor)>,
    refused: Option<String>,
    last_refused: Option<String>,
}

impl State {
    fn refuse(&mut self, why: String) {
        if self.last_refused.as_ref() != Some(&why) {
            (self.last_refused, self.refused) = (Some(why.clone()), Some(why));
        }
    }
}

impl PrivateRing {
    pub fn new(stream_id: u32, max_bytes: u64) -> Self {
        let queue = VecDeque::with_capacity(MAX_WAITING);
        let state = Mutex::new(State { queue, ..State::default() });
        Self { stream_id, max_bytes, state, waiting: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory for an epoch of the source, with its epoch number. False: it is refused.
    pub(super) fn map(&self, layout: &SourceLayout) -> bool {
        let pools = layout.pools.iter();
        let pools: Vec<_> =
            pools.map(|p| PoolSpec { pool_id: p.pool_id, stride_bytes: p.stride_bytes }).collect();
        let opened =
            MappedEpoch::anonymous(self.stream_id, layout.epoch, layout.nslots, &pools, self.max_bytes);
        let mut state = self.lock();
        match opened {
            Ok(mapping) => state.mapping = Some(Arc::new(mapping)),
            Err(why) => {
                state.mapping = None;
                state.refuse(why);
            }
        }
        state.mapping.is_some()
    }

    /// Records why no frames can come.
    pub fn refuse(&self, why: String) {
        self.lock().refuse(why);
    }

    /// The current mapping.
    pub fn mapping(&self) -> Option<Arc<MappedEpoch>> {
        self.lock().mapping.clone()
    }

    /// Why no frames come. Each reason is returned once.
    pub fn take_refused(&self) -> Option<String> {
        self.lock().refused.take()
    }

    pub(super) fn claim_at(&self, seq: u64, len: u32) -> Result<ClaimedSlot, Loss> {
        let mapping = self.mapping().ok_or(Loss::Detached)?;
        ClaimedSlot::open(mapping, seq, len).ok_or(Loss::NoPool)
    }

    pub(super) fn commit(&self, slot: &ClaimedSlot, trace_id: u64) -> Result<(), Loss> {
        let (mapping, seq) = (slot.mapping(), slot.seq);
        let header = mapping.header_bytes(seq);
        if !mapping.commit_described(seq) {
            return Err(Loss::Superseded);
        }
        let descriptor = FrameDescriptor {
            stream_id: self.stream_id,
            epoch: mapping.epoch,
            seq,
            // The source's clock is another host's: the frame is published here now.
            timestamp_ns: Some(monotonic_ns()),
            meta_version: Some(get_u32(&header, SLOT_HEADER_META_VERSION)),
            trace_id,
        };
        self.push(mapping.clone(), descriptor);
        Ok(())
    }

    pub(crate) fn push(&self, mapping: Arc<MappedEpoch>, descriptor: FrameDescriptor) {
        let mut state = self.lock();
        if state.queue.len() == MAX_WAITING {
            state.queue.pop_front();
        }
        state.queue.push_back((mapping, descriptor));
        self.waiting.store(state.queue.len(), Ordering::Release);
    }

    /// The next complete frame, and its mapping.
    pub(crate) fn next(&self) -> Option<(Arc<MappedEpoch>, FrameDescriptor)> {
        if !self.has_any() {
            return None;
        }
        let mut state = self.lock();
        let next = state.queue.pop_front();
        self.waiting.store(state.queue.len(), Ordering::Release);
        next
    }

    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }
}
