"""A picture that begins anew is whole within three announce periods, whenever anybody speaks."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor.model import SystemModel
from tensorpool.monitor.reports import ConsumerQos, ListenerPaused, ProducerQos
from tensorpool.monitor.snapshot import Snapshot
from tensorpool.monitor.streams import ModelLimits
from tensorpool.sbe.wire import ConsumerHello, DataSourceAnnounce, Mode
from tests.unit.supervisor.test_picture import announce, report

S = 1_000_000_000
STREAMS, READERS = 3, 2
phases = st.integers(0, S - 1)


def words(second: int, stream: int, reader: int) -> list[object]:
    """What is said of a stream and one of its readers in one period, each at a time of its own."""
    return [
        announce(stream_id=stream, epoch=4),
        DataSourceAnnounce(stream_id=stream, producer_id=9, epoch=4, meta_version=1, name=f"camera-{stream}"),
        ProducerQos(stream, 9, 4, 100 * second),
        ConsumerQos(stream, reader, 4, 100 * second, 0, 0, False),
        ConsumerHello(
            stream_id=stream,
            consumer_id=reader,
            supports_shm=True,
            supports_progress=False,
            mode=Mode.STREAM,
            expected_layout_version=1,
            max_rate_hz=reader,
        ),
    ]


KINDS = len(words(0, 1, 1))


@given(
    began=st.integers(0, 10 * S),
    times=st.lists(phases, min_size=KINDS * STREAMS * READERS, max_size=KINDS * STREAMS * READERS),
)
def test_it_is_whole_after_three_periods(began: int, times: list[int]) -> None:
    said: list[tuple[int, object]] = []
    for second in range(20):
        at = iter(times)
        for stream in range(1, STREAMS + 1):
            for reader in range(1, READERS + 1):
                said += [(second * S + next(at), one) for one in words(second, stream, reader)]
    picture = SystemModel(ModelLimits())
    for at_ns, event in sorted(said, key=lambda one: one[0]):
        if began <= at_ns < began + 3 * S:
            picture.observe(event, at_ns)
    assert truth(picture.snapshot(began + 3 * S)) == {
        stream: ("live", 4, f"camera-{stream}", True, {1: (4, 1, True), 2: (4, 2, True)})
        for stream in range(1, STREAMS + 1)
    }


def truth(snapshot: Snapshot) -> dict[int, Any]:
    """Who is there, and whether their rates are known, which takes two reports."""
    return {
        one.stream_id: (
            str(one.state),
            one.epoch,
            one.name,
            one.rate_hz is not None,
            {
                reader.consumer_id: (reader.epoch, reader.max_rate_hz, reader.rate_hz is not None)
                for reader in one.consumers
            },
        )
        for one in snapshot.streams
    }


def test_who_has_slept_itself_blames_nobody_for_the_silence() -> None:
    picture = SystemModel(ModelLimits())
    picture.observe(announce(), 0)
    picture.observe(report(7), 0)
    picture.observe(report(8), 0)
    picture.observe(ListenerPaused(60 * S), 60 * S)
    # One is heard at once; the other has its word in the queue still.
    picture.observe(report(7), 60 * S)
    stream = picture.snapshot(60 * S).stream(5)
    assert stream is not None
    assert [one.consumer_id for one in stream.consumers] == [7, 8]
    picture.observe(report(8), 61 * S)
    picture.observe(report(7), 62 * S)
    picture.observe(announce(), 62 * S)
    stream = picture.snapshot(63 * S).stream(5)
    assert stream is not None
    assert [one.consumer_id for one in stream.consumers] == [7, 8]
    # Who says nothing even then has left.
    picture.observe(report(7), 67 * S)
    stream = picture.snapshot(67 * S).stream(5)
    assert stream is not None
    assert [one.consumer_id for one in stream.consumers] == [7]
