"""A system of a thousand streams with four consumers each, as far as its words go; and who listens to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import tensorpool as tp
from tensorpool import _native
from tensorpool.sbe.layout import HEADER_BYTES
from tensorpool.sbe.message import Message
from tensorpool.sbe.status import STATUS_KEY, ConsumerStatus, ProducerStatus, TimeOrigin
from tensorpool.sbe.wire import (
    ClockDomain,
    ConsumerHello,
    Mode,
    PayloadPool,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from tensorpool.service import Event
from tests.remote_process import Background

FIRST = 100_000
_PARTS = 20
# Counts that grow start here: messages are patched, not encoded anew.
_COUNT = 1_000_000_000
_HZ = 100


class Crowd:
    """Speaks for all of them, once a second, evenly spread: QoS reports, hellos and status reports."""

    def speak(self, options: dict[str, Any], streams: int, consumers: int) -> None:
        self.context = tp.open("standalone", media_driver="external", **options)
        ids, services = self.context.stream_ids, self.context.service_streams
        places = {
            "announce": ("aeron:ipc", ids.announce),
            "qos": ("aeron:ipc", ids.qos),
            "control": ("aeron:ipc", ids.control),
            "status": (services.channel, services.status),
        }
        self.voices = {
            name: _native.Publication(self.context.connection.conductor, *place)
            for name, place in places.items()
        }
        while not all(voice.is_ready for voice in self.voices.values()):
            time.sleep(0.001)
        said = [list(_words(FIRST + stream, consumers)) for stream in range(streams)]
        self.sent = 0

        def loop(stop: Any) -> None:
            second = 0
            while not stop.is_set():
                began = time.monotonic()
                for part in range(_PARTS):
                    for words in said[part::_PARTS]:
                        self._say(words, second)
                    left = began + (part + 1) / _PARTS - time.monotonic()
                    if left > 0:
                        time.sleep(left)
                second += 1

        self.talk = Background(loop)

    def _say(self, words: list[tuple[str, bytes, int]], second: int) -> None:
        count = _COUNT + _HZ * second
        start, binary = _COUNT.to_bytes(8, "little"), count.to_bytes(8, "little")
        for place, form, at in words:
            message = form
            if at > 0:
                message = form[:at] + binary + form[at + 8 :]
            elif at < 0:
                message = form.replace(start, binary)
            # What is not taken is said again a second later.
            self.voices[place].offer(message)
            self.sent += 1

    def count(self) -> int:
        return self.sent

    def close(self) -> None:
        self.talk.stop()
        self.context.close()


def _words(stream_id: int, consumers: int) -> Iterator[tuple[str, bytes, int]]:
    """The stream, the message, and where its count is: at an offset, in many fields (-1), or nowhere (0)."""
    announce = ShmPoolAnnounce(
        stream_id=stream_id,
        producer_id=stream_id,
        epoch=1,
        announce_timestamp_ns=1,
        announce_clock_domain=ClockDomain.MONOTONIC,
        layout_version=1,
        header_nslots=8,
        header_slot_bytes=256,
        payload_pools=(PayloadPool(pool_id=1, region_uri="", pool_nslots=8, stride_bytes=1 << 20),),
    )
    yield "announce", announce.encode(), _offset(ShmPoolAnnounce, "announceTimestampNs")
    report = QosProducer(stream_id=stream_id, producer_id=stream_id, epoch=1, current_seq=0)
    yield "qos", report.encode(), _offset(QosProducer, "currentSeq")
    status = ProducerStatus(
        stream_id=stream_id,
        producer_id=stream_id,
        pid=7,
        is_final=False,
        epoch=1,
        next_seq=_COUNT,
        committed=_COUNT,
        published=_COUNT,
        deferred=0,
        holes=0,
        payload_bytes=_COUNT,
    )
    yield "status", _event("producer", stream_id, status), -1
    for number in range(1, consumers + 1):
        yield from _consumer_words(stream_id, number)


def _consumer_words(stream_id: int, number: int) -> Iterator[tuple[str, bytes, int]]:
    qos = QosConsumer(
        stream_id=stream_id,
        consumer_id=number,
        epoch=1,
        last_seq_seen=0,
        drops_gap=number,
        drops_late=0,
        mode=Mode.STREAM,
    )
    yield "qos", qos.encode(), _offset(QosConsumer, "lastSeqSeen")
    hello = ConsumerHello(
        stream_id=stream_id,
        consumer_id=number,
        supports_shm=True,
        supports_progress=False,
        mode=Mode.STREAM,
        expected_layout_version=1,
    )
    yield "control", hello.encode(), 0
    status = ConsumerStatus(
        stream_id=stream_id,
        consumer_id=number,
        pid=8,
        is_final=False,
        latency_since=TimeOrigin.PUBLISH,
        epoch=1,
        first_seq=0,
        last_seq=_COUNT,
        span=_COUNT,
        received=_COUNT,
        polls=_COUNT,
        latency_excluded=0,
        interval_frames=_HZ,
        interval_p50_ns=20_000,
        interval_p99_ns=90_000,
        interval_max_ns=400_000,
        total_frames=_COUNT,
        total_p50_ns=20_000,
        total_p99_ns=90_000,
        total_max_ns=400_000,
    )
    yield "status", _event("consumer", stream_id, status), -1


def _event(role: str, stream_id: int, status: Message) -> bytes:
    return Event(f"service:{role}:{stream_id}", STATUS_KEY, status.encode()).encode()


def _offset(kind: type[Message], name: str) -> int:
    return HEADER_BYTES + next(one.offset for one in kind.layout().encoded_fields if one.name == name)


class Supervisor:
    """The command, as people run it, and what it costs."""

    def __init__(self, aeron_dir: Path, shm_base: Path, scratch: Path) -> None:
        rules = scratch / "supervisor.toml"
        rules.write_text(_RULES)
        places = {"AERON_DIR": str(aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(shm_base)}
        self.log = scratch / "supervisor.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tensorpool", "supervisor", "--config", str(rules), "--metrics", "0"],
                env={**os.environ, **places},
                stderr=log,
            )

    def url(self) -> str | None:
        """Where its metrics are; None until it says so."""
        assert self._process.poll() is None, self.log.read_text()
        found = re.search(r"metrics are at (http://[0-9.:]+/metrics)", self.log.read_text())
        return None if found is None else found[1]

    def cost(self) -> tuple[float, int]:
        """Seconds of processor time since its start, and bytes of memory that are its own.

        What it has mapped of the media driver's buffers belongs to that one, however much of them is in use.
        """
        at = Path("/proc", str(self._process.pid))
        times = at.joinpath("stat").read_text("ascii").rpartition(")")[2].split()
        ticks = int(times[11]) + int(times[12])
        found = re.search(r"^RssAnon:\s+(\d+) kB", at.joinpath("status").read_text("ascii"), re.MULTILINE)
        assert found is not None
        return ticks / os.sysconf("SC_CLK_TCK"), int(found[1]) << 10

    def end(self) -> int:
        """By Ctrl-C: its exit status."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


_RULES = """
[[supervisor.rules]]
name = "drops"
when = "drops"
above = 100
then = "limit"
max_rate_hz = 5

[[supervisor.rules]]
name = "behind"
when = "backlog"
above = 1000
then = "flag"
"""
