//! Property tests with dropped, repeated, reordered and forged chunks; millions of them in `make test-long`.

use proptest::prelude::*;

use super::*;

/// What a hostile network does with the chunks of some frames.
#[derive(Clone, Debug)]
enum Trick {
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

fn trick() -> impl Strategy<Value = Trick> {
    let at = 0usize..64;
    prop_oneof![
        3 => at.clone().prop_map(Trick::Drop),
        3 => at.clone().prop_map(Trick::Repeat),
        3 => (at.clone(), at.clone()).prop_map(|(a, b)| Trick::Swap(a, b)),
        1 => (at.clone(), any::<u64>()).prop_map(|(a, s)| Trick::Reseq(a, s >> 1)),
        1 => (at.clone(), 1u32..=65_535).prop_map(|(a, c)| Trick::Recount(a, c)),
        1 => (at.clone(), 0u32..16).prop_map(|(a, i)| Trick::Reindex(a, i)),
        1 => (at.clone(), 0u32..900, 0u32..200).prop_map(|(a, o, l)| Trick::Reslice(a, o, l)),
        1 => (at.clone(), 0u32..2000).prop_map(|(a, l)| Trick::Relength(a, l)),
        1 => at.clone().prop_map(Trick::BadHeader),
        1 => at.prop_map(Trick::Flip),
        1 => (0u64..400).prop_map(Trick::Wait),
    ]
}

/// A forged copy of a chunk is added beside the true one. Its bytes are those of the position and frame that
/// it claims, because without a checksum other bytes cannot be detected.
fn lie(chunks: &mut Vec<(Owned, u64)>, at: usize, change: impl FnOnce(&mut Owned)) {
    let at = at % chunks.len();
    let mut copy = chunks[at].clone();
    change(&mut copy.0);
    let Owned { seq, offset, payload, .. } = &mut copy.0;
    *payload = content(*seq, *offset, payload.len() as u32);
    chunks.insert(at, copy);
}

fn play(chunks: &mut Vec<(Owned, u64)>, trick: Trick) {
    let n = chunks.len();
    if n == 0 {
        return;
    }
    match trick {
        Trick::Drop(at) => drop(chunks.remove(at % n)),
        Trick::Repeat(at) => chunks.push(chunks[at % n].clone()),
        Trick::Swap(a, b) => chunks.swap(a % n, b % n),
        Trick::Reseq(at, seq) => lie(chunks, at, |c| c.seq = seq),
        Trick::Recount(at, count) => lie(chunks, at, |c| c.count = count.max(c.index + 1)),
        Trick::Reindex(at, index) => lie(chunks, at, |c| {
            c.index = index.min(c.count - 1);
            c.offset = if c.index == 0 { 0 } else { c.offset };
        }),
        Trick::Reslice(at, offset, length) => lie(chunks, at, |c| {
            c.offset = if c.index == 0 { 0 } else { offset.min(c.payload_length) };
            c.payload = vec![0; length.min(c.payload_length - c.offset) as usize];
        }),
        Trick::Relength(at, length) => lie(chunks, at, |c| {
            c.payload_length = length.max(c.offset + c.payload.len() as u32);
        }),
        Trick::BadHeader(at) => lie(chunks, at, |c| c.bad_header = true),
        Trick::Flip(_) => {}
        Trick::Wait(ms) => chunks[n / 2].1 += ms * MS,
    }
}

/// A copy with a changed byte is added right behind the true chunk, never in place of it, because without a
/// checksum it could not be detected.
fn flip(chunks: &mut Vec<(Owned, u64)>, tricks: &[Trick]) {
    let n = chunks.len();
    let mut places: Vec<_> = tricks
        .iter()
        .filter_map(|t| if let Trick::Flip(at) = t { at.checked_rem(n) } else { None })
        .collect();
    places.sort_unstable();
    places.dedup();
    for at in places.into_iter().rev() {
        // At the same time: if a rival timed out in between, the true chunk might be refused and this one
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
        tricks in proptest::collection::vec(trick(), 0..24),
    ) {
        let mut bench = Bench::new();
        let all_chunks = frames.iter().enumerate().flat_map(|(seq, (length, slice))| frame(seq as u64, *length, *slice));
        let mut chunks: Vec<_> = all_chunks.map(|c| (c, 0)).collect();
        let (untouched, n) = (tricks.is_empty(), frames.len() as u64);
        tricks.iter().for_each(|t| play(&mut chunks, t.clone()));
        flip(&mut chunks, &tricks);
        for (chunk, wait) in &chunks {
            bench.now += wait;
            bench.table.on_tick(bench.now);
            bench.give(chunk);
            prop_assert!(bench.table.live.len() <= MAX_LIVE);
            prop_assert!(bench.table.spare.len() + bench.table.live.len() <= MAX_LIVE + 1);
            prop_assert!(bench.table.dropped.len() <= dropped::MAX_DROPPED);
        }
        let mut last = None;
        for (seq, payload, _) in &bench.memory.committed {
            prop_assert!(last < Some(*seq), "descriptors go forward");
            last = Some(*seq);
            prop_assert_eq!(payload, &content(*seq, 0, payload.len() as u32));
        }
        if untouched {
            prop_assert_eq!(bench.table.counters().delivered, n);
        }
        bench.table.on_tick(u64::MAX);
        let counters = bench.table.counters();
        prop_assert!(bench.table.is_idle());
        prop_assert!(counters.delivered + counters.lost.iter().sum::<u64>() <= counters.span.max(n * 24));
    }
}
