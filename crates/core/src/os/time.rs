//! The clocks of this host. `CLOCK_MONOTONIC` has no meaning on another host.

use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// `CLOCK_MONOTONIC` in nanoseconds: the clock of every timestamp in a region.
#[inline]
pub fn monotonic_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// `CLOCK_REALTIME` in nanoseconds, for announces of the domain REALTIME_SYNCED.
pub fn realtime_ns() -> u64 {
    read(ClockId::Realtime)
}
