use super::*;
use crate::recording::block_pool::BlockPool;
use proptest::prelude::*;

const BLOCK: usize = 4096;

fn track(blocks: usize, rows: usize) -> StreamBuffer {
    let memory = ArenaPool::new(BlockPool::new(blocks * BLOCK, BLOCK).unwrap());
    StreamBuffer::new(7, memory, BufferLimits { rows, age_ns: 100 }, None)
}

fn frame(track: &mut StreamBuffer, epoch: u64, seq: u64, len: usize) -> bool {
    let Some(at) = track.begin(epoch, seq, len) else { return false };
    // SAFETY: `begin` made room for so much.
    unsafe { std::ptr::write_bytes(at, seq as u8, len) };
    track.commit(Row { seq, payload_bytes: len as u64, ..Row::default() });
    true
}

fn all(track: &mut StreamBuffer) -> Vec<Arena> {
    let mut out = Vec::new();
    track.take_full(true, true, &mut out);
    out
}

fn gaps_in(arenas: &[Arena]) -> Vec<(u64, u64, u64, &'static str)> {
    arenas.iter().flat_map(|a| &a.gaps).map(|g| (g.epoch, g.first_seq, g.count, g.reason)).collect()
}

#[test]
fn payloads_are_packed_at_multiples_of_64_with_zeros_between() {
    let mut t = track(1, 100);
    for seq in 1..4 {
        assert!(frame(&mut t, 1, seq, 100));
    }
    let arenas = all(&mut t);
    let [arena] = &arenas[..] else { panic!("{arenas:?}") };
    assert_eq!(arena.rows.iter().map(|r| r.payload_offset).collect::<Vec<_>>(), [0, 128, 256]);
    assert_eq!(arena.filled_bytes, 384);
    let run = arena.run.as_ref().unwrap();
    // SAFETY: the arena's own bytes.
    let bytes = unsafe { std::slice::from_raw_parts(run.at(0), 384) };
    assert!(bytes[100..128].iter().all(|b| *b == 0) && bytes[128..228].iter().all(|b| *b == 2));
}

#[test]
fn full_buffer_records_a_backlog_gap() {
    let mut t = track(2, 100);
    let kept: Vec<u64> = (0..10).filter(|seq| frame(&mut t, 1, *seq, BLOCK)).collect();
    assert_eq!(kept, [0, 1]);
    let arenas = all(&mut t);
    assert_eq!(arenas.len(), 3, "two with a frame, one with the gap");
    assert_eq!(gaps_in(&arenas), [(1, 2, 8, BACKLOG)]);
    drop(arenas);
    assert!(frame(&mut t, 1, 10, BLOCK), "there is room again");
    t.backlog_reason = DISK_FULL;
    assert!(frame(&mut t, 1, 11, BLOCK) && !frame(&mut t, 1, 12, BLOCK));
    assert_eq!(gaps_in(&all(&mut t)), [(1, 12, 1, DISK_FULL)]);
}

#[test]
fn oversized_frame_is_too_large_not_backlog() {
    let mut t = track(2, 100);
    assert!(!frame(&mut t, 1, 0, 2 * BLOCK + 1));
    assert!(frame(&mut t, 1, 1, 2 * BLOCK), "a run of both");
    assert_eq!(gaps_in(&all(&mut t)), [(1, 0, 1, TOO_LARGE)]);
}

#[test]
fn gaps_keep_their_row_position() {
    let mut t = track(4, 100);
    frame(&mut t, 1, 5, 10);
    t.add_gap(1, 6, 2, "late");
    frame(&mut t, 1, 8, 10);
    t.add_gap(1, 9, 1, "late");
    t.add_gap(1, 10, 1, "late");
    t.add_gap(1, 11, 1, "stale");
    let arenas = all(&mut t);
    let gaps: Vec<_> = arenas[0].gaps.iter().map(|g| (g.first_seq, g.count, g.before_row)).collect();
    assert_eq!(gaps, [(6, 2, 1), (9, 2, 2), (11, 1, 2)]);
}

#[test]
fn unreported_sequences_become_a_gap() {
    let mut t = track(4, 100);
    frame(&mut t, 1, 5, 10);
    frame(&mut t, 1, 9, 10);
    t.add_gap(1, 12, 1, "late");
    assert_eq!(gaps_in(&all(&mut t)), [(1, 6, 3, GAP), (1, 10, 2, GAP), (1, 12, 1, "late")]);
}

#[test]
fn repeated_sequences_and_past_epochs_are_strays() {
    let mut t = track(4, 100);
    frame(&mut t, 5, 5, 10);
    assert!(!frame(&mut t, 5, 5, 10) && !frame(&mut t, 5, 2, 10) && !frame(&mut t, 4, 9, 10));
    t.add_gap(5, 3, 2, "late");
    t.add_gap(3, 3, 2, "late");
    assert_eq!(gaps_in(&all(&mut t)), []);
    assert_eq!(t.counts.strays, 4);
}

#[test]
fn new_epoch_starts_a_new_arena() {
    let mut t = track(4, 100);
    frame(&mut t, 1, 5, 10);
    frame(&mut t, 2, 0, 10);
    t.unmapped(1, 6);
    t.unmapped(1, 8);
    t.unmapped(0, 8);
    let arenas = all(&mut t);
    assert_eq!(arenas.iter().map(|a| (a.epoch, a.rows.len())).collect::<Vec<_>>(), [(1, 1), (2, 1)]);
    assert_eq!(gaps_in(&arenas), [(1, 6, 3, EPOCH)], "sequences in between are lost as well");
}

#[test]
fn unmapped_frames_begin_the_epoch() {
    let mut t = track(4, 100);
    frame(&mut t, 1, 5, 10);
    t.unmapped(9, 1_000);
    for seq in 0..3 {
        t.unmapped(2, seq);
    }
    frame(&mut t, 2, 4, 10);
    assert_eq!(gaps_in(&all(&mut t)), [(2, 0, 3, UNMAPPED), (2, 3, 1, GAP)]);
    assert_eq!(t.counts, BufferCounts { rows: 2, bytes: 20, lost: 4, strays: 0 });
}

#[test]
fn joining_recorder_counts_unmapped_frames_of_an_epoch_that_it_saw_begin() {
    let mut t = track(4, 100);
    for seq in 10..600 {
        t.unmapped(1, seq);
    }
    frame(&mut t, 1, 600, 10);
    assert_eq!(gaps_in(&all(&mut t)), [], "they are from before it joined");
    let mut t = track(4, 100);
    for seq in 0..5 {
        t.unmapped(1, seq);
    }
    frame(&mut t, 1, 5, 10);
    assert_eq!(gaps_in(&all(&mut t)), [(1, 0, 5, UNMAPPED)]);
}

#[test]
fn resumed_recorder_counts_no_unmapped_frames_of_an_epoch_that_it_did_not_see_begin() {
    let memory = ArenaPool::new(BlockPool::new(BLOCK, BLOCK).unwrap());
    let mut t = StreamBuffer::new(7, memory, BufferLimits { rows: 100, age_ns: 0 }, Some((1, 9)));
    for seq in 10..600 {
        t.unmapped(2, seq);
    }
    frame(&mut t, 2, 600, 10);
    assert_eq!(gaps_in(&all(&mut t)), []);
}

#[test]
fn forged_sequence_counts_up_to_the_next_frame() {
    let mut t = track(4, 100);
    frame(&mut t, 1, 5, 10);
    t.unmapped(1, 7);
    t.unmapped(1, 9_000_000_000_000_000_000);
    frame(&mut t, 1, 9, 10);
    assert_eq!(gaps_in(&all(&mut t)), [(1, 6, 1, GAP), (1, 7, 2, UNMAPPED)]);
    assert_eq!(t.counts, BufferCounts { rows: 2, bytes: 20, lost: 3, strays: 0 });
}

#[test]
fn resumed_recording_records_the_missed_gap() {
    let memory = ArenaPool::new(BlockPool::new(BLOCK, BLOCK).unwrap());
    let mut t = StreamBuffer::new(7, memory, BufferLimits { rows: 100, age_ns: 0 }, Some((1, 9)));
    assert!(!frame(&mut t, 1, 9, 10), "it is recorded already");
    t.add_gap(1, 15, 1, "late");
    frame(&mut t, 1, 17, 10);
    frame(&mut t, 1, 19, 10);
    assert_eq!(gaps_in(&all(&mut t)), [(1, 10, 7, NOT_RECORDING), (1, 18, 1, GAP)]);
}

#[test]
fn arenas_are_handed_over_by_age() {
    let mut t = track(4, 2);
    t.set_time(1_000, 5);
    frame(&mut t, 1, 0, 10);
    let mut out = Vec::new();
    t.set_time(1_099, 6);
    t.take_full(false, true, &mut out);
    assert!(out.is_empty());
    t.set_time(1_100, 7);
    t.take_full(false, true, &mut out);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].rows[0].receive_time_ns, 5);
    for seq in 1..4 {
        frame(&mut t, 1, seq, 10);
    }
    out.clear();
    t.take_full(false, true, &mut out);
    assert_eq!(out.iter().map(|a| a.rows.len()).collect::<Vec<_>>(), [2], "two rows are a full one here");
    t.set_age_ns(0);
    t.set_time(1 << 40, 8);
    out.clear();
    t.take_full(false, true, &mut out);
    assert!(out.is_empty(), "without an age only full ones go");
}

#[test]
fn row_lists_are_reused() {
    let mut t = track(4, 2);
    frame(&mut t, 1, 0, 10);
    let arena = all(&mut t).remove(0);
    let list = arena.rows.as_ptr();
    drop(arena);
    frame(&mut t, 1, 1, 10);
    assert_eq!(all(&mut t)[0].rows.as_ptr(), list);
}

#[derive(Clone, Debug)]
enum Input {
    Frame(u64, u64, usize),
    Torn(u64, u64),
    Lost(u64, u64, u64),
    Unmapped(u64, u64),
    Time(u64),
    Take(bool),
    Keep,
}

fn input() -> impl Strategy<Value = Input> {
    let (epoch, seq) = (0u64..4, 0u64..60);
    prop_oneof![
        8 => (epoch.clone(), seq.clone(), 0usize..3 * BLOCK).prop_map(|(e, s, n)| Input::Frame(e, s, n)),
        2 => (epoch.clone(), seq.clone()).prop_map(|(e, s)| Input::Torn(e, s)),
        3 => (epoch.clone(), seq.clone(), 0u64..5).prop_map(|(e, s, n)| Input::Lost(e, s, n)),
        2 => (epoch, seq).prop_map(|(e, s)| Input::Unmapped(e, s)),
        1 => (0u64..300).prop_map(Input::Time),
        2 => any::<bool>().prop_map(Input::Take),
        1 => Just(Input::Keep),
    ]
}

proptest! {
    /// For any input in any order: of each epoch every sequence from the first to the last is there once.
    #[test]
    fn each_sequence_is_a_row_or_in_a_gap(events in proptest::collection::vec(input(), 0..200)) {
        let mut t = track(3, 4);
        let (mut taken, mut held) = (Vec::new(), Vec::new());
        let mut now = 0;
        for event in events {
            match event {
                Input::Frame(e, s, n) => drop(frame(&mut t, e, s, n)),
                Input::Torn(e, s) => {
                    if t.begin(e, s, 10).is_some() {
                        t.add_gap(e, s, 1, "late");
                    }
                }
                Input::Lost(e, s, n) => t.add_gap(e, s, n, "late"),
                Input::Unmapped(e, s) => t.unmapped(e, s),
                Input::Time(by) => {
                    now += by;
                    t.set_time(now, now as i64);
                }
                Input::Take(all) => {
                    let mut out = Vec::new();
                    t.take_full(all, true, &mut out);
                    for mut arena in out {
                        let run = arena.run.take();
                        if held.len() < 2 {
                            held.push(run);
                        }
                        taken.push(arena);
                    }
                }
                Input::Keep => held.clear(),
            }
        }
        t.take_full(true, true, &mut taken);
        let mut seen: std::collections::BTreeMap<u64, Vec<u64>> = std::collections::BTreeMap::new();
        let (mut rows, mut lost) = (0, 0);
        for arena in &taken {
            let mut last = None;
            for row in &arena.rows {
                seen.entry(arena.epoch).or_default().push(row.seq);
                prop_assert!(last < Some(row.seq));
                last = Some(row.seq);
                rows += 1;
            }
            for gap in &arena.gaps {
                prop_assert!(gap.before_row as usize <= arena.rows.len());
                if gap.epoch == arena.epoch {
                    let at = gap.before_row as usize;
                    prop_assert!(at == 0 || arena.rows[at - 1].seq < gap.first_seq);
                    prop_assert!(at == arena.rows.len() || arena.rows[at].seq >= gap.first_seq + gap.count);
                }
                seen.entry(gap.epoch).or_default().extend(gap.first_seq..gap.first_seq + gap.count);
                lost += gap.count;
            }
        }
        for (epoch, mut seqs) in seen {
            seqs.sort_unstable();
            let span: Vec<u64> = (seqs[0]..=seqs[seqs.len() - 1]).collect();
            prop_assert_eq!(&seqs, &span, "epoch {}", epoch);
        }
        prop_assert_eq!((t.counts.rows, t.counts.lost), (rows, lost));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Whatever the order of late frames of the past epoch and of losses of this one.
    #[test]
    fn gaps_of_two_epochs_that_take_turns_stay_within_the_limit(
        turns in proptest::collection::vec((any::<bool>(), any::<bool>(), 1u64..4), 4 * MAX_GAPS..5 * MAX_GAPS),
    ) {
        let mut t = track(1, 100);
        prop_assert!(frame(&mut t, 1, 0, BLOCK));
        prop_assert_eq!(all(&mut t).len(), 1);
        t.add_gap(2, 0, 1, GAP);
        let mut next = [1, 1];
        for (is_past, is_backlog, count) in turns {
            let (epoch, next) = if is_past { (1, &mut next[0]) } else { (2, &mut next[1]) };
            // Two reasons, so that neighbours are merged only where there are too many.
            t.add_gap(epoch, *next, count, if is_backlog { BACKLOG } else { GAP });
            *next += count;
        }
        let arenas = all(&mut t);
        let gaps = gaps_in(&arenas);
        prop_assert!(gaps.len() <= MAX_GAPS + 2, "{} gaps", gaps.len());
        for (epoch, end) in [(1, next[0]), (2, next[1])] {
            let mut at = u64::from(epoch == 1);
            for gap in gaps.iter().filter(|gap| gap.0 == epoch) {
                prop_assert_eq!(gap.1, at, "epoch {}", epoch);
                at += gap.2;
            }
            prop_assert_eq!(at, end, "epoch {}", epoch);
        }
    }
}
