//! Commit of a slot and publication of its descriptor, in the order of sequences (wire §10.2.1, §15.18).

use std::sync::atomic::Ordering;

use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::slot::SlotFields;
use tensorpool_core::shm::tensor::TensorSpec;
use tensorpool_core::wire::descriptor::{FRAME_DESCRIPTOR_ENCODED_LENGTH, FrameDescriptor};

use super::{FrameStamp, OfferResult, Outcome, Pending, Producer, State, Uncounted, bump};
use crate::aeron::OfferError;

/// Bytes that stay in a core's caches until the next frame.
const MAX_PREFETCH_BYTES: u32 = 256 << 10;
const MIN_PAUSE_NS: u64 = 20_000;

impl Producer {
    #[inline]
    pub(super) fn commit(
        &self,
        state: &mut State,
        mapping: &MappedEpoch,
        pool: u16,
        seq: u64,
        spec: TensorSpec,
        values_len_bytes: u32,
        stamp: FrameStamp,
    ) -> OfferResult {
        let result = self.commit_uncounted(state, mapping, pool, seq, spec, values_len_bytes, stamp);
        self.settle(state);
        result
    }

    /// Counts the frames since the last call, before the lock is released.
    #[inline]
    pub(super) fn settle(&self, state: &mut State) {
        let Uncounted { committed, published, bytes } = std::mem::take(&mut state.uncounted);
        self.counters.committed.fetch_add(committed, Ordering::Relaxed);
        self.counters.published.fetch_add(published, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// As `commit`; the caller settles the counters.
    #[inline]
    pub(super) fn commit_uncounted(
        &self,
        state: &mut State,
        mapping: &MappedEpoch,
        pool: u16,
        seq: u64,
        spec: TensorSpec,
        values_len_bytes: u32,
        stamp: FrameStamp,
    ) -> OfferResult {
        let index = mapping.index(seq);
        let timestamp_ns = stamp.timestamp_ns.unwrap_or_else(|| {
            // A newer claim may have been settled first: timestamps must not go backwards (wire §15.7).
            let newer = state.sequencer.next_committed(seq).map(|s| state.pending[mapping.index(s) as usize]);
            let now_ns = self.config.clock.now_ns();
            newer.map_or(now_ns, |newer| newer.timestamp_ns.min(now_ns))
        });
        let fields = SlotFields {
            values_len_bytes,
            payload_slot: index,
            pool_id: mapping.pool_id(pool),
            timestamp_ns,
            meta_version: stamp.meta_version,
            tensor: spec,
        };
        mapping.commit(seq, &fields);
        state.uncounted.committed += 1;
        state.uncounted.bytes += u64::from(values_len_bytes);
        let FrameStamp { trace_id, meta_version, .. } = stamp;
        state.pending[index as usize] = Pending { trace_id, meta_version, timestamp_ns };
        state.sequencer.commit(seq);
        let mut outcome = Outcome::Deferred;
        while let Some(released) = state.sequencer.release() {
            let result = self.publish(state, mapping, released);
            if released == seq {
                outcome = result;
            }
        }
        // A timestamp of the source says nothing about the pace.
        let now_ns = if stamp.timestamp_ns.is_none() { timestamp_ns } else { 0 };
        self.prefetch_next(state, mapping, pool, seq + 1, values_len_bytes, now_ns);
        OfferResult { outcome, seq: Some(seq), epoch: Some(mapping.epoch) }
    }

    /// Prefetches the next slot, as far as the pace leaves time for it.
    #[inline]
    fn prefetch_next(
        &self,
        state: &mut State,
        mapping: &MappedEpoch,
        pool: u16,
        seq: u64,
        len: u32,
        now_ns: u64,
    ) {
        let pause_ns = now_ns.saturating_sub(state.last_frame_ns);
        state.last_frame_ns = now_ns;
        // Prefetching a slot from memory takes about a nanosecond per 16 bytes, a small part of the pause.
        if len <= MAX_PREFETCH_BYTES && pause_ns >= MIN_PAUSE_NS.max(u64::from(len)) {
            mapping.prefetch_slot(seq, pool, len as usize);
        } else {
            mapping.prepare(seq, pool, len as usize);
        }
    }

    pub(super) fn release(&self, state: &mut State) {
        let Some(mapping) = state.mapping.clone() else {
            return;
        };
        while let Some(seq) = state.sequencer.release() {
            self.publish(state, &mapping, seq);
        }
        self.settle(state);
    }

    /// Publishes the descriptor, only after the commit (wire §10.2.1).
    #[inline]
    pub(super) fn publish(&self, state: &mut State, mapping: &MappedEpoch, seq: u64) -> Outcome {
        let Pending { trace_id, meta_version, timestamp_ns } = state.pending[mapping.index(seq) as usize];
        let descriptor = FrameDescriptor {
            stream_id: mapping.stream_id,
            epoch: mapping.epoch,
            seq,
            timestamp_ns: self.config.publish_timestamps.then(|| self.config.clock.now_ns()),
            meta_version: (meta_version != 0).then_some(meta_version),
            trace_id,
        };
        let sent = match state.publication.get() {
            Some(p) => p.claim(FRAME_DESCRIPTOR_ENCODED_LENGTH, |bytes| descriptor.encode(bytes)),
            None => Err(OfferError::Closed),
        };
        // A consumer with a per-consumer stream does not read the shared one.
        let was_sent_per_consumer = state.per_consumer.publish(
            &descriptor,
            descriptor.timestamp_ns.unwrap_or(timestamp_ns),
            &self.per_consumer_counters,
        );
        let (outcome, counter) = match sent {
            Err(OfferError::NotConnected) if !was_sent_per_consumer => {
                (Outcome::NotConnected, &self.counters.not_connected)
            }
            Ok(_) | Err(OfferError::NotConnected) => {
                state.uncounted.published += 1;
                return Outcome::Published;
            }
            Err(OfferError::BackPressured) => (Outcome::BackPressured, &self.counters.back_pressured),
            Err(OfferError::Closed) => (Outcome::Closed, &self.counters.closed),
        };
        bump(counter);
        outcome
    }
}
