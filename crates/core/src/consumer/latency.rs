//! Latency of frames from their publication to the consumer (wire §15.7). Any thread.
//!
//! Counted from the timestamp of the descriptor where there is one, else from that of the slot, which is the
//! time of the commit unless the source set it. Times that cannot be of this host's clock are left out and
//! counted.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::histogram::{HIGHEST, Histogram, Intervals, Summary};
use crate::os::time::{monotonic_ns, realtime_ns};
use crate::wire::layout::CLOCK_DOMAIN_REALTIME_SYNCED;
use crate::wire::status::TimeOrigin;

/// The time from `stamp_ns` to now. `None`: in the future, or so long ago that it is of another clock.
#[inline]
pub const fn elapsed(stamp_ns: u64, now_ns: u64) -> Option<u64> {
    match now_ns.checked_sub(stamp_ns) {
        Some(ns) if ns <= HIGHEST => Some(ns),
        _ => None,
    }
}

/// A consumer's latency in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct LatencyReport {
    pub since: TimeOrigin,
    /// Since the beginning, and over the last complete interval.
    pub life: Summary,
    pub last: Summary,
    /// Frames whose timestamps could not be compared.
    pub left_out: u64,
}

#[derive(Default)]
struct IntervalState {
    intervals: Intervals,
    last: Summary,
    count: u64,
}

#[derive(Default)]
pub struct Latency {
    elapsed_ns: Histogram,
    left_out: AtomicU64,
    by_publish: AtomicBool,
    by_capture: AtomicBool,
    is_realtime: AtomicBool,
    ended: Mutex<IntervalState>,
}

impl fmt::Debug for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Latency").field(&self.elapsed_ns.summary()).finish()
    }
}

impl Latency {
    /// Whether the timestamps are of the synchronised wall clock.
    pub fn is_realtime(&self) -> bool {
        self.is_realtime.load(Ordering::Relaxed)
    }

    /// Selects the clock of the announced domain.
    pub fn follow_clock(&self, clock_domain: u8) {
        self.is_realtime.store(clock_domain == CLOCK_DOMAIN_REALTIME_SYNCED, Ordering::Relaxed);
    }

    /// The current time on that clock.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        if self.is_realtime.load(Ordering::Relaxed) { realtime_ns() } else { monotonic_ns() }
    }

    /// Records a received frame. Allocates nothing, takes no lock.
    #[inline]
    pub fn record(&self, publish_ns: Option<u64>, capture_ns: u64, now_ns: u64) {
        self.record_many(publish_ns, capture_ns, now_ns, 1);
    }

    /// Records `count` frames that have the same times.
    #[inline]
    pub fn record_many(&self, publish_ns: Option<u64>, capture_ns: u64, now_ns: u64, count: u64) {
        let (stamp_ns, kind) = match publish_ns {
            Some(ns) => (ns, &self.by_publish),
            None => (capture_ns, &self.by_capture),
        };
        let Some(ns) = elapsed(stamp_ns, now_ns) else {
            self.left_out.fetch_add(count, Ordering::Relaxed);
            return;
        };
        if !kind.load(Ordering::Relaxed) {
            kind.store(true, Ordering::Relaxed);
        }
        self.elapsed_ns.record_many(ns, count);
    }

    /// Ends an interval. `report` returns it until the next one ends.
    pub fn close_interval(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let IntervalState { intervals, last, count } = &mut *ended;
        *last = intervals.close(&self.elapsed_ns);
        *count += 1;
    }

    /// How many intervals ended.
    pub fn intervals(&self) -> u64 {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    pub fn report(&self) -> LatencyReport {
        let has = |kind: &AtomicBool| kind.load(Ordering::Relaxed);
        let since = match (has(&self.by_publish), has(&self.by_capture)) {
            (false, false) => TimeOrigin::Nothing,
            (true, false) => TimeOrigin::Publish,
            (false, true) => TimeOrigin::Capture,
            (true, true) => TimeOrigin::Mixed,
        };
        let last = self.ended.lock().unwrap_or_else(PoisonError::into_inner).last;
        let left_out = self.left_out.load(Ordering::Relaxed);
        LatencyReport { since, life: self.elapsed_ns.summary(), last, left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::layout::{CLOCK_DOMAIN_MONOTONIC, NULL_U64};

    const S: u64 = 1_000_000_000;

    #[test]
    fn implausible_times_are_left_out_and_counted() {
        let latency = Latency::default();
        let now = 1_000_000 * S;
        for capture in [now + 1, NULL_U64, 0, now - 69 * S] {
            latency.record(None, capture, now);
        }
        let report = latency.report();
        assert_eq!((report.life.count, report.left_out, report.since), (0, 4, TimeOrigin::Nothing));
        latency.record(None, now - 68 * S, now);
        assert_eq!(latency.report().life.count, 1);
    }

    /// requirement: wire-10.2.1-4
    #[test]
    fn publish_time_takes_precedence() {
        let latency = Latency::default();
        latency.record(Some(100), 7, 150);
        let report = latency.report();
        assert_eq!((report.since, report.life.max), (TimeOrigin::Publish, 50));
        latency.record(None, 100, 110);
        assert_eq!(latency.report().since, TimeOrigin::Mixed);
        let by_slot = Latency::default();
        by_slot.record(None, 100, 110);
        assert_eq!((by_slot.report().since.as_str(), by_slot.report().life.max), (Some("capture"), 10));
    }

    #[test]
    fn last_interval_is_reported_until_the_next_ends() {
        let latency = Latency::default();
        latency.record(None, 0, 10);
        assert_eq!((latency.report().last.count, latency.intervals()), (0, 0));
        latency.close_interval();
        latency.record(None, 0, 20);
        let report = latency.report();
        assert_eq!(
            (report.last.max, report.last.count, report.life.count, latency.intervals()),
            (10, 1, 2, 1)
        );
        latency.close_interval();
        assert_eq!(latency.report().last.max, 20);
    }

    #[test]
    fn latency_uses_the_announced_clock() {
        let latency = Latency::default();
        assert!(elapsed(monotonic_ns(), latency.now_ns()).is_some());
        latency.follow_clock(CLOCK_DOMAIN_REALTIME_SYNCED);
        assert!(elapsed(realtime_ns(), latency.now_ns()).is_some_and(|ns| ns < 60 * S));
        latency.follow_clock(CLOCK_DOMAIN_MONOTONIC);
        assert!(elapsed(realtime_ns(), latency.now_ns()).is_none(), "decades apart");
    }
}
