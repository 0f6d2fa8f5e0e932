//! Frames put together from chunks (bridge §5.2, §5.3, §6). Pure: bytes go where a [`FrameStore`] says, time is given.
//!
//! Bounded whatever arrives: a mapping has a few assemblies at a time, each with at most 65,535 pieces, and what
//! they keep is used again. The payload itself lies in the store, which has room for it or refuses the frame.
//!
//! Descriptors only ever move forward, so once a frame is out, those before it are over. Aeron delivers a
//! session in order: whatever such a frame still lacks was lost.

use crate::wire::chunk::Chunk;
use crate::wire::layout::HEADER_SLOT_BYTES;

mod dropped;
mod reasons;
mod spans;

use dropped::DroppedFrames;
pub use reasons::{Ignored, Loss};
use spans::Spans;

/// Frames of one mapping that are put together at a time. A sender sends one after the other.
pub const MAX_LIVE: usize = 8;

/// Where the bytes of frames go.
pub trait FrameStore {
    type Place;
    /// Frames whose sequences differ by a multiple of this share a slot.
    fn nslots(&mut self) -> u32;
    /// Makes room for a frame.
    fn open(&mut self, seq: u64, payload_length: u32) -> Result<Self::Place, Loss>;
    fn write(&mut self, place: &mut Self::Place, offset: u32, bytes: &[u8]);
    /// Whether exactly these bytes were written there.
    fn holds(&self, place: &Self::Place, offset: u32, bytes: &[u8]) -> bool;
    /// The frame's header is there; says whether it can be believed.
    fn describe(
        &mut self,
        place: &mut Self::Place,
        seq: u64,
        payload_length: u32,
        header: &[u8; HEADER_SLOT_BYTES],
    ) -> Result<(), Loss>;
    /// The frame is whole.
    fn commit(&mut self, place: Self::Place, seq: u64, trace_id: u64) -> Result<(), Loss>;
    /// The first so many bytes of a frame are in place.
    fn advanced(&mut self, _place: &Self::Place, _seq: u64, _prefix: u32) {}
}

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkOutcome {
    Taken,
    Ignored(Ignored),
    /// The chunk's frame was dropped with it; that is counted when its last one comes.
    Refused(Loss),
    /// The chunk's frame is counted as lost with it.
    Lost(Loss),
    /// It was the last of a frame that is counted as turned away.
    TurnedAway,
    /// It was the last one: the frame is out.
    Delivered,
}

#[derive(Clone, Copy)]
struct Piece {
    offset: u32,
    length: u32,
}

/// A piece that has not come.
const NOT_YET: Piece = Piece { offset: u32::MAX, length: 0 };

/// What an assembly keeps; used again for the next frame.
#[derive(Default)]
struct Pieces {
    all: Vec<Piece>,
    spans: Spans,
    received: u32,
}

struct Assembly<P> {
    seq: u64,
    count: u32,
    payload_length: u32,
    trace_id: u64,
    begun_ns: u64,
    pieces: Pieces,
    place: P,
}

impl<P> Assembly<P> {
    fn has_last(&self) -> bool {
        self.pieces.all.last().is_some_and(|piece| piece.offset != NOT_YET.offset)
    }
}

/// Counted since the beginning; a frame is in one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssemblyCounters {
    pub delivered: u64,
    pub bytes: u64,
    pub chunks: u64,
    pub lost: [u64; Loss::COUNT],
    pub ignored: [u64; Ignored::COUNT],
    /// Frames whose first chunk came before its epoch was announced, or whose last one came after it was over.
    pub turned_away: u64,
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
    spare: Vec<Pieces>,
    dropped: DroppedFrames,
    /// Epoch and sequence of the latest frame that was turned away, and whose last chunk has not come.
    away: Option<(u64, u64)>,
    /// Of the frames in here.
    epoch: u64,
    /// Sequences below it are over.
    floor: u64,
    seen: Option<(u64, u64)>,
    counters: AssemblyCounters,
}

impl<P> AssemblyTable<P> {
    pub fn new(timeout_ns: u64) -> Self {
        Self {
            timeout_ns,
            live: Vec::with_capacity(MAX_LIVE),
            spare: Vec::with_capacity(MAX_LIVE + 1),
            dropped: DroppedFrames::new(),
            away: None,
            epoch: 0,
            floor: 0,
            seen: None,
            counters: AssemblyCounters::default(),
        }
    }

    pub fn counters(&self) -> &AssemblyCounters {
        &self.counters
    }

    pub fn is_idle(&self) -> bool {
        self.live.is_empty() && !self.dropped.owes()
    }

    /// The first and the last sequence of the epoch so far.
    pub fn seen(&self) -> Option<(u64, u64)> {
        self.seen
    }

    /// A new epoch: what is in flight is over, and sequences begin anew.
    pub fn restart(&mut self) {
        self.turn_latest_away();
        self.abandon(Loss::Epoch);
        let given_up = self.dropped.give_up(|_, _| true);
        self.count(Loss::Epoch, given_up);
        (self.floor, self.seen) = (0, None);
        self.dropped.clear();
    }

    /// An announce overtakes what is on the way: the frame that its sender is at may still come to its end.
    fn turn_latest_away(&mut self) {
        let live = self.live.iter().filter(|a| !a.has_last()).map(|a| a.seq).max();
        let Some(seq) = live.max(self.dropped.latest_owed()) else { return };
        self.away = Some((self.epoch, seq));
        if let Some(at) = self.live.iter().position(|a| a.seq == seq) {
            self.spare.push(self.live.swap_remove(at).pieces);
        } else {
            self.dropped.take_owed(seq);
        }
    }

    /// Drops all that is in flight.
    pub fn abandon(&mut self, why: Loss) {
        while let Some(assembly) = self.live.pop() {
            self.count_lost(assembly, why);
        }
    }

    /// Drops what has waited for too long.
    pub fn on_tick(&mut self, now_ns: u64) {
        let timeout_ns = self.timeout_ns;
        let is_over = |begun_ns: u64| now_ns.saturating_sub(begun_ns) > timeout_ns;
        while let Some(at) = self.live.iter().position(|a| is_over(a.begun_ns)) {
            let assembly = self.live.swap_remove(at);
            self.count_lost(assembly, Loss::Timeout);
        }
        let given_up = self.dropped.give_up(|_, begun_ns| is_over(begun_ns));
        self.count(Loss::Timeout, given_up);
    }

    /// A chunk is not used. If its frame is turned away for that, it counts with its last one.
    pub fn ignore(&mut self, chunk: &Chunk<'_>, why: Ignored) -> ChunkOutcome {
        self.counters.ignored[why as usize] += 1;
        let is_boundary = matches!(why, Ignored::Unannounced | Ignored::OldEpoch | Ignored::UnknownEpoch);
        if is_boundary && chunk.index == 0 {
            self.away = Some((chunk.epoch, chunk.seq));
        }
        if chunk.is_last() && self.away.take_if(|away| *away == (chunk.epoch, chunk.seq)).is_some() {
            self.counters.turned_away += 1;
            return ChunkOutcome::TurnedAway;
        }
        ChunkOutcome::Ignored(why)
    }

    /// A chunk of a frame that was dropped.
    fn ignore_dropped(&mut self, chunk: &Chunk<'_>) -> ChunkOutcome {
        let step = self.ignore(chunk, Ignored::OfDropped);
        if !chunk.is_last() {
            return step;
        }
        let Some(why) = self.dropped.take_owed(chunk.seq) else { return step };
        self.count(why, 1);
        ChunkOutcome::Lost(why)
    }

    fn count(&mut self, why: Loss, n: u64) {
        self.counters.lost[why as usize] += n;
    }

    fn count_lost(&mut self, assembly: Assembly<P>, why: Loss) {
        self.note_dropped(assembly.seq, why, assembly.has_last(), assembly.begun_ns);
        self.spare.push(assembly.pieces);
    }

    /// `has_last`: its last chunk has come.
    fn note_dropped(&mut self, seq: u64, why: Loss, has_last: bool, begun_ns: u64) -> ChunkOutcome {
        let is_counted = has_last || why.is_incomplete();
        let given_up = self.dropped.note(seq, (!is_counted).then_some((why, begun_ns)));
        self.count(Loss::Superseded, given_up);
        if !is_counted {
            return ChunkOutcome::Refused(why);
        }
        self.count(why, 1);
        ChunkOutcome::Lost(why)
    }

    fn see(&mut self, seq: u64) {
        let before = self.seen.map_or(0, |(first, last)| last - first + 1);
        let (first, last) = self.seen.map_or((seq, seq), |(f, l)| (f.min(seq), l.max(seq)));
        self.seen = Some((first, last));
        self.counters.span = self.counters.span.wrapping_add(last - first + 1 - before);
    }

    /// Takes a chunk of the epoch in force.
    #[inline]
    pub fn on_chunk<S: FrameStore<Place = P>>(
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
                self.spare.push(assembly.pieces);
                self.note_dropped(assembly.seq, why, has_last, assembly.begun_ns)
            }
        }
    }

    fn begin<S: FrameStore<Place = P>>(
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
        if self.away == Some((chunk.epoch, seq)) {
            if chunk.index != 0 {
                return Err(self.ignore(chunk, Ignored::OfDropped));
            }
            // A sender that was started anew sends it once more.
            self.away = None;
        }
        self.see(seq);
        self.epoch = chunk.epoch;
        // One assembly a slot, and not too many in all: the older one makes room.
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
        let place = store
            .open(seq, chunk.payload_length)
            .map_err(|why| self.note_dropped(seq, why, chunk.is_last(), now_ns))?;
        let mut pieces = self.spare.pop().unwrap_or_default();
        pieces.all.clear();
        pieces.all.resize(chunk.count as usize, NOT_YET);
        pieces.spans.clear();
        pieces.received = 0;
        self.live.push(Assembly {
            seq,
            count: chunk.count,
            payload_length: chunk.payload_length,
            trace_id: chunk.trace_id,
            begun_ns: now_ns,
            pieces,
            place,
        });
        Ok(self.live.len() - 1)
    }

    #[inline]
    fn add<S: FrameStore<Place = P>>(
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
        let piece = &mut assembly.pieces.all[chunk.index as usize];
        let length = chunk.payload.len() as u32;
        if piece.offset != NOT_YET.offset {
            let is_same = piece.offset == chunk.offset
                && piece.length == length
                && store.holds(&assembly.place, chunk.offset, chunk.payload);
            return if is_same { Ok(self.ignore(chunk, Ignored::Duplicate)) } else { Err(Loss::Conflict) };
        }
        if !assembly.pieces.spans.add(chunk.offset, chunk.offset + length) {
            return Err(Loss::Conflict);
        }
        *piece = Piece { offset: chunk.offset, length };
        assembly.pieces.received += 1;
        self.counters.chunks += 1;
        if let Some(header) = chunk.header {
            store.describe(&mut assembly.place, assembly.seq, assembly.payload_length, header)?;
        }
        store.write(&mut assembly.place, chunk.offset, chunk.payload);
        if assembly.pieces.received < assembly.count {
            store.advanced(&assembly.place, assembly.seq, assembly.pieces.spans.prefix());
            return Ok(ChunkOutcome::Taken);
        }
        // Chunk 0 is among them, so the header was there and was believed.
        if assembly.pieces.spans.total() != assembly.payload_length {
            return Err(Loss::Lengths);
        }
        Ok(self.finish(at, store))
    }

    fn finish<S: FrameStore<Place = P>>(&mut self, at: usize, store: &mut S) -> ChunkOutcome {
        let assembly = self.live.swap_remove(at);
        let (seq, payload_length) = (assembly.seq, assembly.payload_length);
        self.spare.push(assembly.pieces);
        // Those before it can no longer go out in order.
        while let Some(older) = self.live.iter().position(|a| a.seq < seq) {
            let older = self.live.swap_remove(older);
            self.count_lost(older, Loss::Superseded);
        }
        if let Err(why) = store.commit(assembly.place, seq, assembly.trace_id) {
            return self.note_dropped(seq, why, true, assembly.begun_ns);
        }
        let given_up = self.dropped.give_up(|dropped, _| dropped < seq);
        self.count(Loss::Superseded, given_up);
        self.floor = seq + 1;
        self.counters.delivered += 1;
        self.counters.bytes += u64::from(payload_length);
        ChunkOutcome::Delivered
    }
}

#[cfg(test)]
mod tests;
