//! Rate limit by the frames' own timestamps (wire §11): of a per-consumer stream in the producer, and of a rate
//! that is no whole number in the consumer, because the wire has whole numbers only. Pure.
//!
//! The gate keeps a fixed schedule: a frame may come up to half an interval early, and the delay of a late
//! frame is not added to the next. So the rate over seconds is the requested one, however unsteady the source
//! is. After a pause the schedule starts again, so that no burst follows.

#[derive(Clone, Debug)]
pub struct RateGate {
    interval_ns: u64,
    next_ns: Option<u64>,
}

impl RateGate {
    /// `None` for 0, which means no limit.
    pub fn new(max_rate_hz: u32) -> Option<Self> {
        (max_rate_hz > 0).then(|| Self::every(1_000_000_000 / u64::from(max_rate_hz)))
    }

    /// One frame in `interval_ns`.
    pub fn every(interval_ns: u64) -> Self {
        Self { interval_ns, next_ns: None }
    }

    /// Whether a frame with this timestamp may pass.
    pub fn admits(&mut self, timestamp_ns: u64) -> bool {
        let Some(next_ns) = self.next_ns else {
            self.next_ns = Some(timestamp_ns.saturating_add(self.interval_ns));
            return true;
        };
        // A source whose clock was set back would otherwise be blocked until it has caught up.
        let set_back = timestamp_ns.saturating_add(self.interval_ns.saturating_mul(2)) < next_ns;
        if timestamp_ns.saturating_add(self.interval_ns / 2) < next_ns && !set_back {
            return false;
        }
        let on_schedule = next_ns.saturating_add(self.interval_ns);
        let fell_behind = on_schedule <= timestamp_ns;
        let restarted_ns = timestamp_ns.saturating_add(self.interval_ns);
        self.next_ns = Some(if fell_behind || set_back { restarted_ns } else { on_schedule });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;

    fn passed(max_rate_hz: u32, times: impl Iterator<Item = u64>) -> usize {
        let mut gate = RateGate::new(max_rate_hz).expect("a limit");
        times.filter(|t| gate.admits(*t)).count()
    }

    #[test]
    fn rate_zero_is_no_limit() {
        assert!(RateGate::new(0).is_none());
    }

    #[test]
    fn interval_may_be_longer_than_a_second() {
        let mut gate = RateGate::every(2 * S);
        // The second may come half an interval early; from then on it is one in two seconds.
        let times: Vec<u64> = (10..110).filter(|tenth| gate.admits(tenth * S / 10)).collect();
        assert_eq!(times, [10, 20, 40, 60, 80, 100]);
        assert!(RateGate::every(u64::MAX).admits(u64::MAX));
    }

    #[test]
    fn no_burst_follows_a_pause() {
        let steady = (0..100).map(|i| i * S / 100);
        let after = (0..100).map(|i| 60 * S + i * S / 100);
        let count = passed(10, steady.chain(after));
        assert!((20..=22).contains(&count), "{count}");
    }

    #[test]
    fn clock_set_back_does_not_stop_the_stream() {
        let count = passed(10, (0..10).map(|i| 100 * S + i * S / 10).chain((0..10).map(|i| i * S / 10)));
        assert!(count >= 18, "{count}");
    }

    proptest! {
        /// The source sets timestamps, so they may have any value.
        #[test]
        fn any_timestamps_are_handled(max_hz in 1u32.., times in proptest::collection::vec(any::<u64>(), 0..20)) {
            let count = passed(max_hz, times.iter().copied());
            prop_assert_eq!(count > 0, !times.is_empty());
        }

        /// Over ten seconds: no more than the limit, and no less than what limit and source allow.
        #[test]
        fn rate_equals_the_request(
            max_hz in 1u32..200,
            source_hz in 1u32..2000,
            jitter in proptest::collection::vec(0u64..1000, 64),
        ) {
            let period = S / u64::from(source_hz);
            let times = (0..10 * u64::from(source_hz))
                .map(|i| S + i * period + jitter[i as usize % 64] * period / 10_000);
            let count = passed(max_hz, times) as f64 / 10.0;
            let (limit, least) = (f64::from(max_hz), f64::from(max_hz.min(source_hz)));
            // One frame more or less is the granularity of counting at all.
            prop_assert!(count <= 1.02 * limit + 0.1, "{} of {}", count, limit);
            prop_assert!(count >= 0.98 * least - 0.1, "{} of {}", count, least);
        }
    }
}
