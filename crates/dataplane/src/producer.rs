//! A producer: payload into its slot, commit, descriptor out (wire §15.18). No allocation per frame.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use tensorpool_core::announce::PoolAnnounce;
use tensorpool_core::descriptor::{FRAME_DESCRIPTOR_ENCODED_LENGTH, FrameDescriptor};
use tensorpool_core::mapping::Now;
use tensorpool_core::order::Order;
use tensorpool_core::ring::Mapping;
use tensorpool_core::slot::SlotFields;
use tensorpool_core::tensor::TensorSpec;
use tensorpool_core::time::monotonic_ns;

use crate::aeron::{AeronError, Client, ExclusivePublication, NotTaken};
use crate::conductor::{Endpoint, Tick};
use crate::handle::Handle;
use crate::turn::TurnLock;

/// What became of a frame. Only `Published` reached a consumer's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    Published,
    /// In the ring; its descriptor follows when an older claim is settled.
    Deferred,
    BackPressured,
    NotConnected,
    Closed,
    NoPool,
    SlotClaimed,
}

impl Outcome {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Deferred => "deferred",
            Self::BackPressured => "back_pressured",
            Self::NotConnected => "not_connected",
            Self::Closed => "closed",
            Self::NoPool => "no_pool",
            Self::SlotClaimed => "slot_claimed",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Offered {
    pub outcome: Outcome,
    /// The frame's sequence, if it got as far as the ring.
    pub seq: Option<u64>,
}

/// What a frame carries beside its payload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tags {
    /// Source time; the time of the commit if not given.
    pub timestamp_ns: Option<u64>,
    pub meta_version: u32,
    pub trace_id: u64,
}

/// committed = published + back_pressured + not_connected + closed + what is deferred.
#[derive(Debug, Default)]
pub struct Counters {
    pub committed: AtomicU64,
    pub published: AtomicU64,
    pub back_pressured: AtomicU64,
    pub not_connected: AtomicU64,
    pub closed: AtomicU64,
    pub no_pool: AtomicU64,
    pub slot_claimed: AtomicU64,
    pub after_close: AtomicU64,
    pub abandoned: AtomicU64,
    pub holes: AtomicU64,
    pub bytes: AtomicU64,
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

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
}

struct State {
    mapping: Option<Arc<Mapping>>,
    publication: Handle<ExclusivePublication>,
    order: Order,
    /// By slot: what the descriptor of a deferred frame carries.
    pending: Vec<(u64, u32)>,
}

pub struct Producer {
    config: Config,
    state: TurnLock<State>,
    /// The publication is there: nothing to attach, and no lock to take for it at every tick.
    attached: AtomicBool,
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
    pub fn new(config: Config, mapping: Arc<Mapping>) -> Self {
        let nslots = mapping.nslots;
        let state = State {
            mapping: Some(mapping),
            publication: Handle::None,
            order: Order::new(nslots),
            pending: vec![(0, 0); nslots as usize],
        };
        Self {
            config,
            state: TurnLock::new(state),
            attached: AtomicBool::new(false),
            counters: Counters::default(),
            closed: AtomicBool::new(false),
            next_announce_ns: AtomicU64::new(0),
            next_activity_ns: AtomicU64::new(0),
        }
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
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
        let mut state = self.lock();
        let (mapping, pool, seq) = match self.take(&mut state, values_len) {
            Ok(taken) => taken,
            Err(outcome) => return Offered { outcome, seq: None },
        };
        mapping.begin(seq);
        fill(mapping.payload(pool, seq));
        self.commit(&mut state, &mapping, pool, seq, spec, values_len as u32, tags)
    }

    /// Gives out the next slot for writing in place.
    pub fn claim(&self, spec: TensorSpec, values_len: u64) -> Result<Claim, Outcome> {
        let mut state = self.lock();
        let (mapping, pool, seq) = self.take(&mut state, values_len)?;
        mapping.begin(seq);
        Ok(Claim { seq, spec, values_len: values_len as u32, pool, mapping })
    }

    pub fn commit_claim(&self, claim: &Claim, tags: Tags) -> Offered {
        let mut state = self.lock();
        match &state.mapping {
            Some(current) if Arc::ptr_eq(current, &claim.mapping) => {}
            // The regions went away under the claim: nobody would see this frame.
            _ => {
                return Offered { outcome: Outcome::Closed, seq: None };
            }
        }
        self.commit(&mut state, &claim.mapping, claim.pool, claim.seq, claim.spec, claim.values_len, tags)
    }

    pub fn abandon_claim(&self, claim: &Claim) {
        let mut state = self.lock();
        if !state.mapping.as_ref().is_some_and(|m| Arc::ptr_eq(m, &claim.mapping)) {
            return;
        }
        bump(&self.counters.abandoned);
        if state.order.abandon(claim.seq) {
            bump(&self.counters.holes);
            self.release(&mut state);
        }
    }

    #[inline]
    fn take(&self, state: &mut State, values_len: u64) -> Result<(Arc<Mapping>, u16, u64), Outcome> {
        let Some(mapping) = state.mapping.clone() else {
            bump(&self.counters.after_close);
            return Err(Outcome::Closed);
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
        let fields = SlotFields {
            values_len_bytes,
            payload_slot: index,
            pool_id: mapping.pool_id(pool),
            timestamp_ns: tags.timestamp_ns.unwrap_or_else(monotonic_ns),
            meta_version: tags.meta_version,
            tensor: spec,
        };
        mapping.commit(seq, &fields);
        bump(&self.counters.committed);
        self.counters.bytes.fetch_add(u64::from(values_len_bytes), Ordering::Relaxed);
        state.pending[index as usize] = (tags.trace_id, tags.meta_version);
        state.order.commit(seq);
        let mut outcome = Outcome::Deferred;
        while let Some(released) = state.order.release() {
            let result = self.publish(state, mapping, released);
            if released == seq {
                outcome = result;
            }
        }
        Offered { outcome, seq: Some(seq) }
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
        let (trace_id, meta_version) = state.pending[mapping.index(seq) as usize];
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
        let (outcome, counter) = match sent {
            Ok(_) => (Outcome::Published, &self.counters.published),
            Err(NotTaken::BackPressured) => (Outcome::BackPressured, &self.counters.back_pressured),
            Err(NotTaken::NotConnected) => (Outcome::NotConnected, &self.counters.not_connected),
            Err(NotTaken::Closed) => (Outcome::Closed, &self.counters.closed),
        };
        bump(counter);
        outcome
    }
}

impl Endpoint for Producer {
    fn attach(&self, client: &Client) -> Result<(), AeronError> {
        if self.attached.load(Ordering::Relaxed) {
            return Ok(());
        }
        let config = &self.config;
        let mut state = self.state.lock_first();
        state.publication.advance(|| {
            client.add_exclusive_publication(&config.descriptor_channel, config.descriptor_stream_id)
        })?;
        self.attached.store(state.publication.get().is_some(), Ordering::Relaxed);
        Ok(())
    }

    fn detach(&self) {
        self.attached.store(false, Ordering::Relaxed);
        self.state.lock_first().publication = Handle::None;
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let mut state = self.state.lock_first();
        // Their claim can no longer be settled, so they never go out.
        let deferred = state.order.give_up();
        self.counters.closed.fetch_add(deferred, Ordering::Relaxed);
        state.publication = Handle::None;
        state.mapping = None;
    }

    /// Alone, the producer gives the sign of life of its regions itself.
    fn duty(&self, tick: &Tick<'_>) {
        let now_ns = tick.now.monotonic_ns;
        if self.config.announce.is_none() || now_ns < self.next_activity_ns.load(Ordering::Relaxed) {
            return;
        }
        let mapping = self.state.lock_first().mapping.clone();
        if let Some(mapping) = mapping {
            mapping.refresh_activity(now_ns);
        }
        self.next_activity_ns.store(now_ns + self.config.announce_period_ns, Ordering::Relaxed);
    }

    fn sends_announces(&self) -> bool {
        self.config.announce.is_some() && !self.closed.load(Ordering::Relaxed)
    }

    fn announce_soon(&self) {
        self.next_announce_ns.store(0, Ordering::Relaxed);
    }

    fn due_announce(&self, now: Now) -> Option<Vec<u8>> {
        let announce = self.config.announce.as_ref()?;
        if now.monotonic_ns < self.next_announce_ns.load(Ordering::Relaxed) {
            return None;
        }
        self.next_announce_ns.store(now.monotonic_ns + self.config.announce_period_ns, Ordering::Relaxed);
        Some(PoolAnnounce { timestamp_ns: now.monotonic_ns, ..announce.clone() }.encode())
    }
}
