//! Assembly of frames from chunks (bridge §5.2, §5.3, §6). Pure: payload bytes go into a [`FrameStore`], the
//! caller passes the time.
//!
//! Memory is bounded for any input: a mapping has a few assemblies at a time, each with at most 65,535
//! pieces, and their buffers are reused. The payload itself is in the store, which refuses a frame that it
//! has no room for.
//!
//! Descriptors only move forward, so once a frame is delivered, earlier ones are over. Aeron delivers a
//! session in order: chunks that such a frame lacks were lost.

use crate::wire::chunk::Chunk;
use crate::wire::layout::HEADER_SLOT_BYTES;

mod dropped;
mod reasons;
mod spans;

use dropped::DroppedFrames;
pub use reasons::{Ignored, Loss};
use spans::Spans;

/// Assemblies of one mapping at a time. A sender sends one frame after the other.
pub const MAX_LIVE: usize = 8;

/// The memory that frames are written to.
pub trait FrameStore {
    type Slot;
    /// Frames whose sequences differ by a multiple of this share a slot.
    fn nslots(&mut self) -> u32;
    /// Claims a slot for a frame.
    fn open(&mut self, seq: u64, payload_length: u32) -> Result<Self::Slot, Loss>;
    fn write(&mut self, slot: &mut Self::Slot, offset: u32, bytes: &[u8]);
    /// Whether exactly these bytes were written there.
    fn holds(&self, slot: &Self::Slot, offset: u32, bytes: &[u8]) -> bool;
    /// Validates and writes the frame's header.
    fn describe(
        &mut self,
        slot: &mut Self::Slot,
        seq: u64,
        payload_length: u32,
        header: &[u8; HEADER_SLOT_BYTES],
    ) -> Result<(), Loss>;
    /// Commits the complete frame.
    fn commit(&mut self, slot: Self::Slot, seq: u64, trace_id: u64) -> Result<(), Loss>;
    /// The first `_prefix` bytes of a frame are written.
    fn advanced(&mut self, _slot: &Self::Slot, _seq: u64, _prefix: u32) {}
}

/// The result of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkOutcome {
    Taken,
    Ignored(Ignored),
    /// The chunk dropped its frame, which is counted when its last chunk arrives.
    Refused(Loss),
    /// The chunk's frame is counted as lost.
    Lost(Loss),
    /// The last chunk of a refused frame, which is counted with it.
    NotReady,
    /// The last chunk: the frame is delivered.
    Delivered,
}

#[derive(Clone, Copy)]
struct ReceivedChunk {
    offset: u32,
    length: u32,
}

/// A chunk that has not been received.
const NOT_RECEIVED: ReceivedChunk = ReceivedChunk { offset: u32::MAX, length: 0 };

/// The chunks of an assembly. Reused for the next frame.
#[derive(Default)]
struct ReceivedChunks {
    all: Vec<ReceivedChunk>,
    spans: Spans,
    received: u32,
}

struct Assembly<P> {
    seq: u64,
    count: u32,
    payload_length: u32,
    trace_id: u64,
    begun_ns: u64,
    chunks: ReceivedChunks,
    slot: P,
}

impl<P> Assembly<P> {
    fn has_last(&self) -> bool {
        self.chunks.all.last().is_some_and(|received| received.offset != NOT_RECEIVED.offset)
    }
}

/// Counters since the start. Each frame is in one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssemblyCounters {
    pub delivered: u64,
    pub bytes: u64,
    pub chunks: u64,
    pub lost: [u64; Loss::COUNT],
    pub ignored: [u64; Ignored::COUNT],
    /// Frames whose first chunk arrived before the announce of their epoch, or whose last chunk arrived after
    /// it ended.
    pub not_ready: u64,
    /// Sequences from the first to the last of each epoch.
    pub span: u64,
}

impl AssemblyCounters {
    pub fn lost(&self, why: Loss) -> u64 {
        self.lost[why as usize]
    }

    pub fn ignored(&self, why: Ignored) -> u64 {
        self.ignored[why as usize]
    }
}

/// The assemblies of one mapping.
pub struct AssemblyTable<P> {
    timeout_ns: u64,
    live: Vec<Assembly<P>>,
    spare: Vec<ReceivedChunks>,
    dropped: DroppedFrames,
    /// Epoch and sequence of the latest refused frame, while its last chunk has not arrived.
    refused: Option<(u64, u64)>,
    /// The epoch of the frames in the table.
    epoch: u64,
    /// Sequences below this are over.
    floor: u64,
    seq_range: Option<(u64, u64)>,
    counters: AssemblyCounters,
}

impl<P> AssemblyTable<P> {
    pub fn new(timeout_ns: u64) -> Self {
        Self {
            timeout_ns,
            live: Vec::with_capacity(MAX_LIVE),
            spare: Vec::with_capacity(MAX_LIVE + 1),
            dropped: DroppedFrames::new(),
            refused: None,
            epoch: 0,
            floor: 0,
            seq_range: None,
            counters: AssemblyCounters::default(),
        }
    }

    pub fn counters(&self) -> &AssemblyCounters {
        &self.counters
    }

    pub fn is_idle(&self) -> bool {
        self.live.is_empty() && !self.dropped.has_pending()
    }

    /// The first and the last sequence of the epoch so far.
    pub fn seq_range(&self) -> Option<(u64, u64)> {
        self.seq_range
    }

    /// Starts a new epoch: drops assemblies in flight.
    pub fn restart(&mut self) {
        self.mark_latest_not_ready();
        self.abandon(Loss::Epoch);
        let expired = self.dropped.expire(|_, _| true);
        self.count(Loss::Epoch, expired);
        (self.floor, self.seq_range) = (0, None);
        self.dropped.clear();
    }

    /// An announce may overtake chunks: the frame that its sender is sending may still complete.
    fn mark_latest_not_ready(&mut self) {
        let live = self.live.iter().filter(|a| !a.has_last()).map(|a| a.seq).max();
        let Some(seq) = live.max(self.dropped.latest_pending()) else { return };
        self.refused = Some((self.epoch, seq));
        if let Some(at) = self.live.iter().position(|a| a.seq == seq) {
            self.spare.push(self.live.swap_remove(at).chunks);
        } else {
            self.dropped.take_pending(seq);
        }
    }

    /// Drops all assemblies in flight.
    pub fn abandon(&mut self, why: Loss) {
        while let Some(assembly) = self.live.pop() {
            self.count_lost(assembly, why);
        }
    }

    /// Drops assemblies past their timeout.
    pub fn on_tick(&mut self, now_ns: u64) {
        let timeout_ns = self.timeout_ns;
        let is_over = |begun_ns: u64| now_ns.saturating_sub(begun_ns) > timeout_ns;
        while let Some(at) = self.live.iter().position(|a| is_over(a.begun_ns)) {
            let assembly = self.live.swap_remove(at);
            self.count_lost(assembly, Loss::Timeout);
        }
        let expired = self.dropped.expire(|_, begun_ns| is_over(begun_ns));
        self.count(Loss::Timeout, expired);
    }

    /// Ignores a chunk. If its frame is refused for that, it counts with its last chunk.
    pub fn ignore(&mut self, chunk: &Chunk<'_>, why: Ignored) -> ChunkOutcome {
        self.counters.ignored[why as usize] += 1;
        let is_boundary = matches!(why, Ignored::Unannounced | Ignored::OldEpoch | Ignored::UnknownEpoch);
        if is_boundary && chunk.index == 0 {
            self.refused = Some((chunk.epoch, chunk.seq));
        }
        if chunk.is_last() && self.refused.take_if(|refused| *refused == (chunk.epoch, chunk.seq)).is_some() {
            self.counters.not_ready += 1;
            return ChunkOutcome::NotReady;
        }
        ChunkOutcome::Ignored(why)
    }

    /// A chunk of a dropped frame.
    fn ignore_dropped(&mut self, chunk: &Chunk<'_>) -> ChunkOutcome {
        let step = self.ignore(chunk, Ignored::OfDropped);
        if !chunk.is_last() {
            return step;
        }
        let Some(why) = self.dropped.take_pending(chunk.seq) else { return step };
        self.count(why, 1);
        ChunkOutcome::Lost(why)
    }

    fn count(&mut self, why: Loss, n: u64) {
        self.counters.lost[why as usize] += n;
    }

    fn count_lost(&mut self, assembly: Assembly<P>, why: Loss) {
        self.note_dropped(assembly.seq, why, assembly.has_last(), assembly.begun_ns);
        self.spare.push(assembly.chunks);
    }

    /// `has_last`: the last chunk of the frame has arrived.
    fn note_dropped(&mut self, seq: u64, why: Loss, has_last: bool, begun_ns: u64) -> ChunkOutcome {
        let is_counted = has_last || why.is_incomplete();
        let expired = self.dropped.note(seq, (!is_counted).then_some((why, begun_ns)));
        self.count(Loss::Superseded, expired);
        if !is_counted {
            return ChunkOutcome::Refused(why);
        }
        self.count(why, 1);
        ChunkOutcome::Lost(why)
    }

    fn extend_range(&mut self, seq: u64) {
        let before = self.seq_range.map_or(0, |(first, last)| last - first + 1);
        let (first, last) = self.seq_range.map_or((seq, seq), |(f, l)| (f.min(seq), l.max(seq)));
        self.seq_range = Some((first, last));
        self.counters.span = self.counters.span.wrapping_add(last - first + 1 - before);
    }

    /// Adds a chunk of the current epoch.
    #[inline]
    pub fn on_chunk<S: FrameStore<Slot = P>>(
        &mut self,
        chunk: &Chunk<'_>,
        now_ns: u64,
        store: &mut S,
    ) -> ChunkOutcome {
        let at = match self.live.iter().position(|a| a.seq == chunk.seq) {
            Some(at) => at,
            None => match self.begin(chunk, now_ns, store) {
                Ok(at) => at,
                Err(step) => return step,
            },
        };
        match self.add(at, chunk, store) {
            Ok(step) => step,
            Err(why) => {
                let assembly = self.live.swap_remove(at);
                let has_last = chunk.is_last() || assembly.has_last();
                self.spare.push(assembly.chunks);
                self.note_dropped(assembly.seq, why, has_last, assembly.begun_ns)
            }
        }
    }

    fn begin<S: FrameStore<Slot = P>>(
        &mut self,
        chunk: &Chunk<'_>,
        now_ns: u64,
        store: &mut S,
    ) -> Result<usize, ChunkOutcome> {
        let seq = chunk.seq;
        if seq < self.floor {
            return Err(self.ignore(chunk, Ignored::Late));
        }
        if self.dropped.contains(seq) {
            return Err(self.ignore_dropped(chunk));
        }
        if self.refused == Some((chunk.epoch, seq)) {
            if chunk.index != 0 {
                return Err(self.ignore(chunk, Ignored::OfDropped));
            }
            // A restarted sender sends the frame again.
            self.refused = None;
        }
        self.extend_range(seq);
        self.epoch = chunk.epoch;
        // One assembly per slot, and a bounded number in total: the oldest is evicted.
        let nslots = u64::from(store.nslots().max(1));
        let rival = self.live.iter().position(|a| a.seq % nslots == seq % nslots).or_else(|| {
            let oldest = self.live.iter().enumerate().min_by_key(|(_, a)| a.seq).map(|(at, _)| at);
            oldest.filter(|_| self.live.len() == MAX_LIVE)
        });
        if let Some(at) = rival {
            if self.live[at].seq > seq {
                return Err(self.ignore(chunk, Ignored::Late));
            }
            let assembly = self.live.swap_remove(at);
            self.count_lost(assembly, Loss::Superseded);
        }
        let slot = store
            .open(seq, chunk.payload_length)
            .map_err(|why| self.note_dropped(seq, why, chunk.is_last(), now_ns))?;
        let mut chunks = self.spare.pop().unwrap_or_default();
        chunks.all.clear();
        chunks.all.resize(chunk.count as usize, NOT_RECEIVED);
        chunks.spans.clear();
        chunks.received = 0;
        self.live.push(Assembly {
            seq,
            count: chunk.count,
            payload_length: chunk.payload_length,
            trace_id: chunk.trace_id,
            begun_ns: now_ns,
            chunks,
            slot,
        });
        Ok(self.live.len() - 1)
    }

    #[inline]
    fn add<S: FrameStore<Slot = P>>(
        &mut self,
        at: usize,
        chunk: &Chunk<'_>,
        store: &mut S,
    ) -> Result<ChunkOutcome, Loss> {
        let assembly = &mut self.live[at];
        if (chunk.count, chunk.payload_length) != (assembly.count, assembly.payload_length)
            || chunk.trace_id != assembly.trace_id
        {
            return Err(Loss::Inconsistent);
        }
        let received = &mut assembly.chunks.all[chunk.index as usize];
        let length = chunk.payload.len() as u32;
        if received.offset != NOT_RECEIVED.offset {
            let is_same = received.offset == chunk.offset
                && received.length == length
                && store.holds(&assembly.slot, chunk.offset, chunk.payload);
            return if is_same { Ok(self.ignore(chunk, Ignored::Duplicate)) } else { Err(Loss::Conflict) };
        }
        if !assembly.chunks.spans.add(chunk.offset, chunk.offset + length) {
            return Err(Loss::Conflict);
        }
        *received = ReceivedChunk { offset: chunk.offset, length };
        assembly.chunks.received += 1;
        self.counters.chunks += 1;
        if let Some(header) = chunk.header {
            store.describe(&mut assembly.slot, assembly.seq, assembly.payload_length, header)?;
        }
        store.write(&mut assembly.slot, chunk.offset, chunk.payload);
        if assembly.chunks.received < assembly.count {
            store.advanced(&assembly.slot, assembly.seq, assembly.chunks.spans.prefix());
            return Ok(ChunkOutcome::Taken);
        }
        // Chunk 0 is among them, so the header is valid.
        if assembly.chunks.spans.total() != assembly.payload_length {
            return Err(Loss::Lengths);
        }
        Ok(self.finish(at, store))
    }

    fn finish<S: FrameStore<Slot = P>>(&mut self, at: usize, store: &mut S) -> ChunkOutcome {
        let assembly = self.live.swap_remove(at);
        let (seq, payload_length) = (assembly.seq, assembly.payload_length);
        self.spare.push(assembly.chunks);
        // Earlier frames can no longer be delivered in order.
        while let Some(older) = self.live.iter().position(|a| a.seq < seq) {
            let older = self.live.swap_remove(older);
            self.count_lost(older, Loss::Superseded);
        }
        if let Err(why) = store.commit(assembly.slot, seq, assembly.trace_id) {
            return self.note_dropped(seq, why, true, assembly.begun_ns);
        }
        let expired = self.dropped.expire(|dropped, _| dropped < seq);
        self.count(Loss::Superseded, expired);
        self.floor = seq + 1;
        self.counters.delivered += 1;
        self.counters.bytes += u64::from(payload_length);
        ChunkOutcome::Delivered
    }
}

#[cfg(test)]
mod tests;
