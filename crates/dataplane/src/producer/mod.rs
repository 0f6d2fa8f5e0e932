//! A producer: it writes payloads into slots, commits them, and publishes descriptors (wire §15.18). No
//! allocation per frame. Any thread offers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tensorpool_core::lease::attachment::LeaseOptions;
use tensorpool_core::os::time::{StreamClock, monotonic_ns};
use tensorpool_core::producer::grants::GrantPolicy;
use tensorpool_core::producer::progress_schedule::{FilledBytes, ProgressLimits};
use tensorpool_core::producer::sequencer::Sequencer;
use tensorpool_core::shm::copy::Target;
use tensorpool_core::shm::copy_thread::CopyThread;
use tensorpool_core::shm::epoch::MappedEpoch;
use tensorpool_core::shm::region_lock::RegionLock;
use tensorpool_core::shm::tensor::TensorSpec;
use tensorpool_core::wire::announce::PoolAnnounce;

use crate::aeron::ExclusivePublication;
use crate::conductor::handle::Handle;
use crate::lease::Lease;
use crate::priority_lock::PriorityLock;

mod batch;
mod blocking;
mod claim_at;
mod endpoint;
mod grants;
mod outcome;
mod per_consumer;
mod progress;
mod publish;
mod status;

pub use batch::OfferedBatch;
pub use blocking::BlockedOn;
pub use claim_at::ClaimedSlot;
use grants::GrantSender;
use outcome::bump;
pub use outcome::{Counters, FrameStamp, OfferResult, Outcome};
pub use per_consumer::PerConsumerCounters;
use per_consumer::PerConsumerStreams;
use progress::ProgressSender;

#[derive(Clone, Debug)]
pub struct Config {
    pub stream_id: u32,
    pub descriptor_channel: String,
    pub descriptor_stream_id: i32,
    /// Write the time of publication into descriptors.
    pub publish_timestamps: bool,
    /// The clock of timestamps that the source does not give, and of announces and activity.
    pub clock: StreamClock,
    /// Standalone: this producer owns the regions and announces them.
    pub announce: Option<PoolAnnounce>,
    pub announce_period_ns: u64,
    pub qos_period_ns: u64,
    /// What consumers may be granted.
    pub policy: GrantPolicy,
    /// The stream of progress for consumers without a per-consumer one.
    pub control_channel: String,
    pub control_stream_id: i32,
    /// The control and QoS streams of this producer, if it does not use the shared ones.
    pub dedicated_control_stream: Option<i32>,
    pub dedicated_qos_stream: Option<i32>,
    /// Lower bounds on the progress interval and bytes.
    pub progress_limits: ProgressLimits,
    /// Touch every page when regions are mapped, so that no frame pays for it.
    pub prefault: bool,
    /// A second thread helps to copy large frames.
    pub has_copy_thread: bool,
}

struct State {
    mapping: Option<Arc<MappedEpoch>>,
    /// The current epoch, or the last one.
    last_epoch: Option<u64>,
    /// With a lease: when this process dies, the kernel releases the lock, and the driver sees that at once.
    lock: Option<RegionLock>,
    publication: Handle<ExclusivePublication>,
    sequencer: Sequencer,
    last_frame_ns: u64,
    /// By slot: what the descriptor of a deferred frame carries.
    pending: Vec<Pending>,
    per_consumer: PerConsumerStreams,
    progress: ProgressSender,
    /// Helps to copy large frames.
    copy_thread: Option<CopyThread>,
    uncounted: Uncounted,
}

/// Frames that are not in the counters yet. An atomic addition for each frame of a batch would wait until all its
/// stores have reached the cache.
#[derive(Debug, Default)]
struct Uncounted {
    committed: u64,
    published: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Default)]
struct Pending {
    trace_id: u64,
    meta_version: u32,
    timestamp_ns: u64,
}

pub struct Producer {
    config: Config,
    state: PriorityLock<State>,
    /// The publications are ready, so that no duty cycle needs the lock for them.
    connected: AtomicBool,
    has_publication: AtomicBool,
    /// With a driver: the right to the regions. Without one: `None`.
    lease: Option<Lease>,
    /// Used by the conductor only.
    grants: Mutex<GrantSender>,
    per_consumer_counters: PerConsumerCounters,
    /// A consumer asks for progress.
    has_progress_consumers: AtomicBool,
    next_progress_count_ns: AtomicU64,
    next_qos_ns: AtomicU64,
    counters: Counters,
    closed: AtomicBool,
    /// Standalone: the regions are lost, and no driver creates new ones.
    has_lost_regions: AtomicBool,
    next_announce_ns: AtomicU64,
    /// When the last announce was sent.
    announced_ns: AtomicU64,
    next_activity_ns: AtomicU64,
}

/// A slot to write in place. Commit or abandon it: until then nothing wraps onto it.
pub struct Claim {
    pub seq: u64,
    pub spec: TensorSpec,
    pub values_len: u32,
    pool: u16,
    mapping: Arc<MappedEpoch>,
    /// Its filled bytes, if its progress is sent.
    filled: Option<FilledBytes>,
}

impl Claim {
    /// The payload: `values_len` writable bytes, as long as the claim lives.
    pub fn payload(&self) -> *mut u8 {
        self.mapping.payload(self.pool, self.seq)
    }

    pub fn mapping(&self) -> &Arc<MappedEpoch> {
        &self.mapping
    }
}

impl Producer {
    /// A producer that owns its regions.
    pub fn new(config: Config, mapping: Arc<MappedEpoch>) -> Self {
        if config.prefault {
            mapping.prefault();
        }
        mapping.prepare_copies();
        let producer = Self::with(config, None);
        producer.state.lock().map(mapping, None);
        producer
    }

    /// A producer that uses a driver's regions while it holds a lease.
    pub fn leased(config: Config, options: LeaseOptions) -> Self {
        Self::with(config, Some(Lease::new(options)))
    }

    fn with(config: Config, lease: Option<Lease>) -> Self {
        let state = State {
            mapping: None,
            last_epoch: None,
            lock: None,
            publication: Handle::None,
            sequencer: Sequencer::new(1),
            last_frame_ns: 0,
            pending: Vec::new(),
            per_consumer: PerConsumerStreams::default(),
            progress: ProgressSender::default(),
            // Without it, frames are copied all the same.
            copy_thread: config.has_copy_thread.then(CopyThread::start).and_then(Result::ok),
            uncounted: Uncounted::default(),
        };
        let grants = Mutex::new(GrantSender::new(config.stream_id, config.policy.clone()));
        Self {
            config,
            state: PriorityLock::new(state),
            connected: AtomicBool::new(false),
            has_publication: AtomicBool::new(false),
            lease,
            grants,
            per_consumer_counters: PerConsumerCounters::default(),
            has_progress_consumers: AtomicBool::new(false),
            next_progress_count_ns: AtomicU64::new(0),
            next_qos_ns: AtomicU64::new(0),
            counters: Counters::default(),
            closed: AtomicBool::new(false),
            has_lost_regions: AtomicBool::new(false),
            next_announce_ns: AtomicU64::new(0),
            announced_ns: AtomicU64::new(0),
            next_activity_ns: AtomicU64::new(0),
        }
    }

    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A frame that fit no pool is offered again, in another layout: it counts once.
    pub fn retract_no_pool(&self) {
        self.counters.no_pool.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a frame of `len` bytes fits a pool. None without regions.
    pub fn fits_pool(&self, len: u64) -> Option<bool> {
        self.lock().mapping.as_ref().map(|mapping| mapping.smallest_pool(len).is_some())
    }

    pub fn per_consumer_counters(&self) -> &PerConsumerCounters {
        &self.per_consumer_counters
    }

    /// How many consumers sent a hello, and how many have a per-consumer descriptor stream.
    pub fn consumers(&self) -> (usize, usize) {
        let known = self.grants.lock().map_or(0, |w| w.consumers());
        (known, self.lock().per_consumer.len())
    }

    /// How many consumers have mapped the current epoch.
    pub fn readers(&self) -> usize {
        let Some(epoch) = self.epoch() else { return 0 };
        self.grants.lock().map_or(0, |w| w.readers(epoch, monotonic_ns()))
    }

    pub fn stream_id(&self) -> u32 {
        self.config.stream_id
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn epoch(&self) -> Option<u64> {
        self.lock().mapping.as_ref().map(|m| m.epoch)
    }

    pub fn next_seq(&self) -> u64 {
        self.lock().sequencer.next_seq()
    }

    pub fn is_connected(&self) -> bool {
        self.lock().publication.get().is_some_and(|p| p.is_connected())
    }

    pub fn is_ready(&self) -> bool {
        self.lock().publication.get().is_some()
    }

    /// Writes a frame with `fill` into the next slot and publishes it.
    #[inline]
    pub fn offer(
        &self,
        spec: TensorSpec,
        values_len: u64,
        stamp: FrameStamp,
        fill: impl FnOnce(&mut Target<'_>),
    ) -> OfferResult {
        self.fill_and_publish(&mut self.lock(), spec, values_len, stamp, fill)
    }

    /// As `offer` without waiting: `None`, and `fill` was not called, if another thread holds the lock.
    #[inline]
    pub fn try_offer(
        &self,
        spec: TensorSpec,
        values_len: u64,
        stamp: FrameStamp,
        fill: impl FnOnce(&mut Target<'_>),
    ) -> Option<OfferResult> {
        let mut state = self.state.try_lock()?;
        Some(self.fill_and_publish(&mut state, spec, values_len, stamp, fill))
    }

    #[inline]
    fn fill_and_publish(
        &self,
        state: &mut State,
        spec: TensorSpec,
        values_len: u64,
        stamp: FrameStamp,
        fill: impl FnOnce(&mut Target<'_>),
    ) -> OfferResult {
        let (mapping, pool, seq) = match self.take(state, values_len) {
            Ok(mapped) => mapped,
            Err(outcome) => return OfferResult { outcome, seq: None, epoch: None },
        };
        mapping.begin(seq);
        fill(&mut mapping.target(pool, seq, state.copy_thread.as_mut()));
        self.commit(state, &mapping, pool, seq, spec, values_len as u32, stamp)
    }

    /// Claims the next slot for writing in place.
    pub fn claim(&self, spec: TensorSpec, values_len: u64) -> Result<Claim, Outcome> {
        let mut state = self.lock();
        let (mapping, pool, seq) = self.take(&mut state, values_len)?;
        mapping.begin(seq);
        Ok(Claim { seq, spec, values_len: values_len as u32, pool, mapping, filled: None })
    }

    pub fn commit_claim(&self, claim: &Claim, stamp: FrameStamp) -> OfferResult {
        let mut state = self.lock();
        match &state.mapping {
            Some(current) if Arc::ptr_eq(current, &claim.mapping) => {}
            // The regions were unmapped during the claim: no consumer would see this frame.
            _ => return OfferResult { outcome: self.no_regions(), seq: None, epoch: None },
        }
        let Claim { mapping, pool, seq, spec, values_len, .. } = claim;
        let offered = self.commit(&mut state, mapping, *pool, *seq, *spec, *values_len, stamp);
        if claim.filled.is_some() {
            self.send_complete(&mut state, claim);
        }
        offered
    }

    pub fn abandon_claim(&self, claim: &Claim) {
        let mut state = self.lock();
        if !state.mapping.as_ref().is_some_and(|m| Arc::ptr_eq(m, &claim.mapping)) {
            return;
        }
        bump(&self.counters.abandoned);
        // A sequence that consumers know of is never reused for another frame.
        let is_known = claim.filled.is_some() && state.progress.schedule.forget(claim.seq);
        if is_known {
            state.sequencer.leave_hole(claim.seq);
        }
        if is_known || state.sequencer.abandon(claim.seq) {
            bump(&self.counters.holes);
            self.release(&mut state);
        }
    }

    #[inline]
    fn take(&self, state: &mut State, values_len: u64) -> Result<(Arc<MappedEpoch>, u16, u64), Outcome> {
        let Some(mapping) = state.mapping.clone() else {
            return Err(self.no_regions());
        };
        if mapping.is_lost() {
            // The conductor unmaps it in its next duty cycle.
            self.next_activity_ns.store(0, Ordering::Relaxed);
            return Err(self.no_regions());
        }
        let Some(pool) = mapping.smallest_pool(values_len) else {
            bump(&self.counters.no_pool);
            return Err(Outcome::NoPool);
        };
        let seq = self.take_seq(state)?;
        Ok((mapping, pool, seq))
    }

    #[inline]
    fn take_seq(&self, state: &mut State) -> Result<u64, Outcome> {
        state.sequencer.take().ok_or_else(|| {
            bump(&self.counters.slot_claimed);
            Outcome::SlotClaimed
        })
    }

    /// There are no regions: permanently, or until the next lease.
    #[cold]
    fn no_regions(&self) -> Outcome {
        if self.lease.is_some() && !self.closed.load(Ordering::Relaxed) {
            bump(&self.counters.detached);
            Outcome::Detached
        } else {
            bump(&self.counters.after_close);
            Outcome::Closed
        }
    }
}
