//! Tests that an undelivered frame is counted once: here, or by the sender that abandoned it.

use proptest::prelude::*;

use super::*;

/// A sender counts the frame that it abandons, so it is not counted here as refused.
#[test]
fn refused_frame_without_its_last_chunk_counts_as_incomplete() {
    type End = fn(&mut AssemblyHarness);
    let ends: [(End, Loss); 3] = [
        (|harness| harness.table.on_tick(TIMEOUT + 1), Loss::Timeout),
        (|harness| drop(harness.give_all(&frame(1, 100, 100))), Loss::Superseded),
        (|harness| (1..65).for_each(|seq| drop(harness.give_all(&frame(seq, 400, 400)))), Loss::Superseded),
    ];
    for (end, counted) in ends {
        let mut harness = AssemblyHarness::new();
        harness.memory.room = 399;
        assert_eq!(harness.give(&frame(0, 400, 100)[0]), ChunkOutcome::Refused(Loss::NoPool));
        assert_eq!(harness.table.counters().lost.iter().sum::<u64>(), 0);
        harness.table.on_tick(TIMEOUT);
        assert!(!harness.table.is_idle(), "its last chunk may come");
        end(&mut harness);
        assert!(harness.table.is_idle());
        assert_eq!(harness.lost(counted), 1);
    }
    let mut harness = AssemblyHarness::new();
    harness.memory.room = 399;
    harness.give(&frame(0, 400, 100)[0]);
    harness.table.on_tick(TIMEOUT + 1);
    assert_eq!(
        harness.give(&frame(0, 400, 100)[3]),
        ChunkOutcome::Ignored(Ignored::OfDropped),
        "that is settled"
    );
}

#[test]
fn frame_without_destination_counts_at_its_last_chunk() {
    let chunks = frame(0, 400, 100);
    let mut harness = AssemblyHarness::new();
    harness.give_all(&chunks[..2]);
    harness.table.abandon(Loss::Detached);
    assert_eq!(harness.lost(Loss::Detached), 0);
    assert_eq!(
        harness.give_all(&chunks[2..]),
        [ChunkOutcome::Ignored(Ignored::OfDropped), ChunkOutcome::Lost(Loss::Detached)]
    );
    let mut harness = AssemblyHarness::new();
    harness.give_all(&chunks[1..]);
    harness.table.abandon(Loss::Detached);
    assert_eq!(harness.lost(Loss::Detached), 1, "the last one was there before");
}

#[test]
fn frames_not_ready_at_an_epoch_boundary_count_once() {
    let mut harness = AssemblyHarness::new();
    for chunk in &frame(0, 400, 100) {
        harness.table.ignore(&chunk.chunk(), Ignored::Unannounced);
    }
    let counters = harness.table.counters();
    assert_eq!((counters.not_ready, counters.ignored(Ignored::Unannounced)), (1, 4));
    harness.table.ignore(&frame(1, 100, 100)[0].chunk(), Ignored::OldEpoch);
    assert_eq!(harness.table.counters().not_ready, 2, "its first is its last");
}

#[test]
fn abandoned_frame_that_is_not_ready_is_not_counted() {
    let mut harness = AssemblyHarness::new();
    for chunk in &frame(0, 400, 100)[..3] {
        assert_eq!(
            harness.table.ignore(&chunk.chunk(), Ignored::Unannounced),
            ChunkOutcome::Ignored(Ignored::Unannounced)
        );
    }
    harness.give_all(&frame(1, 400, 100));
    let counters = harness.table.counters();
    assert_eq!((counters.not_ready, counters.delivered), (0, 1));
}

#[test]
fn frame_is_not_ready_from_its_first_chunk() {
    let mut harness = AssemblyHarness::new();
    let chunks = frame(0, 400, 100);
    harness.table.ignore(&chunks[0].chunk(), Ignored::Unannounced);
    harness.table.restart();
    let rest = harness.give_all(&chunks[1..]);
    assert_eq!(
        rest,
        [
            ChunkOutcome::Ignored(Ignored::OfDropped),
            ChunkOutcome::Ignored(Ignored::OfDropped),
            ChunkOutcome::NotReady
        ]
    );
    assert_eq!(harness.table.counters().not_ready, 1);
    assert!(harness.table.is_idle());
    // A restarted sender sends the frame from its beginning.
    harness.table.ignore(&frame(1, 400, 100)[0].chunk(), Ignored::Unannounced);
    harness.give_all(&frame(1, 400, 100));
    assert_eq!(harness.give(&frame(1, 400, 100)[3]), ChunkOutcome::Ignored(Ignored::Late), "the same again");
    assert_eq!((harness.delivered(), harness.table.counters().not_ready), (vec![1], 1));
}

/// An announce comes on another stream, and may overtake a frame of the previous epoch.
#[test]
fn frame_overtaken_by_an_announce_is_not_ready() {
    for room in [399, 400] {
        let chunks = frame(0, 400, 100);
        let (mut harness, mut given_up) = (AssemblyHarness::new(), AssemblyHarness::new());
        (harness.memory.room, given_up.memory.room) = (room, room);
        harness.give_all(&chunks[..2]);
        given_up.give_all(&chunks[..2]);
        harness.table.restart();
        given_up.table.restart();
        assert!(harness.table.is_idle());
        let steps = chunks[2..].iter().map(|chunk| harness.table.ignore(&chunk.chunk(), Ignored::OldEpoch));
        assert_eq!(
            steps.collect::<Vec<_>>(),
            [ChunkOutcome::Ignored(Ignored::OldEpoch), ChunkOutcome::NotReady]
        );
        assert_eq!(harness.table.counters().not_ready, 1);
        // Its sender abandoned and counted it.
        for chunk in &frame(1, 400, 100) {
            given_up.table.ignore(&chunk.chunk(), Ignored::OldEpoch);
        }
        assert_eq!(given_up.table.counters().not_ready, 1, "the other one");
        for harness in [harness, given_up] {
            assert_eq!(harness.table.counters().lost.iter().sum::<u64>(), 0);
        }
    }
}

/// What happens to a frame here, and before which of its chunks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FrameCase {
    Fits,
    FitsNowhere,
    BadHeader,
    NotReadyUpTo(u32),
    DetachedAt(u32),
    OvertakenAt(u32),
}

fn case() -> impl Strategy<Value = FrameCase> {
    prop_oneof![
        Just(FrameCase::Fits),
        Just(FrameCase::FitsNowhere),
        Just(FrameCase::BadHeader),
        (1u32..6).prop_map(FrameCase::NotReadyUpTo),
        (1u32..6).prop_map(FrameCase::DetachedAt),
        (1u32..6).prop_map(FrameCase::OvertakenAt),
    ]
}

proptest! {
    #[test]
    fn counts_equal_the_sender_without_loss(
        frames in proptest::collection::vec((1u32..6, 1u32..6, case()), 0..100),
    ) {
        let (mut harness, mut sent) = (AssemblyHarness::new(), 0);
        for (seq, (count, until, case)) in frames.into_iter().enumerate() {
            harness.memory.room = if case == FrameCase::FitsNowhere { count * 100 - 1 } else { count * 100 };
            let mut chunks = frame(seq as u64, count * 100, 100);
            chunks[0].bad_header = case == FrameCase::BadHeader;
            // The sender abandons some frames in the middle.
            for chunk in chunks.iter().take(until as usize) {
                match case {
                    FrameCase::NotReadyUpTo(index) if chunk.index < index => {
                        harness.table.ignore(&chunk.chunk(), Ignored::Unannounced);
                        continue;
                    }
                    FrameCase::DetachedAt(index) if chunk.index == index => harness.table.abandon(Loss::Detached),
                    FrameCase::OvertakenAt(index) if chunk.index >= index => {
                        if chunk.index == index {
                            harness.table.restart();
                        }
                        harness.table.ignore(&chunk.chunk(), Ignored::OldEpoch);
                        continue;
                    }
                    _ => {}
                }
                harness.give(chunk);
            }
            sent += u64::from(until >= count);
        }
        harness.table.on_tick(u64::MAX);
        let counters = harness.table.counters();
        let refused = Loss::ALL.iter().filter(|why| !why.is_incomplete()).map(|why| counters.lost(*why)).sum::<u64>();
        prop_assert_eq!(counters.delivered + counters.not_ready + refused, sent);
        prop_assert!(harness.table.is_idle());
    }
}
