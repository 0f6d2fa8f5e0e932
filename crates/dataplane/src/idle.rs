//! Idle strategies of a waiting thread (wire §15.15).

use std::str::FromStr;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Spin briefly, yield briefly, then sleep up to a millisecond: next to no CPU when idle.
    Backoff,
    /// Never yield the core: the lowest latency, at the cost of one core.
    BusySpin,
    Yield,
    /// Sleep a millisecond at once.
    Sleep,
}

impl FromStr for Strategy {
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

/// The state of one wait.
pub struct Idle {
    strategy: Strategy,
    idle_count: u32,
    park: Duration,
}

impl Idle {
    pub fn new(strategy: Strategy) -> Self {
        Self { strategy, idle_count: 0, park: MIN_PARK }
    }

    pub fn idle(&mut self) {
        match self.strategy {
            Strategy::BusySpin => std::hint::spin_loop(),
            Strategy::Yield => std::thread::yield_now(),
            Strategy::Sleep => std::thread::sleep(MAX_PARK),
            Strategy::Backoff => {
                self.idle_count = self.idle_count.saturating_add(1);
                if self.idle_count < SPINS {
                    std::hint::spin_loop();
                } else if self.idle_count < YIELDS {
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(self.park);
                    self.park = (self.park * 2).min(MAX_PARK);
                }
            }
        }
    }
}
