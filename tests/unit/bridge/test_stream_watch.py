"""A stream of Aeron that has stopped for good is noticed, and one that is only quiet is not."""

from __future__ import annotations

import itertools

from tensorpool.bridge.receiver import LATE_NS, MAX_PATIENCE_NS, MIN_PATIENCE_NS, StreamWatch

S = 1_000_000_000
PATIENCE_S = MIN_PATIENCE_NS // S
LATE_S = LATE_NS // S


def stops(watch: StreamWatch, seconds: range, *, received: int, sends: bool) -> list[int]:
    """The seconds in which the watch says that the stream has stopped."""
    return [t for t in seconds if watch.has_stopped(t * S, received, t if sends else 0)]


def test_stream_with_frames_and_quiet_stream_have_not_stopped() -> None:
    watch = StreamWatch()
    assert not any(watch.has_stopped(t * S, t, t) for t in range(1, 1000))
    assert stops(watch, range(1000, 10_000), received=1000, sends=False) == []


def test_stream_that_brings_nothing_while_its_sender_has_frames_has_stopped() -> None:
    watch = StreamWatch()
    assert not watch.has_stopped(S, 5, 5)
    found = stops(watch, range(2, 2000), received=5, sends=True)
    assert found[0] == 1 + LATE_S + PATIENCE_S
    pauses = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert pauses[:3] == [n * PATIENCE_S + LATE_S for n in (2, 4, 8)]
    assert max(pauses) == MAX_PATIENCE_NS // S + LATE_S
    # One frame begins all of it again.
    assert not watch.has_stopped(2000 * S, 6, 2000)
    assert stops(watch, range(2001, 2020), received=6, sends=True) == [2000 + LATE_S + PATIENCE_S]


def test_frame_that_its_sender_counts_after_it_arrived_is_not_waited_for() -> None:
    watch = StreamWatch()
    for frame in range(100):
        # One a minute: it arrives, and a second later the ledger says so.
        for t in range(60):
            assert not watch.has_stopped((60 * frame + t) * S, frame + 1, frame + (t > 0))


def test_sender_that_starts_again_or_sent_before_this_receiver_started_is_not_waited_for() -> None:
    watch = StreamWatch()
    assert not any(watch.has_stopped(t * S, 0, 1000) for t in range(1, 100))
    assert not any(watch.has_stopped(t * S, 0, 0) for t in range(100, 200))
    assert any(watch.has_stopped(t * S, 0, t) for t in range(200, 200 + 2 * PATIENCE_S))


def test_stream_that_was_opened_for_another_source_is_waited_for_anew() -> None:
    watch = StreamWatch()
    assert stops(watch, range(1, 10), received=0, sends=True) == []
    watch.restart(9 * S)
    found = stops(watch, range(10, 40), received=0, sends=True)
    assert found == [9 + LATE_S + PATIENCE_S]
