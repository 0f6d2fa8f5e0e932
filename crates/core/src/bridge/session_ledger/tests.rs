use proptest::prelude::*;

use super::*;

/// Counters, and what a sender of each session would report.
#[derive(Default)]
struct World {
    ledger: SessionLedger,
    counters: AssemblyCounters,
    /// Session, end and fate of all frames.
    truth: Vec<(i32, i64, Fate)>,
    at: i64,
}

impl World {
    /// A frame of three chunks, of which the last decides.
    fn frame(&mut self, session: i32, fate: Fate) {
        self.ledger.set_session(session, &self.counters);
        let step = match fate {
            Fate::Delivered => {
                self.counters.delivered += 1;
                ChunkOutcome::Delivered
            }
            Fate::TurnedAway => {
                self.counters.turned_away += 1;
                ChunkOutcome::TurnedAway
            }
            Fate::Lost(why) => {
                self.counters.lost[why as usize] += 1;
                ChunkOutcome::Lost(why)
            }
        };
        self.at += 64;
        self.ledger.note(ChunkOutcome::Taken, || unreachable!("nothing to note"));
        self.ledger
            .note(ChunkOutcome::Refused(Loss::NoPool), || unreachable!("it counts with its last chunk"));
        self.ledger.note(step, || self.at);
        self.truth.push((session, self.at, fate));
    }

    fn count(&self, session: i32, upto: i64) -> u64 {
        let is_before = |(s, end, fate): &&(i32, i64, Fate)| {
            *s == session && *end <= upto && !matches!(fate, Fate::Lost(why) if why.is_incomplete())
        };
        self.truth.iter().filter(is_before).count() as u64
    }

    fn ledger_start(&mut self, session: i32, position: i64) -> LedgerStart {
        self.ledger.ledger_start(session, position, Some(self.at), &self.counters)
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Delivered),
        1 => Just(Fate::TurnedAway),
        1 => Just(Fate::Lost(Loss::NoPool)),
        1 => Just(Fate::Lost(Loss::Superseded)),
    ]
}

impl std::fmt::Debug for Fate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Delivered => "delivered",
            Self::TurnedAway => "turned away",
            Self::Lost(why) => why.as_str(),
        })
    }
}

proptest! {
    #[test]
    fn ledger_start_separates_before_from_after(
        frames in proptest::collection::vec((0i32..3, fate()), 0..200),
        more in proptest::collection::vec((0i32..3, fate()), 0..50),
        ledger_start in 0i64..250,
        session in 0i32..3,
    ) {
        let mut world = World::default();
        frames.iter().for_each(|(session, fate)| world.frame(*session, *fate));
        let place = (ledger_start * 64).min(world.at);
        let LedgerStart::At(base) = world.ledger_start(session, place) else { panic!("all of it is noted") };
        prop_assert_eq!(base.total(), world.count(session, place));
        // Later frames do not change it, and are counted apart.
        more.iter().for_each(|(session, fate)| world.frame(*session, *fate));
        let (sum, is_all) = world.ledger.sum(&[session], &world.counters);
        prop_assert!(is_all);
        prop_assert_eq!(sum.since(&base).total(), world.count(session, i64::MAX) - world.count(session, place));
        let (all, _) = world.ledger.sum(&[0, 1, 2], &world.counters);
        prop_assert_eq!(all, Counts::of(&world.counters));
    }
}

#[test]
fn ledger_start_past_the_read_position_is_ahead() {
    let mut world = World::default();
    world.frame(1, Fate::Delivered);
    assert_eq!(world.ledger.ledger_start(1, 65, Some(64), &world.counters), LedgerStart::Ahead);
    assert_eq!(
        world.ledger.ledger_start(1, 65, None, &world.counters),
        LedgerStart::Ahead,
        "no such session is here"
    );
    world.frame(1, Fate::Delivered);
    let LedgerStart::At(base) = world.ledger_start(1, 65) else { panic!("it was read") };
    assert_eq!(base.delivered, 1);
}

#[test]
fn ledger_start_after_a_timeout_loss_is_unknown() {
    let mut world = World::default();
    world.frame(1, Fate::Delivered);
    // A destination that went away took a frame with it.
    world.counters.lost[Loss::Detached as usize] += 1;
    assert_eq!(world.ledger_start(1, 64), LedgerStart::Unknown);
    world.frame(1, Fate::Delivered);
    let LedgerStart::At(base) = world.ledger_start(1, 64) else { panic!("known again from there on") };
    assert_eq!(base.total(), 2);
}

#[test]
fn ledger_start_before_the_notes_is_unknown() {
    let mut world = World::default();
    for _ in 0..=MAX_NOTED {
        world.frame(1, Fate::Delivered);
    }
    assert_eq!(world.ledger.all[0].notes.as_ref().unwrap().all.len(), MAX_NOTED);
    assert_eq!(world.ledger_start(1, 63), LedgerStart::Unknown);
    let now = world.at;
    let LedgerStart::At(base) = world.ledger_start(1, now) else { panic!("that is now") };
    assert_eq!(base.delivered, MAX_NOTED as u64 + 1);
}

#[test]
fn session_known_from_its_start_keeps_no_notes() {
    let mut world = World::default();
    world.counters.delivered = 7;
    world.ledger.begin(5, &world.counters);
    world.frame(5, Fate::Delivered);
    world.ledger.begin(6, &world.counters);
    world.frame(6, Fate::Delivered);
    world.frame(5, Fate::Delivered);
    let delivered = |sessions: &[i32]| world.ledger.sum(sessions, &world.counters).0.delivered;
    assert_eq!((delivered(&[5]), delivered(&[6]), delivered(&[5, 6])), (2, 1, 3));
    assert!(world.ledger.all.iter().all(|a| a.notes.is_none()));
}

#[test]
fn sessions_are_bounded_and_loss_is_reported() {
    let mut world = World::default();
    for session in 0..MAX_SESSIONS as i32 {
        world.frame(session, Fate::Delivered);
    }
    assert!(world.ledger.sum(&[0, 99], &world.counters).1, "99 never came");
    world.frame(100, Fate::Delivered);
    assert_eq!(world.ledger.all.len(), MAX_SESSIONS);
    assert!(!world.ledger.sum(&[0], &world.counters).1);
    assert!(world.ledger.sum(&[1, 100], &world.counters).1);
    world.ledger.begin(101, &world.counters);
    assert_eq!(world.ledger.all.len(), MAX_SESSIONS);
}
