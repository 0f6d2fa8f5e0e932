"""A picture that others look at: shown when somebody looks, as it was when it was listened to last."""

from __future__ import annotations

import threading

from tensorpool.clock import ManualClock
from tensorpool.monitor.model import SharedSnapshot, SystemModel
from tests.unit.supervisor.test_picture import announce, report

S = 1_000_000_000


def test_it_is_shown_anew_when_it_was_listened_to_a_while_later() -> None:
    clock, picture = ManualClock(), SystemModel()
    latest = SharedSnapshot(picture, S, clock)
    before = latest()
    assert before.streams == ()
    for stream_id in (5, 6):
        clock.advance(0.5)
        with latest.listening():
            picture.observe(announce(stream_id), clock.monotonic_ns())
        shown = latest()
        # Half a period after the last one it is still that one.
        assert (shown is before) == (stream_id == 5)
    assert [one.stream_id for one in shown.streams] == [5, 6]
    assert shown.now_ns == clock.monotonic_ns()
    assert latest() is shown


def test_nobody_is_taken_for_silent_while_its_keeper_sleeps() -> None:
    clock, picture = ManualClock(), SystemModel()
    latest = SharedSnapshot(picture, S, clock)
    clock.advance(1)
    with latest.listening():
        picture.observe(announce(), clock.monotonic_ns())
        picture.observe(report(7), clock.monotonic_ns())
    clock.advance(3600)
    [stream] = latest().streams
    assert [one.consumer_id for one in stream.consumers] == [7]
    assert stream.announce_age_ns == 0


def test_whoever_looks_waits_until_its_keeper_has_listened() -> None:
    clock, picture = ManualClock(), SystemModel()
    latest = SharedSnapshot(picture, S, clock)
    clock.advance(1)
    seen: list[int] = []
    looker = threading.Thread(target=lambda: seen.append(len(latest().streams)))
    with latest.listening():
        looker.start()
        looker.join(0.05)
        assert seen == []
        picture.observe(announce(), clock.monotonic_ns())
    looker.join(60)
    assert seen == [1]
