//! Counters of one consumer (wire §15.4): frames, drops, announces, progress and latency. Any thread.

use std::sync::atomic::{AtomicU64, Ordering};

use tensorpool_core::consumer::announce_filter::IgnoreReason;
use tensorpool_core::consumer::latency::Latency;
use tensorpool_core::drop_reason::{DropCounters, DropReason};

/// received + the drops in span = the span of sequences seen.
#[derive(Debug, Default)]
pub struct Counters {
    pub received: AtomicU64,
    pub span: AtomicU64,
    pub drops: DropCounters,
    pub mapped: AtomicU64,
    pub refused: AtomicU64,
    pub announces_ignored: [AtomicU64; 4],
    pub progress: ProgressCounters,
    pub latency: Latency,
}

impl Counters {
    /// A frame handed out turned out overwritten after use: it was not received after all.
    pub fn received_to_late(&self) {
        self.received.fetch_sub(1, Ordering::Relaxed);
        self.drops.add(DropReason::Late, 1);
    }

    pub fn ignored(&self, why: IgnoreReason) -> &AtomicU64 {
        &self.announces_ignored[why as usize]
    }
}

/// What became of the words: heard = news + the rest, but for repeated ones.
#[derive(Debug, Default)]
pub struct ProgressCounters {
    pub received: AtomicU64,
    pub accepted: AtomicU64,
    /// The slot was another frame's, or the epoch another one.
    pub late: AtomicU64,
    pub backwards: AtomicU64,
    pub refused: AtomicU64,
}
