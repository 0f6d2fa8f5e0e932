"""Consumers that `tensorpool top` hides."""

from __future__ import annotations

from tensorpool.monitor.snapshot import without_consumers
from tests.unit.top.snapshots import system


def test_own_consumer_is_hidden() -> None:
    shown = without_consumers(system(), {502})
    stream = shown.stream(10000)
    assert stream is not None
    assert [consumer.consumer_id for consumer in stream.consumers] == [501]
    assert stream.dropped == {}
    assert shown.streams[1:] == system().streams[1:]
