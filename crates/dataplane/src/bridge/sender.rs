//! The sender: it divides slots into chunks, each written once, into the publication's own buffer
//! (bridge §2.1, §5).
//!
//! A chunk is sent only if its frame was unchanged after the copy. A frame that was overwritten is abandoned,
//! and the claim with its torn bytes becomes padding. Back-pressure sets the pace: the frame waits in its
//! slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tensorpool_core::bridge::seal::{PREFIX_BYTES, Purpose, SEAL_BYTES, Sealer, SharedKeys};
use tensorpool_core::os::time::{monotonic_ns, realtime_ns};
use tensorpool_core::shm::copy;
use tensorpool_core::wire::chunk::{self, ChunkPlan, ChunkSizes, DATA_HEADER_LENGTH, FrameKey, Revision};
use tensorpool_core::wire::layout::{HEADER_SLOT_BYTES, NULL_TRACE_ID};

use super::descriptor_fanout::DescriptorFanout;
use super::source::{SourceStream, bump};
use super::worker::Worker;
use crate::aeron::channels::with_parameter;
use crate::aeron::{AeronError, Client, ExclusivePublication, OfferError};
use crate::conductor::Endpoint;
use crate::conductor::handle::Handle;
use crate::consumer::{Consumer, Frame};
use crate::idle::IdleStrategy;
use crate::priority_lock::PriorityLock;

/// Chunks sent in one duty cycle, after which the conductor may take the lock.
const CHUNKS_PER_TURN: usize = 256;
/// Descriptors polled at a time.
const DESCRIPTORS_PER_TURN: usize = 64;
/// How often descriptors are polled while there are frames to send. The fanout has an image of each producer,
/// so polling in every duty cycle would cost more with every mapping.
const DESCRIPTOR_POLL_NS: u64 = 200_000;
/// How often consumers are polled for which the fanout has no descriptor.
const CONSUMER_POLL_NS: u64 = 200_000;
/// Sessions of one run that its ledger names: as many as a receiver keeps.
const MAX_SESSIONS: usize = 16;

#[derive(Clone)]
pub struct Config {
    pub channel: String,
    pub stream_id: i32,
    /// That of the channel, if not given.
    pub mtu_bytes: Option<u32>,
    pub chunk_bytes: Option<u32>,
    pub max_chunk_bytes: u32,
    pub max_payload_bytes: u32,
    pub revision: Revision,
    /// Send frames that have a trace id in the second revision, which carries it.
    pub traces: bool,
    /// Seal chunks with the first of these keys.
    pub keys: Option<Arc<SharedKeys>>,
}

struct SourceQueue {
    source: Arc<SourceStream>,
    /// A frame that waits for the announce of its epoch.
    held: Option<Frame>,
}

struct OutgoingFrame {
    source: Arc<SourceStream>,
    frame: Frame,
    header: [u8; HEADER_SLOT_BYTES],
    plan: ChunkPlan,
    next: u32,
    /// Where it begins in the session.
    from: Option<i64>,
}

/// A position in the sender's stream, and how many frames were sent before it.
pub struct SenderPosition {
    /// The sessions of this run. The last is the current one.
    pub sessions: Vec<i32>,
    pub position: i64,
    pub sent: u64,
}

struct State {
    publication: Handle<ExclusivePublication>,
    chunk_sizes: Option<ChunkSizes>,
    /// One for each publication: a publication is a session.
    sealer: Option<Sealer>,
    sessions: Vec<i32>,
    fanout: DescriptorFanout,
    sources: Vec<SourceQueue>,
    /// The next source to poll.
    next_source: usize,
    outgoing: Option<OutgoingFrame>,
    /// A consumer may have a frame.
    has_more: bool,
    next_descriptor_poll_ns: u64,
    next_consumer_poll_ns: u64,
}

struct Core {
    config: Config,
    /// The worker never pauses under load: it yields to the other threads.
    state: PriorityLock<State>,
    connected: AtomicBool,
    /// The publication is closed and must be replaced.
    broken: AtomicBool,
    closed: AtomicBool,
}

pub struct Sender {
    core: Arc<Core>,
    worker: Worker,
}

enum SendOutcome {
    Chunk,
    Frame,
    BackPressured,
    Lost,
}

impl Sender {
    pub fn start(config: Config, idle: IdleStrategy) -> std::io::Result<Self> {
        let state = State {
            publication: Handle::None,
            chunk_sizes: None,
            sealer: None,
            sessions: Vec::new(),
            fanout: DescriptorFanout::default(),
            sources: Vec::new(),
            next_source: 0,
            outgoing: None,
            has_more: false,
            next_descriptor_poll_ns: 0,
            next_consumer_poll_ns: 0,
        };
        let core = Arc::new(Core {
            config,
            state: PriorityLock::new(state),
            connected: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        let working = core.clone();
        let worker = Worker::start("tp-bridge-send", idle, move || working.do_work())?;
        Ok(Self { core, worker })
    }

    /// Sends the frames of that consumer from now on.
    pub fn add(&self, consumer: Arc<Consumer>) -> Arc<SourceStream> {
        let source = Arc::new(SourceStream::new(consumer));
        let mut state = self.core.state.lock_priority();
        state.fanout.add(source.consumer().clone());
        state.sources.push(SourceQueue { source: source.clone(), held: None });
        self.core.connected.store(false, Ordering::Relaxed);
        source
    }

    pub fn is_ready(&self) -> bool {
        self.core.state.lock_priority().publication.get().is_some()
    }

    pub fn is_connected(&self) -> bool {
        self.core.state.lock_priority().publication.get().is_some_and(|p| p.is_connected())
    }

    /// The slice sizes on this channel. `None` while there is no publication.
    pub fn chunk_sizes(&self) -> Option<ChunkSizes> {
        self.core.state.lock_priority().chunk_sizes
    }

    /// The position of a stream. `None` while there is no publication.
    pub fn position_of(&self, source: &SourceStream) -> Option<SenderPosition> {
        let mut state = self.core.state.lock_priority();
        let State { publication, outgoing, sessions, .. } = &mut *state;
        let publication = publication.get()?;
        let position = outgoing.as_ref().map_or_else(|| publication.position(), |out| out.from)?;
        let sent = source.counters().sent.load(Ordering::Relaxed);
        Some(SenderPosition { sessions: sessions.clone(), position, sent })
    }

    /// Frames sent, their bytes, and frames not sent; over all streams.
    pub fn totals(&self) -> (u64, u64, u64) {
        let state = self.core.state.lock_priority();
        state.sources.iter().fold((0, 0, 0), |(sent, bytes, dropped), queue| {
            let (counters, consumer) = (queue.source.counters(), queue.source.consumer().counters());
            (
                sent + counters.sent.load(Ordering::Relaxed),
                bytes + counters.bytes.load(Ordering::Relaxed),
                dropped + counters.dropped() + consumer.drops.in_span(),
            )
        })
    }

    pub fn stop(&self) {
        self.worker.stop();
        let mut state = self.core.state.lock_priority();
        state.sources.clear();
        state.outgoing = None;
    }
}

impl Core {
    fn do_work(&self) -> usize {
        let mut state = self.state.lock();
        let now_ns = monotonic_ns();
        // Also under back-pressure, so that no producer waits for this subscription.
        if (state.outgoing.is_none() && !state.has_more) || now_ns >= state.next_descriptor_poll_ns {
            state.poll_descriptors(now_ns);
        }
        let State {
            publication,
            chunk_sizes,
            sealer,
            fanout,
            sources,
            next_source,
            outgoing,
            has_more,
            next_consumer_poll_ns,
            ..
        } = &mut *state;
        let (Some(publication), Some(chunk_sizes)) = (publication.get(), chunk_sizes) else { return 0 };
        let sealed_ns = sealer.as_mut().map_or(0, |sealer| {
            let now_ns = realtime_ns();
            sealer.update(now_ns);
            now_ns
        });
        let mut done = 0;
        while done < CHUNKS_PER_TURN {
            let Some(frame) = outgoing else {
                if !*has_more && now_ns < *next_consumer_poll_ns {
                    return done;
                }
                let Some((source, frame)) = next_frame(sources, next_source) else {
                    *next_consumer_poll_ns = now_ns + CONSUMER_POLL_NS;
                    *has_more = fanout.poll(DESCRIPTORS_PER_TURN) > 0;
                    done += usize::from(*has_more);
                    continue;
                };
                *has_more = true;
                done += 1;
                *outgoing = self.begin(source, frame, chunk_sizes, publication);
                continue;
            };
            match self.send_one(publication, frame, sealer.as_mut(), sealed_ns) {
                SendOutcome::Chunk => done += 1,
                SendOutcome::BackPressured => return done,
                SendOutcome::Frame | SendOutcome::Lost => {
                    *outgoing = None;
                    done += 1;
                }
            }
        }
        done
    }

    fn begin(
        &self,
        source: Arc<SourceStream>,
        frame: Frame,
        chunk_sizes: &ChunkSizes,
        publication: &ExclusivePublication,
    ) -> Option<OutgoingFrame> {
        let counters = source.counters();
        let len = frame.slot_ref.info.values_len_bytes;
        let plan = chunk_sizes.plan(len);
        let refused = match plan {
            _ if len > self.config.max_payload_bytes => Some(&counters.too_long),
            None => Some(&counters.too_many_chunks),
            _ if !publication.is_connected() => Some(&counters.not_connected),
            _ => None,
        };
        if let Some(counter) = refused {
            bump(counter);
            return None;
        }
        // The slot is checked again before any of it is sent, so these bytes belong to the frame.
        let header = frame.mapping.header_bytes(frame.slot_ref.seq);
        let from = publication.position();
        plan.map(|plan| OutgoingFrame { source, frame, header, plan, next: 0, from })
    }

    #[inline]
    fn send_one(
        &self,
        publication: &mut ExclusivePublication,
        out: &mut OutgoingFrame,
        mut sealer: Option<&mut Sealer>,
        sealed_ns: u64,
    ) -> SendOutcome {
        let is_traced = self.config.traces && out.frame.trace_id != NULL_TRACE_ID;
        let revision = if is_traced { Revision::Second } else { self.config.revision };
        let index = out.next;
        let (offset, length) = out.plan.slice(index);
        let header = (index == 0).then_some(&out.header);
        let (mapping, seq) = (&out.frame.mapping, out.frame.slot_ref.seq);
        let payload = mapping.payload(out.frame.slot_ref.pool, seq).wrapping_add(offset as usize);
        let key = FrameKey {
            stream_id: mapping.stream_id,
            epoch: mapping.epoch,
            seq,
            trace_id: if is_traced { out.frame.trace_id } else { NULL_TRACE_ID },
        };
        let len = revision.overhead(header.is_some()) + length as usize;
        let (start, seal_bytes) = if sealer.is_some() { (PREFIX_BYTES, SEAL_BYTES) } else { (0, 0) };
        let claimed = publication.claim_if(len + seal_bytes, |claim| {
            let bytes = &mut claim[start..start + len];
            let at = chunk::encode(bytes, revision, &key, &out.plan, index, header);
            // SAFETY: the slice lies inside the payload, which `locate` held against the pool's stride; the
            // claim has room for it behind `at`.
            unsafe { copy::from_shared(bytes[at..].as_mut_ptr(), payload, length as usize) };
            let is_unchanged = mapping.is_unchanged(seq);
            if is_unchanged && revision == Revision::Second {
                chunk::write_checksum(bytes);
            }
            is_unchanged && sealer.as_mut().is_none_or(|sealer| sealer.seal(claim, sealed_ns))
        });
        let counters = out.source.counters();
        let lost = match claimed {
            Ok((_, true)) => {
                out.next += 1;
                bump(&counters.chunks);
                if out.next < out.plan.count {
                    return SendOutcome::Chunk;
                }
                bump(&counters.sent);
                counters.bytes.fetch_add(u64::from(out.plan.payload_length), Ordering::Relaxed);
                return SendOutcome::Frame;
            }
            Ok((_, false)) => &counters.overwritten,
            // The frame waits in its slot, as long as the slot is unchanged.
            Err(OfferError::BackPressured) if mapping.is_unchanged(seq) => return SendOutcome::BackPressured,
            Err(OfferError::BackPressured) => &counters.overwritten,
            Err(OfferError::NotConnected) => &counters.not_connected,
            Err(OfferError::Closed) => {
                self.broken.store(true, Ordering::Relaxed);
                &counters.closed
            }
        };
        bump(lost);
        SendOutcome::Lost
    }
}

impl State {
    fn poll_descriptors(&mut self, now_ns: u64) {
        self.has_more |= self.fanout.poll(DESCRIPTORS_PER_TURN) > 0;
        self.next_descriptor_poll_ns = now_ns + DESCRIPTOR_POLL_NS;
    }

    fn note_session(&mut self, session: i32) {
        if self.sessions.last() != Some(&session) {
            if self.sessions.len() == MAX_SESSIONS {
                self.sessions.remove(0);
            }
            self.sessions.push(session);
        }
    }
}

/// The next frame of any source, in round-robin order.
fn next_frame(sources: &mut [SourceQueue], next_source: &mut usize) -> Option<(Arc<SourceStream>, Frame)> {
    for _ in 0..sources.len() {
        let queue = &mut sources[*next_source % sources.len()];
        *next_source = next_source.wrapping_add(1);
        let source = &queue.source;
        let Some(frame) = queue.held.take().or_else(|| source.consumer().poll_one()) else { continue };
        if source.is_announced(&frame) {
            return Some((source.clone(), frame));
        }
        if frame.mapping.is_unchanged(frame.slot_ref.seq) {
            queue.held = Some(frame);
        } else {
            bump(&source.counters().unannounced);
        }
    }
    None
}

impl Endpoint for Sender {
    fn connect(&self, client: &Client) -> Result<(), AeronError> {
        let core = &*self.core;
        let is_broken = core.broken.swap(false, Ordering::Relaxed);
        if (core.connected.load(Ordering::Relaxed) && !is_broken) || core.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let config = &core.config;
        let mut state = core.state.lock_priority();
        if is_broken {
            core.connected.store(false, Ordering::Relaxed);
            (state.publication, state.chunk_sizes) = (Handle::None, None);
        }
        let channel = match config.mtu_bytes {
            Some(mtu) => with_parameter(&config.channel, &format!("mtu={mtu}")),
            None => config.channel.clone(),
        };
        state.publication.advance(|| client.add_exclusive_publication(&channel, config.stream_id))?;
        if let Some(publication) = state.publication.get() {
            let channel_mtu = publication.max_payload_length() as u32 + DATA_HEADER_LENGTH;
            let mtu = config.mtu_bytes.unwrap_or(u32::MAX).min(channel_mtu);
            let session = publication.session_id();
            if state.chunk_sizes.is_none() {
                state.sealer = config.keys.clone().and_then(|keys| Sealer::new(keys, Purpose::Payload));
            }
            // Without a sealer nothing is sent where it has to be sealed.
            let is_sealable = config.keys.is_none() || state.sealer.is_some();
            let seal_bytes = if config.keys.is_some() { SEAL_BYTES as u32 } else { 0 };
            let sizes = ChunkSizes::new(mtu, config.chunk_bytes, config.max_chunk_bytes, seal_bytes);
            state.chunk_sizes = sizes.filter(|_| is_sealable);
            state.note_session(session);
        }
        let has_fanout = state.fanout.advance(client)?;
        core.connected.store(has_fanout && state.publication.get().is_some(), Ordering::Relaxed);
        Ok(())
    }

    fn disconnect(&self) {
        self.core.connected.store(false, Ordering::Relaxed);
        let mut state = self.core.state.lock_priority();
        (state.publication, state.chunk_sizes) = (Handle::None, None);
        state.fanout.disconnect();
        if let Some(out) = state.outgoing.take() {
            bump(&out.source.counters().closed);
        }
    }

    /// Descriptors are still read: frames that cannot be sent are counted.
    fn on_network_lost(&self) {
        self.core.connected.store(false, Ordering::Relaxed);
        let mut state = self.core.state.lock_priority();
        (state.publication, state.chunk_sizes) = (Handle::None, None);
        if let Some(out) = state.outgoing.take() {
            bump(&out.source.counters().closed);
        }
    }

    fn close(&self) {
        self.core.closed.store(true, Ordering::Relaxed);
        self.disconnect();
        self.core.state.lock_priority().fanout.clear();
    }
}
