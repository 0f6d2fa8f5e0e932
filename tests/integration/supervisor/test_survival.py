"""Kills and invalid messages: the model recovers, and no message ends the listener."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.monitor.listener import SystemMonitor
from tensorpool.sbe.message import Message
from tensorpool.sbe.wire import (
    ClockDomain,
    ConsumerConfig,
    ConsumerHello,
    DataSourceMeta,
    Mode,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from tensorpool.service import Event
from tests.integration.supervisor.test_policy import supervising
from tests.remote_process import RemoteProcess


@pytest.mark.leaves_files
def test_model_recovers_after_drivers_and_endpoints_were_killed(
    options: dict[str, Any],
    endpoint_process: Callable[[], RemoteProcess],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    """Both drivers are in one process: it is killed, and another process starts new ones."""
    with RemoteProcess(DriversProcess) as first, RemoteProcess(DriversProcess) as second:
        first.call("open", **options)
        source, reader = endpoint_process(), endpoint_process()
        source.call("produce", stream_id=free_stream_id)
        reader.call("consume", name="one", stream_id=free_stream_id)
        with tp.open("standalone", media_driver="external", **options) as ctx:

            def consumers(agent: Any) -> int:
                stream = agent.latest.stream(free_stream_id)
                is_live = stream is not None and stream.state in ("live", "quiet")
                return len(stream.consumers) if is_live else 0

            with supervising(ctx) as agent:
                wait_until(lambda: consumers(agent) == 1, timeout=60)
                epoch = agent.latest.stream(free_stream_id).epoch  # type: ignore[union-attr]
                first.kill()
                wait_until(lambda: consumers(agent) == 0, timeout=60)
                second.call("open", **options)
                wait_until(lambda: consumers(agent) == 1, timeout=90)
                assert agent.latest.stream(free_stream_id).epoch > epoch  # type: ignore[union-attr]
            # A new supervisor has the same model when all endpoints have sent their messages once.
            with supervising(ctx) as another:
                wait_until(lambda: consumers(another) == 1, timeout=60)
            # A killed consumer leaves the model, and so does a killed producer.
            with supervising(ctx) as agent:
                wait_until(lambda: consumers(agent) == 1, timeout=60)
                reader.kill()
                wait_until(lambda: consumers(agent) == 0, timeout=60)
                source.kill()
                wait_until(
                    lambda: agent.latest.stream(free_stream_id).state == "vacant",  # type: ignore[union-attr]
                    timeout=60,
                )
        second.call("close")


class DriversProcess:
    """Media driver and SHM driver in a process that the test kills."""

    def open(self, **options: Any) -> None:
        self.context = tp.open("embedded", **options)

    def close(self) -> None:
        self.context.close()


def test_invalid_messages_change_nothing_and_are_counted(
    hub: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    ids, services = hub.stream_ids, hub.service_streams
    stream_ids = [ids.announce, ids.metadata, ids.qos, ids.control, services.status]
    chance = random.Random(13)
    with hub.producer(free_stream_id, name="sound") as camera, SystemMonitor(hub.connection) as monitor:
        publications = [
            _native.Publication(hub.connection.conductor, "aeron:ipc", stream_id) for stream_id in stream_ids
        ]
        try:
            wait_until(lambda: all(p.is_ready and p.offer(b"x" * 9) == "sent" for p in publications))
            for number in range(2000):
                publications[number % len(publications)].offer(invalid_message(chance))
                if number % 100 == 0:
                    monitor.poll()
            camera.offer(np.zeros(1))
            assert monitor.watch(60, until=lambda: _is_unchanged(monitor, free_stream_id))
            assert monitor.snapshot().rejected["malformed"] > 100
            assert len(monitor.snapshot().streams) < 2500
        finally:
            for publication in publications:
                publication.close()


def _is_unchanged(monitor: SystemMonitor, stream_id: int) -> bool:
    stream = monitor.snapshot().stream(stream_id)
    return (
        stream is not None
        and stream.name == "sound"
        and stream.state in ("live", "quiet")
        and stream.producer is not None
        and stream.producer.committed == 1
    )


def invalid_message(chance: random.Random) -> bytes:
    """Noise, truncated and corrupted messages, valid ones with invented ids, and invalid status reports."""
    message = chance.choice(_valid_messages(chance)).encode()
    match chance.randrange(5):
        case 0:
            return chance.randbytes(chance.randrange(1, 200))
        case 1:
            return message[: chance.randrange(8, len(message))]
        case 2:
            corrupted = bytearray(message)
            corrupted[chance.randrange(len(corrupted))] ^= 1 << chance.randrange(8)
            return bytes(corrupted)
        case 3:
            value = chance.choice(
                ['{"stream_id": -1}', "[" * 5000, "{}", "null", '{"stream_id": 1e400}', "\x00"]
            )
            tag = chance.choice(["service:consumer:5", "service:producer:5", "service:recorder"])
            key = chance.choice(["status", "status().result", "ledger().result"])
            sent = value if chance.randrange(2) else value.encode()
            return Event(tag, key, sent, chance.randrange(1 << 60)).encode()
        case _:
            return message


def _valid_messages(chance: random.Random) -> list[Message]:
    stream, endpoint, epoch = chance.randrange(1, 1000), chance.randrange(1, 1000), chance.randrange(1 << 40)
    return [
        QosConsumer(
            stream_id=stream,
            consumer_id=endpoint,
            epoch=epoch,
            last_seq_seen=chance.randrange(1 << 60),
            drops_gap=chance.randrange(1 << 60),
            drops_late=0,
            mode=Mode.STREAM,
        ),
        QosProducer(
            stream_id=stream, producer_id=endpoint, epoch=epoch, current_seq=chance.randrange(1 << 60)
        ),
        ShmPoolAnnounce(
            stream_id=stream,
            producer_id=endpoint,
            epoch=epoch,
            announce_timestamp_ns=chance.randrange(1 << 63),
            announce_clock_domain=ClockDomain.MONOTONIC,
            layout_version=1,
            header_nslots=8,
            header_slot_bytes=256,
            header_region_uri="shm:file?path=/etc/passwd",
        ),
        DataSourceMeta(stream_id=stream, meta_version=endpoint, timestamp_ns=epoch),
        ConsumerConfig(stream_id=stream, consumer_id=endpoint, use_shm=False, mode=Mode.STREAM),
        ConsumerHello(
            stream_id=stream,
            consumer_id=endpoint,
            supports_shm=True,
            supports_progress=False,
            mode=Mode.STREAM,
            expected_layout_version=1,
        ),
    ]
