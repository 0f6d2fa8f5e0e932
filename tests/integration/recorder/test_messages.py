"""Messages about recorded streams: all of them reach the recording, whenever the recorder polls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool import recording
from tensorpool.recorder.agent import RecorderAgent
from tensorpool.recorder.config import RecorderSettings
from tensorpool.sbe import Mode, QosConsumer, TraceLinkSet, TraceParent, decode

EPOCH = 7


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(mode="embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base, announce_period=0.2) as context:
        yield context


@pytest.fixture
def agent(ctx: tp.Context, tmp_path: Path, free_stream_id: int) -> Iterator[RecorderAgent]:
    """A recorder whose duty cycles the test runs itself."""
    settings = RecorderSettings(
        out=tmp_path / "recording", streams=(free_stream_id,), buffer_bytes=4 << 20, keep_free_bytes=0
    )
    agent = RecorderAgent(ctx, settings)
    try:
        agent.on_start()
        yield agent
    finally:
        agent.on_close()


class Sender:
    """Publishes numbered messages about one stream to the QoS stream and to the control stream."""

    def __init__(self, ctx: tp.Context, stream_id: int, wait_until: Callable[..., Any]) -> None:
        ids = ctx.connection.stream_ids
        self._stream_id = stream_id
        self._qos = ctx.connection.publication(ids.qos)
        self._control = ctx.connection.publication(ids.control)
        wait_until(lambda: self._qos.is_connected and self._control.is_connected, timeout=60)

    def send(self, numbers: range) -> None:
        for number in numbers:
            qos = QosConsumer(
                stream_id=self._stream_id, consumer_id=number, epoch=EPOCH, last_seq_seen=0,
                drops_gap=0, drops_late=0, mode=Mode.STREAM,
            )  # fmt: skip
            links = TraceLinkSet(
                stream_id=self._stream_id, epoch=EPOCH, seq=number, trace_id=number,
                parents=(TraceParent(trace_id=1), TraceParent(trace_id=2)),
            )  # fmt: skip
            assert self._qos.offer(qos.encode()) == "sent"
            assert self._control.offer(links.encode()) == "sent"

    def close(self) -> None:
        self._qos.close()
        self._control.close()


@pytest.fixture
def sender(
    ctx: tp.Context, agent: RecorderAgent, free_stream_id: int, wait_until: Callable[..., Any]
) -> Iterator[Sender]:
    wait_until(lambda: agent._listener is not None and agent._listener.is_ready, timeout=60)
    sender = Sender(ctx, free_stream_id, wait_until)
    yield sender
    sender.close()


def recorded_numbers(root: Path) -> tuple[list[int], list[int]]:
    """The numbers of the recorded QoS reports and of the recorded trace links, in the order of the tables."""
    with recording.open(root) as opened:
        rows = [
            [decode(message) for message in opened.table(table).column("message").to_pylist()]
            for table in ("qos", "metadata")
        ]
    qos = [row.consumer_id for row in rows[0] if isinstance(row, QosConsumer) and row.epoch == EPOCH]
    return qos, [row.seq for row in rows[1] if isinstance(row, TraceLinkSet)]


def test_recorder_misses_no_message_between_two_polls(agent: RecorderAgent, sender: Sender) -> None:
    sent = 0
    for burst in (1, 300, 2, 40, 300):
        sender.send(range(sent, sent + burst))
        sent += burst
        agent._next_messages_ns = 0
        agent.do_work()
    agent.on_close()
    assert recorded_numbers(agent.root) == ([*range(sent)], [*range(sent)])


def test_recorder_writes_messages_that_wait_when_it_stops(agent: RecorderAgent, sender: Sender) -> None:
    agent.do_work()
    sender.send(range(300))
    agent.stop()
    sender.send(range(300, 310))
    agent.start()
    sender.send(range(310, 320))
    agent.on_close()
    qos, links = recorded_numbers(agent.root)
    assert qos == links
    assert [number for number in qos if not 300 <= number < 310] == [*range(300), *range(310, 320)]


def test_failed_write_of_a_message_costs_no_message(
    agent: RecorderAgent, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(row: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(agent._sink, "write_message", fail)
        sender.send(range(20))
        agent._next_messages_ns = 0
        with pytest.raises(OSError, match="no space"):
            agent.do_work()
    agent.on_close()
    assert recorded_numbers(agent.root) == ([*range(20)], [*range(20)])
