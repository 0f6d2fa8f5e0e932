use proptest::prelude::*;

use super::*;

/// Counters, and what a sender of each session would report.
#[derive(Default)]
struct BridgeModel {
    ledger: SessionLedger,
    counters: AssemblyCounters,
    /// Session, end and outcome of all frames.
    truth: Vec<(i32, i64, FrameOutcome)>,
    at: i64,
}

impl BridgeModel {
    /// A frame of three chunks, of which the last decides.
    fn frame(&mut self, session: i32, outcome: FrameOutcome) {
        self.ledger.set_session(session, &self.counters);
        let step = match outcome {
            FrameOutcome::Delivered => {
                self.counters.delivered += 1;
                ChunkOutcome::Delivered
            }
            FrameOutcome::NotReady => {
                self.counters.not_ready += 1;
                ChunkOutcome::NotReady
            }
            FrameOutcome::Lost(why) => {
                self.counters.lost[why as usize] += 1;
                ChunkOutcome::Lost(why)
            }
        };
        self.at += 64;
        self.ledger.note(ChunkOutcome::Taken, || unreachable!("nothing to note"));
        self.ledger
            .note(ChunkOutcome::Refused(Loss::NoPool), || unreachable!("it counts with its last chunk"));
        self.ledger.note(step, || self.at);
        self.truth.push((session, self.at, outcome));
    }

    fn count(&self, session: i32, upto: i64) -> u64 {
        let is_before = |(s, end, outcome): &&(i32, i64, FrameOutcome)| {
            *s == session
                && *end <= upto
                && !matches!(outcome, FrameOutcome::Lost(why) if why.is_incomplete())
        };
        self.truth.iter().filter(is_before).count() as u64
    }

    fn ledger_start(&mut self, session: i32, position: i64) -> LedgerStart {
        self.ledger.ledger_start(session, position, Some(self.at), &self.counters)
    }
}

fn outcome() -> impl Strategy<Value = FrameOutcome> {
    prop_oneof![
        4 => Just(FrameOutcome::Delivered),
        1 => Just(FrameOutcome::NotReady),
        1 => Just(FrameOutcome::Lost(Loss::NoPool)),
        1 => Just(FrameOutcome::Lost(Loss::Superseded)),
    ]
}

impl std::fmt::Debug for FrameOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Delivered => "delivered",
            Self::NotReady => "not ready",
            Self::Lost(why) => why.as_str(),
        })
    }
}

proptest! {
    #[test]
    fn ledger_start_separates_before_from_after(
        frames in proptest::collection::vec((0i32..3, outcome()), 0..200),
        more in proptest::collection::vec((0i32..3, outcome()), 0..50),
        ledger_start in 0i64..250,
        session in 0i32..3,
    ) {
        let mut model = BridgeModel::default();
        frames.iter().for_each(|(session, outcome)| model.frame(*session, *outcome));
        let place = (ledger_start * 64).min(model.at);
        let LedgerStart::At(base) = model.ledger_start(session, place) else { panic!("all of it is noted") };
        prop_assert_eq!(base.total(), model.count(session, place));
        // Later frames do not change it, and are counted apart.
        more.iter().for_each(|(session, outcome)| model.frame(*session, *outcome));
        let (sum, is_all) = model.ledger.sum(&[session], &model.counters);
        prop_assert!(is_all);
        prop_assert_eq!(sum.since(&base).total(), model.count(session, i64::MAX) - model.count(session, place));
        let (all, _) = model.ledger.sum(&[0, 1, 2], &model.counters);
        prop_assert_eq!(all, SessionCounts::from_counters(&model.counters));
    }
}

#[test]
fn ledger_start_past_the_read_position_is_ahead() {
    let mut model = BridgeModel::default();
    model.frame(1, FrameOutcome::Delivered);
    assert_eq!(model.ledger.ledger_start(1, 65, Some(64), &model.counters), LedgerStart::Ahead);
    assert_eq!(
        model.ledger.ledger_start(1, 65, None, &model.counters),
        LedgerStart::Ahead,
        "no such session is here"
    );
    model.frame(1, FrameOutcome::Delivered);
    let LedgerStart::At(base) = model.ledger_start(1, 65) else { panic!("it was read") };
    assert_eq!(base.delivered, 1);
}

#[test]
fn ledger_start_after_a_timeout_loss_is_unknown() {
    let mut model = BridgeModel::default();
    model.frame(1, FrameOutcome::Delivered);
    // A destination that went away took a frame with it.
    model.counters.lost[Loss::Detached as usize] += 1;
    assert_eq!(model.ledger_start(1, 64), LedgerStart::Unknown);
    model.frame(1, FrameOutcome::Delivered);
    let LedgerStart::At(base) = model.ledger_start(1, 64) else { panic!("known again from there on") };
    assert_eq!(base.total(), 2);
}

#[test]
fn ledger_start_before_the_notes_is_unknown() {
    let mut model = BridgeModel::default();
    for _ in 0..=MAX_NOTED {
        model.frame(1, FrameOutcome::Delivered);
    }
    assert_eq!(model.ledger.all[0].notes.as_ref().unwrap().all.len(), MAX_NOTED);
    assert_eq!(model.ledger_start(1, 63), LedgerStart::Unknown);
    let now = model.at;
    let LedgerStart::At(base) = model.ledger_start(1, now) else { panic!("that is now") };
    assert_eq!(base.delivered, MAX_NOTED as u64 + 1);
}

#[test]
fn session_known_from_its_start_keeps_no_notes() {
    let mut model = BridgeModel::default();
    model.counters.delivered = 7;
    model.ledger.begin(5, &model.counters);
    model.frame(5, FrameOutcome::Delivered);
    model.ledger.begin(6, &model.counters);
    model.frame(6, FrameOutcome::Delivered);
    model.frame(5, FrameOutcome::Delivered);
    let delivered = |sessions: &[i32]| model.ledger.sum(sessions, &model.counters).0.delivered;
    assert_eq!((delivered(&[5]), delivered(&[6]), delivered(&[5, 6])), (2, 1, 3));
    assert!(model.ledger.all.iter().all(|a| a.notes.is_none()));
}

#[test]
fn sessions_are_bounded_and_loss_is_reported() {
    let mut model = BridgeModel::default();
    for session in 0..MAX_SESSIONS as i32 {
        model.frame(session, FrameOutcome::Delivered);
    }
    assert!(model.ledger.sum(&[0, 99], &model.counters).1, "99 never came");
    model.frame(100, FrameOutcome::Delivered);
    assert_eq!(model.ledger.all.len(), MAX_SESSIONS);
    assert!(!model.ledger.sum(&[0], &model.counters).1);
    assert!(model.ledger.sum(&[1, 100], &model.counters).1);
    model.ledger.begin(101, &model.counters);
    assert_eq!(model.ledger.all.len(), MAX_SESSIONS);
}
