"""Shared snapshots: made on demand, with the state of the last update of the model."""

from __future__ import annotations

import threading

from tensorpool.clock import ManualClock
from tensorpool.monitor.model import SharedSnapshot, SystemModel
from tests.unit.monitor.test_model import announce, report

S = 1_000_000_000


def test_snapshot_is_replaced_after_an_update_of_sufficient_age() -> None:
    clock, model = ManualClock(), SystemModel()
    latest = SharedSnapshot(model, S, clock)
    before = latest()
    assert before.streams == ()
    for stream_id in (5, 6):
        clock.advance(0.5)
        with latest.updating():
            model.observe(announce(stream_id), clock.monotonic_ns())
        shown = latest()
        # Half a period after the last snapshot it is still the same.
        assert (shown is before) == (stream_id == 5)
    assert [one.stream_id for one in shown.streams] == [5, 6]
    assert shown.now_ns == clock.monotonic_ns()
    assert latest() is shown


def test_endpoints_do_not_expire_while_the_model_is_not_updated() -> None:
    clock, model = ManualClock(), SystemModel()
    latest = SharedSnapshot(model, S, clock)
    clock.advance(1)
    with latest.updating():
        model.observe(announce(), clock.monotonic_ns())
        model.observe(report(7), clock.monotonic_ns())
    clock.advance(3600)
    [stream] = latest().streams
    assert [one.consumer_id for one in stream.consumers] == [7]
    assert stream.announce_age_ns == 0


def test_reader_waits_for_the_end_of_an_update() -> None:
    clock, model = ManualClock(), SystemModel()
    latest = SharedSnapshot(model, S, clock)
    clock.advance(1)
    seen: list[int] = []
    reader = threading.Thread(target=lambda: seen.append(len(latest().streams)))
    with latest.updating():
        reader.start()
        reader.join(0.05)
        assert seen == []
        model.observe(announce(), clock.monotonic_ns())
    reader.join(60)
    assert seen == [1]
