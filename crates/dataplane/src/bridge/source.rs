//! A source stream of a sender, and the counters of its frames (bridge §4).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::consumer::{Consumer, Frame};

/// No epoch was announced yet.
const NO_EPOCH: u64 = u64::MAX;

/// received by the consumer = sent + the sum of the others + frames in flight.
#[derive(Debug, Default)]
pub struct Counters {
    pub sent: AtomicU64,
    pub chunks: AtomicU64,
    pub bytes: AtomicU64,
    /// Overwritten while it was sent.
    pub overwritten: AtomicU64,
    /// Overwritten before the announce of its epoch was forwarded.
    pub unannounced: AtomicU64,
    /// No receiver at the moment.
    pub not_connected: AtomicU64,
    /// The media driver was lost during the frame.
    pub closed: AtomicU64,
    /// More than 65,535 chunks.
    pub too_many_chunks: AtomicU64,
    /// Longer than `max_payload_bytes`.
    pub too_long: AtomicU64,
}

impl Counters {
    /// Frames that were not sent.
    pub(super) fn dropped(&self) -> u64 {
        [
            &self.overwritten,
            &self.unannounced,
            &self.not_connected,
            &self.closed,
            &self.too_many_chunks,
            &self.too_long,
        ]
        .iter()
        .map(|counter| counter.load(Ordering::Relaxed))
        .sum()
    }
}

pub(super) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A source stream.
pub struct SourceStream {
    consumer: Arc<Consumer>,
    /// The epoch whose announce was forwarded. A receiver ignores frames before it.
    announced: AtomicU64,
    counters: Counters,
}

impl SourceStream {
    pub(super) fn new(consumer: Arc<Consumer>) -> Self {
        Self { consumer, announced: AtomicU64::new(NO_EPOCH), counters: Counters::default() }
    }

    pub fn consumer(&self) -> &Arc<Consumer> {
        &self.consumer
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn on_announce(&self, epoch: u64) {
        self.announced.store(epoch, Ordering::Relaxed);
    }

    pub(super) fn is_announced(&self, frame: &Frame) -> bool {
        self.announced.load(Ordering::Relaxed) == frame.mapping.epoch
    }
}
