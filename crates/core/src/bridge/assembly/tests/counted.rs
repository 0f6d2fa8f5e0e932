//! Tests that an undelivered frame is counted once: here, or by the sender that abandoned it.

use proptest::prelude::*;

use super::*;

/// A sender counts the frame that it abandons, so it is not counted here as refused.
#[test]
fn refused_frame_without_its_last_chunk_counts_as_incomplete() {
    type End = fn(&mut Bench);
    let ends: [(End, Loss); 3] = [
        (|bench| bench.table.on_tick(TIMEOUT + 1), Loss::Timeout),
        (|bench| drop(bench.give_all(&frame(1, 100, 100))), Loss::Superseded),
        (|bench| (1..65).for_each(|seq| drop(bench.give_all(&frame(seq, 400, 400)))), Loss::Superseded),
    ];
    for (end, counted) in ends {
        let mut bench = Bench::new();
        bench.memory.room = 399;
        assert_eq!(bench.give(&frame(0, 400, 100)[0]), ChunkOutcome::Refused(Loss::NoPool));
        assert_eq!(bench.table.counters().lost.iter().sum::<u64>(), 0);
        bench.table.on_tick(TIMEOUT);
        assert!(!bench.table.is_idle(), "its last chunk may come");
        end(&mut bench);
        assert!(bench.table.is_idle());
        assert_eq!(bench.lost(counted), 1);
    }
    let mut bench = Bench::new();
    bench.memory.room = 399;
    bench.give(&frame(0, 400, 100)[0]);
    bench.table.on_tick(TIMEOUT + 1);
    assert_eq!(
        bench.give(&frame(0, 400, 100)[3]),
        ChunkOutcome::Ignored(Ignored::OfDropped),
        "that is settled"
    );
}

#[test]
fn frame_without_destination_counts_at_its_last_chunk() {
    let chunks = frame(0, 400, 100);
    let mut bench = Bench::new();
    bench.give_all(&chunks[..2]);
    bench.table.abandon(Loss::Detached);
    assert_eq!(bench.lost(Loss::Detached), 0);
    assert_eq!(
        bench.give_all(&chunks[2..]),
        [ChunkOutcome::Ignored(Ignored::OfDropped), ChunkOutcome::Lost(Loss::Detached)]
    );
    let mut bench = Bench::new();
    bench.give_all(&chunks[1..]);
    bench.table.abandon(Loss::Detached);
    assert_eq!(bench.lost(Loss::Detached), 1, "the last one was there before");
}

#[test]
fn frames_turned_away_at_an_epoch_boundary_count_once() {
    let mut bench = Bench::new();
    for chunk in &frame(0, 400, 100) {
        bench.table.ignore(&chunk.chunk(), Ignored::Unannounced);
    }
    let counters = bench.table.counters();
    assert_eq!((counters.turned_away, counters.ignored(Ignored::Unannounced)), (1, 4));
    bench.table.ignore(&frame(1, 100, 100)[0].chunk(), Ignored::OldEpoch);
    assert_eq!(bench.table.counters().turned_away, 2, "its first is its last");
}

#[test]
fn frame_turned_away_and_abandoned_is_not_counted() {
    let mut bench = Bench::new();
    for chunk in &frame(0, 400, 100)[..3] {
        assert_eq!(
            bench.table.ignore(&chunk.chunk(), Ignored::Unannounced),
            ChunkOutcome::Ignored(Ignored::Unannounced)
        );
    }
    bench.give_all(&frame(1, 400, 100));
    let counters = bench.table.counters();
    assert_eq!((counters.turned_away, counters.delivered), (0, 1));
}

#[test]
fn frame_is_turned_away_with_its_first_chunk() {
    let mut bench = Bench::new();
    let chunks = frame(0, 400, 100);
    bench.table.ignore(&chunks[0].chunk(), Ignored::Unannounced);
    bench.table.restart();
    let rest = bench.give_all(&chunks[1..]);
    assert_eq!(
        rest,
        [
            ChunkOutcome::Ignored(Ignored::OfDropped),
            ChunkOutcome::Ignored(Ignored::OfDropped),
            ChunkOutcome::TurnedAway
        ]
    );
    assert_eq!(bench.table.counters().turned_away, 1);
    assert!(bench.table.is_idle());
    // A restarted sender sends the frame from its beginning.
    bench.table.ignore(&frame(1, 400, 100)[0].chunk(), Ignored::Unannounced);
    bench.give_all(&frame(1, 400, 100));
    assert_eq!(bench.give(&frame(1, 400, 100)[3]), ChunkOutcome::Ignored(Ignored::Late), "the same again");
    assert_eq!((bench.delivered(), bench.table.counters().turned_away), (vec![1], 1));
}

/// An announce comes on another stream, and may overtake a frame of the previous epoch.
#[test]
fn frame_overtaken_by_an_announce_is_turned_away() {
    for room in [399, 400] {
        let chunks = frame(0, 400, 100);
        let (mut bench, mut given_up) = (Bench::new(), Bench::new());
        (bench.memory.room, given_up.memory.room) = (room, room);
        bench.give_all(&chunks[..2]);
        given_up.give_all(&chunks[..2]);
        bench.table.restart();
        given_up.table.restart();
        assert!(bench.table.is_idle());
        let steps = chunks[2..].iter().map(|chunk| bench.table.ignore(&chunk.chunk(), Ignored::OldEpoch));
        assert_eq!(
            steps.collect::<Vec<_>>(),
            [ChunkOutcome::Ignored(Ignored::OldEpoch), ChunkOutcome::TurnedAway]
        );
        assert_eq!(bench.table.counters().turned_away, 1);
        // Its sender abandoned and counted it.
        for chunk in &frame(1, 400, 100) {
            given_up.table.ignore(&chunk.chunk(), Ignored::OldEpoch);
        }
        assert_eq!(given_up.table.counters().turned_away, 1, "the other one");
        for bench in [bench, given_up] {
            assert_eq!(bench.table.counters().lost.iter().sum::<u64>(), 0);
        }
    }
}

/// What happens to a frame here, and before which of its chunks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lot {
    Fits,
    FitsNowhere,
    BadHeader,
    TurnedAwayUpTo(u32),
    DetachedAt(u32),
    OvertakenAt(u32),
}

fn lot() -> impl Strategy<Value = Lot> {
    prop_oneof![
        Just(Lot::Fits),
        Just(Lot::FitsNowhere),
        Just(Lot::BadHeader),
        (1u32..6).prop_map(Lot::TurnedAwayUpTo),
        (1u32..6).prop_map(Lot::DetachedAt),
        (1u32..6).prop_map(Lot::OvertakenAt),
    ]
}

proptest! {
    #[test]
    fn counts_equal_the_sender_without_loss(
        frames in proptest::collection::vec((1u32..6, 1u32..6, lot()), 0..100),
    ) {
        let (mut bench, mut sent) = (Bench::new(), 0);
        for (seq, (count, until, lot)) in frames.into_iter().enumerate() {
            bench.memory.room = if lot == Lot::FitsNowhere { count * 100 - 1 } else { count * 100 };
            let mut chunks = frame(seq as u64, count * 100, 100);
            chunks[0].bad_header = lot == Lot::BadHeader;
            // The sender abandons some frames in the middle.
            for chunk in chunks.iter().take(until as usize) {
                match lot {
                    Lot::TurnedAwayUpTo(index) if chunk.index < index => {
                        bench.table.ignore(&chunk.chunk(), Ignored::Unannounced);
                        continue;
                    }
                    Lot::DetachedAt(index) if chunk.index == index => bench.table.abandon(Loss::Detached),
                    Lot::OvertakenAt(index) if chunk.index >= index => {
                        if chunk.index == index {
                            bench.table.restart();
                        }
                        bench.table.ignore(&chunk.chunk(), Ignored::OldEpoch);
                        continue;
                    }
                    _ => {}
                }
                bench.give(chunk);
            }
            sent += u64::from(until >= count);
        }
        bench.table.on_tick(u64::MAX);
        let counters = bench.table.counters();
        let refused = Loss::ALL.iter().filter(|why| !why.is_incomplete()).map(|why| counters.lost(*why)).sum::<u64>();
        prop_assert_eq!(counters.delivered + counters.turned_away + refused, sent);
        prop_assert!(bench.table.is_idle());
    }
}
