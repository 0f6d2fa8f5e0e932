//! The receiver: it writes chunks into slots of this host, and copies each byte once, from the image's own
//! buffer (bridge §2.2).
//!
//! Announces come on the control stream, which is polled before the payload stream. Other messages on it are
//! kept for forwarding. The chunks of a frame go directly into its slot, whose commit word says that it is
//! being written.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tensorpool_core::bridge::assembly::AssemblyCounters;
use tensorpool_core::bridge::seal::{Opener, Purpose, SharedKeys, is_sealed};
use tensorpool_core::bridge::session_ledger::{LedgerStart, SessionCounts};
use tensorpool_core::bridge::source::SourceLayout;
use tensorpool_core::os::time::{monotonic_ns, realtime_ns};
use tensorpool_core::wire::announce::{Decoded, PoolAnnounce};
use tensorpool_core::wire::chunk::{Chunk, ChunkLimits, Fault, MTU_OVERHEAD};
use tensorpool_core::wire::control::ControlMessage;

use super::fragment_assembler::FragmentAssembler;
use super::mapping::ReceiverMapping;
pub use super::mapping::Traffic;
use super::private_ring::PrivateRing;
use super::worker::Worker;
use crate::aeron::channels::tethered;
use crate::aeron::{AeronError, Assembler, Client, Header, Subscription};
use crate::conductor::Endpoint;
use crate::conductor::handle::Handle;
use crate::idle::IdleStrategy;
use crate::priority_lock::PriorityLock;
use crate::producer::Producer;

/// Fragments polled in one duty cycle, after which the conductor may take the lock.
const FRAGMENTS_PER_TURN: usize = 256;
const MESSAGES_PER_TURN: usize = 16;
/// Messages kept for forwarding. The oldest are dropped first.
const MAX_MESSAGES: usize = 4096;
const MAX_MESSAGES_BYTES: usize = 4 << 20;
/// Bytes of a chunk message beside its slice, at most.
const CHUNK_OVERHEAD: usize = 512;

#[derive(Clone)]
pub struct Config {
    pub payload_channel: String,
    pub payload_stream_id: i32,
    pub control_channel: String,
    pub control_stream_id: i32,
    pub limits: ChunkLimits,
    /// Chunks also have to fit the MTU of their session. False: an MTU is configured, and in `limits`.
    pub fits_session_mtu: bool,
    pub timeout_ns: u64,
    /// Accept only messages that are sealed with one of these keys, and how much the time of sealing may differ
    /// from the clock of this host.
    pub keys: Option<(Arc<SharedKeys>, u64)>,
    /// How long an epoch stays valid without announces before a lower one is accepted.
    pub silence_ns: u64,
}

impl Config {
    /// The limits of the session that a message belongs to.
    #[cold]
    fn session_limits(&self, header: Header) -> ChunkLimits {
        let mut limits = self.limits;
        if self.fits_session_mtu
            && let Some(mtu) = header.mtu()
        {
            limits.chunk_bytes = limits.chunk_bytes.min(mtu.saturating_sub(MTU_OVERHEAD));
        }
        limits
    }
}

/// A snapshot of one mapping.
#[derive(Clone, Debug)]
pub struct ReceiverState {
    pub announced: Option<SourceLayout>,
    pub has_destination: bool,
    pub seq_range: Option<(u64, u64)>,
    pub counters: AssemblyCounters,
    pub announces: u64,
    pub announces_ignored: u64,
    pub progress_sent: u64,
    pub progress_dropped: u64,
}

struct State {
    payload: Handle<Subscription>,
    control: Handle<Subscription>,
    assembler: Option<Assembler>,
    fragments: FragmentAssembler,
    mappings: Vec<ReceiverMapping>,
    by_stream: HashMap<u32, usize>,
    faults: [u64; Fault::COUNT],
    payload_opener: Option<Opener>,
    control_opener: Option<Opener>,
    /// The session of the last chunk, and its limits.
    session_limits: Option<(i32, ChunkLimits)>,
    /// Chunks of streams that are not mapped here.
    unmapped: u64,
    messages: VecDeque<Vec<u8>>,
    messages_bytes: usize,
    messages_dropped: u64,
    next_tick_ns: u64,
}

struct Core {
    config: Config,
    /// The worker never pauses under load: it yields to the other threads.
    state: PriorityLock<State>,
    connected: AtomicBool,
    closed: AtomicBool,
}

pub struct Receiver {
    core: Arc<Core>,
    worker: Worker,
}

fn opener(config: &Config, purpose: Purpose) -> Option<Opener> {
    config.keys.as_ref().map(|(keys, max_age_ns)| Opener::new(keys.clone(), purpose, *max_age_ns))
}

/// The message itself: opened where there are keys.
#[inline]
fn opened<'a>(opener: &'a mut Option<Opener>, bytes: &'a [u8], now_ns: u64) -> Result<&'a [u8], Fault> {
    match opener {
        Some(opener) => opener.open(bytes, now_ns),
        None if is_sealed(bytes) => Err(Fault::Sealed),
        None => Ok(bytes),
    }
}

impl Receiver {
    pub fn start(config: Config, idle: IdleStrategy) -> std::io::Result<Self> {
        let state = State {
            payload: Handle::None,
            control: Handle::None,
            assembler: None,
            fragments: FragmentAssembler::new(config.limits.chunk_bytes as usize + CHUNK_OVERHEAD),
            mappings: Vec::new(),
            by_stream: HashMap::new(),
            faults: [0; Fault::COUNT],
            payload_opener: opener(&config, Purpose::Payload),
            control_opener: opener(&config, Purpose::Control),
            session_limits: None,
            unmapped: 0,
            messages: VecDeque::new(),
            messages_bytes: 0,
            messages_dropped: 0,
            next_tick_ns: 0,
        };
        let core = Arc::new(Core {
            config,
            state: PriorityLock::new(state),
            connected: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        let working = core.clone();
        let worker = Worker::start("tp-bridge-recv", idle, move || working.do_work())?;
        Ok(Self { core, worker })
    }

    /// Adds a source stream and its destination. `progress_publication`: where its progress is forwarded to.
    /// False: that stream is mapped already.
    pub fn add(
        &self,
        stream_id: u32,
        dest_stream_id: u32,
        progress_publication: Option<(String, i32)>,
    ) -> bool {
        let config = &self.core.config;
        let mut mapping = ReceiverMapping::new(dest_stream_id, config.timeout_ns, config.silence_ns);
        mapping.progress_address = progress_publication;
        let mut state = self.core.state.lock_priority();
        let at = state.mappings.len();
        if state.by_stream.contains_key(&stream_id) {
            return false;
        }
        state.by_stream.insert(stream_id, at);
        state.mappings.push(mapping);
        self.core.connected.store(false, Ordering::Relaxed);
        true
    }

    /// Adds a source stream for one consumer of this process.
    pub fn add_private(&self, stream_id: u32, private: Arc<PrivateRing>) {
        if self.add(stream_id, stream_id, None) {
            self.with_mapping(stream_id, |mapping| mapping.set_private_ring(private));
        }
    }

    /// Sets a destination that nothing was written to. False: no such mapping.
    pub fn set_destination(&self, stream_id: u32, producer: Arc<Producer>) -> bool {
        self.with_mapping(stream_id, |mapping| mapping.set_destination(producer)).is_some()
    }

    /// Removes the destination: nothing is written to it from here on.
    pub fn clear_destination(&self, stream_id: u32) -> bool {
        self.with_mapping(stream_id, ReceiverMapping::clear_destination).unwrap_or(false)
    }

    fn with_mapping<T>(&self, stream_id: u32, f: impl FnOnce(&mut ReceiverMapping) -> T) -> Option<T> {
        let mut state = self.core.state.lock_priority();
        let at = *state.by_stream.get(&stream_id)?;
        Some(f(&mut state.mappings[at]))
    }

    pub fn state_of(&self, stream_id: u32) -> Option<ReceiverState> {
        self.with_mapping(stream_id, |mapping| ReceiverState {
            announced: mapping.source.announced().cloned(),
            has_destination: mapping.has_destination(),
            seq_range: mapping.table.seq_range(),
            counters: mapping.table.counters().clone(),
            announces: mapping.announces,
            announces_ignored: mapping.announces_ignored,
            progress_sent: mapping.progress_sent,
            progress_dropped: mapping.progress_forwarder.dropped,
        })
    }

    /// The counts of these sessions. False if one of them may have been evicted.
    pub fn received(&self, stream_id: u32, sessions: &[i32]) -> Option<(SessionCounts, bool)> {
        self.with_mapping(stream_id, |mapping| mapping.ledger.sum(sessions, mapping.table.counters()))
    }

    /// The counts at a position of a session, or at its start.
    pub fn ledger_start(&self, stream_id: u32, session: i32, position: Option<i64>) -> Option<LedgerStart> {
        let mut state = self.core.state.lock_priority();
        let at = *state.by_stream.get(&stream_id)?;
        let reached = state.payload.get().and_then(|p| p.position(session));
        let ReceiverMapping { ledger, table, .. } = &mut state.mappings[at];
        let Some(position) = position else {
            ledger.begin(session, table.counters());
            return Some(LedgerStart::At(SessionCounts::default()));
        };
        Some(ledger.ledger_start(session, position, reached, table.counters()))
    }

    /// Frames delivered, their bytes, and frames that were received in part and not delivered; over all
    /// mappings.
    pub fn totals(&self) -> (u64, u64, u64) {
        let state = self.core.state.lock_priority();
        let counters = state.mappings.iter().map(|mapping| mapping.table.counters());
        counters.fold((0, 0, 0), |(delivered, bytes, dropped), t| {
            (delivered + t.delivered, bytes + t.bytes, dropped + t.not_ready + t.lost.iter().sum::<u64>())
        })
    }

    /// Source streams that have no destination at the moment.
    pub fn without_destination(&self) -> Vec<u32> {
        let state = self.core.state.lock_priority();
        let lacks = |at: usize| !state.mappings[at].has_destination();
        state.by_stream.iter().filter(|(_, at)| lacks(**at)).map(|(stream_id, _)| *stream_id).collect()
    }

    /// Rejected messages by fault; chunks without a mapping; messages dropped incomplete; forwarded messages
    /// dropped.
    pub fn rejected(&self) -> ([u64; Fault::COUNT], u64, u64, u64) {
        let state = self.core.state.lock_priority();
        (state.faults, state.unmapped, state.fragments.dropped(), state.messages_dropped)
    }

    /// Messages of the control stream that are neither announces nor progress.
    pub fn poll_messages(&self, limit: usize) -> Vec<Vec<u8>> {
        let mut state = self.core.state.lock_priority();
        let count = limit.min(state.messages.len());
        let taken: Vec<_> = state.messages.drain(..count).collect();
        state.messages_bytes -= taken.iter().map(Vec::len).sum::<usize>();
        taken
    }

    /// What has arrived of each mapped source stream.
    pub fn traffic(&self) -> Vec<(u32, Traffic)> {
        let state = self.core.state.lock_priority();
        state.by_stream.iter().map(|(stream_id, at)| (*stream_id, state.mappings[*at].traffic)).collect()
    }

    /// Closes the subscription to the payload stream, and lets the conductor add it again: its images begin
    /// at the positions that their senders have then.
    pub fn reopen_payload(&self) {
        let mut state = self.core.state.lock_priority();
        state.payload = Handle::None;
        state.session_limits = None;
        drop(state);
        self.core.connected.store(false, Ordering::Relaxed);
    }

    /// The same for the control stream.
    pub fn reopen_control(&self) {
        let mut state = self.core.state.lock_priority();
        (state.control, state.assembler) = (Handle::None, None);
        drop(state);
        self.core.connected.store(false, Ordering::Relaxed);
    }

    pub fn is_ready(&self) -> bool {
        let mut state = self.core.state.lock_priority();
        state.payload.get().is_some() && state.control.get().is_some()
    }

    pub fn is_connected(&self) -> bool {
        self.core.state.lock_priority().payload.get().is_some_and(|s| s.is_connected())
    }

    pub fn stop(&self) {
        self.worker.stop();
        let mut state = self.core.state.lock_priority();
        state.mappings.clear();
        state.by_stream.clear();
    }
}

impl Core {
    fn do_work(&self) -> usize {
        let mut state = self.state.lock();
        let now_ns = monotonic_ns();
        let control = state.poll_control(now_ns);
        let payload = state.receive(&self.config, now_ns);
        state.tick(now_ns, self.config.timeout_ns);
        control + payload
    }
}

impl State {
    fn poll_control(&mut self, now_ns: u64) -> usize {
        let Self {
            control,
            assembler,
            control_opener,
            faults,
            mappings,
            by_stream,
            messages,
            messages_bytes,
            messages_dropped,
            ..
        } = self;
        let (Some(control), Some(assembler)) = (control.get(), assembler) else { return 0 };
        let opened_ns = if control_opener.is_some() { realtime_ns() } else { 0 };
        assembler.poll(control, MESSAGES_PER_TURN, |bytes, _| {
            let bytes = match opened(control_opener, bytes, opened_ns) {
                Ok(bytes) => bytes,
                Err(fault) => {
                    faults[fault as usize] += 1;
                    return;
                }
            };
            match PoolAnnounce::decode(bytes) {
                Decoded::Announce(announce) => {
                    if let Some(at) = by_stream.get(&announce.stream_id) {
                        mappings[*at].traffic.messages += 1;
                        mappings[*at].on_announce(&announce, now_ns);
                    }
                    return;
                }
                Decoded::Malformed(_) => return,
                Decoded::Other => {}
            }
            if let ControlMessage::Progress(progress) = ControlMessage::decode(bytes) {
                let Some(at) = by_stream.get(&progress.stream_id) else { return };
                let mapping = &mut mappings[*at];
                mapping.traffic.messages += 1;
                if mapping.progress_address.is_some()
                    && mapping.source.announced().is_some_and(|a| a.epoch == progress.epoch)
                {
                    mapping.progress_forwarder.on_progress(progress, now_ns);
                }
                return;
            }
            while messages.len() >= MAX_MESSAGES || *messages_bytes + bytes.len() > MAX_MESSAGES_BYTES {
                *messages_dropped += 1;
                let Some(oldest) = messages.pop_front() else { return };
                *messages_bytes -= oldest.len();
            }
            *messages_bytes += bytes.len();
            messages.push_back(bytes.to_vec());
        })
    }

    #[inline]
    fn receive(&mut self, config: &Config, now_ns: u64) -> usize {
        let Self {
            payload,
            fragments,
            mappings,
            by_stream,
            faults,
            unmapped,
            payload_opener,
            session_limits,
            ..
        } = self;
        let Some(subscription) = payload.get() else { return 0 };
        let opened_ns = if payload_opener.is_some() { realtime_ns() } else { 0 };
        subscription.poll(FRAGMENTS_PER_TURN, |bytes, header| {
            fragments.take(bytes, header, |message, session| {
                let limits = match *session_limits {
                    Some((known, limits)) if known == session => limits,
                    _ => session_limits.insert((session, config.session_limits(header))).1,
                };
                let chunk = opened(payload_opener, message, opened_ns)
                    .and_then(|message| Chunk::decode(message, &limits));
                match chunk {
                    Ok(chunk) => match by_stream.get(&chunk.stream_id) {
                        Some(at) => mappings[*at].on_chunk(&chunk, session, || header.position(), now_ns),
                        None => *unmapped += 1,
                    },
                    Err(fault) => faults[fault as usize] += 1,
                }
            });
        })
    }

    /// Timeouts and due progress. Not in every duty cycle: with many mappings that would be most of the work.
    fn tick(&mut self, now_ns: u64, timeout_ns: u64) {
        const TICK_NS: u64 = 200_000;
        if now_ns < self.next_tick_ns {
            return;
        }
        self.next_tick_ns = now_ns + TICK_NS;
        for mapping in &mut self.mappings {
            if !mapping.table.is_idle() {
                mapping.table.on_tick(now_ns);
            }
            if mapping.progress_address.is_some() {
                mapping.send_due_progress();
                mapping.progress_forwarder.on_tick(now_ns, timeout_ns);
            }
        }
    }
}

impl Endpoint for Receiver {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        let core = &*self.core;
        if core.connected.load(Ordering::Relaxed) || core.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let config = &core.config;
        let mut state = core.state.lock_priority();
        if state.assembler.is_none() {
            state.assembler = Some(Assembler::new()?);
        }
        state.control.advance(|| {
            client.add_subscription(&tethered(&config.control_channel), config.control_stream_id)
        })?;
        state.payload.advance(|| {
            client.add_subscription(&tethered(&config.payload_channel), config.payload_stream_id)
        })?;
        let mut all = state.control.get().is_some() && state.payload.get().is_some();
        for mapping in &mut state.mappings {
            if let Some((channel, stream_id)) = &mapping.progress_address {
                mapping.progress_publication.advance(|| client.add_publication(channel, *stream_id))?;
                all &= mapping.progress_publication.get().is_some();
            }
        }
        core.connected.store(all, Ordering::Relaxed);
        Ok(())
    }

    fn disconnect(&self) {
        self.core.connected.store(false, Ordering::Relaxed);
        let mut state = self.core.state.lock_priority();
        (state.payload, state.control, state.assembler) = (Handle::None, Handle::None, None);
        state.session_limits = None;
        state.mappings.iter_mut().for_each(|mapping| mapping.progress_publication = Handle::None);
    }

    fn on_network_lost(&self) {
        self.core.connected.store(false, Ordering::Relaxed);
        let mut state = self.core.state.lock_priority();
        (state.payload, state.control, state.assembler) = (Handle::None, Handle::None, None);
        state.session_limits = None;
    }

    fn close(&self) {
        self.core.closed.store(true, Ordering::Relaxed);
        self.disconnect();
    }
}
