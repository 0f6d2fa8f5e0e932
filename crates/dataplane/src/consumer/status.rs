//! The status report of a consumer: span = received + dropped by reason (wire §15.4).

use std::sync::atomic::Ordering;

use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::wire::status::{ConsumerStatus, LatencyStatus};

use super::Consumer;

impl Consumer {
    /// The event with the report. `None` before the consumer had an id. `last_id`: its last id, used while it
    /// has none.
    pub(crate) fn status_event(
        &self,
        last_id: &mut Option<u32>,
        latency: Option<LatencyStatus>,
        label: &str,
        is_final: bool,
        wall_ns: u64,
    ) -> Option<Vec<u8>> {
        *last_id = self.consumer_id().or(*last_id);
        let consumer_id = (*last_id)?;
        // Under the reader's lock, so that the counts are consistent.
        let state = self.state.lock_priority();
        let (epoch, tracker) = (state.reader.epoch.tracked, &state.reader.epoch.tracker);
        let (first_seq, polls) = (tracker.first_seq(), state.polls);
        // A frame that is held back counts as not read yet: so the counts of the report add up.
        let held = u64::from(self.counters.is_holding.load(Ordering::Relaxed));
        let last_seq = tracker.last_seq().and_then(|seq| seq.checked_sub(held));
        let received = self.counters.received.load(Ordering::Relaxed);
        let span = self.counters.span.load(Ordering::Relaxed) - held;
        let (dropped, outside) = (self.reasons(true), self.reasons(false));
        drop(state);
        let status = ConsumerStatus {
            stream_id: self.config.stream_id,
            consumer_id,
            pid: std::process::id(),
            is_final,
            epoch,
            first_seq,
            last_seq,
            span,
            received,
            polls,
            latency,
            dropped: dropped.as_slice(),
            outside: outside.as_slice(),
            label,
        };
        Some(status.encode_event(wall_ns))
    }

    fn reasons(&self, in_span: bool) -> Vec<(&'static str, u64)> {
        let reasons = DropReason::ALL.iter().filter(|reason| reason.in_span() == in_span);
        reasons.map(|reason| (reason.as_str(), self.counters.drops.get(*reason))).collect()
    }
}
