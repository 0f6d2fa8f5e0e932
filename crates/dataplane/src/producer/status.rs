//! The status report of a producer: committed = published + unpublished by reason.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Producer;

impl Producer {
    /// The report as JSON. `None` before the producer had an epoch. `last_id`: its last id, used while it has
    /// no lease.
    pub(crate) fn status_json(
        &self,
        last_id: &mut Option<u32>,
        sources: &[u32],
        is_final: bool,
    ) -> Option<String> {
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
        let (committed, published, bytes, holes) =
            (n(&c.committed), n(&c.published), n(&c.bytes), n(&c.holes));
        let lost = [
            ("back_pressured", n(&c.back_pressured)),
            ("not_connected", n(&c.not_connected)),
            ("closed", n(&c.closed)),
        ];
        let never = [
            ("no_pool", n(&c.no_pool)),
            ("slot_claimed", n(&c.slot_claimed)),
            ("detached", n(&c.detached)),
            ("abandoned", n(&c.abandoned)),
            ("after_close", n(&c.after_close)),
        ];
        drop(state);
        let unpublished: u64 = lost.iter().map(|(_, n)| n).sum();
        let deferred = committed.saturating_sub(published + unpublished);
        Some(format!(
            r#"{{"stream_id":{},"producer_id":{producer_id},"pid":{},"epoch":"{epoch}","next_seq":"{next_seq}","committed":{committed},"published":{published},"unpublished":{{{}}},"deferred":{deferred},"dropped":{{{}}},"holes":{holes},"bytes":"{bytes}","sources":{sources:?},"final":{is_final}}}"#,
            self.config.stream_id,
            std::process::id(),
            named(&lost),
            named(&never),
        ))
    }
}

fn named(counts: &[(&str, u64)]) -> String {
    let some: Vec<_> =
        counts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!(r#""{name}":{n}"#)).collect();
    some.join(",")
}
