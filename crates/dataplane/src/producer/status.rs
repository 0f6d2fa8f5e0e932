//! The status report of a producer: committed = published + unpublished by reason + deferred.

use std::sync::atomic::{AtomicU64, Ordering};

use tensorpool_core::wire::status::ProducerStatus;

use super::Producer;

impl Producer {
    /// The event with the report. `None` before the producer had an epoch. `last_id`: its last id, used while
    /// it has no lease.
    pub(crate) fn status_event(
        &self,
        last_id: &mut Option<u32>,
        sources: &[u32],
        is_final: bool,
        wall_ns: u64,
    ) -> Option<Vec<u8>> {
        let id = self.producer_id();
        if id != 0 {
            *last_id = Some(id);
        }
        let producer_id = (*last_id)?;
        // Under the producer's lock, so that the counts are consistent.
        let state = self.state.lock_priority();
        let epoch = state.last_epoch?;
        let next_seq = state.sequencer.next_seq();
        let c = &self.counters;
        let n = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (committed, published, payload_bytes, holes) =
            (n(&c.committed), n(&c.published), n(&c.bytes), n(&c.holes));
        let unpublished = [
            ("back_pressured", n(&c.back_pressured)),
            ("not_connected", n(&c.not_connected)),
            ("closed", n(&c.closed)),
        ];
        let dropped = [
            ("no_pool", n(&c.no_pool)),
            ("slot_claimed", n(&c.slot_claimed)),
            ("detached", n(&c.detached)),
            ("abandoned", n(&c.abandoned)),
            ("after_close", n(&c.after_close)),
        ];
        drop(state);
        let lost: u64 = unpublished.iter().map(|(_, n)| n).sum();
        let status = ProducerStatus {
            stream_id: self.config.stream_id,
            producer_id,
            pid: std::process::id(),
            is_final,
            epoch,
            next_seq,
            committed,
            published,
            deferred: committed.saturating_sub(published + lost),
            holes,
            payload_bytes,
            unpublished: unpublished.as_slice(),
            dropped: dropped.as_slice(),
            sources,
        };
        Some(status.encode_event(wall_ns))
    }
}
