//! A lock-free histogram of fixed size, written by many threads and read by any.
//!
//! Its buckets are HdrHistogram's: each power of two has the same number of them, so the relative error is
//! the same for every value.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets per power of two, as a power of two: the error is at most one part in 64.
const PER_POWER: u32 = 6;
const BITS: u32 = 36;
/// The highest value that has a bucket: 68 seconds in nanoseconds.
pub const HIGHEST: u64 = (1 << BITS) - 1;
const BUCKETS: usize = ((BITS - PER_POWER + 1) << PER_POWER) as usize;

const fn bucket_of(value: u64) -> usize {
    let power = 63 - (value | 1).leading_zeros();
    let shift = power.saturating_sub(PER_POWER);
    ((shift << PER_POWER) as u64 + (value >> shift)) as usize
}

/// The lowest and the highest value of a bucket.
const fn range_of(bucket: usize) -> (u64, u64) {
    let shift = (bucket >> PER_POWER).saturating_sub(1);
    let first = (bucket - (shift << PER_POWER)) as u64;
    (first << shift, ((first + 1) << shift) - 1)
}

/// Statistics of a number of values. All zero where there were none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub count: u64,
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

impl Summary {
    fn from_counts(counts: &[u64], highest: u64) -> Self {
        let count: u64 = counts.iter().sum();
        let Some(last) = counts.iter().rposition(|n| *n > 0) else { return Self::default() };
        // A value counted in one interval may have been recorded as the maximum of the one before.
        let max = highest.max(range_of(last).0);
        let percentile = |percent: u64| {
            let rank = (count.saturating_mul(percent)).div_ceil(100).max(1);
            let mut seen = 0;
            let found = counts.iter().position(|n| {
                seen += n;
                seen >= rank
            });
            range_of(found.unwrap_or(last)).1.min(max)
        };
        Self { count, p50: percentile(50), p99: percentile(99), max }
    }
}

pub struct Histogram {
    counts: Box<[AtomicU64]>,
    /// One more than the highest value since the last interval was closed, and than that before it. 0: none.
    lately: AtomicU64,
    before: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { counts, lately: AtomicU64::new(0), before: AtomicU64::new(0) }
    }
}

// Relaxed throughout: a reader that misses the newest value sees it the next time.
impl Histogram {
    /// Values beyond the highest bucket count as the highest.
    #[inline]
    pub fn record(&self, value: u64) {
        self.record_many(value, 1);
    }

    /// Records a value `count` times.
    #[inline]
    pub fn record_many(&self, value: u64, count: u64) {
        let value = value.min(HIGHEST);
        if value >= self.lately.load(Ordering::Relaxed) {
            self.lately.fetch_max(value + 1, Ordering::Relaxed);
        }
        self.counts[bucket_of(value)].fetch_add(count, Ordering::Relaxed);
    }

    /// All values so far.
    pub fn summary(&self) -> Summary {
        let highest = self.before.load(Ordering::Relaxed).max(self.lately.load(Ordering::Relaxed));
        Summary::from_counts(&self.load(), highest.saturating_sub(1))
    }

    fn load(&self) -> Vec<u64> {
        self.counts.iter().map(|n| n.load(Ordering::Relaxed)).collect()
    }
}

/// Consecutive intervals of a histogram. Each value belongs to one of them.
#[derive(Debug, Default)]
pub struct Intervals {
    /// The counts at the end of the last interval. Empty before the first.
    ended: Vec<u64>,
}

impl Intervals {
    /// The values since the last call.
    pub fn close(&mut self, histogram: &Histogram) -> Summary {
        let highest = histogram.lately.swap(0, Ordering::Relaxed);
        if highest == 0 {
            // No values: an idle consumer costs nothing.
            return Summary::default();
        }
        histogram.before.fetch_max(highest, Ordering::Relaxed);
        let counts = histogram.load();
        let ended = std::mem::replace(&mut self.ended, counts);
        let fresh: Vec<u64> =
            self.ended.iter().enumerate().map(|(i, n)| n - ended.get(i).unwrap_or(&0)).collect();
        Summary::from_counts(&fresh, highest - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn histogram_of(values: &[u64]) -> Histogram {
        let histogram = Histogram::default();
        values.iter().for_each(|v| histogram.record(*v));
        histogram
    }

    #[test]
    fn buckets_cover_every_value_in_order() {
        let mut next = 0;
        for bucket in 0..BUCKETS {
            let (low, high) = range_of(bucket);
            assert_eq!(low, next, "{bucket}");
            assert_eq!((bucket_of(low), bucket_of(high)), (bucket, bucket));
            next = high + 1;
        }
        assert_eq!(next, HIGHEST + 1);
    }

    #[test]
    fn summary_of_no_value_and_of_one() {
        assert_eq!(histogram_of(&[]).summary(), Summary::default());
        assert_eq!(histogram_of(&[5]).summary(), Summary { count: 1, p50: 5, p99: 5, max: 5 });
        assert_eq!(
            histogram_of(&[u64::MAX]).summary(),
            Summary { count: 1, p50: HIGHEST, p99: HIGHEST, max: HIGHEST }
        );
    }

    #[test]
    fn percentile_is_an_upper_bound_of_its_share() {
        let summary = histogram_of(&(1..=100).collect::<Vec<_>>()).summary();
        assert_eq!(summary, Summary { count: 100, p50: 50, p99: 99, max: 100 });
    }

    #[test]
    fn each_value_belongs_to_one_interval() {
        let (histogram, mut intervals) = (histogram_of(&[1000, 10]), Intervals::default());
        assert_eq!(intervals.close(&histogram), Summary { count: 2, p50: 10, p99: 1000, max: 1000 });
        assert_eq!(intervals.close(&histogram), Summary::default());
        histogram.record(20);
        assert_eq!(intervals.close(&histogram), Summary { count: 1, p50: 20, p99: 20, max: 20 });
        assert_eq!(histogram.summary(), Summary { count: 3, p50: 20, p99: 1000, max: 1000 });
    }

    proptest! {
        #[test]
        fn percentile_error_is_below_one_part_in_64(mut values in prop::collection::vec(0..=HIGHEST, 1..300)) {
            let summary = histogram_of(&values).summary();
            values.sort_unstable();
            prop_assert_eq!(summary.count, values.len() as u64);
            prop_assert_eq!(summary.max, values[values.len() - 1]);
            for (percent, reported) in [(50, summary.p50), (99, summary.p99)] {
                let exact = values[(values.len() * percent).div_ceil(100) - 1];
                prop_assert!(reported >= exact && reported - exact <= exact / 64, "{}: {} for {}", percent, reported, exact);
            }
        }

        #[test]
        fn intervals_add_up(parts in prop::collection::vec(prop::collection::vec(0u64..1 << 40, 0..20), 1..8)) {
            let (histogram, mut intervals) = (Histogram::default(), Intervals::default());
            let mut closed = Vec::new();
            for part in &parts {
                part.iter().for_each(|v| histogram.record(*v));
                closed.push(intervals.close(&histogram));
            }
            let life = histogram.summary();
            prop_assert_eq!(closed.iter().map(|s| s.count).sum::<u64>(), life.count);
            prop_assert_eq!(closed.iter().map(|s| s.max).max().unwrap_or(0), life.max);
        }
    }
}
