//! A consumer: descriptor in, every rule applied, frame out. Never waits for a writer (wire §15.21).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use tensorpool_core::announce::PoolAnnounce;
use tensorpool_core::descriptor::{FrameDescriptor, Seen};
use tensorpool_core::drops::{Drop as Reason, DropCounters};
use tensorpool_core::mapping::{Action, Held, Ignored, Judge};
use tensorpool_core::region::Access;
use tensorpool_core::ring::{Located, Mapping};
use tensorpool_core::tracker::{Step, Tracker};

use crate::aeron::{AeronError, Client, ImageWatch, Subscription};
use crate::announces::with_parameter;
use crate::conductor::{Endpoint, Tick};
use crate::events::{Event, Events};
use crate::handle::Handle;
use crate::idle::{Idle, Strategy};
use crate::turn::TurnLock;

/// How many messages a look for one frame takes at most.
const ONE_LOOK: usize = 1024;

#[derive(Clone, Debug)]
pub struct Config {
    pub stream_id: u32,
    pub descriptor_channel: String,
    pub descriptor_stream_id: i32,
    pub max_outstanding_seq_gap: u64,
    pub freshness_ns: u64,
}

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

struct State {
    subscription: Handle<Subscription>,
    mapping: Option<Arc<Mapping>>,
    judge: Judge,
    tracker: Tracker,
    /// The epoch whose sequences the tracker counts; mapped again, it goes on where it was.
    tracked: Option<u64>,
    departures: u64,
    /// The session that brings this stream's descriptors, and when its image joined.
    image: Option<(i32, Option<u64>)>,
    /// That image went away since the last descriptor: this reader was put to rest.
    rested: bool,
    refused: Option<Refused>,
    /// The refusal that was told already, so that it is told once.
    told: Option<(u64, &'static str)>,
}

pub struct Consumer {
    config: Config,
    state: TurnLock<State>,
    /// The subscription is there: nothing to attach, and no lock to take for it at every tick.
    attached: AtomicBool,
    next_check_ns: AtomicU64,
    counters: Arc<Counters>,
    closed: AtomicBool,
}

/// How a wait ended.
#[derive(Debug)]
pub enum Waited {
    Ready,
    TimedOut,
    Closed,
    Refused(Refused),
}

impl Consumer {
    pub fn new(config: Config) -> Self {
        let state = State {
            subscription: Handle::None,
            mapping: None,
            judge: Judge::new(config.freshness_ns),
            tracker: Tracker::new(config.max_outstanding_seq_gap),
            tracked: None,
            departures: 0,
            image: None,
            rested: false,
            refused: None,
            told: None,
        };
        Self {
            config,
            state: TurnLock::new(state),
            attached: AtomicBool::new(false),
            next_check_ns: AtomicU64::new(0),
            counters: Arc::default(),
            closed: AtomicBool::new(false),
        }
    }

    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub fn stream_id(&self) -> u32 {
        self.config.stream_id
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn mapping(&self) -> Option<Arc<Mapping>> {
        self.lock().mapping.clone()
    }

    pub fn last_seq(&self) -> Option<u64> {
        self.lock().tracker.last_seq()
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub fn is_connected(&self) -> bool {
        self.lock().subscription.get().is_some_and(|s| s.is_connected())
    }

    pub fn is_ready(&self) -> bool {
        self.lock().subscription.get().is_some()
    }

    /// Takes up to `limit` descriptors and pushes the frames that pass onto `out`.
    /// Returns how many messages were taken, whatever became of them.
    pub fn poll(&self, limit: usize, out: &mut Vec<Frame>) -> usize {
        self.drain(limit, |state, counters, descriptor| {
            if let Some(frame) = state.accept(counters, &descriptor) {
                out.push(frame);
            }
        })
    }

    /// Takes descriptors until one names a frame that passes; looks at no more than a bounded number, so
    /// that a stream full of others' descriptors does not hold the caller.
    pub fn poll_one(&self) -> Option<Frame> {
        let mut found = None;
        self.drain_while(ONE_LOOK, |state, counters, descriptor| {
            found = state.accept(counters, &descriptor);
            found.is_none()
        });
        found
    }

    /// Takes everything that waits and gives the newest frame; the others count as skipped.
    pub fn latest(&self) -> Option<Frame> {
        let mut newest: Option<FrameDescriptor> = None;
        // Bounded, so that a producer who is always ahead cannot hold us here.
        for _ in 0..64 {
            let taken = self.drain(1024, |_, counters, descriptor| {
                if newest.replace(descriptor).is_some() {
                    counters.drops.add(Reason::Skipped, 1);
                }
            });
            if taken == 0 {
                break;
            }
        }
        self.lock().accept(&self.counters, &newest?)
    }

    #[inline]
    fn drain(&self, limit: usize, mut each: impl FnMut(&mut State, &Counters, FrameDescriptor)) -> usize {
        self.drain_while(limit, |state, counters, descriptor| {
            each(state, counters, descriptor);
            true
        })
    }

    /// Polls, and hands each descriptor that is next in order to `each` until that says false.
    #[inline]
    fn drain_while(
        &self,
        limit: usize,
        mut each: impl FnMut(&mut State, &Counters, FrameDescriptor) -> bool,
    ) -> usize {
        let mut guard = self.lock();
        let state = &mut *guard;
        // Out of the state for the poll, so that the callback may have the rest of it.
        let mut subscription = match std::mem::take(&mut state.subscription) {
            Handle::There(subscription) => subscription,
            // One that is on its way goes back: a reader that polls all the time would lose it each time.
            other => {
                state.subscription = other;
                return 0;
            }
        };
        state.look_for_rest(subscription.images());
        let (counters, stream_id) = (&*self.counters, self.config.stream_id);
        let taken = subscription.poll_while(limit, |bytes, header| match FrameDescriptor::decode(bytes) {
            Seen::Descriptor(d) if d.stream_id == stream_id => {
                if state.image.is_none() {
                    state.image = Some((header.session_id(), None));
                }
                !state.is_next(counters, &d) || each(state, counters, d)
            }
            Seen::Descriptor(_) | Seen::Other => true,
            Seen::Malformed => {
                counters.drops.add(Reason::Malformed, 1);
                true
            }
        });
        if let Some((session, joined @ None)) = &mut state.image {
            *joined = subscription.images().joined_ns(*session);
        }
        state.subscription = Handle::There(subscription);
        taken
    }

    /// Waits for something to poll. Looks at the stream without taking from it.
    pub fn wait(&self, timeout: Duration, strategy: Strategy) -> Waited {
        let deadline = Instant::now() + timeout;
        let mut idle = Idle::new(strategy);
        loop {
            if self.is_closed() {
                return Waited::Closed;
            }
            {
                let mut state = self.lock();
                if let Some(refused) = state.refused.take() {
                    return Waited::Refused(refused);
                }
                if state.subscription.get().is_some_and(Subscription::has_fragment) {
                    return Waited::Ready;
                }
            }
            if Instant::now() >= deadline {
                return Waited::TimedOut;
            }
            idle.idle();
        }
    }

    /// The refusal that has not been told yet.
    pub fn take_refused(&self) -> Option<Refused> {
        self.lock().refused.take()
    }

    fn event(&self, events: &Events, tick_ns: u64, kind: &'static str, epoch: u64, detail: String) {
        let stream_id = Some(self.config.stream_id);
        events.push(Event { kind, at_ns: tick_ns, stream_id, epoch: Some(epoch), detail });
    }

    /// Replaces the mapping; what was in flight for the old one is dropped by its epoch.
    fn remap(&self, mapping: Option<Arc<Mapping>>) -> Option<Arc<Mapping>> {
        let mut state = self.state.lock_first();
        if let Some(fresh) = &mapping {
            if state.tracked.replace(fresh.epoch) != Some(fresh.epoch) {
                state.tracker.reset();
            }
            state.refused = None;
            state.told = None;
            self.counters.mapped.fetch_add(1, Ordering::Relaxed);
        }
        std::mem::replace(&mut state.mapping, mapping)
    }

    fn refuse(&self, refused: Refused, tick: &Tick<'_>) {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock_first();
        let key = Some((refused.epoch, refused.reason));
        if state.told != key {
            state.told = key;
            self.event(tick.events, tick.now.monotonic_ns, "refused", refused.epoch, refused.message.clone());
            state.refused = Some(refused);
        }
    }

    fn unmap(&self, tick: &Tick<'_>, why: &str) {
        if let Some(old) = self.remap(None) {
            self.event(tick.events, tick.now.monotonic_ns, "unmapped", old.epoch, why.to_owned());
        }
    }
}

impl State {
    /// The stream is shared: of the images that go away only that of our own producer means a rest.
    #[inline]
    fn look_for_rest(&mut self, images: &ImageWatch) {
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
    fn is_next(&mut self, counters: &Counters, d: &FrameDescriptor) -> bool {
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
    fn accept(&mut self, counters: &Counters, d: &FrameDescriptor) -> Option<Frame> {
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

impl Endpoint for Consumer {
    fn attach(&self, client: &Client) -> Result<(), AeronError> {
        if self.attached.load(Ordering::Relaxed) {
            return Ok(());
        }
        let config = &self.config;
        let mut state = self.state.lock_first();
        // A reader that stops polling must stall nobody: it is put to rest instead.
        let channel = with_parameter(&config.descriptor_channel, "tether=false");
        state.subscription.advance(|| client.add_subscription(&channel, config.descriptor_stream_id))?;
        (state.departures, state.image) = (0, None);
        self.attached.store(state.subscription.get().is_some(), Ordering::Relaxed);
        Ok(())
    }

    fn detach(&self) {
        self.attached.store(false, Ordering::Relaxed);
        self.state.lock_first().subscription = Handle::None;
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let mut state = self.state.lock_first();
        state.subscription = Handle::None;
        state.mapping = None;
    }

    /// A writer that gives no sign of life is dead: its regions are stale (wire §7.1).
    fn duty(&self, tick: &Tick<'_>) {
        let now_ns = tick.now.monotonic_ns;
        if now_ns < self.next_check_ns.load(Ordering::Relaxed) {
            return;
        }
        // Often enough to notice soon, seldom enough not to stand in the way of whoever polls.
        self.next_check_ns.store(now_ns + self.config.freshness_ns / 16, Ordering::Relaxed);
        let stale = {
            let state = self.state.lock_first();
            state.mapping.as_ref().is_some_and(|m| !state.judge.is_fresh(m.activity_ns(), now_ns))
        };
        if stale {
            self.unmap(tick, "the producer gives no sign of life");
        }
    }

    fn hears_announces(&self) -> bool {
        !self.is_closed()
    }

    fn on_announce(&self, announce: &PoolAnnounce, join_ns: u64, tick: &Tick<'_>) {
        if announce.stream_id != self.config.stream_id {
            return;
        }
        let now_ns = tick.now.monotonic_ns;
        let (action, intact) = {
            let mut state = self.state.lock_first();
            let held = match &state.mapping {
                None => Held::Unmapped,
                Some(m) => {
                    Held::Mapped { epoch: m.epoch, active: state.judge.is_fresh(m.activity_ns(), now_ns) }
                }
            };
            let intact = state.mapping.as_ref().is_none_or(|m| m.is_intact(announce));
            (state.judge.on_announce(announce, join_ns, held, tick.now), intact)
        };
        match action {
            Action::Keep if intact => {}
            Action::Keep => self.unmap(tick, "the superblocks differ from the announce"),
            Action::Ignore(why) => {
                self.counters.ignored(why).fetch_add(1, Ordering::Relaxed);
            }
            Action::Map => self.map(announce, tick),
        }
    }
}

impl Consumer {
    fn map(&self, announce: &PoolAnnounce, tick: &Tick<'_>) {
        // Hard boundary first: nothing of the old epoch is accepted while the new one is opened.
        self.unmap(tick, "a new epoch was announced");
        let epoch = announce.epoch;
        let mapping = match Mapping::open(announce, tick.bases, Access::Read) {
            Ok(mapping) => mapping,
            Err(e) => {
                let refused =
                    Refused { epoch, reason: e.reason(), uri: e.uri.clone(), message: e.to_string() };
                return self.refuse(refused, tick);
            }
        };
        if !self.state.lock_first().judge.is_fresh(mapping.activity_ns(), tick.now.monotonic_ns) {
            self.counters.ignored(Ignored::Stale).fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.remap(Some(Arc::new(mapping)));
        self.event(tick.events, tick.now.monotonic_ns, "mapped", epoch, String::new());
    }
}
