"""Kills and garbage: the picture comes back by itself, and nothing that anybody sends ends it."""

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
from tests.integration.supervisor.test_policy_has_effect import supervising
from tests.remote_process import RemoteProcess


@pytest.mark.leaves_files
def test_the_picture_is_back_when_driver_media_driver_or_supervisor_were_killed(
    options: dict[str, Any],
    station: Callable[[], RemoteProcess],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    """The hub is a process here: killed, both drivers are gone at once; another takes their place."""
    with RemoteProcess(Hub) as first, RemoteProcess(Hub) as second:
        first.call("open", **options)
        source, reader = station(), station()
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
            # A fresh one knows as much as soon as everybody has spoken: three announce periods, and a breath.
            with supervising(ctx) as another:
                wait_until(lambda: consumers(another) == 1, timeout=60)
            # The reader is killed: it leaves the picture, as does the source's producer.
            with supervising(ctx) as agent:
                wait_until(lambda: consumers(agent) == 1, timeout=60)
                reader.kill()
                wait_until(lambda: consumers(agent) == 0, timeout=60)
                source.kill()
                wait_until(
                    lambda: agent.latest.stream(free_stream_id).state == "no_producer",  # type: ignore[union-attr]
                    timeout=60,
                )
        second.call("close")


class Hub:
    """Both drivers, in a process that may be killed."""

    def open(self, **options: Any) -> None:
        self.context = tp.open("embedded", **options)

    def close(self) -> None:
        self.context.close()


def test_garbage_on_every_stream_changes_nothing_and_is_counted(
    hub: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    ids, services = hub.stream_ids, hub.service_streams
    places = [ids.announce, ids.metadata, ids.qos, ids.control, services.status]
    rolled = random.Random(13)
    with hub.producer(free_stream_id, name="sound") as camera, SystemMonitor(hub) as watcher:
        voices = [_native.Publication(hub.connection.conductor, "aeron:ipc", place) for place in places]
        try:
            wait_until(lambda: all(voice.is_ready and voice.offer(b"x" * 9) == "sent" for voice in voices))
            for number in range(2000):
                voice = voices[number % len(voices)]
                voice.offer(garbage(rolled, free_stream_id))
                if number % 100 == 0:
                    watcher.poll()
            camera.offer(np.zeros(1))
            assert watcher.watch(60, until=lambda: _is_as_it_was(watcher, free_stream_id))
            unheard = watcher.snapshot().unheard
            assert unheard["malformed"] > 100
            assert len(watcher.snapshot().streams) < 2500
        finally:
            for voice in voices:
                voice.close()


def _is_as_it_was(watcher: SystemMonitor, stream_id: int) -> bool:
    stream = watcher.snapshot().stream(stream_id)
    return (
        stream is not None
        and stream.name == "sound"
        and stream.state in ("live", "quiet")
        and stream.producer is not None
        and stream.producer.committed == 1
    )


def garbage(rolled: random.Random, stream_id: int) -> bytes:
    """Noise, cut and bent messages, sound ones of strangers, words that are no JSON or lie."""
    message = rolled.choice(_MESSAGES(rolled)).encode()
    match rolled.randrange(5):
        case 0:
            return rolled.randbytes(rolled.randrange(1, 200))
        case 1:
            return message[: rolled.randrange(8, len(message))]
        case 2:
            bent = bytearray(message)
            bent[rolled.randrange(len(bent))] ^= 1 << rolled.randrange(8)
            return bytes(bent)
        case 3:
            lies = rolled.choice(
                ['{"stream_id": -1}', "[" * 5000, "{}", "null", '{"stream_id": 1e400}', "\x00"]
            )
            tag = rolled.choice(["service:consumer:5", "service:producer:5", "service:recorder"])
            key = rolled.choice(["status", "status().result", "ledger().result"])
            value = lies if rolled.randrange(2) else lies.encode()
            return Event(tag, key, value, rolled.randrange(1 << 60)).encode()
        case _:
            return message


def _MESSAGES(rolled: random.Random) -> list[Message]:
    stream, who, epoch = rolled.randrange(1, 1000), rolled.randrange(1, 1000), rolled.randrange(1 << 40)
    return [
        QosConsumer(
            stream_id=stream,
            consumer_id=who,
            epoch=epoch,
            last_seq_seen=rolled.randrange(1 << 60),
            drops_gap=rolled.randrange(1 << 60),
            drops_late=0,
            mode=Mode.STREAM,
        ),
        QosProducer(stream_id=stream, producer_id=who, epoch=epoch, current_seq=rolled.randrange(1 << 60)),
        ShmPoolAnnounce(
            stream_id=stream,
            producer_id=who,
            epoch=epoch,
            announce_timestamp_ns=rolled.randrange(1 << 63),
            announce_clock_domain=ClockDomain.MONOTONIC,
            layout_version=1,
            header_nslots=8,
            header_slot_bytes=256,
            header_region_uri="shm:file?path=/etc/passwd",
        ),
        DataSourceMeta(stream_id=stream, meta_version=who, timestamp_ns=epoch),
        ConsumerConfig(stream_id=stream, consumer_id=who, use_shm=False, mode=Mode.STREAM),
        ConsumerHello(
            stream_id=stream,
            consumer_id=who,
            supports_shm=True,
            supports_progress=False,
            mode=Mode.STREAM,
            expected_layout_version=1,
        ),
    ]
