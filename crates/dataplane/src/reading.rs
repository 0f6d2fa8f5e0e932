//! What a consumer makes of descriptors: epoch, order, span, and the slot's own rules (wire §15.21). It never
//! waits for a writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorpool_core::descriptor::FrameDescriptor;
use tensorpool_core::drops::{Drop as Reason, DropCounters};
use tensorpool_core::mapping::{Ignored, Judge};
use tensorpool_core::ring::{Located, Mapping};
use tensorpool_core::tracker::{Step, Tracker};

use crate::aeron::{ImageWatch, Subscription};
use crate::handle::Handle;

/// A frame that may be handed out, and the mapping that keeps its memory alive.
#[derive(Clone)]
pub struct Frame {
    pub mapping: Arc<Mapping>,
    pub located: Located,
    pub publish_timestamp_ns: Option<u64>,
    pub trace_id: u64,
}

/// received + the drops in span = the span of sequences seen.
#[derive(Debug, Default)]
pub struct Counters {
    pub received: AtomicU64,
    pub span: AtomicU64,
    pub drops: DropCounters,
    pub mapped: AtomicU64,
    pub refused: AtomicU64,
    pub announces_ignored: [AtomicU64; 4],
}

impl Counters {
    /// A frame handed out turned out overwritten after use: it was not received after all.
    pub fn received_to_late(&self) {
        self.received.fetch_sub(1, Ordering::Relaxed);
        self.drops.add(Reason::Late, 1);
    }

    pub fn ignored(&self, why: Ignored) -> &AtomicU64 {
        &self.announces_ignored[why as usize]
    }
}

/// Why the announced regions cannot be used; the stream stays silent until a better announce.
#[derive(Clone, Debug)]
pub struct Refused {
    pub epoch: u64,
    pub reason: &'static str,
    pub uri: String,
    pub message: String,
}

/// All that the reading side keeps, under one lock.
pub(crate) struct Reading {
    pub(crate) subscription: Handle<Subscription>,
    pub(crate) mapping: Option<Arc<Mapping>>,
    pub(crate) judge: Judge,
    pub(crate) tracker: Tracker,
    /// The epoch whose sequences the tracker counts; mapped again, it goes on where it was.
    pub(crate) tracked: Option<u64>,
    pub(crate) departures: u64,
    /// The session that brings this stream's descriptors, and when its image joined.
    pub(crate) image: Option<(i32, Option<u64>)>,
    /// That image went away since the last descriptor: this reader was put to rest.
    pub(crate) rested: bool,
    pub(crate) refused: Option<Refused>,
    /// The refusal that was told already, so that it is told once.
    pub(crate) told: Option<(u64, &'static str)>,
    /// The epoch whose regions were not there, and when that was seen first.
    pub(crate) missing: Option<(u64, u64)>,
    /// Announces of lower epochs are history: the producer whose they were is gone.
    pub(crate) lowest_epoch: u64,
    /// Who writes the mapped epoch, once an announce has said so.
    pub(crate) producer_id: Option<u32>,
}

impl Reading {
    pub(crate) fn new(freshness_ns: u64, max_outstanding_seq_gap: u64) -> Self {
        Self {
            subscription: Handle::None,
            mapping: None,
            judge: Judge::new(freshness_ns),
            tracker: Tracker::new(max_outstanding_seq_gap),
            tracked: None,
            departures: 0,
            image: None,
            rested: false,
            refused: None,
            told: None,
            missing: None,
            lowest_epoch: 0,
            producer_id: None,
        }
    }

    /// The stream is shared: of the images that go away only that of our own producer means a rest.
    #[inline]
    pub(crate) fn look_for_rest(&mut self, images: &ImageWatch) {
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

    /// Epoch, order and span. True if the descriptor names the next frame to look at.
    #[inline]
    pub(crate) fn is_next(&mut self, counters: &Counters, d: &FrameDescriptor) -> bool {
        // Unmapped in the middle of an epoch, its frames are still part of that epoch's span.
        let paused = match &self.mapping {
            None if self.tracked != Some(d.epoch) => {
                counters.drops.add(Reason::Unmapped, 1);
                return false;
            }
            None => true,
            Some(mapping) if d.epoch != mapping.epoch => {
                counters.drops.add(Reason::Epoch, 1);
                return false;
            }
            Some(_) => false,
        };
        let rested = std::mem::take(&mut self.rested);
        let (missed, reason, behind) = match self.tracker.on_seq(d.seq, rested) {
            Step::Next { missed, reason } => (missed, reason, false),
            Step::Behind { missed, reason } => (missed, reason, true),
            Step::Duplicate => {
                counters.drops.add(Reason::Duplicate, 1);
                return false;
            }
            Step::Regressed => {
                counters.drops.add(Reason::Regressed, 1);
                self.mapping = None;
                self.tracked = None;
                self.tracker.reset();
                return false;
            }
        };
        counters.span.fetch_add(missed + 1, Ordering::Relaxed);
        if missed > 0 {
            counters.drops.add(reason, missed);
        }
        if paused {
            counters.drops.add(Reason::Paused, 1);
        } else if behind {
            counters.drops.add(Reason::Resync, 1);
        }
        !behind && !paused
    }

    /// The slot's own rules. The frame counts as received from here on.
    #[inline]
    pub(crate) fn accept(&mut self, counters: &Counters, d: &FrameDescriptor) -> Option<Frame> {
        let Some(mapping) = self.mapping.as_ref().filter(|m| m.epoch == d.epoch) else {
            // Unmapped or mapped anew since the descriptor: it is in the span, so it must be accounted.
            counters.drops.add(Reason::Late, 1);
            return None;
        };
        match mapping.locate(d.seq) {
            Ok(located) => {
                counters.received.fetch_add(1, Ordering::Relaxed);
                Some(Frame {
                    mapping: mapping.clone(),
                    located,
                    publish_timestamp_ns: d.timestamp_ns,
                    trace_id: d.trace_id,
                })
            }
            Err(reason) => {
                counters.drops.add(reason, 1);
                if reason == Reason::Late {
                    self.tracker.on_overwritten(
                        d.seq,
                        mapping.seq_in_slot_of(d.seq),
                        u64::from(mapping.nslots),
                    );
                }
                None
            }
        }
    }
}
