//! The sender: slot → chunks, each written once, into the publication's own buffer (bridge §2.1, §5).
//!
//! Only what was still whole after it was copied is sent: a frame overwritten meanwhile is given up, and the claim
//! that holds its torn bytes becomes padding. Back-pressure is what paces it: the frame waits in its slot.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use tensorpool_core::chunk::{self, Cut, DATA_HEADER_LENGTH, Revision, Slices, Whose};
use tensorpool_core::copy;
use tensorpool_core::layout::HEADER_SLOT_BYTES;

use super::ears::Ears;
use super::worker::Worker;
use crate::aeron::{AeronError, Client, ExclusivePublication, NotTaken};
use crate::announces::with_parameter;
use crate::conductor::Endpoint;
use crate::consumer::{Consumer, Frame};
use crate::handle::Handle;
use crate::idle::Strategy;
use crate::turn::TurnLock;

/// Chunks sent in one turn; then the conductor may come in.
const CHUNKS_A_TURN: usize = 256;
/// Descriptors heard at a time.
const WORDS_A_TURN: usize = 64;
/// No epoch was announced yet.
const NO_EPOCH: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub struct Config {
    pub channel: String,
    pub stream_id: i32,
    /// That of the channel, if not given.
    pub mtu_bytes: Option<u32>,
    pub chunk_bytes: Option<u32>,
    pub max_chunk_bytes: u32,
    pub max_payload_bytes: u32,
    pub revision: Revision,
}

/// received by the consumer = sent + the sum of the others + what is under way.
#[derive(Debug, Default)]
pub struct Counters {
    pub sent: AtomicU64,
    pub chunks: AtomicU64,
    pub bytes: AtomicU64,
    /// Overwritten while it was being sent.
    pub overwritten: AtomicU64,
    /// Overwritten before its epoch's announce had gone out.
    pub unannounced: AtomicU64,
    /// Nobody receives at the moment.
    pub not_connected: AtomicU64,
    /// The media driver went away in the middle.
    pub closed: AtomicU64,
    /// More than 65,535 chunks.
    pub too_many_chunks: AtomicU64,
    /// Longer than `max_payload_bytes`.
    pub too_long: AtomicU64,
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A stream that is sent.
pub struct Source {
    consumer: Arc<Consumer>,
    /// The epoch whose announce has been forwarded: a receiver takes no frame before it.
    announced: AtomicU64,
    counters: Counters,
}

impl Source {
    pub fn consumer(&self) -> &Arc<Consumer> {
        &self.consumer
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn announced(&self, epoch: u64) {
        self.announced.store(epoch, Ordering::Relaxed);
    }

    fn is_announced(&self, frame: &Frame) -> bool {
        self.announced.load(Ordering::Relaxed) == frame.mapping.epoch
    }
}

struct Feed {
    source: Arc<Source>,
    /// A frame that waits for its epoch's announce.
    held: Option<Frame>,
}

struct Outgoing {
    source: Arc<Source>,
    frame: Frame,
    header: [u8; HEADER_SLOT_BYTES],
    cut: Cut,
    next: u32,
}

struct State {
    publication: Handle<ExclusivePublication>,
    slices: Option<Slices>,
    ears: Ears,
    feeds: Vec<Feed>,
    /// Whose turn it is.
    turn: usize,
    outgoing: Option<Outgoing>,
}

struct Core {
    config: Config,
    state: TurnLock<State>,
    attached: AtomicBool,
    /// The publication takes nothing any more: it is to be replaced.
    broken: AtomicBool,
    closed: AtomicBool,
}

pub struct Sender {
    core: Arc<Core>,
    worker: Worker,
}

enum Sent {
    Chunk,
    Whole,
    Waits,
    Lost,
}

impl Sender {
    pub fn start(config: Config, idle: Strategy) -> std::io::Result<Self> {
        let state = State {
            publication: Handle::None,
            slices: None,
            ears: Ears::default(),
            feeds: Vec::new(),
            turn: 0,
            outgoing: None,
        };
        let core = Arc::new(Core {
            config,
            state: TurnLock::new(state),
            attached: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        let working = core.clone();
        let worker = Worker::start("tp-bridge-send", idle, move || working.turn())?;
        Ok(Self { core, worker })
    }

    /// From now on frames of that consumer are sent.
    pub fn add(&self, consumer: Arc<Consumer>) -> Arc<Source> {
        let source =
            Arc::new(Source { consumer, announced: AtomicU64::new(NO_EPOCH), counters: Counters::default() });
        let mut state = self.core.enter();
        state.ears.add(source.consumer.clone());
        state.feeds.push(Feed { source: source.clone(), held: None });
        self.core.attached.store(false, Ordering::Relaxed);
        source
    }

    pub fn is_ready(&self) -> bool {
        self.core.enter().publication.get().is_some()
    }

    pub fn is_connected(&self) -> bool {
        self.core.enter().publication.get().is_some_and(|p| p.is_connected())
    }

    /// How frames are cut on this channel; none while there is no publication.
    pub fn slices(&self) -> Option<Slices> {
        self.core.enter().slices
    }

    pub fn stop(&self) {
        self.worker.stop();
        let mut state = self.core.enter();
        state.feeds.clear();
        state.outgoing = None;
    }
}

impl Core {
    /// For the worker.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// For everybody else: the worker, which never pauses under load, gives way.
    fn enter(&self) -> MutexGuard<'_, State> {
        self.state.lock_first()
    }

    fn turn(&self) -> usize {
        let mut state = self.lock();
        let State { publication, slices, ears, feeds, turn, outgoing } = &mut *state;
        // Also while the network holds us up: nobody waits for a reader that listens.
        ears.listen(WORDS_A_TURN);
        let (Some(publication), Some(slices)) = (publication.get(), slices) else { return 0 };
        let mut done = 0;
        while done < CHUNKS_A_TURN {
            let Some(frame) = outgoing else {
                let Some((source, frame)) = next_frame(feeds, turn) else {
                    if ears.listen(WORDS_A_TURN) == 0 {
                        return done;
                    }
                    done += 1;
                    continue;
                };
                done += 1;
                *outgoing = self.begin(source, frame, slices, publication.is_connected());
                continue;
            };
            match self.send_one(publication, frame) {
                Sent::Chunk => done += 1,
                Sent::Waits => return done,
                Sent::Whole | Sent::Lost => {
                    *outgoing = None;
                    done += 1;
                }
            }
        }
        done
    }

    fn begin(&self, source: Arc<Source>, frame: Frame, slices: &Slices, connected: bool) -> Option<Outgoing> {
        let counters = source.counters();
        let len = frame.located.info.values_len_bytes;
        let cut = slices.cut(len);
        let refused = match cut {
            _ if len > self.config.max_payload_bytes => Some(&counters.too_long),
            None => Some(&counters.too_many_chunks),
            _ if !connected => Some(&counters.not_connected),
            _ => None,
        };
        if let Some(counter) = refused {
            bump(counter);
            return None;
        }
        // Before any of it is sent, the slot is looked at again, so these bytes are the frame's own.
        let header = frame.mapping.header_bytes(frame.located.seq);
        cut.map(|cut| Outgoing { source, frame, header, cut, next: 0 })
    }

    #[inline]
    fn send_one(&self, publication: &mut ExclusivePublication, out: &mut Outgoing) -> Sent {
        let (revision, index) = (self.config.revision, out.next);
        let (offset, length) = out.cut.slice(index);
        let header = (index == 0).then_some(&out.header);
        let (mapping, seq) = (&out.frame.mapping, out.frame.located.seq);
        let payload = mapping.payload(out.frame.located.pool, seq).wrapping_add(offset as usize);
        let whose =
            Whose { stream_id: mapping.stream_id, epoch: mapping.epoch, seq, trace_id: out.frame.trace_id };
        let len = revision.overhead(header.is_some()) + length as usize;
        let claimed = publication.claim_if(len, |bytes| {
            let at = chunk::encode(bytes, revision, &whose, &out.cut, index, header);
            // SAFETY: the slice lies inside the payload, which `locate` held against the pool's stride; the
            // claim has room for it behind `at`.
            unsafe { copy::from_shared(bytes[at..].as_mut_ptr(), payload, length as usize) };
            let is_whole = mapping.still_holds(seq);
            if is_whole && revision == Revision::Second {
                chunk::seal(bytes);
            }
            is_whole
        });
        let counters = out.source.counters();
        let lost = match claimed {
            Ok((_, true)) => {
                out.next += 1;
                bump(&counters.chunks);
                if out.next < out.cut.count {
                    return Sent::Chunk;
                }
                bump(&counters.sent);
                counters.bytes.fetch_add(u64::from(out.cut.payload_length), Ordering::Relaxed);
                return Sent::Whole;
            }
            Ok((_, false)) => &counters.overwritten,
            // It waits in its slot, as long as that is its own.
            Err(NotTaken::BackPressured) if mapping.still_holds(seq) => return Sent::Waits,
            Err(NotTaken::BackPressured) => &counters.overwritten,
            Err(NotTaken::NotConnected) => &counters.not_connected,
            Err(NotTaken::Closed) => {
                self.broken.store(true, Ordering::Relaxed);
                &counters.closed
            }
        };
        bump(lost);
        Sent::Lost
    }
}

/// The next frame of whoever has one, each stream in its turn.
fn next_frame(feeds: &mut [Feed], turn: &mut usize) -> Option<(Arc<Source>, Frame)> {
    for _ in 0..feeds.len() {
        let feed = &mut feeds[*turn % feeds.len()];
        *turn = turn.wrapping_add(1);
        let source = &feed.source;
        let Some(frame) = feed.held.take().or_else(|| source.consumer.poll_one()) else { continue };
        if source.is_announced(&frame) {
            return Some((source.clone(), frame));
        }
        if frame.mapping.still_holds(frame.located.seq) {
            feed.held = Some(frame);
        } else {
            bump(&source.counters.unannounced);
        }
    }
    None
}

impl Endpoint for Sender {
    fn attach(&self, client: &Client) -> Result<(), AeronError> {
        let core = &*self.core;
        let is_broken = core.broken.swap(false, Ordering::Relaxed);
        if (core.attached.load(Ordering::Relaxed) && !is_broken) || core.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let config = &core.config;
        let mut state = core.state.lock_first();
        if is_broken {
            core.attached.store(false, Ordering::Relaxed);
            state.publication = Handle::None;
        }
        let channel = match config.mtu_bytes {
            Some(mtu) => with_parameter(&config.channel, &format!("mtu={mtu}")),
            None => config.channel.clone(),
        };
        state.publication.advance(|| client.add_exclusive_publication(&channel, config.stream_id))?;
        if let Some(publication) = state.publication.get() {
            let channel_mtu = publication.max_payload_length() as u32 + DATA_HEADER_LENGTH;
            let mtu = config.mtu_bytes.unwrap_or(u32::MAX).min(channel_mtu);
            state.slices = Slices::new(mtu, config.chunk_bytes, config.max_chunk_bytes);
        }
        let has_ears = state.ears.advance(client)?;
        core.attached.store(has_ears && state.publication.get().is_some(), Ordering::Relaxed);
        Ok(())
    }

    fn detach(&self) {
        self.core.attached.store(false, Ordering::Relaxed);
        let mut state = self.core.state.lock_first();
        (state.publication, state.slices) = (Handle::None, None);
        state.ears.detach();
        if let Some(out) = state.outgoing.take() {
            bump(&out.source.counters.closed);
        }
    }

    fn close(&self) {
        self.core.closed.store(true, Ordering::Relaxed);
        self.detach();
        self.core.enter().ears.clear();
    }
}
