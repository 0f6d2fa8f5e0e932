//! The loop of a rate limiter: copies frames of a source stream into a destination stream, at most this many a
//! second. Runs on the limiter's thread, without the interpreter; never waits for a slot or a reader.
//!
//! When the next place of the rate is free, the newest frame goes out, with its sequence, capture time,
//! metadata version and trace id. An epoch of the source begins a new destination, which the caller provides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tensorpool_core::os::time::monotonic_ns;
use tensorpool_core::wire::descriptor::FrameDescriptor;

use crate::consumer::{Consumer, Frame};
use crate::idle::{Idle, IdleStrategy, yield_core};
use crate::producer::{Outcome, Producer};

/// How long descriptors may wait while no place is free. Longer waits would put the subscription to rest.
const MAX_PAUSE_NS: u64 = 1_000_000;

/// Why the loop returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimiterStop {
    Time,
    /// The source has another epoch than the frames of this destination.
    Epoch,
    Closed,
}

/// What became of the frames that had a place.
#[derive(Debug, Default)]
pub struct LimiterCounters {
    pub forwarded: AtomicU64,
    /// Overwritten by the source before or during the copy.
    pub overwritten: AtomicU64,
    /// Larger than every pool of the destination.
    pub no_pool: AtomicU64,
    /// The destination has no memory, or a reader of its own slot holds it.
    pub no_slot: AtomicU64,
    /// Published without a subscriber, or held back by one.
    pub unpublished: AtomicU64,
}

pub struct Limiter {
    consumer: Arc<Consumer>,
    producer: Arc<Producer>,
    /// 0: all frames pass.
    interval_ns: u64,
    counters: Arc<LimiterCounters>,
    held: Option<FrameDescriptor>,
    /// The epoch of the source whose frames this destination has.
    epoch: Option<u64>,
    /// When the next frame may go out. `None`: at once.
    next_ns: Option<u64>,
}

impl Limiter {
    pub fn new(
        consumer: Arc<Consumer>,
        producer: Arc<Producer>,
        interval_ns: u64,
        counters: Arc<LimiterCounters>,
    ) -> Self {
        Self { consumer, producer, interval_ns, counters, held: None, epoch: None, next_ns: None }
    }

    /// The epoch of the source that the destination belongs to.
    pub fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Continues with another producer, for the next epoch of the source.
    pub fn set_producer(&mut self, producer: Arc<Producer>) {
        self.producer = producer;
        self.epoch = None;
        self.next_ns = None;
    }

    /// Copies frames until `until_ns`, another epoch of the source, or the end.
    pub fn run(&mut self, until_ns: u64, strategy: IdleStrategy) -> LimiterStop {
        let mut idle = Idle::new(strategy);
        let mut yields = 0;
        loop {
            if self.consumer.is_closed() {
                return LimiterStop::Closed;
            }
            let now_ns = monotonic_ns();
            if now_ns >= until_ns {
                return LimiterStop::Time;
            }
            if self.interval_ns == 0 {
                if self.held.is_none() {
                    self.held = self.consumer.poll_held();
                }
            } else {
                self.consumer.hold_newest(&mut self.held);
            }
            if self.held.is_some_and(|held| self.epoch.is_some_and(|epoch| epoch != held.epoch)) {
                return LimiterStop::Epoch;
            }
            if let Some(next_ns) = self.next_ns.filter(|next_ns| *next_ns > now_ns) {
                let pause_ns = (next_ns - now_ns).min(until_ns - now_ns).min(MAX_PAUSE_NS);
                match strategy {
                    IdleStrategy::BusySpin => std::hint::spin_loop(),
                    IdleStrategy::Yield => yield_core(&mut yields),
                    _ => std::thread::sleep(Duration::from_nanos(pause_ns)),
                }
                continue;
            }
            match self.held.take() {
                Some(held) => {
                    idle = Idle::new(strategy);
                    self.forward(held, now_ns);
                }
                None => idle.idle(),
            }
        }
    }

    fn forward(&mut self, held: FrameDescriptor, now_ns: u64) {
        self.epoch = Some(held.epoch);
        let Some(frame) = self.consumer.accept_held(held) else {
            // The place stays free: the newest frame gets it.
            bump(&self.counters.overwritten);
            return;
        };
        if self.copy(&frame) && self.interval_ns > 0 {
            let on_schedule = self.next_ns.map(|next_ns| next_ns.saturating_add(self.interval_ns));
            // After a pause the schedule begins again, so that no burst follows.
            let next_ns = on_schedule.filter(|next_ns| *next_ns > now_ns);
            self.next_ns = next_ns.or(now_ns.checked_add(self.interval_ns));
        }
    }

    /// Copies a frame into the slot of its sequence and publishes it. True if it took its place.
    fn copy(&self, frame: &Frame) -> bool {
        let (seq, len) = (frame.slot_ref.seq, frame.slot_ref.info.values_len_bytes);
        let mut slot = match self.producer.claim_at(seq, len) {
            Ok(slot) => slot,
            Err(outcome) => {
                let no_pool = matches!(outcome, Outcome::NoPool);
                bump(if no_pool { &self.counters.no_pool } else { &self.counters.no_slot });
                return false;
            }
        };
        slot.describe(&frame.mapping.header_bytes(seq));
        // SAFETY: `locate` held the length against the pool of the source, and the mapping is alive.
        unsafe { slot.copy_from(frame.mapping.payload(frame.slot_ref.pool, seq), len) };
        if !frame.mapping.is_unchanged(seq) {
            // The slot is not committed: readers do not see it.
            self.consumer.counters().received_to_late();
            bump(&self.counters.overwritten);
            return false;
        }
        match self.producer.commit_at(&slot, frame.trace_id) {
            Ok(Outcome::Published) => bump(&self.counters.forwarded),
            Ok(_) => bump(&self.counters.unpublished),
            Err(_) => {
                bump(&self.counters.no_slot);
                return false;
            }
        }
        true
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.consumer.drop_held();
        }
    }
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
