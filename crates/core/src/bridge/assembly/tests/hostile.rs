//! Property tests with dropped, repeated, reordered and forged chunks; millions of them in `make test-long`.

use proptest::prelude::*;

use super::*;

/// What a hostile network does with the chunks of some frames.
#[derive(Clone, Debug)]
enum Tampering {
    Drop(usize),
    Repeat(usize),
    Swap(usize, usize),
    Reseq(usize, u64),
    Recount(usize, u32),
    Reindex(usize, u32),
    Reslice(usize, u32, u32),
    Relength(usize, u32),
    BadHeader(usize),
    Flip(usize),
    Wait(u64),
}

fn tampering() -> impl Strategy<Value = Tampering> {
    let at = 0usize..64;
    prop_oneof![
        3 => at.clone().prop_map(Tampering::Drop),
        3 => at.clone().prop_map(Tampering::Repeat),
        3 => (at.clone(), at.clone()).prop_map(|(a, b)| Tampering::Swap(a, b)),
        1 => (at.clone(), any::<u64>()).prop_map(|(a, s)| Tampering::Reseq(a, s >> 1)),
        1 => (at.clone(), 1u32..=65_535).prop_map(|(a, c)| Tampering::Recount(a, c)),
        1 => (at.clone(), 0u32..16).prop_map(|(a, i)| Tampering::Reindex(a, i)),
        1 => (at.clone(), 0u32..900, 0u32..200).prop_map(|(a, o, l)| Tampering::Reslice(a, o, l)),
        1 => (at.clone(), 0u32..2000).prop_map(|(a, l)| Tampering::Relength(a, l)),
        1 => at.clone().prop_map(Tampering::BadHeader),
        1 => at.prop_map(Tampering::Flip),
        1 => (0u64..400).prop_map(Tampering::Wait),
    ]
}

/// A forged copy of a chunk is added beside the true one. Its bytes are those of the position and frame that
/// it claims, because without a checksum other bytes cannot be detected.
fn lie(chunks: &mut Vec<(OwnedChunk, u64)>, at: usize, change: impl FnOnce(&mut OwnedChunk)) {
    let at = at % chunks.len();
    let mut copy = chunks[at].clone();
    change(&mut copy.0);
    let OwnedChunk { seq, offset, payload, .. } = &mut copy.0;
    *payload = content(*seq, *offset, payload.len() as u32);
    chunks.insert(at, copy);
}

fn apply(chunks: &mut Vec<(OwnedChunk, u64)>, tampering: Tampering) {
    let n = chunks.len();
    if n == 0 {
        return;
    }
    match tampering {
        Tampering::Drop(at) => drop(chunks.remove(at % n)),
        Tampering::Repeat(at) => chunks.push(chunks[at % n].clone()),
        Tampering::Swap(a, b) => chunks.swap(a % n, b % n),
        Tampering::Reseq(at, seq) => lie(chunks, at, |c| c.seq = seq),
        Tampering::Recount(at, count) => lie(chunks, at, |c| c.count = count.max(c.index + 1)),
        Tampering::Reindex(at, index) => lie(chunks, at, |c| {
            c.index = index.min(c.count - 1);
            c.offset = if c.index == 0 { 0 } else { c.offset };
        }),
        Tampering::Reslice(at, offset, length) => lie(chunks, at, |c| {
            c.offset = if c.index == 0 { 0 } else { offset.min(c.payload_length) };
            c.payload = vec![0; length.min(c.payload_length - c.offset) as usize];
        }),
        Tampering::Relength(at, length) => lie(chunks, at, |c| {
            c.payload_length = length.max(c.offset + c.payload.len() as u32);
        }),
        Tampering::BadHeader(at) => lie(chunks, at, |c| c.bad_header = true),
        Tampering::Flip(_) => {}
        Tampering::Wait(ms) => chunks[n / 2].1 += ms * MS,
    }
}

/// A copy with a changed byte is added right behind the true chunk, never in place of it, because without a
/// checksum it could not be detected.
fn flip(chunks: &mut Vec<(OwnedChunk, u64)>, tamperings: &[Tampering]) {
    let n = chunks.len();
    let mut places: Vec<_> = tamperings
        .iter()
        .filter_map(|t| if let Tampering::Flip(at) = t { at.checked_rem(n) } else { None })
        .collect();
    places.sort_unstable();
    places.dedup();
    for at in places.into_iter().rev() {
        // At the same time: if another assembly timed out in between, the true chunk might be refused and this one
        // accepted.
        let mut copy = (chunks[at].0.clone(), 0);
        if let Some(byte) = copy.0.payload.first_mut() {
            *byte ^= 1;
            chunks.insert(at + 1, copy);
        }
    }
}

fn cases() -> u32 {
    if std::env::var("TENSORPOOL_TEST_LONG").is_ok_and(|v| v == "1") { 1_000_000 } else { 3_000 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// requirement: bridge-5.3-1, bridge-5.2-17, bridge-5.2-19
    #[test]
    fn hostile_chunks_make_no_wrong_frame_and_keep_the_table_bounded(
        frames in proptest::collection::vec((0u32..900, 40u32..200), 1..6),
        tamperings in proptest::collection::vec(tampering(), 0..24),
    ) {
        let mut harness = AssemblyHarness::new();
        let all_chunks = frames.iter().enumerate().flat_map(|(seq, (length, slice))| frame(seq as u64, *length, *slice));
        let mut chunks: Vec<_> = all_chunks.map(|c| (c, 0)).collect();
        let (untouched, n) = (tamperings.is_empty(), frames.len() as u64);
        tamperings.iter().for_each(|t| apply(&mut chunks, t.clone()));
        flip(&mut chunks, &tamperings);
        for (chunk, wait) in &chunks {
            harness.now += wait;
            harness.table.on_tick(harness.now);
            harness.give(chunk);
            prop_assert!(harness.table.live.len() <= MAX_LIVE);
            prop_assert!(harness.table.spare.len() + harness.table.live.len() <= MAX_LIVE + 1);
            prop_assert!(harness.table.dropped.len() <= dropped::MAX_DROPPED);
        }
        let mut last = None;
        for (seq, payload, _) in &harness.memory.committed {
            prop_assert!(last < Some(*seq), "descriptors go forward");
            last = Some(*seq);
            prop_assert_eq!(payload, &content(*seq, 0, payload.len() as u32));
        }
        if untouched {
            prop_assert_eq!(harness.table.counters().delivered, n);
        }
        harness.table.on_tick(u64::MAX);
        let counters = harness.table.counters();
        prop_assert!(harness.table.is_idle());
        prop_assert!(counters.delivered + counters.lost.iter().sum::<u64>() <= counters.span.max(n * 24));
    }
}
