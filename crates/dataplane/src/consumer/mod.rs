//! A consumer: it reads descriptors, applies every rule, and delivers frames (wire §15.21). It never waits
//! for a writer. Any thread polls.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tensorpool_core::consumer::hello_state::ConsumerRequest;
use tensorpool_core::drop_reason::DropReason;
use tensorpool_core::lease::attachment::LeaseOptions;
use tensorpool_core::producer::rate_gate::RateGate;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::wire::descriptor::FrameDescriptor;
use tensorpool_core::wire::hello::Mode;

use crate::descriptor_queue::DescriptorQueue;
use crate::idle::{Idle, IdleStrategy};
use crate::lease::Lease;
use crate::priority_lock::PriorityLock;

mod batch;
mod control;
mod counters;
mod endpoint;
mod fallback;
mod frame_ref;
mod mapping;
mod newest;
mod progress;
mod reader;
mod record;
mod source;
mod state;
mod status;

pub use batch::{BatchEnd, BatchLayout, BatchRows};
use control::ConsumerControl;
pub use control::ConsumerState;
pub use counters::{Counters, ProgressCounters};
pub use fallback::FallbackOptions;
use fallback::FallbackReader;
pub use frame_ref::{FramePatterns, FrameRef};
pub use progress::PartialFrame;
use progress::ProgressReader;
use reader::{DropObserver, Reader};
pub use reader::{Frame, RegionRefusal};
use state::State;

/// Messages that a poll consumes at most, unless more frames were requested: part of a millisecond. A reader that
/// polls ten times a second keeps up with 80,000 frames a second.
const MAX_MESSAGES_PER_POLL: usize = 8192;

#[derive(Clone, Debug)]
pub struct Config {
    pub stream_id: u32,
    pub descriptor_channel: String,
    pub descriptor_stream_id: i32,
    pub max_outstanding_seq_gap: u64,
    pub freshness_ns: u64,
    /// The least time between two frames, where the rate cannot be requested of the producer.
    pub min_interval_ns: Option<u64>,
    /// Period of hellos and QoS reports.
    pub hello_period_ns: u64,
    /// Whether regions are mapped at all.
    pub supports_shm: bool,
    /// Hellos are sent while no regions are mapped, too, so that a config can name a fallback.
    pub sends_hello_unmapped: bool,
    /// The control and QoS streams of this consumer, if it does not use the shared ones.
    pub dedicated_control_stream: Option<i32>,
    pub dedicated_qos_stream: Option<i32>,
    pub fallback: FallbackOptions,
}

pub struct Consumer {
    config: Config,
    state: PriorityLock<State>,
    /// The subscriptions are ready, so that no duty cycle needs the lock for them.
    connected: AtomicBool,
    has_subscription: AtomicBool,
    /// The consumer id without a lease.
    own_id: AtomicU32,
    /// With a driver: the right to map the stream. Without one: `None`, and announces are enough.
    lease: Option<Lease>,
    /// Hello, config, QoS: used by the conductor only.
    control: Mutex<ConsumerControl>,
    /// The fallback, while there is one: used by the conductor only.
    fallback: Mutex<FallbackReader>,
    /// A refusal may wait in the reader. A poll without frames checks this before it takes the lock again.
    has_refused: AtomicBool,
    next_check_ns: AtomicU64,
    /// Since when no regions are mapped. 0: they are, or were at the last check.
    unmapped_since_ns: AtomicU64,
    next_interval_ns: AtomicU64,
    next_skip_ns: AtomicU64,
    /// How often frames were polled when descriptors of other streams were last looked for.
    polls_before_skip: AtomicU64,
    counters: Arc<Counters>,
    closed: AtomicBool,
}

/// How a wait ended.
#[derive(Debug)]
pub enum WaitOutcome {
    Ready,
    TimedOut,
    Closed,
    Refused(RegionRefusal),
}

impl Consumer {
    pub fn new(config: Config, request: ConsumerRequest, options: Option<LeaseOptions>) -> Self {
        let mut reader = Reader::new(config.freshness_ns, config.max_outstanding_seq_gap);
        reader.gate = config.min_interval_ns.map(RateGate::every);
        if request.mode == Mode::RateLimited {
            reader.set_shared_rate(request.max_rate_hz);
        }
        reader.progress = request.supports_progress.then(Box::<ProgressReader>::default);
        let mut control = ConsumerControl::new(config.stream_id, request, config.hello_period_ns);
        if let Some(uri) = &config.fallback.uri {
            control.set_own_fallback(uri);
        }
        if !config.supports_shm {
            control.on_absent();
        }
        Self {
            config,
            state: PriorityLock::new(State::new(reader)),
            connected: AtomicBool::new(false),
            has_subscription: AtomicBool::new(false),
            own_id: AtomicU32::new(crate::lease::random_id()),
            lease: options.map(Lease::new),
            control: Mutex::new(control),
            fallback: Mutex::default(),
            has_refused: AtomicBool::new(false),
            next_check_ns: AtomicU64::new(0),
            unmapped_since_ns: AtomicU64::new(0),
            next_interval_ns: AtomicU64::new(0),
            next_skip_ns: AtomicU64::new(0),
            polls_before_skip: AtomicU64::new(0),
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

    /// A snapshot of its id, mode, streams and phase.
    pub fn consumer_state(&self) -> ConsumerState {
        let (is_mapped, on_per_consumer) = {
            let state = self.lock();
            (state.reader.epoch.mapping.is_some(), state.source.on_per_consumer())
        };
        self.control.lock().map(|c| c.state(is_mapped, on_per_consumer)).unwrap_or_default()
    }

    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn mapping(&self) -> Option<Arc<MappedEpoch>> {
        let state = self.lock();
        let fallback = state.source.fallback.as_ref();
        fallback.map_or_else(|| state.reader.epoch.mapping.clone(), |ring| ring.mapping())
    }

    pub fn last_seq(&self) -> Option<u64> {
        self.lock().reader.epoch.tracker.last_seq()
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub fn is_connected(&self) -> bool {
        self.lock().source.is_connected()
    }

    pub fn is_ready(&self) -> bool {
        !self.config.supports_shm || self.lock().source.is_ready()
    }

    /// Pushes up to `limit` frames onto `out`. Returns how many messages were consumed, with or without a frame.
    ///
    /// Descriptors without a frame do not count: those of other streams, and those of frames that were
    /// overwritten. A slow caller that asks for few frames would otherwise read old descriptors more slowly than
    /// new ones come, and never get a frame.
    pub fn poll(&self, limit: usize, out: &mut Vec<Frame>) -> usize {
        self.poll_locked(self.lock(), limit, out)
    }

    /// As `poll` without waiting: nothing if another thread holds the lock.
    pub fn try_poll(&self, limit: usize, out: &mut Vec<Frame>) -> usize {
        let Some(guard) = self.state.try_lock() else { return 0 };
        self.poll_locked(guard, limit, out)
    }

    #[inline]
    fn poll_locked(&self, mut guard: MutexGuard<'_, State>, limit: usize, out: &mut Vec<Frame>) -> usize {
        let before = out.len();
        if limit > 0 {
            out.extend(guard.held.take());
        }
        let held = out.len() - before;
        let max_messages = if held < limit { limit.max(MAX_MESSAGES_PER_POLL) } else { 0 };
        let taken = self.drain_while(guard, max_messages, &mut (), |reader, counters, descriptor, ()| {
            out.extend(reader.accept(counters, &descriptor, &mut ()));
            out.len() - before < limit
        });
        self.counters.record_latency(&out[before..]);
        held + taken
    }

    /// As `poll`, for a caller that holds many frames back. `patterns` are of this consumer's frames.
    pub fn poll_refs(&self, limit: usize, patterns: &mut FramePatterns, out: &mut Vec<FrameRef>) -> usize {
        self.poll_refs_locked(self.lock(), limit, patterns, out)
    }

    /// As `poll_refs` without waiting: nothing if another thread holds the lock.
    pub fn try_poll_refs(
        &self,
        limit: usize,
        patterns: &mut FramePatterns,
        out: &mut Vec<FrameRef>,
    ) -> usize {
        let Some(guard) = self.state.try_lock() else { return 0 };
        self.poll_refs_locked(guard, limit, patterns, out)
    }

    #[inline]
    fn poll_refs_locked(
        &self,
        mut guard: MutexGuard<'_, State>,
        limit: usize,
        patterns: &mut FramePatterns,
        out: &mut Vec<FrameRef>,
    ) -> usize {
        let before = out.len();
        if guard.reader.epoch.mapping.is_none() && guard.source.fallback.is_none() {
            // They would keep the regions mapped.
            patterns.clear();
        }
        if limit > 0 {
            out.extend(guard.held.take().map(|frame| patterns.frame_ref(frame)));
        }
        let held = out.len() - before;
        let taken = self.drain(guard, limit - held, |reader, counters, descriptor| {
            out.extend(reader.accept_ref(counters, &descriptor, patterns));
        });
        if out.len() > before {
            let now_ns = self.counters.latency.now_ns();
            for frame in &out[before..] {
                self.counters.latency.record(frame.publish_timestamp_ns, frame.timestamp_ns, now_ns);
            }
        }
        held + taken
    }

    /// Reads descriptors until one names a frame that passes. Consumes a bounded number, so that a stream
    /// full of other streams' descriptors does not hold the caller.
    pub fn poll_one(&self) -> Option<Frame> {
        self.poll_one_locked(self.lock())
    }

    /// As `poll_one` without waiting: nothing if another thread holds the lock.
    pub fn try_poll_one(&self) -> Option<Frame> {
        self.poll_one_locked(self.state.try_lock()?)
    }

    #[inline]
    fn poll_one_locked(&self, mut guard: MutexGuard<'_, State>) -> Option<Frame> {
        let mut frame = guard.held.take();
        if frame.is_none() {
            self.drain_while(guard, MAX_MESSAGES_PER_POLL, &mut (), |reader, counters, descriptor, ()| {
                frame = reader.accept(counters, &descriptor, &mut ());
                frame.is_none()
            });
        }
        self.counters.record_latency(frame.as_slice());
        frame
    }

    /// Consumes all waiting descriptors and returns the newest frame. The others count as skipped.
    pub fn latest(&self) -> Option<Frame> {
        let held = self.lock().held.take();
        let mut newest: Option<FrameDescriptor> = None;
        // Bounded, so that a fast producer cannot hold the caller here.
        for _ in 0..64 {
            let taken = self.drain(self.lock(), 1024, |reader, counters, descriptor| {
                reader.settle(counters);
                if newest.replace(descriptor).is_some() {
                    counters.drops.add(DropReason::Skipped, 1);
                }
            });
            if taken == 0 {
                break;
            }
        }
        let newest = match newest {
            Some(newest) => {
                if held.is_some() {
                    self.counters.received_to(DropReason::Skipped);
                }
                self.lock().with_fallback_mapping(|reader| reader.accept(&self.counters, &newest, &mut ()))
            }
            None => held,
        };
        self.counters.record_latency(newest.as_slice());
        newest
    }

    #[inline]
    fn drain(
        &self,
        guard: MutexGuard<'_, State>,
        limit: usize,
        mut each: impl FnMut(&mut Reader, &Counters, FrameDescriptor),
    ) -> usize {
        self.drain_while(guard, limit, &mut (), |reader, counters, descriptor, ()| {
            each(reader, counters, descriptor);
            true
        })
    }

    /// Polls, and passes each descriptor that is next in order to `each` until it returns false.
    #[inline]
    fn drain_while<W: DropObserver>(
        &self,
        mut guard: MutexGuard<'_, State>,
        limit: usize,
        observer: &mut W,
        each: impl FnMut(&mut Reader, &Counters, FrameDescriptor, &mut W) -> bool,
    ) -> usize {
        guard.drain_while(self.config.stream_id, &self.counters, limit, observer, each)
    }

    /// Channel and stream id of its descriptors.
    pub(crate) fn descriptors_at(&self) -> (&str, i32) {
        (&self.config.descriptor_channel, self.config.descriptor_stream_id)
    }

    /// A fanout reads the descriptor stream from here on.
    pub(crate) fn read_from_queue(&self, queue: Arc<DescriptorQueue>) {
        self.state.lock_priority().on_queue(queue);
    }

    /// Waits for something to poll. Consumes nothing. The wait began at `since`, and may be a part of it.
    pub fn wait(&self, timeout: Duration, strategy: IdleStrategy, since: Instant) -> WaitOutcome {
        let deadline = Instant::now() + timeout;
        let mut idle = Idle::since(strategy, since);
        loop {
            if self.is_closed() {
                return WaitOutcome::Closed;
            }
            {
                let mut state = self.lock();
                state.polls += 1;
                if let Some(refused) = state.refusal.refused.take() {
                    return WaitOutcome::Refused(refused);
                }
                if state.has_descriptors() {
                    return WaitOutcome::Ready;
                }
            }
            if Instant::now() >= deadline {
                return WaitOutcome::TimedOut;
            }
            idle.idle();
        }
    }

    /// Reports a refusal again, after a wait that ended with it and had frames to return first.
    pub fn restore_refused(&self, refused: RegionRefusal) {
        self.lock().refusal.refused = Some(refused);
        self.has_refused.store(true, Ordering::Relaxed);
    }

    /// The refusal that is not reported yet.
    pub fn take_refused(&self) -> Option<RegionRefusal> {
        if !self.has_refused.load(Ordering::Relaxed) {
            return None;
        }
        self.has_refused.store(false, Ordering::Relaxed);
        self.lock().refusal.refused.take()
    }
}
