//! Idle strategies of a waiting thread (wire §15.15).

use std::str::FromStr;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleStrategy {
    /// Spin briefly, yield briefly, then sleep up to a millisecond, and longer when nothing comes for long: next
    /// to no CPU when idle.
    Backoff,
    /// Never yield the core: the lowest latency, at the cost of one core.
    BusySpin,
    /// Let other threads run first, and sleep now and then (`yield_core`).
    Yield,
    /// Sleep a millisecond at once.
    Sleep,
}

impl FromStr for IdleStrategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "backoff" => Ok(Self::Backoff),
            "busy-spin" => Ok(Self::BusySpin),
            "yield" => Ok(Self::Yield),
            "sleep" => Ok(Self::Sleep),
            other => Err(format!("idle strategy {other:?}: use backoff, busy-spin, yield or sleep")),
        }
    }
}

const SPINS: u32 = 100;
const YIELDS: u32 = 120;
const MIN_PARK: Duration = Duration::from_micros(50);
const MAX_PARK: Duration = Duration::from_millis(1);
/// The longest sleep of a backoff: what comes after a long time without anything waits so long at most.
const MAX_REST: Duration = Duration::from_millis(25);
/// A sleep is at most this part of the time for which nothing came, or a millisecond.
const REST_PART: u32 = 128;

/// The state of one wait.
pub struct Idle {
    strategy: IdleStrategy,
    idle_count: u32,
    park: Duration,
    since: Instant,
}

impl Idle {
    pub fn new(strategy: IdleStrategy) -> Self {
        Self::since(strategy, Instant::now())
    }

    /// Continues a wait that began at `since`: it is in the phase that it had reached by now.
    pub fn since(strategy: IdleStrategy, since: Instant) -> Self {
        let has_parked = since.elapsed() > 4 * MAX_PARK;
        let (idle_count, park) = if has_parked { (YIELDS, MAX_PARK) } else { (0, MIN_PARK) };
        Self { strategy, idle_count, park, since }
    }

    pub fn idle(&mut self) {
        match self.strategy {
            IdleStrategy::BusySpin => std::hint::spin_loop(),
            IdleStrategy::Yield => yield_core(&mut self.idle_count),
            IdleStrategy::Sleep => std::thread::sleep(MAX_PARK),
            IdleStrategy::Backoff => {
                self.idle_count = self.idle_count.saturating_add(1);
                if self.idle_count < SPINS {
                    std::hint::spin_loop();
                } else if self.idle_count < YIELDS {
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(self.park);
                    self.park = next_park(self.park, self.since.elapsed());
                }
            }
        }
    }
}

/// Yields in a row until a short sleep.
const YIELDS_IN_A_ROW: u32 = 16;

/// Lets other threads run. Every sixteenth call of a wait, which `count` counts, sleeps: Linux 6.18 takes a time
/// slice from a thread for each yield, so that threads which only yield starve one another, and whatever else
/// runs on their cores, for minutes.
pub fn yield_core(count: &mut u32) {
    match sleep_instead_of_yield(count) {
        Some(sleep) => std::thread::sleep(sleep),
        None => std::thread::yield_now(),
    }
}

/// The sleep that takes the place of this yield. `None` for all but every sixteenth.
fn sleep_instead_of_yield(count: &mut u32) -> Option<Duration> {
    *count = count.wrapping_add(1);
    count.is_multiple_of(YIELDS_IN_A_ROW).then_some(MIN_PARK)
}

/// The sleep after one of `park`, when nothing came for `idle`.
fn next_park(park: Duration, idle: Duration) -> Duration {
    (idle / REST_PART).clamp(MAX_PARK, MAX_REST).min(park * 2)
}

/// A pause is at most this part of the time for which nothing happened.
const PAUSE_PART: u32 = 16;

/// The pause of a thread between two duty cycles: the shortest while something happens, and longer the longer
/// nothing does. Pure.
pub struct Pause {
    shortest: Duration,
    longest: Duration,
    active_at: Instant,
}

impl Pause {
    pub fn new(shortest: Duration, longest: Duration, now: Instant) -> Self {
        Self { shortest, longest, active_at: now }
    }

    /// The pause after a duty cycle, in which something happened or nothing did.
    pub fn after_cycle(&mut self, is_active: bool, now: Instant) -> Duration {
        if is_active {
            self.active_at = now;
        }
        let idle = now.saturating_duration_since(self.active_at);
        (idle / PAUSE_PART).clamp(self.shortest, self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_grows_while_nothing_happens_and_is_short_again_at_once() {
        let (shortest, longest) = (Duration::from_millis(2), Duration::from_millis(10));
        let start = Instant::now();
        let mut pause = Pause::new(shortest, longest, start);
        let (mut now, mut cycles, mut last) = (start, 0, Duration::ZERO);
        while now < start + Duration::from_secs(1) {
            let next = pause.after_cycle(false, now);
            assert!((shortest..=longest).contains(&next) && next >= last, "{next:?} after {last:?}");
            (now, cycles, last) = (now + next, cycles + 1, next);
        }
        assert_eq!(last, longest);
        assert!(cycles < 150, "{cycles} cycles in a second");
        assert_eq!(pause.after_cycle(true, now), shortest);
        assert_eq!(pause.after_cycle(false, now + shortest), shortest, "more may come soon");
    }

    #[test]
    fn sleeps_stay_short_where_frames_come_ten_times_a_second() {
        let (mut park, mut idle) = (MIN_PARK, Duration::ZERO);
        while idle < Duration::from_millis(100) {
            idle += park;
            park = next_park(park, idle);
            assert!(park <= MAX_PARK, "{park:?} after {idle:?}");
        }
        assert_eq!(park, MAX_PARK);
    }

    #[test]
    fn sleeps_grow_with_the_time_without_frames_up_to_a_bound() {
        let (mut park, mut idle, mut sleeps) = (MIN_PARK, Duration::ZERO, 0);
        while idle < Duration::from_secs(10) {
            idle += park;
            sleeps += 1;
            let next = next_park(park, idle);
            assert!(next >= park && next <= MAX_REST && next <= (idle / REST_PART).max(MAX_PARK));
            park = next;
        }
        assert_eq!(park, MAX_REST);
        assert!(sleeps < 2_500, "{sleeps} sleeps in ten seconds");
    }

    #[test]
    fn yielding_wait_sleeps_after_fifteen_yields_in_a_row() {
        let mut count = 0;
        for _ in 0..3 {
            assert!((0..15).all(|_| sleep_instead_of_yield(&mut count).is_none()));
            assert_eq!(sleep_instead_of_yield(&mut count), Some(MIN_PARK));
        }
        // A wait of this strategy uses it, and continues the count from one call to the next.
        let mut idle = Idle::new(IdleStrategy::Yield);
        (0..16).for_each(|_| idle.idle());
        assert_eq!(idle.idle_count, 16);
        // The count wraps around without a longer row.
        let mut last = u32::MAX;
        assert_eq!(sleep_instead_of_yield(&mut last), Some(MIN_PARK));
    }

    #[test]
    fn wait_that_is_continued_does_not_spin_again() {
        let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(1)) else { return };
        let idle = Idle::since(IdleStrategy::Backoff, long_ago);
        assert_eq!((idle.idle_count, idle.park), (YIELDS, MAX_PARK));
        assert_eq!(Idle::new(IdleStrategy::Backoff).park, MIN_PARK);
    }
}
