//! Tests that for any order, loss and forgery a frame is either correct or not delivered.

use super::*;

mod counted;
mod hostile;

const MS: u64 = 1_000_000;
const TIMEOUT: u64 = 250 * MS;

/// The payload of a frame, byte by byte.
fn byte(seq: u64, at: u32) -> u8 {
    (seq.wrapping_mul(31) as u32).wrapping_add(at.wrapping_mul(7)).wrapping_add(at >> 8) as u8
}

fn content(seq: u64, offset: u32, length: u32) -> Vec<u8> {
    (offset..offset + length).map(|at| byte(seq, at)).collect()
}

/// Keeps frames in memory. Refuses frames larger than `room`, and headers that do not name their frame.
#[derive(Default)]
struct MemoryStore {
    room: u32,
    refuses: Option<Loss>,
    committed: Vec<(u64, Vec<u8>, u64)>,
    prefixes: Vec<(u64, u32)>,
}

impl FrameStore for MemoryStore {
    type Slot = Vec<u8>;

    fn nslots(&mut self) -> u32 {
        8
    }

    fn open(&mut self, _: u64, payload_length: u32) -> Result<Vec<u8>, Loss> {
        if payload_length > self.room { Err(Loss::NoPool) } else { Ok(vec![0; payload_length as usize]) }
    }

    fn write(&mut self, slot: &mut Vec<u8>, offset: u32, bytes: &[u8]) {
        slot[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn holds(&self, slot: &Vec<u8>, offset: u32, bytes: &[u8]) -> bool {
        &slot[offset as usize..offset as usize + bytes.len()] == bytes
    }

    fn describe(&mut self, _: &mut Vec<u8>, _: u64, _: u32, header: &[u8; 256]) -> Result<(), Loss> {
        if header[0] == 1 { Ok(()) } else { Err(Loss::Kind) }
    }

    fn commit(&mut self, slot: Vec<u8>, seq: u64, trace_id: u64) -> Result<(), Loss> {
        self.refuses.map_or(Ok(()), Err)?;
        self.committed.push((seq, slot, trace_id));
        Ok(())
    }

    fn advanced(&mut self, _: &Vec<u8>, seq: u64, prefix: u32) {
        self.prefixes.push((seq, prefix));
    }
}

static GOOD: [u8; HEADER_SLOT_BYTES] = [1; HEADER_SLOT_BYTES];
static BAD: [u8; HEADER_SLOT_BYTES] = [0; HEADER_SLOT_BYTES];

/// A chunk that owns its bytes.
#[derive(Clone, Debug)]
struct OwnedChunk {
    seq: u64,
    index: u32,
    count: u32,
    offset: u32,
    payload_length: u32,
    bad_header: bool,
    payload: Vec<u8>,
}

impl OwnedChunk {
    fn chunk(&self) -> Chunk<'_> {
        let header = if self.bad_header { &BAD } else { &GOOD };
        Chunk {
            stream_id: 1,
            epoch: 1,
            seq: self.seq,
            trace_id: 5,
            index: self.index,
            count: self.count,
            offset: self.offset,
            payload_length: self.payload_length,
            header: (self.index == 0).then_some(header),
            payload: &self.payload,
        }
    }
}

fn frame(seq: u64, payload_length: u32, slice: u32) -> Vec<OwnedChunk> {
    let count = payload_length.div_ceil(slice).max(1);
    let one = |index: u32| {
        let offset = index * slice;
        let length = slice.min(payload_length - offset);
        let payload = content(seq, offset, length);
        OwnedChunk { seq, index, count, offset, payload_length, bad_header: false, payload }
    };
    (0..count).map(one).collect()
}

struct AssemblyHarness {
    table: AssemblyTable<Vec<u8>>,
    memory: MemoryStore,
    now: u64,
}

impl AssemblyHarness {
    fn new() -> Self {
        Self {
            table: AssemblyTable::new(TIMEOUT),
            memory: MemoryStore { room: 1 << 20, ..MemoryStore::default() },
            now: 0,
        }
    }

    fn give(&mut self, chunk: &OwnedChunk) -> ChunkOutcome {
        self.table.on_chunk(&chunk.chunk(), self.now, &mut self.memory)
    }

    fn give_all<'a>(&mut self, chunks: impl IntoIterator<Item = &'a OwnedChunk>) -> Vec<ChunkOutcome> {
        chunks.into_iter().map(|c| self.give(c)).collect()
    }

    fn delivered(&self) -> Vec<u64> {
        self.memory.committed.iter().map(|(seq, _, _)| *seq).collect()
    }

    fn lost(&self, why: Loss) -> u64 {
        self.table.counters().lost(why)
    }
}

/// requirement: bridge-5.2-17, bridge-5.2-18, bridge-6-11
#[test]
fn chunks_are_accepted_in_any_order() {
    let mut harness = AssemblyHarness::new();
    let mut chunks = frame(4, 1000, 90);
    chunks.reverse();
    let steps = harness.give_all(&chunks);
    assert_eq!(steps.last(), Some(&ChunkOutcome::Delivered));
    assert_eq!(harness.memory.committed, [(4, content(4, 0, 1000), 5)]);
    assert_eq!(harness.table.counters().bytes, 1000);
}

#[test]
fn empty_frame_is_one_empty_chunk() {
    let mut harness = AssemblyHarness::new();
    assert_eq!(harness.give_all(&frame(0, 0, 90)), [ChunkOutcome::Delivered]);
    assert_eq!(harness.memory.committed, [(0, vec![], 5)]);
}

/// requirement: bridge-5.3-1
#[test]
fn frame_with_a_missing_chunk_is_not_delivered() {
    for missing in 0..4 {
        let mut harness = AssemblyHarness::new();
        let chunks = frame(0, 400, 100);
        harness.give_all(chunks.iter().filter(|c| c.index != missing));
        assert_eq!(harness.delivered(), []);
        harness.give_all(&frame(1, 400, 100));
        assert_eq!(harness.delivered(), [1]);
        assert_eq!(harness.lost(Loss::Superseded), 1);
    }
}

#[test]
fn duplicate_chunk_changes_nothing() {
    let mut harness = AssemblyHarness::new();
    let chunks = frame(0, 400, 100);
    harness.give_all(&chunks[..3]);
    assert_eq!(harness.give_all(&chunks[..3]), [ChunkOutcome::Ignored(Ignored::Duplicate); 3]);
    assert_eq!(harness.give(&chunks[3]), ChunkOutcome::Delivered);
    assert_eq!(harness.give(&chunks[3]), ChunkOutcome::Ignored(Ignored::Late));
    assert_eq!(harness.delivered(), [0]);
}

/// requirement: bridge-5.2-7, bridge-5.2-19
#[test]
fn chunks_that_overlap_or_contradict_each_other_drop_the_frame() {
    let original = frame(0, 400, 100);
    let changed: [fn(&mut OwnedChunk); 4] =
        [|c| c.payload[0] ^= 1, |c| c.offset += 1, |c| c.payload.truncate(99), |c| c.index = 3];
    for (i, change) in changed.into_iter().enumerate() {
        let mut harness = AssemblyHarness::new();
        harness.give_all(&original[..3]);
        let mut lie = original[2].clone();
        change(&mut lie);
        let counted = ChunkOutcome::Lost(Loss::Conflict);
        let (at_lie, at_last) = if lie.chunk().is_last() {
            (counted, ChunkOutcome::Ignored(Ignored::OfDropped))
        } else {
            (ChunkOutcome::Refused(Loss::Conflict), counted)
        };
        assert_eq!(harness.give(&lie), at_lie, "{i}");
        assert_eq!(harness.give(&original[3]), at_last, "{i}: it stays dropped");
        assert_eq!(harness.lost(Loss::Conflict), 1);
        assert_eq!(harness.delivered(), []);
    }
}

#[test]
fn chunks_that_disagree_on_the_frame_drop_it() {
    let changed: [fn(&mut OwnedChunk); 2] = [|c| c.count += 1, |c| c.payload_length += 1];
    for change in changed {
        let mut harness = AssemblyHarness::new();
        let chunks = frame(0, 400, 100);
        harness.give(&chunks[0]);
        let mut lie = chunks[1].clone();
        change(&mut lie);
        assert_eq!(harness.give(&lie), ChunkOutcome::Refused(Loss::Inconsistent));
    }
}

/// requirement: bridge-5.2-8
#[test]
fn all_chunks_without_all_bytes_are_no_frame() {
    let mut harness = AssemblyHarness::new();
    let mut chunks = frame(0, 400, 100);
    chunks[3].payload.pop();
    assert_eq!(harness.give_all(&chunks).last(), Some(&ChunkOutcome::Lost(Loss::Lengths)));
}

/// requirement: bridge-5.3a-1, bridge-5.3a-2, bridge-5.3a-3
#[test]
fn assembly_past_its_timeout_is_dropped() {
    let mut harness = AssemblyHarness::new();
    let chunks = frame(0, 400, 100);
    harness.give_all(&chunks[..3]);
    harness.table.on_tick(TIMEOUT);
    assert!(!harness.table.is_idle(), "not yet");
    harness.table.on_tick(TIMEOUT + 1);
    assert!(harness.table.is_idle());
    assert_eq!(harness.lost(Loss::Timeout), 1);
    assert_eq!(harness.give(&chunks[3]), ChunkOutcome::Ignored(Ignored::OfDropped));
    assert_eq!(harness.delivered(), []);
    let mut quick = AssemblyTable::<Vec<u8>>::new(MS);
    quick.on_chunk(&chunks[0].chunk(), 0, &mut harness.memory);
    quick.on_tick(MS + 1);
    assert!(quick.is_idle(), "the limit is the table's own");
}

/// requirement: bridge-8-2
#[test]
fn new_epoch_drops_assemblies_in_flight() {
    let mut harness = AssemblyHarness::new();
    harness.give_all(&frame(9, 400, 100));
    harness.give_all(&frame(10, 400, 100)[1..]);
    harness.give_all(&frame(11, 400, 100)[..3]);
    harness.table.restart();
    assert!(harness.table.is_idle());
    assert_eq!(harness.lost(Loss::Epoch), 1, "of the other one the rest is on the way");
    harness.give_all(&frame(0, 400, 100));
    assert_eq!(harness.delivered(), [9, 0]);
    assert_eq!(harness.table.counters().span, 4);
}

/// requirement: bridge-5.2-9, bridge-6-9
#[test]
fn frame_without_a_pool_is_dropped_once() {
    let mut harness = AssemblyHarness::new();
    harness.memory.room = 399;
    let steps = harness.give_all(&frame(0, 400, 100));
    assert_eq!(steps[0], ChunkOutcome::Refused(Loss::NoPool));
    assert_eq!(steps[1..3], [ChunkOutcome::Ignored(Ignored::OfDropped); 2]);
    assert_eq!(steps[3], ChunkOutcome::Lost(Loss::NoPool));
    assert_eq!(
        harness.give(&frame(0, 400, 100)[3]),
        ChunkOutcome::Ignored(Ignored::OfDropped),
        "the same again"
    );
    let counters = harness.table.counters();
    assert_eq!((counters.lost(Loss::NoPool), counters.lost.iter().sum::<u64>()), (1, 1));
    assert_eq!(counters.ignored(Ignored::OfDropped), 4);
    assert_eq!(
        harness.give_all(&frame(1, 400, 400)),
        [ChunkOutcome::Lost(Loss::NoPool)],
        "its first is its last"
    );
}

#[test]
fn invalid_header_drops_the_frame() {
    let mut harness = AssemblyHarness::new();
    let mut chunks = frame(0, 400, 100);
    chunks[0].bad_header = true;
    chunks.rotate_left(1);
    assert_eq!(harness.give_all(&chunks).last(), Some(&ChunkOutcome::Lost(Loss::Kind)));
    assert_eq!(harness.delivered(), []);
}

#[test]
fn destination_lost_at_commit_drops_the_frame() {
    let mut harness = AssemblyHarness::new();
    harness.memory.refuses = Some(Loss::Detached);
    assert_eq!(harness.give_all(&frame(0, 100, 100)), [ChunkOutcome::Lost(Loss::Detached)]);
    harness.memory.refuses = None;
    harness.give_all(&frame(1, 100, 100));
    assert_eq!((harness.delivered(), harness.lost(Loss::Detached)), (vec![1], 1));
}

#[test]
fn frames_go_out_in_order_only() {
    let mut harness = AssemblyHarness::new();
    let (one, two) = (frame(1, 400, 100), frame(2, 400, 100));
    harness.give_all(&one[..3]);
    harness.give_all(&two);
    assert_eq!(harness.give(&one[3]), ChunkOutcome::Ignored(Ignored::Late));
    assert_eq!(harness.delivered(), [2]);
    assert_eq!(harness.lost(Loss::Superseded), 1);
}

#[test]
fn later_frame_takes_over_the_slot() {
    let mut harness = AssemblyHarness::new();
    harness.give(&frame(1, 400, 100)[0]);
    harness.give(&frame(9, 400, 100)[0]);
    assert_eq!(harness.lost(Loss::Superseded), 1);
    assert_eq!(harness.give(&frame(1, 400, 100)[1]), ChunkOutcome::Ignored(Ignored::OfDropped));
    let mut harness = AssemblyHarness::new();
    harness.give(&frame(9, 400, 100)[0]);
    assert_eq!(harness.give(&frame(1, 400, 100)[0]), ChunkOutcome::Ignored(Ignored::Late));
    assert_eq!(harness.lost(Loss::Superseded), 0);
}

#[test]
fn filled_prefix_is_reported_as_it_grows() {
    let mut harness = AssemblyHarness::new();
    let chunks = frame(0, 400, 100);
    for index in [2, 0, 1] {
        harness.give(&chunks[index]);
    }
    assert_eq!(harness.memory.prefixes, [(0, 0), (0, 100), (0, 300)]);
}
