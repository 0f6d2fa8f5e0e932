"""The messages of a system of many streams and consumers, and a supervisor process to measure."""

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
Template = tuple[str, bytes, int]
"""Publication, message, and the offset of its count; -1: the count is in many fields, 0: there is none."""
_PARTS = 20
# Growing counts start here: messages are patched, not encoded again.
_COUNT = 1_000_000_000
_HZ = 100


class SyntheticSystem:
    """Publishes announces, hellos, QoS and status reports of all endpoints, evenly over each second."""

    def publish(self, options: dict[str, Any], streams: int, consumers: int) -> None:
        self.context = tp.open("standalone", media_driver="external", **options)
        ids, services = self.context.stream_ids, self.context.service_streams
        addresses = {
            "announce": ("aeron:ipc", ids.announce),
            "qos": ("aeron:ipc", ids.qos),
            "control": ("aeron:ipc", ids.control),
            "status": (services.status_channel, services.status),
        }
        self.publications = {
            name: _native.Publication(self.context.connection.conductor, *address)
            for name, address in addresses.items()
        }
        while not all(publication.is_ready for publication in self.publications.values()):
            time.sleep(0.001)
        templates = [list(_stream_messages(FIRST + stream, consumers)) for stream in range(streams)]
        self.sent = 0

        def loop(stop: Any) -> None:
            second = 0
            while not stop.is_set():
                began = time.monotonic()
                for part in range(_PARTS):
                    for messages in templates[part::_PARTS]:
                        self._publish(messages, second)
                    left = began + (part + 1) / _PARTS - time.monotonic()
                    if left > 0:
                        time.sleep(left)
                second += 1

        self._publishing = Background(loop)

    def _publish(self, templates: list[Template], second: int) -> None:
        count = _COUNT + _HZ * second
        start, binary = _COUNT.to_bytes(8, "little"), count.to_bytes(8, "little")
        for name, template, offset in templates:
            message = template
            if offset > 0:
                message = template[:offset] + binary + template[offset + 8 :]
            elif offset < 0:
                message = template.replace(start, binary)
            # A message that is not taken is repeated a second later.
            self.publications[name].offer(message)
            self.sent += 1

    def count(self) -> int:
        return self.sent

    def close(self) -> None:
        self._publishing.stop()
        self.context.close()


def _stream_messages(stream_id: int, consumers: int) -> Iterator[Template]:
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
        yield from _consumer_messages(stream_id, number)


def _consumer_messages(stream_id: int, number: int) -> Iterator[Template]:
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
    return HEADER_BYTES + next(item.offset for item in kind.layout().encoded_fields if item.name == name)


class SupervisorProcess:
    """The command `tensorpool supervisor`, with its processor time and memory."""

    def __init__(self, aeron_dir: Path, shm_base: Path, scratch: Path) -> None:
        rules = scratch / "supervisor.toml"
        rules.write_text(_RULES)
        environment = {"AERON_DIR": str(aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(shm_base)}
        self.log = scratch / "supervisor.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tensorpool", "supervisor", "--config", str(rules), "--metrics", "0"],
                env={**os.environ, **environment},
                stderr=log,
            )

    def url(self) -> str | None:
        """The URL of its metrics; None until it has logged it."""
        assert self._process.poll() is None, self.log.read_text()
        match = re.search(r"metrics are at (http://[0-9.:]+/metrics)", self.log.read_text())
        return None if match is None else match[1]

    def cost(self) -> tuple[float, int]:
        """Seconds of processor time since its start, and bytes of its anonymous memory.

        Mapped buffers of the media driver do not count.
        """
        proc = Path("/proc", str(self._process.pid))
        times = proc.joinpath("stat").read_text("ascii").rpartition(")")[2].split()
        ticks = int(times[11]) + int(times[12])
        match = re.search(r"^RssAnon:\s+(\d+) kB", proc.joinpath("status").read_text("ascii"), re.MULTILINE)
        assert match is not None
        return ticks / os.sysconf("SC_CLK_TCK"), int(match[1]) << 10

    def end(self) -> int:
        """Ends it by SIGINT and returns its exit status."""
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
