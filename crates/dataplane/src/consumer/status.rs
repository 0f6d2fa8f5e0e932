//! The status report of a consumer: span = received + dropped by reason (wire §15.4).

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use tensorpool_core::drop_reason::DropReason;

use super::Consumer;

impl Consumer {
    /// The report as JSON, without reasons of count 0. `None` before the consumer had an id. `last_id`: its
    /// last id, used while it has none.
    pub(crate) fn status_json(&self, last_id: &mut Option<u32>, is_final: bool) -> Option<String> {
        *last_id = self.consumer_id().or(*last_id);
        let consumer_id = (*last_id)?;
        // Under the reader's lock, so that the counts are consistent.
        let state = self.state.lock_priority();
        let (epoch, tracker) = (state.tracked, &state.tracker);
        let counters = &self.counters;
        let received = counters.received.load(Ordering::Relaxed);
        let span = counters.span.load(Ordering::Relaxed);
        let (dropped, outside) = (self.reasons(true), self.reasons(false));
        let (first, last, polls) = (tracker.first_seq(), tracker.last_seq(), state.polls);
        drop(state);
        let number = |n: Option<u64>| n.map_or("null".to_owned(), |n| format!("\"{n}\""));
        Some(format!(
            r#"{{"stream_id":{},"consumer_id":{consumer_id},"pid":{},"epoch":{},"first_seq":{},"last_seq":{},"span":{span},"received":{received},"dropped":{{{dropped}}},"outside":{{{outside}}},"looks":{polls},"final":{is_final}}}"#,
            self.config.stream_id,
            std::process::id(),
            number(epoch),
            number(first),
            number(last),
        ))
    }

    fn reasons(&self, in_span: bool) -> String {
        let mut out = String::new();
        for reason in DropReason::ALL.iter().filter(|r| r.in_span() == in_span) {
            let count = self.counters.drops.get(*reason);
            if count > 0 {
                let comma = if out.is_empty() { "" } else { "," };
                let _ = write!(out, r#"{comma}"{}":{count}"#, reason.as_str());
            }
        }
        out
    }
}
