//! Progress of frames that are still being written, for consumers that requested it (wire §10.2.2).
//!
//! The thread that writes a slot sends an update when it reports its filled bytes, if the lock is free. The
//! conductor sends what that thread could not send, and what became due later.

use std::sync::atomic::Ordering;

use tensorpool_core::os::time::monotonic_ns;
use tensorpool_core::producer::progress_schedule::{ProgressPace, ProgressSchedule, ProgressUpdate};
use tensorpool_core::shm::slot::SlotFields;
use tensorpool_core::shm::tensor::TensorSpec;
use tensorpool_core::wire::control::FrameProgress;

use super::{Claim, Config, FrameStamp, Outcome, Producer, State};
use crate::aeron::{AeronError, Client, Publication};
use crate::conductor::handle::Handle;

/// How often the progress consumers are counted again, in addition to each hello.
const COUNT_NS: u64 = 100_000_000;

#[derive(Default)]
pub(super) struct ProgressSender {
    pub(super) schedule: ProgressSchedule,
    /// For consumers without a per-consumer stream.
    shared: Handle<Publication>,
    wants_shared: bool,
}

impl ProgressSender {
    /// True once every handle is ready.
    pub(super) fn advance(&mut self, client: &Client, config: &Config) -> Result<bool, AeronError> {
        if !self.wants_shared {
            self.shared = Handle::None;
            return Ok(true);
        }
        self.shared.advance(|| client.add_publication(&config.control_channel, config.control_stream_id))?;
        Ok(self.shared.get().is_some())
    }

    pub(super) fn disconnect(&mut self) {
        self.shared = Handle::None;
    }
}

impl Producer {
    /// Claims the next slot, and sends its progress. Its header is written at once, because a reader of a
    /// partial frame needs it. `stride` is the length of a row, or of another unit that is written in order.
    pub fn claim_with_progress(
        &self,
        spec: TensorSpec,
        values_len: u64,
        stride: u32,
        stamp: FrameStamp,
    ) -> Result<Claim, Outcome> {
        let mut state = self.lock();
        let (mapping, pool, seq) = self.take(&mut state, values_len)?;
        mapping.begin(seq);
        let fields = SlotFields {
            values_len_bytes: values_len as u32,
            payload_slot: mapping.index(seq),
            pool_id: mapping.pool_id(pool),
            timestamp_ns: stamp.timestamp_ns.unwrap_or_else(|| self.config.clock.now_ns()),
            meta_version: stamp.meta_version,
            tensor: spec,
        };
        mapping.describe(seq, &fields);
        let filled = Some(state.progress.schedule.begin(seq, stride));
        self.send_due_progress(&mut state);
        Ok(Claim { seq, spec, values_len: values_len as u32, pool, mapping, filled })
    }

    /// Whether a consumer asks for progress, and the publications are ready.
    pub fn has_progress_consumers(&self) -> bool {
        self.has_progress_consumers.load(Ordering::Relaxed) && self.connected.load(Ordering::Relaxed)
    }

    /// The first `bytes` of the claim are written. Never waits.
    pub fn advance(&self, claim: &Claim, bytes: u64) {
        let Some(filled) = &claim.filled else { return };
        filled.raise(bytes.min(u64::from(claim.values_len)));
        if self.has_progress_consumers.load(Ordering::Relaxed)
            && let Some(mut state) = self.state.try_lock()
        {
            self.send_due_progress(&mut state);
        }
    }

    pub(super) fn send_complete(&self, state: &mut State, claim: &Claim) {
        if let Some(update) = state.progress.schedule.complete(claim.seq, u64::from(claim.values_len)) {
            self.send_update(state, update);
        }
    }

    fn send_due_progress(&self, state: &mut State) {
        if !self.has_progress_consumers.load(Ordering::Relaxed) {
            return;
        }
        let now_ns = monotonic_ns();
        while let Some(update) = state.progress.schedule.next(now_ns) {
            self.send_update(state, update);
        }
    }

    fn send_update(&self, state: &mut State, update: ProgressUpdate) {
        let Some(mapping) = &state.mapping else { return };
        let message = FrameProgress {
            stream_id: mapping.stream_id,
            epoch: mapping.epoch,
            seq: update.seq,
            payload_bytes_filled: update.filled,
            state: update.state,
        }
        .encode();
        state.per_consumer.publish_progress(&message, &self.per_consumer_counters);
        if state.progress.wants_shared {
            let publication = state.progress.shared.get();
            self.per_consumer_counters.count_progress(publication.is_some_and(|p| p.offer(&message).is_ok()));
        }
    }

    /// Updates the progress pace from the consumers' hints. On the conductor's thread.
    pub(super) fn update_progress_pace(&self, now_ns: u64) {
        if now_ns >= self.next_progress_count_ns.load(Ordering::Relaxed) {
            self.next_progress_count_ns.store(now_ns + COUNT_NS, Ordering::Relaxed);
            let (hints, wants_shared) = {
                let grants = self.grants();
                (grants.progress(), grants.wants_shared_progress())
            };
            let pace = hints.map(|hints| ProgressPace::from_hints(hints, self.config.progress_limits));
            if pace.is_some() || self.has_progress_consumers.load(Ordering::Relaxed) {
                let mut state = self.state.lock_priority();
                state.progress.schedule.set_pace(pace);
                if std::mem::replace(&mut state.progress.wants_shared, wants_shared) != wants_shared {
                    self.connected.store(false, Ordering::Relaxed);
                }
                self.has_progress_consumers.store(pace.is_some(), Ordering::Relaxed);
            }
        }
        if self.has_progress_consumers.load(Ordering::Relaxed) {
            let mut state = self.state.lock_priority();
            if !state.progress.schedule.is_idle() {
                self.send_due_progress(&mut state);
            }
        }
    }
}
