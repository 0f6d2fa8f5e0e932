//! The clocks of this host. `CLOCK_MONOTONIC` has no meaning on another host.

use rustix::time::{ClockId, clock_gettime};

use crate::wire::layout::{CLOCK_DOMAIN_MONOTONIC, CLOCK_DOMAIN_REALTIME_SYNCED};

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// `CLOCK_MONOTONIC` in nanoseconds: the clock of timestamps in regions, unless another domain is announced.
#[inline]
pub fn monotonic_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// `CLOCK_REALTIME` in nanoseconds, for announces of the domain REALTIME_SYNCED.
pub fn realtime_ns() -> u64 {
    read(ClockId::Realtime)
}

/// The clock of a stream's timestamps: its announces, its regions and its frames (wire §10.1.1, §15.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamClock {
    #[default]
    Monotonic,
    /// `CLOCK_REALTIME`, which PTP or NTP keeps the same on all hosts.
    RealtimeSynced,
}

impl StreamClock {
    #[inline]
    pub fn now_ns(self) -> u64 {
        match self {
            Self::Monotonic => monotonic_ns(),
            Self::RealtimeSynced => realtime_ns(),
        }
    }

    /// The value of the setting `aeron.clock_domain`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Monotonic => "monotonic",
            Self::RealtimeSynced => "realtime_synced",
        }
    }

    pub const fn domain(self) -> u8 {
        match self {
            Self::Monotonic => CLOCK_DOMAIN_MONOTONIC,
            Self::RealtimeSynced => CLOCK_DOMAIN_REALTIME_SYNCED,
        }
    }
}

/// Both clocks, read once per decision.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub monotonic_ns: u64,
    pub realtime_ns: u64,
}

impl Now {
    pub const fn time_ns(self, clock: StreamClock) -> u64 {
        match clock {
            StreamClock::Monotonic => self.monotonic_ns,
            StreamClock::RealtimeSynced => self.realtime_ns,
        }
    }

    /// How long ago a timestamp of a region is. No message names the clock of a region before its announce, so
    /// it is taken from the value: the two clocks of a host are decades apart. 0 for a time to come.
    pub const fn age_of(self, timestamp_ns: u64) -> u64 {
        self.time_ns(self.clock_of(timestamp_ns)).saturating_sub(timestamp_ns)
    }

    /// The clock that a timestamp is of.
    pub const fn clock_of(self, timestamp_ns: u64) -> StreamClock {
        if self.realtime_ns.abs_diff(timestamp_ns) < self.monotonic_ns.abs_diff(timestamp_ns) {
            StreamClock::RealtimeSynced
        } else {
            StreamClock::Monotonic
        }
    }
}
