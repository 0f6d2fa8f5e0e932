//! The reader of a consumer: it checks epoch, order and span of descriptors, and the rules of the slot
//! (wire §15.21). It never waits for a writer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tensorpool_core::consumer::announce_filter::AnnounceFilter;
use tensorpool_core::consumer::sequence_tracker::{SequenceStep, SequenceTracker};
use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::shm::epoch::{MappedEpoch, SlotRef};
use tensorpool_core::wire::descriptor::FrameDescriptor;
use tensorpool_core::wire::hello::StreamAddress;

use super::counters::Counters;
use super::progress::ProgressReader;
use crate::aeron::channels::untethered;
use crate::aeron::{AeronError, Client, ImageWatch, Subscription};
use crate::bridge::PrivateRing;
use crate::conductor::handle::Handle;
use crate::descriptor_queue::DescriptorQueue;

/// A frame to deliver, and the mapping that keeps its memory alive.
#[derive(Clone)]
pub struct Frame {
    pub mapping: Arc<MappedEpoch>,
    pub slot_ref: SlotRef,
    pub publish_timestamp_ns: Option<u64>,
    pub trace_id: u64,
}

/// Observes which sequences a reader does not deliver, in the order of the stream. `()` does nothing.
pub trait DropObserver {
    #[inline]
    fn on_drop(&mut self, _epoch: u64, _first_seq: u64, _count: u64, _reason: DropReason) {}
    /// A frame of another epoch than the mapped one.
    #[inline]
    fn on_other_epoch(&mut self, _epoch: u64, _seq: u64) {}
}

impl DropObserver for () {}

impl Counters {
    /// Records the latency of delivered frames. The clock is read once for all of them.
    #[inline]
    pub fn record_latency(&self, frames: &[Frame]) {
        if frames.is_empty() {
            return;
        }
        let now_ns = self.latency.now_ns();
        for frame in frames {
            self.latency.record(frame.publish_timestamp_ns, frame.slot_ref.info.timestamp_ns, now_ns);
        }
    }
}

/// Why the announced regions cannot be used. No frames come until a better announce.
#[derive(Clone, Debug)]
pub struct RegionRefusal {
    pub epoch: u64,
    pub reason: &'static str,
    pub uri: String,
    pub message: String,
}

/// How long an earlier stream is drained at most: a slow reader would never reach its end.
const DRAIN_FOR: Duration = Duration::from_secs(1);

pub(crate) struct Draining {
    pub(crate) subscription: Subscription,
    pub(crate) until: Instant,
}

/// An epoch that is over: how far its account went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreviousEpoch {
    pub(crate) epoch: u64,
    pub(crate) next_seq: u64,
    pub(crate) nslots: u64,
}

/// The state of the reading side, under one lock.
pub(crate) struct Reader {
    pub(crate) subscription: Handle<Subscription>,
    /// The previous stream, until it is empty, so that no frame is lost in the change.
    pub(crate) draining: Option<Draining>,
    /// The granted per-consumer stream, and its subscription until it is connected.
    pub(crate) granted_address: Option<StreamAddress>,
    pub(crate) per_consumer: Handle<Subscription>,
    pub(crate) on_per_consumer: bool,
    /// The stream has just changed: descriptors of the previous one come again.
    pub(crate) overlaps: bool,
    /// On a per-consumer stream with a rate limit: missing sequences were held back on purpose.
    pub(crate) limited: bool,
    /// The rate limit has just ended: until frames come without gaps, missing sequences were held back.
    pub(crate) was_limited: bool,
    /// How often frames were polled.
    pub(crate) polls: u64,
    /// A fanout reads the descriptor stream and queues our descriptors here.
    pub(crate) queue: Option<Arc<DescriptorQueue>>,
    /// Frames are read from this ring instead of shared memory.
    pub(crate) fallback: Option<Arc<PrivateRing>>,
    /// Partial frames, if the consumer asked for progress.
    pub(crate) progress: Option<Box<ProgressReader>>,
    pub(crate) mapping: Option<Arc<MappedEpoch>>,
    pub(crate) announce_filter: AnnounceFilter,
    pub(crate) tracker: SequenceTracker,
    /// The epoch that the tracker counts. Mapped again, it continues.
    pub(crate) tracked: Option<u64>,
    /// The first sequence of that epoch that was published after it was mapped. `None` for a fallback, whose
    /// ring is filled by its reader.
    pub(crate) entitled: Option<u64>,
    /// The size of that epoch's ring.
    pub(crate) nslots: u64,
    /// The epoch that was counted before.
    pub(crate) previous: Option<PreviousEpoch>,
    pub(crate) departures: u64,
    /// The session of this stream's descriptors, and when its image joined.
    pub(crate) image: Option<(i32, Option<u64>)>,
    /// That image left since the last descriptor: the media driver rested this subscription.
    pub(crate) rested: bool,
    pub(crate) refused: Option<RegionRefusal>,
    /// The last reported refusal, so that each is reported once.
    pub(crate) reported_refusal: Option<(u64, &'static str)>,
    /// The epoch whose regions were missing, and when that was first seen.
    pub(crate) missing: Option<(u64, u64)>,
    /// The epoch that the driver granted with the lease.
    pub(crate) granted_epoch: Option<u64>,
    /// Announces of lower epochs are ignored: their producer is gone.
    pub(crate) lowest_epoch: u64,
    /// The producer of the mapped epoch, once an announce has named it.
    pub(crate) producer_id: Option<u32>,
}

impl Reader {
    pub(crate) fn new(freshness_ns: u64, max_outstanding_seq_gap: u64) -> Self {
        Self {
            subscription: Handle::None,
            draining: None,
            granted_address: None,
            per_consumer: Handle::None,
            on_per_consumer: false,
            overlaps: false,
            limited: false,
            was_limited: false,
            polls: 0,
            queue: None,
            fallback: None,
            progress: None,
            mapping: None,
            announce_filter: AnnounceFilter::new(freshness_ns),
            tracker: SequenceTracker::new(max_outstanding_seq_gap),
            tracked: None,
            entitled: None,
            nslots: 0,
            previous: None,
            departures: 0,
            image: None,
            rested: false,
            refused: None,
            reported_refusal: None,
            missing: None,
            granted_epoch: None,
            lowest_epoch: 0,
            producer_id: None,
        }
    }

    /// Moves to the per-consumer stream once it is connected. True if nothing is left to do. `limited`: the
    /// consumer asked for fewer frames, so descriptors that wait on the other stream are left there.
    pub(crate) fn move_to_per_consumer(
        &mut self,
        client: &Client,
        limited: bool,
    ) -> Result<bool, AeronError> {
        let Some(address) = self.granted_address.clone().filter(|_| !self.on_per_consumer) else {
            return Ok(true);
        };
        self.per_consumer
            .advance(|| client.add_subscription(&untethered(&address.channel), address.stream_id as i32))?;
        // Connected: every descriptor published from here on comes on it.
        if !self.per_consumer.get().is_some_and(|s| s.is_connected()) {
            return Ok(false);
        }
        let before = std::mem::replace(&mut self.subscription, std::mem::take(&mut self.per_consumer));
        if limited {
            (self.overlaps, self.image) = (true, None);
        } else if let Handle::Ready(before) = before {
            self.drain_first(before);
        }
        (self.on_per_consumer, self.limited, self.departures) = (true, limited, 0);
        Ok(true)
    }

    /// Drains the previous stream first.
    pub(crate) fn drain_first(&mut self, before: Subscription) {
        self.draining = Some(Draining { subscription: before, until: Instant::now() + DRAIN_FOR });
    }

    /// The stream is shared: only the departure of our own producer's image means that we were rested.
    #[inline]
    pub(crate) fn check_rested(&mut self, images: &ImageWatch) {
        let departures = images.departures();
        if departures == self.departures {
            return;
        }
        self.departures = departures;
        if let Some((session, joined)) = self.image
            && images.joined_ns(session) != joined
        {
            self.rested = true;
            self.image = None;
        }
    }

    /// Checks epoch, order and span. True if the descriptor names the next frame to read.
    #[inline]
    pub(crate) fn is_next(
        &mut self,
        counters: &Counters,
        d: &FrameDescriptor,
        observer: &mut impl DropObserver,
    ) -> bool {
        // Unmapped within an epoch, its frames are still part of that epoch's span.
        let paused = match &self.mapping {
            None if self.tracked != Some(d.epoch) => {
                self.on_other_epoch(counters, d, DropReason::Unmapped, observer);
                return false;
            }
            None => true,
            Some(mapping) if d.epoch != mapping.epoch => {
                self.on_other_epoch(counters, d, DropReason::Epoch, observer);
                return false;
            }
            Some(_) => false,
        };
        if self.overlaps {
            if self.tracker.last_seq().is_some_and(|last| d.seq <= last) {
                return false;
            }
            self.overlaps = false;
        }
        if self.tracker.last_seq().is_none() && !self.joins_with(counters, d.seq) {
            return false;
        }
        if self.tracker.missing_before(d.seq) > self.nslots && !self.is_believable(counters, d.seq) {
            return false;
        }
        let rested = std::mem::take(&mut self.rested);
        let (missed, reason, behind) = match self.tracker.on_seq(d.seq, rested) {
            SequenceStep::Next { missed, reason } => (missed, reason, false),
            SequenceStep::Behind { missed, reason } => (missed, reason, true),
            SequenceStep::Duplicate => {
                counters.drops.add(DropReason::Duplicate, 1);
                return false;
            }
            SequenceStep::Regressed => {
                counters.drops.add(DropReason::Regressed, 1);
                self.mapping = None;
                self.tracked = None;
                self.tracker.reset();
                return false;
            }
        };
        let reason = match reason {
            DropReason::Gap | DropReason::Resync | DropReason::Joining
                if self.limited || self.was_limited =>
            {
                DropReason::RateLimited
            }
            other => other,
        };
        self.was_limited &= missed > 0;
        counters.span.fetch_add(missed + 1, Ordering::Relaxed);
        if missed > 0 {
            counters.drops.add(reason, missed);
            observer.on_drop(d.epoch, d.seq - missed, missed, reason);
        }
        if paused {
            counters.drops.add(DropReason::Paused, 1);
            observer.on_drop(d.epoch, d.seq, 1, DropReason::Paused);
        } else if behind {
            counters.drops.add(DropReason::Resync, 1);
            observer.on_drop(d.epoch, d.seq, 1, DropReason::Resync);
        }
        !behind && !paused
    }

    /// Whether the account of the epoch begins with this descriptor: at the sequence from which this consumer
    /// was entitled to frames, or at an earlier frame that it can still read.
    #[cold]
    fn joins_with(&mut self, counters: &Counters, seq: u64) -> bool {
        let Some(entitled) = self.entitled else { return true };
        let mapping = self.mapping.as_ref();
        if seq < entitled {
            let is_there = mapping.is_some_and(|m| m.is_unchanged(seq));
            if !is_there {
                counters.drops.add(DropReason::BeforeJoining, 1);
            }
            return is_there;
        }
        if seq - entitled > self.nslots && !self.is_believable(counters, seq) {
            return false;
        }
        let first = mapping.map_or(entitled, |m| m.first_written(entitled, seq));
        self.tracker.expect(first);
        true
    }

    /// Whether a jump beyond the ring may move the account. Any process may publish any number, and the slot of
    /// a published frame has reached its sequence.
    #[cold]
    fn is_believable(&self, counters: &Counters, seq: u64) -> bool {
        // Unmapped, the slot cannot be checked: the jump counts with the next frame after the regions are
        // mapped again.
        let (believable, reason) = match &self.mapping {
            Some(mapping) => (mapping.has_reached(seq), DropReason::Malformed),
            None => (false, DropReason::Unmapped),
        };
        if !believable {
            counters.drops.add(reason, 1);
        }
        believable
    }

    /// A descriptor of an epoch that is not mapped. Of the epoch before, the account moves by no more than its
    /// ring: its regions may be gone, so that nothing else bounds a forged number.
    #[cold]
    fn on_other_epoch(
        &mut self,
        counters: &Counters,
        d: &FrameDescriptor,
        reason: DropReason,
        observer: &mut impl DropObserver,
    ) {
        if let Some(previous) = self.previous.as_mut().filter(|p| p.epoch == d.epoch) {
            if d.seq > previous.next_seq.saturating_add(previous.nslots) {
                return counters.drops.add(DropReason::Malformed, 1);
            }
            previous.next_seq = previous.next_seq.max(d.seq + 1);
        }
        counters.drops.add(reason, 1);
        observer.on_other_epoch(d.epoch, d.seq);
    }

    /// Checks the rules of the slot. The frame counts as received from here on.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        counters: &Counters,
        d: &FrameDescriptor,
        observer: &mut impl DropObserver,
    ) -> Option<Frame> {
        let Some(mapping) = self.mapping.as_ref().filter(|m| m.epoch == d.epoch) else {
            // Unmapped or remapped since the descriptor: the sequence is in the span, so it must be counted.
            counters.drops.add(DropReason::Late, 1);
            observer.on_drop(d.epoch, d.seq, 1, DropReason::Late);
            return None;
        };
        // Its progress went backwards: the frame must not be used (wire §10.2.2).
        if self.progress.as_ref().is_some_and(|f| f.progress_tracker.is_dropped(d.seq)) {
            counters.drops.add(DropReason::Progress, 1);
            observer.on_drop(d.epoch, d.seq, 1, DropReason::Progress);
            return None;
        }
        match mapping.locate(d.seq) {
            Ok(slot_ref) => {
                counters.received.fetch_add(1, Ordering::Relaxed);
                Some(Frame {
                    mapping: mapping.clone(),
                    slot_ref,
                    publish_timestamp_ns: d.timestamp_ns,
                    trace_id: d.trace_id,
                })
            }
            Err(reason) => {
                counters.drops.add(reason, 1);
                observer.on_drop(d.epoch, d.seq, 1, reason);
                if reason == DropReason::Late {
                    self.on_overwritten(d.seq);
                }
                None
            }
        }
    }

    /// The slot of `seq` holds a later frame: skips ahead to slots that are not about to be overwritten.
    pub(crate) fn on_overwritten(&mut self, seq: u64) {
        if let Some(mapping) = &self.mapping
            && let Some(newest) = mapping.overwritten_by(seq)
        {
            self.tracker.on_overwritten(seq, newest, u64::from(mapping.nslots));
        }
    }
}
