use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const LIMITS: ProgressLimits = ProgressLimits { interval_us: 100, bytes_delta: 4096 };
const US: u64 = 1000;

fn hints(interval_us: Option<u32>, bytes_delta: Option<u32>, units: Option<u32>) -> ProgressHints {
    ProgressHints { interval_us, bytes_delta, major_delta_units: units }
}

fn progress_schedule(hints: ProgressHints) -> ProgressSchedule {
    let mut progress_schedule = ProgressSchedule::default();
    progress_schedule.set_pace(Some(ProgressPace::from_hints(hints, LIMITS)));
    progress_schedule
}

fn update(seq: u64, filled: u64, state: ProgressState) -> Option<ProgressUpdate> {
    Some(ProgressUpdate { seq, filled, state })
}

#[test]
fn default_pace_is_250_microseconds_and_64_kib() {
    let pace = ProgressPace::from_hints(ProgressHints::default(), LIMITS);
    assert_eq!((pace.interval_ns, pace.delta(1024)), (250 * US, 64 << 10));
}

#[test]
fn hints_are_bounded_by_the_limits() {
    let eager = ProgressPace::from_hints(hints(Some(0), Some(1), None), LIMITS);
    assert_eq!((eager.interval_ns, eager.delta(1024)), (100 * US, 4096));
    assert_eq!(ProgressPace::from_hints(hints(Some(900), Some(1 << 20), None), LIMITS).interval_ns, 900 * US);
}

#[test]
fn pace_uses_the_smaller_of_rows_and_bytes() {
    let delta = |bytes, rows| ProgressPace::from_hints(hints(None, bytes, rows), LIMITS).delta(1024);
    assert_eq!(delta(None, Some(100)), 100 * 1024);
    assert_eq!(delta(Some(8192), Some(100)), 8192);
    assert_eq!(delta(Some(1 << 20), Some(10)), 10 * 1024);
    assert_eq!(delta(None, Some(1)), 4096);
    assert_eq!(delta(None, Some(0)), 64 << 10, "0 rows means unknown");
}

#[test]
fn frame_starts_progresses_and_completes() {
    let mut progress_schedule = progress_schedule(ProgressHints::default());
    let filled = progress_schedule.begin(7, 1024);
    assert_eq!(progress_schedule.next(0), update(7, 0, ProgressState::Started));
    filled.raise(64 << 10);
    assert_eq!(progress_schedule.next(1), update(7, 64 << 10, ProgressState::Progress));
    filled.raise(128 << 10);
    assert_eq!(progress_schedule.next(2), None, "the interval is not over");
    assert_eq!(progress_schedule.next(1 + 250 * US), update(7, 128 << 10, ProgressState::Progress));
    assert_eq!(progress_schedule.complete(7, 200 << 10), update(7, 200 << 10, ProgressState::Complete));
    assert!(progress_schedule.is_idle());
}

#[test]
fn small_step_is_sent_after_some_intervals() {
    let mut progress_schedule = progress_schedule(ProgressHints::default());
    let filled = progress_schedule.begin(0, 1024);
    progress_schedule.next(0);
    filled.raise(10);
    assert_eq!(progress_schedule.next(7 * 250 * US), None);
    assert_eq!(progress_schedule.next(8 * 250 * US), update(0, 10, ProgressState::Progress));
    assert_eq!(progress_schedule.next(100 * 250 * US), None, "nothing is sent twice");
}

#[test]
fn no_updates_without_progress_consumers() {
    let mut progress_schedule = ProgressSchedule::default();
    let filled = progress_schedule.begin(0, 1024);
    filled.raise(1 << 20);
    assert_eq!(progress_schedule.next(0), None);
    progress_schedule.set_pace(Some(ProgressPace::from_hints(ProgressHints::default(), LIMITS)));
    assert_eq!(progress_schedule.next(1), update(0, 1 << 20, ProgressState::Started));
    progress_schedule.set_pace(None);
    assert_eq!(progress_schedule.complete(0, 1 << 20), None);
}

#[test]
fn shorter_interval_applies_at_once() {
    let mut progress_schedule = progress_schedule(hints(Some(u32::MAX - 1), Some(4096), None));
    let filled = progress_schedule.begin(0, 1);
    progress_schedule.next(0);
    filled.raise(4096);
    assert!(progress_schedule.next(1).is_some());
    filled.raise(8192);
    assert_eq!(progress_schedule.next(US), None);
    progress_schedule.set_pace(Some(ProgressPace::from_hints(hints(Some(100), Some(4096), None), LIMITS)));
    assert!(progress_schedule.next(101 * US).is_some());
}

#[test]
fn busy_frame_does_not_starve_another() {
    let mut progress_schedule = progress_schedule(hints(Some(100), Some(4096), None));
    let (fast, slow) = (progress_schedule.begin(0, 1), progress_schedule.begin(1, 1));
    let mut sent = [0u64; 2];
    for step in 0..1000 {
        fast.raise(step * 8192);
        slow.raise(step * 4096);
        while let Some(update) = progress_schedule.next(step * 10 * US) {
            sent[update.seq as usize] += 1;
        }
    }
    assert!(sent[0].abs_diff(sent[1]) <= 2, "{sent:?}");
}

#[test]
fn only_sent_frames_are_completed() {
    let mut progress_schedule = progress_schedule(ProgressHints::default());
    progress_schedule.begin(0, 1);
    progress_schedule.begin(1, 1);
    assert!(progress_schedule.next(0).is_some());
    assert_eq!(progress_schedule.next(1), None, "one start an interval");
    assert!(progress_schedule.forget(0));
    assert!(!progress_schedule.forget(1));
    assert!(!progress_schedule.forget(2));
}

#[derive(Clone, Debug)]
enum Act {
    Begin,
    Fill(usize, u64),
    End(usize, bool),
    Listen(Option<(u32, u32)>),
}

fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
    let act = prop_oneof![
        2 => Just(Act::Begin),
        12 => (0usize..4, 0u64..60_000).prop_map(|(i, by)| Act::Fill(i, by)),
        2 => (0usize..4, any::<bool>()).prop_map(|(i, committed)| Act::End(i, committed)),
        1 => proptest::option::of((0u32..600, 0u32..100_000)).prop_map(Act::Listen),
    ];
    proptest::collection::vec((0u64..200 * US, act), 1..300)
}

proptest! {
    /// For any sequence of actions: each frame starts once, only rises, completes last, and never exceeds the
    /// pace.
    #[test]
    fn updates_of_a_frame_are_ordered_and_spaced(acts in acts()) {
        let mut progress_schedule = ProgressSchedule::default();
        let (mut now_ns, mut next_seq, mut pace) = (1u64, 0u64, None::<ProgressPace>);
        let mut open: Vec<(u64, FilledBytes)> = Vec::new();
        let mut sent_by_seq: BTreeMap<u64, Vec<ProgressUpdate>> = BTreeMap::new();
        let mut last_step = None;
        for (pause, act) in acts {
            now_ns += pause;
            let mut updates = Vec::new();
            match act {
                Act::Begin => {
                    open.push((next_seq, progress_schedule.begin(next_seq, 1)));
                    next_seq += 1;
                }
                Act::Fill(i, by) => if let Some((_, filled)) = open.get(i) {
                    filled.raise(filled.get() + by);
                },
                Act::End(i, committed) if i < open.len() => {
                    let (seq, filled) = open.remove(i);
                    if committed {
                        updates.extend(progress_schedule.complete(seq, filled.get()));
                    } else {
                        prop_assert_eq!(progress_schedule.forget(seq), sent_by_seq.contains_key(&seq));
                    }
                }
                Act::End(..) => {}
                Act::Listen(hint) => {
                    pace = hint.map(|(us, bytes)| ProgressPace::from_hints(hints(Some(us), Some(bytes), None), LIMITS));
                    progress_schedule.set_pace(pace);
                }
            }
            while let Some(update) = progress_schedule.next(now_ns) {
                if update.state == ProgressState::Progress {
                    let interval_ns = pace.map_or(0, |p| p.interval_ns);
                    prop_assert!(last_step.is_none_or(|at_ns| now_ns - at_ns >= interval_ns));
                    last_step = Some(now_ns);
                }
                updates.push(update);
            }
            prop_assert!(pace.is_some() || updates.is_empty());
            for update in updates {
                let before = sent_by_seq.entry(update.seq).or_default();
                match before.last() {
                    None => prop_assert_eq!(update.state, ProgressState::Started),
                    Some(last) => {
                        prop_assert!(last.state != ProgressState::Complete);
                        prop_assert!(update.state != ProgressState::Started);
                        prop_assert!(update.filled > last.filled || update.state == ProgressState::Complete);
                        prop_assert!(update.filled >= last.filled);
                    }
                }
                before.push(update);
            }
        }
    }
}
