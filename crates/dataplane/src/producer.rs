//! A producer: payload into its slot, commit, descriptor out (wire §15.18). No allocation per frame.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tensorpool_core::announce::PoolAnnounce;
use tensorpool_core::attach::Terms;
use tensorpool_core::descriptor::{FRAME_DESCRIPTOR_ENCODED_LENGTH, FrameDescriptor};
use tensorpool_core::order::Order;
use tensorpool_core::progress::{Filled, Floors};
use tensorpool_core::region_lock::RegionLock;
use tensorpool_core::ring::Mapping;
use tensorpool_core::slot::SlotFields;
use tensorpool_core::tensor::TensorSpec;
use tensorpool_core::time::monotonic_ns;
use tensorpool_core::wishes::Policy;

use crate::aeron::{ExclusivePublication, NotTaken};
use crate::handle::Handle;
use crate::lease::Lease;
use crate::turn::TurnLock;

mod account;
mod endpoint;
mod lanes;
mod patient;
mod placing;
mod telling;
mod voice;
mod wishing;

use account::bump;
pub use account::{Counters, Offered, Outcome, Tags};
pub use lanes::LaneCounters;
use lanes::Lanes;
pub use patient::Hold;
pub use placing::Placed;
use voice::Voice;
use wishing::Wishing;

/// What stays in the caches nearest to a core until the next frame comes.
const MOST_TO_WARM: u32 = 256 << 10;
const LEAST_PAUSE_NS: u64 = 20_000;

#[derive(Clone, Debug)]
pub struct Config {
    pub stream_id: u32,
    pub descriptor_channel: String,
    pub descriptor_stream_id: i32,
    /// Write the time of publication into descriptors.
    pub publish_timestamps: bool,
    /// Stand-alone: this producer owns the regions and announces them.
    pub announce: Option<PoolAnnounce>,
    pub announce_period_ns: u64,
    pub qos_period_ns: u64,
    /// What consumers may be granted.
    pub policy: Policy,
    /// The stream that progress goes out on for those without one of their own.
    pub control_channel: String,
    pub control_stream_id: i32,
    /// Progress is told no more often than this, whoever asks.
    pub floors: Floors,
    /// Touch every page when regions are mapped, so that no frame pays for it.
    pub prefault: bool,
}

struct State {
    mapping: Option<Arc<Mapping>>,
    /// The epoch that is written, or was last.
    last_epoch: Option<u64>,
    /// Tells the driver of our death the moment it comes (on a lease).
    lock: Option<RegionLock>,
    publication: Handle<ExclusivePublication>,
    order: Order,
    last_frame_ns: u64,
    /// By slot: what the descriptor of a deferred frame carries.
    pending: Vec<Pending>,
    lanes: Lanes,
    voice: Voice,
}

#[derive(Clone, Copy, Default)]
struct Pending {
    trace_id: u64,
    meta_version: u32,
    timestamp_ns: u64,
}

pub struct Producer {
    config: Config,
    state: TurnLock<State>,
    /// All publications are there: nothing to attach, and no lock to take for it at every tick.
    attached: AtomicBool,
    has_publication: AtomicBool,
    /// On a driver: the right to the regions. Alone: none.
    lease: Option<Lease>,
    /// Touched by the conductor alone.
    wishing: Mutex<Wishing>,
    lane_counters: LaneCounters,
    /// Someone wants to hear of frames that are still filling.
    has_listeners: AtomicBool,
    next_listeners_ns: AtomicU64,
    next_qos_ns: AtomicU64,
    counters: Counters,
    closed: AtomicBool,
    next_announce_ns: AtomicU64,
    next_activity_ns: AtomicU64,
}

/// A slot given out for writing. Commit or abandon it; until then nothing wraps onto it.
pub struct Claim {
    pub seq: u64,
    pub spec: TensorSpec,
    pub values_len: u32,
    pool: u16,
    mapping: Arc<Mapping>,
    /// How far it is, where its progress is told.
    filled: Option<Filled>,
}

impl Claim {
    /// The payload: `values_len` writable bytes, as long as the claim lives.
    pub fn payload(&self) -> *mut u8 {
        self.mapping.payload(self.pool, self.seq)
    }

    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

impl Producer {
    /// One that owns its regions.
    pub fn new(config: Config, mapping: Arc<Mapping>) -> Self {
        if config.prefault {
            mapping.prefault();
        }
        let made = Self::with(config, None);
        made.state.lock().take_up(mapping, None);
        made
    }

    /// One that works on a driver's regions while it holds a lease.
    pub fn leased(config: Config, terms: Terms) -> Self {
        Self::with(config, Some(Lease::new(terms)))
    }

    fn with(config: Config, lease: Option<Lease>) -> Self {
        let state = State {
            mapping: None,
            last_epoch: None,
            lock: None,
            publication: Handle::None,
            order: Order::new(1),
            last_frame_ns: 0,
            pending: Vec::new(),
            lanes: Lanes::default(),
            voice: Voice::default(),
        };
        let wishing = Mutex::new(Wishing::new(config.stream_id, config.policy.clone()));
        Self {
            config,
            state: TurnLock::new(state),
            attached: AtomicBool::new(false),
            has_publication: AtomicBool::new(false),
            lease,
            wishing,
            lane_counters: LaneCounters::default(),
            has_listeners: AtomicBool::new(false),
            next_listeners_ns: AtomicU64::new(0),
            next_qos_ns: AtomicU64::new(0),
            counters: Counters::default(),
            closed: AtomicBool::new(false),
            next_announce_ns: AtomicU64::new(0),
            next_activity_ns: AtomicU64::new(0),
        }
    }

    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn lane_counters(&self) -> &LaneCounters {
        &self.lane_counters
    }

    /// How many consumers are known by their hellos, and how many have a descriptor stream of their own.
    pub fn consumers(&self) -> (usize, usize) {
        let known = self.wishing.lock().map_or(0, |w| w.consumers());
        (known, self.lock().lanes.len())
    }

    /// How many consumers have mapped the epoch that is written now.
    pub fn readers(&self) -> usize {
        let Some(epoch) = self.epoch() else { return 0 };
        self.wishing.lock().map_or(0, |w| w.readers(epoch, monotonic_ns()))
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
        self.lock().order.next_seq()
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
        tags: Tags,
        fill: impl FnOnce(*mut u8),
    ) -> Offered {
        self.fill_and_publish(&mut self.lock(), spec, values_len, tags, fill)
    }

    /// The same without waiting: `None`, and `fill` was not called, if another thread is at work here.
    #[inline]
    pub fn try_offer(
        &self,
        spec: TensorSpec,
        values_len: u64,
        tags: Tags,
        fill: impl FnOnce(*mut u8),
    ) -> Option<Offered> {
        let mut state = self.state.try_lock()?;
        Some(self.fill_and_publish(&mut state, spec, values_len, tags, fill))
    }

    #[inline]
    fn fill_and_publish(
        &self,
        state: &mut State,
        spec: TensorSpec,
        values_len: u64,
        tags: Tags,
        fill: impl FnOnce(*mut u8),
    ) -> Offered {
        let (mapping, pool, seq) = match self.take(state, values_len) {
            Ok(taken) => taken,
            Err(outcome) => return Offered { outcome, seq: None },
        };
        mapping.begin(seq);
        fill(mapping.payload(pool, seq));
        self.commit(state, &mapping, pool, seq, spec, values_len as u32, tags)
    }

    /// Gives out the next slot for writing in place.
    pub fn claim(&self, spec: TensorSpec, values_len: u64) -> Result<Claim, Outcome> {
        let mut state = self.lock();
        let (mapping, pool, seq) = self.take(&mut state, values_len)?;
        mapping.begin(seq);
        Ok(Claim { seq, spec, values_len: values_len as u32, pool, mapping, filled: None })
    }

    pub fn commit_claim(&self, claim: &Claim, tags: Tags) -> Offered {
        let mut state = self.lock();
        match &state.mapping {
            Some(current) if Arc::ptr_eq(current, &claim.mapping) => {}
            // The regions went away under the claim: nobody would see this frame.
            _ => return Offered { outcome: self.no_regions(), seq: None },
        }
        let Claim { mapping, pool, seq, spec, values_len, .. } = claim;
        let offered = self.commit(&mut state, mapping, *pool, *seq, *spec, *values_len, tags);
        if claim.filled.is_some() {
            self.tell_complete(&mut state, claim);
        }
        offered
    }

    pub fn abandon_claim(&self, claim: &Claim) {
        let mut state = self.lock();
        if !state.mapping.as_ref().is_some_and(|m| Arc::ptr_eq(m, &claim.mapping)) {
            return;
        }
        bump(&self.counters.abandoned);
        // A sequence that readers have heard of is never another frame's.
        let is_known = claim.filled.is_some() && state.voice.telling.forget(claim.seq);
        if is_known {
            state.order.leave_hole(claim.seq);
        }
        if is_known || state.order.abandon(claim.seq) {
            bump(&self.counters.holes);
            self.release(&mut state);
        }
    }

    #[inline]
    fn take(&self, state: &mut State, values_len: u64) -> Result<(Arc<Mapping>, u16, u64), Outcome> {
        let Some(mapping) = state.mapping.clone() else {
            return Err(self.no_regions());
        };
        let Some(pool) = mapping.smallest_pool(values_len) else {
            bump(&self.counters.no_pool);
            return Err(Outcome::NoPool);
        };
        let Some(seq) = state.order.take() else {
            bump(&self.counters.slot_claimed);
            return Err(Outcome::SlotClaimed);
        };
        Ok((mapping, pool, seq))
    }

    /// There is nowhere to write: for good, or until the next lease.
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

    #[inline]
    fn commit(
        &self,
        state: &mut State,
        mapping: &Mapping,
        pool: u16,
        seq: u64,
        spec: TensorSpec,
        values_len_bytes: u32,
        tags: Tags,
    ) -> Offered {
        let index = mapping.index(seq);
        let timestamp_ns = tags.timestamp_ns.unwrap_or_else(|| {
            // A newer claim may have been settled first: capture times do not run backwards (wire §15.7).
            let newer = state.order.next_committed(seq).map(|s| state.pending[mapping.index(s) as usize]);
            newer.map_or_else(monotonic_ns, |newer| newer.timestamp_ns.min(monotonic_ns()))
        });
        let fields = SlotFields {
            values_len_bytes,
            payload_slot: index,
            pool_id: mapping.pool_id(pool),
            timestamp_ns,
            meta_version: tags.meta_version,
            tensor: spec,
        };
        mapping.commit(seq, &fields);
        bump(&self.counters.committed);
        self.counters.bytes.fetch_add(u64::from(values_len_bytes), Ordering::Relaxed);
        let Tags { trace_id, meta_version, .. } = tags;
        state.pending[index as usize] = Pending { trace_id, meta_version, timestamp_ns };
        state.order.commit(seq);
        let mut outcome = Outcome::Deferred;
        while let Some(released) = state.order.release() {
            let result = self.publish(state, mapping, released);
            if released == seq {
                outcome = result;
            }
        }
        // A time that came from elsewhere says nothing about the pace.
        let now_ns = if tags.timestamp_ns.is_none() { timestamp_ns } else { 0 };
        self.get_ready(state, mapping, pool, seq + 1, values_len_bytes, now_ns);
        Offered { outcome, seq: Some(seq) }
    }

    /// Fetches what the next frame is written to, as much as the pace leaves time for.
    #[inline]
    fn get_ready(&self, state: &mut State, mapping: &Mapping, pool: u16, seq: u64, len: u32, now_ns: u64) {
        let pause_ns = now_ns.saturating_sub(state.last_frame_ns);
        state.last_frame_ns = now_ns;
        // To fetch a slot from far away takes about a nanosecond for 16 bytes, so this is a small part of the pause.
        if len <= MOST_TO_WARM && pause_ns >= LEAST_PAUSE_NS.max(u64::from(len)) {
            mapping.warm(seq, pool, len as usize);
        } else {
            mapping.prepare(seq, pool, len as usize);
        }
    }

    fn release(&self, state: &mut State) {
        let Some(mapping) = state.mapping.clone() else {
            return;
        };
        while let Some(seq) = state.order.release() {
            self.publish(state, &mapping, seq);
        }
    }

    /// The descriptor, only ever after the commit (wire §10.2.1).
    #[inline]
    fn publish(&self, state: &mut State, mapping: &Mapping, seq: u64) -> Outcome {
        let Pending { trace_id, meta_version, timestamp_ns } = state.pending[mapping.index(seq) as usize];
        let descriptor = FrameDescriptor {
            stream_id: mapping.stream_id,
            epoch: mapping.epoch,
            seq,
            timestamp_ns: self.config.publish_timestamps.then(monotonic_ns),
            meta_version: (meta_version != 0).then_some(meta_version),
            trace_id,
        };
        let sent = match state.publication.get() {
            Some(p) => p.claim(FRAME_DESCRIPTOR_ENCODED_LENGTH, |bytes| descriptor.encode(bytes)),
            None => Err(NotTaken::Closed),
        };
        // A consumer with a stream of its own does not read the shared one.
        let own = state.lanes.publish(
            &descriptor,
            descriptor.timestamp_ns.unwrap_or(timestamp_ns),
            &self.lane_counters,
        );
        let (outcome, counter) = match sent {
            Err(NotTaken::NotConnected) if own => (Outcome::Published, &self.counters.published),
            Ok(_) => (Outcome::Published, &self.counters.published),
            Err(NotTaken::BackPressured) => (Outcome::BackPressured, &self.counters.back_pressured),
            Err(NotTaken::NotConnected) => (Outcome::NotConnected, &self.counters.not_connected),
            Err(NotTaken::Closed) => (Outcome::Closed, &self.counters.closed),
        };
        bump(counter);
        outcome
    }
}
