"""A stream of Aeron that has stopped for good is noticed, and one that is only quiet is not."""

from __future__ import annotations

import itertools

from tensorpool.bridge.receiver import MAX_PATIENCE_NS, MIN_PATIENCE_NS, StreamWatch

S = 1_000_000_000
PATIENCE_S = MIN_PATIENCE_NS // S


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
    assert found[0] == 2 + PATIENCE_S
    pauses = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert pauses[:3] == [2 * PATIENCE_S + 1, 4 * PATIENCE_S + 1, 8 * PATIENCE_S + 1]
    assert max(pauses) == MAX_PATIENCE_NS // S + 1
    # One frame begins all of it again.
    assert not watch.has_stopped(2000 * S, 6, 2000)
    assert stops(watch, range(2001, 2020), received=6, sends=True) == [2001 + PATIENCE_S]
