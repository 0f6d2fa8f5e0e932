"""Recovery after a restart: a new model is complete within three periods, whatever the phase of messages."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor.model import SystemModel
from tensorpool.monitor.reports import ConsumerQos, ListenerPaused, ProducerQos
from tensorpool.monitor.snapshot import Snapshot
from tensorpool.monitor.streams import ModelLimits
from tensorpool.sbe.wire import ConsumerHello, DataSourceAnnounce, Mode
from tests.unit.monitor.test_model import announce, consumer_ids, report

S = 1_000_000_000
STREAMS, CONSUMERS = 3, 2
phases = st.integers(0, S - 1)


def messages(second: int, stream: int, consumer: int) -> list[object]:
    """The messages about a stream and one of its consumers in one period, each with its own time."""
    return [
        announce(stream_id=stream, epoch=4),
        DataSourceAnnounce(stream_id=stream, producer_id=9, epoch=4, meta_version=1, name=f"camera-{stream}"),
        ProducerQos(stream, 9, 4, 100 * second),
        ConsumerQos(stream, consumer, 4, 100 * second, 0, 0, False),
        ConsumerHello(
            stream_id=stream,
            consumer_id=consumer,
            supports_shm=True,
            supports_progress=False,
            mode=Mode.STREAM,
            expected_layout_version=1,
            max_rate_hz=consumer,
        ),
    ]


COUNT = len(messages(0, 1, 1)) * STREAMS * CONSUMERS


@given(start=st.integers(0, 10 * S), times=st.lists(phases, min_size=COUNT, max_size=COUNT))
def test_restarted_model_is_complete_after_three_periods(start: int, times: list[int]) -> None:
    sent: list[tuple[int, object]] = []
    for second in range(20):
        phase = iter(times)
        for stream in range(1, STREAMS + 1):
            for consumer in range(1, CONSUMERS + 1):
                sent += [(second * S + next(phase), item) for item in messages(second, stream, consumer)]
    model = SystemModel(ModelLimits())
    for at_ns, event in sorted(sent, key=lambda item: item[0]):
        if start <= at_ns < start + 3 * S:
            model.observe(event, at_ns)
    assert summary(model.snapshot(start + 3 * S)) == {
        stream: ("live", 4, f"camera-{stream}", True, {1: (4, 1, True), 2: (4, 2, True)})
        for stream in range(1, STREAMS + 1)
    }


def summary(snapshot: Snapshot) -> dict[int, Any]:
    """Streams and consumers, and whether their rates are known, which takes two reports."""
    return {
        stream.stream_id: (
            str(stream.state),
            stream.epoch,
            stream.name,
            stream.rate_hz is not None,
            {
                consumer.consumer_id: (consumer.epoch, consumer.max_rate_hz, consumer.rate_hz is not None)
                for consumer in stream.consumers
            },
        )
        for stream in snapshot.streams
    }


def test_pause_of_the_listener_removes_no_consumers() -> None:
    model = SystemModel(ModelLimits())
    model.observe(announce(), 0)
    model.observe(report(7), 0)
    model.observe(report(8), 0)
    model.observe(ListenerPaused(60 * S), 60 * S)
    # The report of consumer 7 is read first; that of consumer 8 is still unread.
    model.observe(report(7), 60 * S)
    assert consumer_ids(model, 60 * S) == [7, 8]
    model.observe(report(8), 61 * S)
    model.observe(report(7), 62 * S)
    model.observe(announce(), 62 * S)
    assert consumer_ids(model, 63 * S) == [7, 8]
    # A consumer without reports after the pause has left.
    model.observe(report(7), 67 * S)
    assert consumer_ids(model, 67 * S) == [7]
