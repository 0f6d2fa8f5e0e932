//! Random streams, compared with a matcher that keeps every frame and searches all of them for each output.

use super::*;

const DEPTH: usize = 4096;

/// A small generator of pseudo-random numbers: a seed repeats a run.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

type Id = (usize, u64, u64);

fn rules(basis: Basis, inputs: &[Select]) -> JoinRules {
    JoinRules {
        basis,
        inputs: inputs.to_vec(),
        drive: Drive::Input(0),
        tolerance_ns: 0,
        lateness_ns: 0,
        stale_after_ns: None,
        depth: DEPTH,
    }
}

fn matcher(rules: JoinRules) -> Matcher<Id> {
    assert_eq!(rules.fault(), None);
    Matcher::new(rules, 0)
}

fn push(matcher: &mut Matcher<Id>, input: usize, epoch: u64, seq: u64, time: u64) {
    let arrival = Arrival { epoch, seq, timestamp_ns: Some(time), item: (input, epoch, seq) };
    matcher.push(input, arrival, time);
}

fn sets(matcher: &mut Matcher<Id>, now_ns: u64) -> Vec<(u64, Vec<Vec<Id>>)> {
    let (mut set, mut all) = (JoinedSet::default(), Vec::new());
    while matcher.next_set(now_ns, |_| true, &mut set) {
        all.push((set.out, (0..set.len()).map(|input| set.frames(input).to_vec()).collect()));
    }
    for input in 0..matcher.len() {
        assert!(matcher.counts(input).adds_up(), "{:?}", matcher.counts(input));
    }
    all
}

/// The reference: the same rules, without a buffer, a search or a removal.
struct ReferenceMatcher {
    rules: JoinRules,
    frames: Vec<Vec<(u64, Id)>>,
    newest: Vec<Option<u64>>,
    epochs: Vec<Option<u64>>,
    rejected: Vec<bool>,
    /// How many frames of the drive are decided.
    decided: usize,
}

impl ReferenceMatcher {
    fn new(rules: JoinRules) -> Self {
        let n = rules.inputs.len();
        Self {
            rules,
            frames: vec![Vec::new(); n],
            newest: vec![None; n],
            epochs: vec![None; n],
            rejected: vec![false; n],
            decided: 0,
        }
    }

    fn push(&mut self, input: usize, epoch: u64, seq: u64, time: u64) {
        let by_time = self.rules.basis == Basis::Time;
        let key = if by_time { time } else { seq };
        if self.epochs[input] != Some(epoch) {
            self.epochs[input] = Some(epoch);
            self.rejected[input] = false;
            if !by_time || self.newest[input].is_some_and(|newest| key < newest) {
                self.newest[input] = None;
                self.frames[input].clear();
                if input == 0 {
                    self.frames.iter_mut().for_each(Vec::clear);
                    self.decided = 0;
                }
            }
        }
        if self.rejected[input] || self.newest[input].is_some_and(|newest| key < newest) {
            self.rejected[input] = by_time;
            return;
        }
        self.newest[input] = Some(key);
        self.frames[input].push((key, (input, epoch, seq)));
    }

    fn sets(&mut self) -> Vec<(u64, Vec<Vec<Id>>)> {
        let mut all = Vec::new();
        'outputs: while let Some((key, drive)) = self.frames[0].get(self.decided).copied() {
            let own = match self.rules.inputs[0] {
                Select::Offset(offset) => i128::from(offset),
                Select::Window(_) => 0,
            };
            let out = i128::from(key) - own;
            let mut chosen = Vec::new();
            let by_time = self.rules.basis == Basis::Time;
            let ranges: Vec<(i128, i128)> = self
                .rules
                .inputs
                .iter()
                .map(|select| match *select {
                    Select::Offset(offset) => (out + i128::from(offset), out + i128::from(offset)),
                    Select::Window(n) => (out - i128::from(n) + i128::from(!by_time), out),
                })
                .collect();
            if out < 0 || ranges.iter().any(|(from, _)| *from < 0) {
                self.decided += 1;
                continue;
            }
            for (newest, (_, to)) in self.newest.iter().zip(&ranges) {
                let lateness = if by_time { i128::from(self.rules.lateness_ns) } else { 0 };
                if newest.is_none_or(|newest| i128::from(newest) + lateness < *to) {
                    break 'outputs;
                }
            }
            for (input, (from, to)) in ranges.iter().enumerate() {
                let frames = &self.frames[input];
                let of: Vec<Id> = match self.rules.inputs[input] {
                    Select::Offset(_) if input == 0 => vec![drive],
                    Select::Offset(_) => {
                        let tolerance = if by_time { i128::from(self.rules.tolerance_ns) } else { 0 };
                        let near = frames
                            .iter()
                            .enumerate()
                            .filter(|(_, (key, _))| (i128::from(*key) - to).abs() <= tolerance)
                            .min_by_key(|(at, (key, _))| ((i128::from(*key) - to).abs(), *key, *at));
                        near.map(|(_, (_, id))| *id).into_iter().collect()
                    }
                    Select::Window(_) => frames
                        .iter()
                        .filter(|(key, _)| (*from..=*to).contains(&i128::from(*key)))
                        .map(|(_, id)| *id)
                        .collect(),
                };
                chosen.push(of);
            }
            self.decided += 1;
            if chosen.iter().all(|of| !of.is_empty()) {
                all.push((out as u64, chosen));
            }
        }
        all
    }
}

fn random_rules(random: &mut Random) -> JoinRules {
    let basis = if random.below(2) == 0 { Basis::Sequence } else { Basis::Time };
    let scale = if basis == Basis::Time { 60 } else { 3 };
    let inputs: Vec<Select> = (0..1 + random.below(4))
        .map(|_| match random.below(4) {
            0 => Select::Window(1 + random.below(2 * scale)),
            1 => Select::Offset(random.below(2 * scale + 1) as i64 - scale as i64),
            _ => Select::Offset(0),
        })
        .collect();
    let tolerance_ns = if basis == Basis::Time { random.below(200) } else { 0 };
    JoinRules { tolerance_ns, ..rules(basis, &inputs) }
}

/// Jitter, gaps, epoch changes and timestamps that run backwards, in any interleaving. Returns the results of two
/// inputs or more.
fn compared_run(seed: u64, events: u64) -> u64 {
    let mut random = Random::new(seed);
    let rules = random_rules(&mut random);
    let n = rules.inputs.len();
    let (mut matcher, mut reference) = (matcher(rules.clone()), ReferenceMatcher::new(rules.clone()));
    let (mut epoch, mut seq, mut clock) = (vec![1u64; n], vec![0u64; n], vec![1000u64; n]);
    let mut joined = 0;
    for event in 0..events {
        // The inputs advance by about the same.
        let input =
            if random.below(4) > 0 { (event % n as u64) as usize } else { random.below(n as u64) as usize };
        match random.below(60) {
            0 => {
                epoch[input] += 1;
                seq[input] = 0;
                if random.below(3) == 0 {
                    clock[input] = clock[input].saturating_sub(random.below(500));
                }
            }
            1 if random.below(10) == 0 => {
                clock[input] = clock[input].saturating_sub(random.below(300));
            }
            2..=5 => {
                let lost = random.below(4);
                seq[input] += lost;
                clock[input] += lost * 100;
            }
            _ => {}
        }
        clock[input] += random.below(200);
        push(&mut matcher, input, epoch[input], seq[input], clock[input]);
        reference.push(input, epoch[input], seq[input], clock[input]);
        seq[input] += 1;
        if random.below(3) == 0 {
            let (got, expected) = (sets(&mut matcher, 0), reference.sets());
            assert_eq!(got, expected, "seed {seed} event {event} {rules:?}");
            joined += if n > 1 { got.len() as u64 } else { 0 };
        }
    }
    joined
}

#[test]
fn random_streams_are_joined_as_by_the_reference() {
    let joined: u64 = (1..=400).map(|seed| compared_run(seed, 300)).sum();
    assert!(joined > 5_000, "{joined}: the streams do not match often enough to prove anything");
}

/// Ten million results: cargo test --release -- --ignored --nocapture ten_million
#[test]
#[ignore = "takes a quarter of a minute"]
fn ten_million_results_are_all_correct() {
    let (mut joined, mut runs) = (0, 0);
    while joined < 10_000_000 {
        joined += compared_run(1_000 + runs, 400);
        runs += 1;
    }
    println!("{joined} results of {runs} random joins, 0 wrong");
}

/// Two streams of the same events with jitter below half the tolerance: each pair is of one event.
#[test]
fn jittered_streams_join_event_by_event() {
    let mut random = Random::new(7);
    let mut matcher = matcher(JoinRules {
        tolerance_ns: 400,
        ..rules(Basis::Time, &[Select::Offset(0), Select::Offset(250)])
    });
    let (mut pairs, mut lost) = (0, 0);
    for event in 0..100_000u64 {
        let at = 10_000 + event * 1000;
        push(&mut matcher, 0, 1, event, at + random.below(200));
        if random.below(10) == 0 {
            lost += 1;
        } else {
            push(&mut matcher, 1, 1, event, at + 250 + random.below(200));
        }
        for (_, set) in sets(&mut matcher, 0) {
            assert_eq!(set[0][0].2, set[1][0].2);
            pairs += 1;
        }
    }
    let counts = matcher.counts(0);
    assert!(pairs + lost + 5 > 100_000, "{pairs} pairs, {lost} lost");
    assert_eq!(counts.joined, pairs);
    assert_eq!(counts.dropped(JoinReason::Missing), matcher.counts(1).lacking);
    assert_eq!(counts.received, 100_000);
}

#[test]
fn partner_serves_several_outputs_and_counts_once() {
    let mut matcher = matcher(JoinRules {
        tolerance_ns: 50,
        ..rules(Basis::Time, &[Select::Offset(0), Select::Offset(0)])
    });
    push(&mut matcher, 1, 1, 0, 100);
    for (seq, time) in [(0, 90), (1, 100), (2, 110)] {
        push(&mut matcher, 0, 1, seq, time);
    }
    push(&mut matcher, 1, 1, 1, 200);
    let all = sets(&mut matcher, 0);
    assert_eq!(all.iter().map(|(_, set)| set[1][0].2).collect::<Vec<_>>(), [0, 0, 0]);
    assert_eq!((matcher.counts(1).joined, matcher.counts(0).joined), (1, 3));
}

#[test]
fn missing_input_blocks_until_it_is_stale() {
    let base = rules(Basis::Sequence, &[Select::Offset(0), Select::Offset(0)]);
    let mut blocked = matcher(base.clone());
    let mut stale = matcher(JoinRules { stale_after_ns: Some(1_000), ..base });
    for matcher in [&mut blocked, &mut stale] {
        push(matcher, 0, 1, 0, 5);
        assert_eq!(sets(matcher, 1_000), []);
    }
    assert_eq!(sets(&mut blocked, 1_000_000), []);
    assert_eq!(sets(&mut stale, 1_001), [(0, vec![vec![(0, 1, 0)], vec![]])]);
    assert_eq!(stale.counts(1).absent, 1);
    assert_eq!(blocked.counts(0).pending, 1);
    // The input is back: it counts again.
    push(&mut stale, 0, 1, 1, 2_000);
    push(&mut stale, 1, 1, 1, 2_000);
    assert_eq!(sets(&mut stale, 2_100), [(1, vec![vec![(0, 1, 1)], vec![(1, 1, 1)]])]);
}

#[test]
fn lateness_attempts_outputs_before_their_inputs_are_due() {
    let inputs = [Select::Offset(0), Select::Offset(0)];
    let mut matcher =
        matcher(JoinRules { tolerance_ns: 100, lateness_ns: 30, ..rules(Basis::Time, &inputs) });
    push(&mut matcher, 1, 1, 0, 100);
    push(&mut matcher, 0, 1, 0, 131);
    assert_eq!(sets(&mut matcher, 0), []);
    push(&mut matcher, 1, 1, 1, 101);
    assert_eq!(sets(&mut matcher, 0), [(131, vec![vec![(0, 1, 0)], vec![(1, 1, 1)]])]);
}

#[test]
fn timestamps_that_run_backwards_reject_their_stream_until_its_next_epoch() {
    let mut matcher = matcher(rules(Basis::Time, &[Select::Offset(0), Select::Offset(0)]));
    push(&mut matcher, 1, 1, 0, 100);
    push(&mut matcher, 1, 1, 1, 99);
    assert_eq!(matcher.take_rejected(), Some(1));
    push(&mut matcher, 1, 1, 2, 101);
    assert_eq!(matcher.take_rejected(), None, "each rejection is reported once");
    assert_eq!(matcher.counts(1).dropped(JoinReason::Backwards), 2);
    push(&mut matcher, 0, 1, 0, 120);
    push(&mut matcher, 1, 2, 0, 120);
    assert_eq!(sets(&mut matcher, 0).len(), 1);
    matcher.push(0, Arrival { epoch: 1, seq: 1, timestamp_ns: None, item: (0, 1, 1) }, 0);
    assert_eq!(matcher.counts(0).dropped(JoinReason::NoTimestamp), 1);
}

#[test]
fn overwritten_frames_cost_their_output_and_are_counted() {
    let mut matcher =
        matcher(rules(Basis::Sequence, &[Select::Offset(0), Select::Offset(0), Select::Window(3)]));
    for seq in 0..6 {
        for input in 0..3 {
            push(&mut matcher, input, 1, seq, seq);
        }
    }
    let lost = [(0usize, 1u64, 2u64), (1, 1, 3), (2, 1, 4)];
    let (mut set, mut outs) = (JoinedSet::default(), Vec::new());
    while matcher.next_set(0, |id| !lost.contains(id), &mut set) {
        outs.push((set.out, set.frames(2).len()));
    }
    // 0 and 1: the window begins before the stream. A window may lack frames.
    assert_eq!(outs, [(4, 2), (5, 2)]);
    assert_eq!(matcher.counts(0).dropped(JoinReason::Overwritten), 1);
    assert_eq!(matcher.counts(0).dropped(JoinReason::PartnerOverwritten), 1);
    matcher.discard();
    assert_eq!(matcher.counts(1).dropped(JoinReason::Overwritten), 1);
    for input in 0..3 {
        let counts = matcher.counts(input);
        assert!(counts.adds_up() && counts.pending == 0, "{counts:?}");
    }
}

#[test]
fn full_buffer_drops_the_oldest() {
    let mut matcher = matcher(JoinRules { depth: 4, ..rules(Basis::Sequence, &[Select::Offset(0); 2]) });
    for seq in 0..10 {
        assert_eq!(matcher.has_room(0), seq < 4);
        push(&mut matcher, 0, 1, seq, seq);
    }
    assert_eq!(matcher.counts(0).dropped(JoinReason::Overflow), 6);
    (0..10).for_each(|seq| push(&mut matcher, 1, 1, seq, seq));
    assert_eq!(sets(&mut matcher, 0).iter().map(|(out, _)| *out).collect::<Vec<_>>(), [6, 7, 8, 9]);
}

#[test]
fn newest_frames_are_joined_at_the_pace_of_the_drive() {
    let mut of_first = matcher(rules(Basis::Latest, &[Select::Offset(0); 2]));
    let mut of_any =
        matcher(JoinRules { drive: Drive::Any, ..rules(Basis::Latest, &[Select::Offset(0); 2]) });
    for matcher in [&mut of_first, &mut of_any] {
        push(matcher, 0, 1, 0, 0);
        assert_eq!(sets(matcher, 0), [], "an input was never seen");
        push(matcher, 1, 1, 0, 0);
        assert_eq!(sets(matcher, 0).len(), 1);
        push(matcher, 1, 1, 1, 0);
        push(matcher, 1, 1, 2, 0);
    }
    assert_eq!(sets(&mut of_first, 0), []);
    assert_eq!(sets(&mut of_any, 0), [(1, vec![vec![(0, 1, 0)], vec![(1, 1, 2)]])]);
    push(&mut of_first, 0, 1, 5, 0);
    assert_eq!(sets(&mut of_first, 0), [(1, vec![vec![(0, 1, 5)], vec![(1, 1, 2)]])]);
    // A frame of an earlier epoch is never used.
    push(&mut of_first, 1, 2, 0, 0);
    assert_eq!(of_first.counts(1).dropped(JoinReason::Superseded), 1);
}

#[test]
fn newest_frame_that_was_overwritten_is_tried_again_at_the_next_tick() {
    let mut matcher = matcher(JoinRules {
        drive: Drive::Clock { period_ns: 100 },
        ..rules(Basis::Latest, &[Select::Offset(0); 2])
    });
    push(&mut matcher, 0, 1, 0, 0);
    push(&mut matcher, 1, 1, 0, 0);
    let mut set = JoinedSet::default();
    assert!(!matcher.next_set(0, |id| id.0 == 0, &mut set));
    assert!(!matcher.next_set(50, |_| true, &mut set), "the tick is over");
    push(&mut matcher, 1, 1, 1, 0);
    assert!(!matcher.next_set(99, |_| true, &mut set));
    assert!(matcher.next_set(100, |_| true, &mut set));
    assert_eq!((set.frames(1), matcher.counts(1).dropped(JoinReason::Overwritten)), (&[(1, 1, 1)][..], 1));
}

#[test]
fn clock_drives_a_join_by_time_and_skips_gaps() {
    let mut matcher = matcher(JoinRules {
        drive: Drive::Clock { period_ns: 100 },
        tolerance_ns: 30,
        ..rules(Basis::Time, &[Select::Offset(0), Select::Offset(0)])
    });
    let times = (0..10u64).map(|i| 1_010 + i * 50).chain((0..10).map(|i| 1_000_000_010 + i * 50));
    for (seq, time) in times.enumerate() {
        push(&mut matcher, 0, 1, seq as u64, time);
        push(&mut matcher, 1, 1, seq as u64, time + 5);
    }
    let outs: Vec<u64> = sets(&mut matcher, 0).iter().map(|(out, _)| *out).collect();
    let expected = [1_100, 1_200, 1_300, 1_400, 1_000_000_000, 1_000_000_100];
    assert_eq!(outs[..6], expected);
    assert!(matcher.missed_ticks() > 9_000_000);
}

/// A join by time at the pace of a clock, whose inputs may be absent.
fn clocked(inputs: &[Select]) -> Matcher<Id> {
    matcher(JoinRules {
        drive: Drive::Clock { period_ns: 100 },
        tolerance_ns: 30,
        stale_after_ns: Some(1_000),
        ..rules(Basis::Time, inputs)
    })
}

fn outs(matcher: &mut Matcher<Id>, now_ns: u64) -> Vec<(u64, Vec<usize>)> {
    let mut set = JoinedSet::default();
    let mut all = Vec::new();
    // A clock that nothing holds back would have outputs without end.
    while all.len() < 100 && matcher.next_set(now_ns, |_| true, &mut set) {
        all.push((set.out, (0..set.len()).map(|input| set.frames(input).len()).collect()));
    }
    all
}

#[test]
fn clock_waits_while_all_inputs_are_stale() {
    for window in [Select::Offset(0), Select::Window(5_000)] {
        let mut matcher = clocked(&[Select::Offset(0), window]);
        for (seq, time) in (0..60).map(|seq| (seq, 1_000 + seq * 100)) {
            push(&mut matcher, 0, 1, seq, time);
            push(&mut matcher, 1, 1, seq, time);
        }
        let last = outs(&mut matcher, 6_900).last().map(|(out, _)| *out);
        assert_eq!(last, Some(6_900));
        assert_eq!(outs(&mut matcher, 1_000_000), [], "{window:?}");
        // One is back, and the other is absent; then both are.
        push(&mut matcher, 0, 1, 60, 1_000_000);
        assert_eq!(outs(&mut matcher, 1_000_000), [(1_000_000, vec![1, 0])], "{window:?}");
        push(&mut matcher, 1, 1, 60, 1_000_100);
        push(&mut matcher, 0, 1, 61, 1_000_100);
        assert_eq!(outs(&mut matcher, 1_000_100), [(1_000_100, vec![1, 1])], "{window:?}");
    }
}

#[test]
fn clock_skips_a_gap_of_years_at_once_though_inputs_may_be_absent() {
    let mut matcher = clocked(&[Select::Offset(0), Select::Offset(0)]);
    let years = 1u64 << 60;
    for (seq, time) in [1_000, years].into_iter().enumerate() {
        for input in 0..2 {
            let arrival =
                Arrival { epoch: 1, seq: seq as u64, timestamp_ns: Some(time), item: (input, 1, 0) };
            matcher.push(input, arrival, 1_000);
        }
    }
    let all = outs(&mut matcher, 1_000);
    assert_eq!(all[0], (1_000, vec![1, 1]));
    assert!(all[1..].iter().all(|(out, _)| out.abs_diff(years) <= 100), "{all:?}");
    assert!(matcher.missed_ticks() > years / 200);
}

#[test]
fn invalid_rules_name_their_fault() {
    let good = rules(Basis::Sequence, &[Select::Offset(0); 2]);
    let bad = [
        JoinRules { inputs: vec![], ..good.clone() },
        JoinRules { inputs: vec![Select::Offset(0); MAX_INPUTS + 1], ..good.clone() },
        JoinRules { inputs: vec![Select::Window(0)], ..good.clone() },
        JoinRules { inputs: vec![Select::Window(u64::MAX)], ..good.clone() },
        JoinRules { drive: Drive::Input(2), ..good.clone() },
        JoinRules { drive: Drive::Any, ..good.clone() },
        JoinRules { drive: Drive::Clock { period_ns: 5 }, ..good.clone() },
        JoinRules { drive: Drive::Clock { period_ns: 0 }, basis: Basis::Time, ..good.clone() },
        JoinRules { depth: 0, ..good.clone() },
    ];
    assert!(good.fault().is_none());
    bad.iter().for_each(|rules| assert!(rules.fault().is_some(), "{rules:?}"));
}
