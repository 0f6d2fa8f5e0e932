//! Counters of one consumer (wire §15.4): frames, drops, announces, progress and latency. Any thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tensorpool_core::consumer::announce_filter::IgnoreReason;
use tensorpool_core::consumer::latency::Latency;
use tensorpool_core::drop_reason::{DropCounters, DropReason};

/// span = received + the drops in span, and one more while a frame is held back.
#[derive(Debug, Default)]
pub struct Counters {
    pub received: AtomicU64,
    pub span: AtomicU64,
    /// A rate limiter holds the newest frame back: it is in the span and in no other count yet.
    pub is_holding: AtomicBool,
    pub drops: DropCounters,
    pub mapped: AtomicU64,
    pub refused: AtomicU64,
    pub announces_ignored: [AtomicU64; 5],
    pub progress: ProgressCounters,
    pub latency: Latency,
}

impl Counters {
    /// A delivered frame was found overwritten after use: it counts as dropped instead.
    pub fn received_to_late(&self) {
        self.received_to(DropReason::Late);
    }

    /// A received frame is not delivered after all: it counts as dropped instead.
    pub fn received_to(&self, reason: DropReason) {
        self.received.fetch_sub(1, Ordering::Relaxed);
        self.drops.add(reason, 1);
    }

    pub fn ignored(&self, why: IgnoreReason) -> &AtomicU64 {
        &self.announces_ignored[why as usize]
    }
}

/// received = accepted + the others, except repeated messages.
#[derive(Debug, Default)]
pub struct ProgressCounters {
    pub received: AtomicU64,
    pub accepted: AtomicU64,
    /// The slot belonged to another frame, or the epoch was another one.
    pub late: AtomicU64,
    pub backwards: AtomicU64,
    pub refused: AtomicU64,
}
