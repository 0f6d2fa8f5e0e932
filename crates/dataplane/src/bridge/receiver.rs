//! The receiver: chunks → slots of this host, each byte copied once, out of the image's own buffer (bridge §2.2).
//!
//! Announces come on the control stream and are heard before chunks are looked at; other words on it are kept for
//! whoever forwards them. A frame's slices go straight into its slot, which says that it is being written.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use tensorpool_core::bridge::assembly::AssemblyCounters;
use tensorpool_core::bridge::session_ledger::{Counts, LedgerStart};
use tensorpool_core::bridge::source::SourceLayout;
use tensorpool_core::os::time::monotonic_ns;
use tensorpool_core::wire::announce::{Decoded, PoolAnnounce};
use tensorpool_core::wire::chunk::{Chunk, Fault, Limits};
use tensorpool_core::wire::control::ControlMessage;

use super::mapping::Sink;
use super::private_ring::Private;
use super::reassembly::FragmentReassembly;
use super::worker::Worker;
use crate::aeron::{AeronError, Assembler, Client, Subscription};
use crate::conductor::Endpoint;
use crate::conductor::handle::Handle;
use crate::idle::Strategy;
use crate::priority_lock::PriorityLock;
use crate::producer::Producer;

/// Fragments taken in one turn; then the conductor may come in.
const FRAGMENTS_A_TURN: usize = 256;
const WORDS_A_TURN: usize = 16;
/// Words kept for whoever forwards them; the oldest go first.
const MAX_WORDS: usize = 4096;
const MAX_WORDS_BYTES: usize = 4 << 20;
/// What a chunk may have beside its slice.
const CHUNK_OVERHEAD: usize = 512;

#[derive(Clone, Debug)]
pub struct Config {
    pub payload_channel: String,
    pub payload_stream_id: i32,
    pub control_channel: String,
    pub control_stream_id: i32,
    pub limits: Limits,
    pub timeout_ns: u64,
    /// How long an epoch stands without announces before a lower one is believed.
    pub silence_ns: u64,
}

/// How a mapping stands.
#[derive(Clone, Debug)]
pub struct Standing {
    pub announced: Option<SourceLayout>,
    pub has_destination: bool,
    pub seen: Option<(u64, u64)>,
    pub tally: AssemblyCounters,
    pub announces: u64,
    pub announces_ignored: u64,
    pub progress_said: u64,
    pub progress_dropped: u64,
}

struct State {
    payload: Handle<Subscription>,
    control: Handle<Subscription>,
    assembler: Option<Assembler>,
    reassembly: FragmentReassembly,
    sinks: Vec<Sink>,
    by_stream: HashMap<u32, usize>,
    faults: [u64; Fault::COUNT],
    /// Chunks of streams that are not mapped here.
    unmapped: u64,
    words: VecDeque<Vec<u8>>,
    words_bytes: usize,
    words_dropped: u64,
    next_tick_ns: u64,
}

struct Core {
    config: Config,
    state: PriorityLock<State>,
    connected: AtomicBool,
    closed: AtomicBool,
}

pub struct Receiver {
    core: Arc<Core>,
    worker: Worker,
}

impl Receiver {
    pub fn start(config: Config, idle: Strategy) -> std::io::Result<Self> {
        let state = State {
            payload: Handle::None,
            control: Handle::None,
            assembler: None,
            reassembly: FragmentReassembly::new(config.limits.chunk_bytes as usize + CHUNK_OVERHEAD),
            sinks: Vec::new(),
            by_stream: HashMap::new(),
            faults: [0; Fault::COUNT],
            unmapped: 0,
            words: VecDeque::new(),
            words_bytes: 0,
            words_dropped: 0,
            next_tick_ns: 0,
        };
        let core = Arc::new(Core {
            config,
            state: PriorityLock::new(state),
            connected: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        let working = core.clone();
        let worker = Worker::start("tp-bridge-recv", idle, move || working.turn())?;
        Ok(Self { core, worker })
    }

    /// A stream of the source, and its destination here. `voice`: where its forwarded progress is said.
    /// False: that stream is mapped already.
    pub fn add(&self, stream_id: u32, dest_stream_id: u32, voice: Option<(String, i32)>) -> bool {
        let config = &self.core.config;
        let mut sink = Sink::new(dest_stream_id, config.timeout_ns, config.silence_ns);
        sink.voice_at = voice;
        let mut state = self.core.enter();
        let at = state.sinks.len();
        if state.by_stream.contains_key(&stream_id) {
            return false;
        }
        state.by_stream.insert(stream_id, at);
        state.sinks.push(sink);
        self.core.connected.store(false, Ordering::Relaxed);
        true
    }

    /// A stream of the source, for one consumer of this process alone.
    pub fn add_private(&self, stream_id: u32, private: Arc<Private>) {
        if self.add(stream_id, stream_id, None) {
            self.with(stream_id, |sink| sink.keep_private(private));
        }
    }

    /// A destination that nothing was written to. False: no such mapping.
    pub fn give(&self, stream_id: u32, producer: Arc<Producer>) -> bool {
        self.with(stream_id, |sink| sink.give(producer)).is_some()
    }

    /// Takes the destination away; none of it is used from here on.
    pub fn take(&self, stream_id: u32) -> bool {
        self.with(stream_id, Sink::take).unwrap_or(false)
    }

    fn with<T>(&self, stream_id: u32, f: impl FnOnce(&mut Sink) -> T) -> Option<T> {
        let mut state = self.core.enter();
        let at = *state.by_stream.get(&stream_id)?;
        Some(f(&mut state.sinks[at]))
    }

    pub fn standing(&self, stream_id: u32) -> Option<Standing> {
        self.with(stream_id, |sink| Standing {
            announced: sink.source.announced().cloned(),
            has_destination: sink.has_destination(),
            seen: sink.table.seen(),
            tally: sink.table.tally().clone(),
            announces: sink.announces,
            announces_ignored: sink.announces_ignored,
            progress_said: sink.progress_said,
            progress_dropped: sink.echo.dropped,
        })
    }

    /// What became of the frames of these sessions; false if one of them may have been forgotten.
    pub fn received(&self, stream_id: u32, sessions: &[i32]) -> Option<(Counts, bool)> {
        self.with(stream_id, |sink| sink.ledger.sum(sessions, sink.table.tally()))
    }

    /// What had been counted at a place of a session. No place: where it began.
    pub fn cut(&self, stream_id: u32, session: i32, position: Option<i64>) -> Option<LedgerStart> {
        let mut state = self.core.enter();
        let at = *state.by_stream.get(&stream_id)?;
        let reached = state.payload.get().and_then(|p| p.position(session));
        let Sink { ledger, table, .. } = &mut state.sinks[at];
        let Some(position) = position else {
            ledger.begin(session, table.tally());
            return Some(LedgerStart::At(Counts::default()));
        };
        Some(ledger.ledger_start(session, position, reached, table.tally()))
    }

    /// Frames delivered, their bytes, and those of which chunks came and no frame; of all mappings.
    pub fn sums(&self) -> (u64, u64, u64) {
        let state = self.core.enter();
        let tallies = state.sinks.iter().map(|sink| sink.table.tally());
        tallies.fold((0, 0, 0), |(delivered, bytes, dropped), t| {
            (delivered + t.delivered, bytes + t.bytes, dropped + t.turned_away + t.lost.iter().sum::<u64>())
        })
    }

    /// Streams of the source that have no destination at the moment.
    pub fn wanting(&self) -> Vec<u32> {
        let state = self.core.enter();
        let lacks = |at: usize| !state.sinks[at].has_destination();
        state.by_stream.iter().filter(|(_, at)| lacks(**at)).map(|(stream_id, _)| *stream_id).collect()
    }

    /// How many messages were refused for each fault; those of no mapping; those not put together; words lost.
    pub fn totals(&self) -> ([u64; Fault::COUNT], u64, u64, u64) {
        let state = self.core.enter();
        (state.faults, state.unmapped, state.reassembly.dropped(), state.words_dropped)
    }

    /// Words of the control stream that are neither announces nor progress.
    pub fn words(&self, limit: usize) -> Vec<Vec<u8>> {
        let mut state = self.core.enter();
        let count = limit.min(state.words.len());
        let taken: Vec<_> = state.words.drain(..count).collect();
        state.words_bytes -= taken.iter().map(Vec::len).sum::<usize>();
        taken
    }

    pub fn is_ready(&self) -> bool {
        let mut state = self.core.enter();
        state.payload.get().is_some() && state.control.get().is_some()
    }

    pub fn is_connected(&self) -> bool {
        self.core.enter().payload.get().is_some_and(|s| s.is_connected())
    }

    pub fn stop(&self) {
        self.worker.stop();
        let mut state = self.core.enter();
        state.sinks.clear();
        state.by_stream.clear();
    }
}

impl Core {
    /// For the worker.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// For everybody else: the worker, which never pauses under load, gives way.
    fn enter(&self) -> MutexGuard<'_, State> {
        self.state.lock_priority()
    }

    fn turn(&self) -> usize {
        let mut state = self.lock();
        let now_ns = monotonic_ns();
        let mut done = state.hear(now_ns);
        done += state.receive(&self.config.limits, now_ns);
        state.tick(now_ns, self.config.timeout_ns);
        done
    }
}

impl State {
    fn hear(&mut self, now_ns: u64) -> usize {
        let Self { control, assembler, sinks, by_stream, words, words_bytes, words_dropped, .. } = self;
        let (Some(control), Some(assembler)) = (control.get(), assembler) else { return 0 };
        assembler.poll(control, WORDS_A_TURN, |bytes, _| {
            match PoolAnnounce::decode(bytes) {
                Decoded::Announce(announce) => {
                    if let Some(at) = by_stream.get(&announce.stream_id) {
                        sinks[*at].on_announce(&announce, now_ns);
                    }
                    return;
                }
                Decoded::Malformed(_) => return,
                Decoded::Other => {}
            }
            if let ControlMessage::Progress(word) = ControlMessage::decode(bytes) {
                if let Some(at) = by_stream.get(&word.stream_id)
                    && let sink = &mut sinks[*at]
                    && sink.voice_at.is_some()
                    && sink.source.announced().is_some_and(|a| a.epoch == word.epoch)
                {
                    sink.echo.on_word(word, now_ns);
                }
                return;
            }
            while words.len() >= MAX_WORDS || *words_bytes + bytes.len() > MAX_WORDS_BYTES {
                *words_dropped += 1;
                let Some(oldest) = words.pop_front() else { return };
                *words_bytes -= oldest.len();
            }
            *words_bytes += bytes.len();
            words.push_back(bytes.to_vec());
        })
    }

    #[inline]
    fn receive(&mut self, limits: &Limits, now_ns: u64) -> usize {
        let Self { payload, reassembly, sinks, by_stream, faults, unmapped, .. } = self;
        let Some(subscription) = payload.get() else { return 0 };
        subscription.poll(FRAGMENTS_A_TURN, |bytes, header| {
            reassembly.take(bytes, header, |message, session| match Chunk::decode(message, limits) {
                Ok(chunk) => match by_stream.get(&chunk.stream_id) {
                    Some(at) => sinks[*at].on_chunk(&chunk, session, || header.position(), now_ns),
                    None => *unmapped += 1,
                },
                Err(fault) => faults[fault as usize] += 1,
            });
        })
    }

    /// Time limits, and words that are due. Not at every turn: with many mappings that would be most of the work.
    fn tick(&mut self, now_ns: u64, timeout_ns: u64) {
        const TICK_NS: u64 = 200_000;
        if now_ns < self.next_tick_ns {
            return;
        }
        self.next_tick_ns = now_ns + TICK_NS;
        for sink in &mut self.sinks {
            if !sink.table.is_idle() {
                sink.table.on_tick(now_ns);
            }
            if sink.voice_at.is_some() {
                sink.speak();
                sink.echo.on_tick(now_ns, timeout_ns);
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
        state
            .control
            .advance(|| client.add_subscription(&config.control_channel, config.control_stream_id))?;
        state
            .payload
            .advance(|| client.add_subscription(&config.payload_channel, config.payload_stream_id))?;
        let mut all = state.control.get().is_some() && state.payload.get().is_some();
        for sink in &mut state.sinks {
            if let Some((channel, stream_id)) = &sink.voice_at {
                sink.voice.advance(|| client.add_publication(channel, *stream_id))?;
                all &= sink.voice.get().is_some();
            }
        }
        core.connected.store(all, Ordering::Relaxed);
        Ok(())
    }

    fn disconnect(&self) {
        self.core.connected.store(false, Ordering::Relaxed);
        let mut state = self.core.state.lock_priority();
        (state.payload, state.control, state.assembler) = (Handle::None, Handle::None, None);
        state.sinks.iter_mut().for_each(|sink| sink.voice = Handle::None);
    }

    fn close(&self) {
        self.core.closed.store(true, Ordering::Relaxed);
        self.disconnect();
    }
}
