"""What `tensorpool top` leaves out of what it hears."""

from __future__ import annotations

from tensorpool.top.app import without
from tests.unit.top.snapshots import system


def test_a_reader_of_its_own_is_not_shown() -> None:
    shown = without(system(), {502})
    stream = shown.stream(10000)
    assert stream is not None
    assert [one.consumer_id for one in stream.consumers] == [501]
    assert stream.dropped == {}
    assert shown.streams[1:] == system().streams[1:]
