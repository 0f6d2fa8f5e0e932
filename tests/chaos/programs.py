"""The programs that scenarios start, kill and pause. Each prints one line of JSON when it is asked to end.

`python -m tests.chaos.programs ROLE …`; SIGTERM asks it to end.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import tensorpool as tp
from tensorpool import _native
from tensorpool.sbe import PublishMode, Role, ShmAttachRequest
from tensorpool.sbe.discovery import DiscoveryRequest
from tensorpool.sbe.wire import ConsumerHello, Mode
from tests.chaos.pattern import ELEMENTS, is_frame, new_writer, write_frame
from tests.chaos.tally import Tally

_STOP = threading.Event()


def main(arguments: list[str]) -> None:
    """Runs a role: its name, then its options as JSON."""
    signal.signal(signal.SIGTERM, lambda *_: _STOP.set())
    role, options = arguments[0], json.loads(arguments[1])
    roles: dict[str, Callable[..., None]] = {
        "producer": produce, "consumer": consume, "recorder": record, "flood": flood,
        "pipeline": run_pipeline, "reader": read_tables,
    }  # fmt: skip
    roles[role](**options)


def _report(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)


def _open(options: dict[str, Any]) -> tp.Context:
    return tp.open(**options)


def produce(stream_id: int, options: dict[str, Any], tally: str, hz: float) -> None:
    """Publishes frames until it is asked to end; takes the stream over when its holder is gone."""
    writer, counts = new_writer(), Tally(Path(tally))
    with _open(options) as context:
        while not _STOP.is_set():
            try:
                producer = context.producer(stream_id, pools=[8 * ELEMENTS], nslots=64)
                break
            except tp.TensorPoolError:
                _STOP.wait(0.05)
        else:
            return
        with producer:
            while not _STOP.is_set():
                try:
                    with producer.claim((ELEMENTS,), "uint64") as slot:
                        write_frame(slot.array, writer, slot.seq)
                except tp.TensorPoolError:
                    # No lease at the moment: it attaches again by itself.
                    _STOP.wait(0.02)
                    continue
                counts.add("published")
                _STOP.wait(1 / hz)
            ledger = producer.ledger()
            _report({"balanced": ledger.balanced, "ledger": str(ledger)})


def consume(stream_id: int, options: dict[str, Any], tally: str) -> None:
    """Receives frames and checks every word, until it is asked to end."""
    counts = Tally(Path(tally))
    example: list[int] = []
    with _open(options) as context, context.consumer(stream_id) as consumer:
        while not _STOP.is_set():
            try:
                frames = consumer.poll(16)
            except tp.TensorPoolError:
                frames = []
            for frame in frames:
                copy = frame.array.copy()
                if not frame.valid():
                    continue
                counts.add("checked")
                if not is_frame(copy, frame.seq):
                    counts.add("torn")
                    example = [frame.epoch, frame.seq]
            if not frames:
                time.sleep(0.002)
        ledger = consumer.ledger()
        _report({"torn_frame": example, "balanced": ledger.balanced, "ledger": str(ledger)})


def record(stream_id: int, options: dict[str, Any], tally: str, root: str, **more: Any) -> None:
    """Records a stream until it is asked to end."""
    counts = Tally(Path(tally))
    settings = {"buffer": "16MiB", "keep_free": "1MiB", **more}
    with _open(options) as context, context.record(root, streams=[stream_id], **settings) as recorder:
        while not _STOP.wait(0.1):
            counts.set("recorded", recorder.stats().rows)
    _report({"recorded": True})


def run_pipeline(
    stream_id: int, options: dict[str, Any], tally: str, recording: str, tables: str, scratch: str
) -> None:
    """Runs a pipeline over a growing recording, again and again in one Spark session."""
    from tensorpool.errors import DiskFull, PipelineError
    from tensorpool.pipeline import Pipeline
    from tests.integration.spark.conftest import configured

    counts, failures = Tally(Path(tally)), []
    pipeline = Pipeline(recordings=[recording], out=tables, max_rows=500)
    session = configured("local[2]", Path(scratch)).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        while not _STOP.wait(0.1):
            try:
                pipeline.run(spark=session, once=True)
                counts.add("runs")
            except (DiskFull, PipelineError) as error:
                # Of this process or of a task: both say what to do.
                if "free some disk space" in str(error):
                    counts.add("full")
                else:
                    failures.append(str(error))
            except Exception as error:
                text = re.sub(r"\x1b\[\d*m|↳", "", str(error))
                failures.append(f"{type(error).__name__}: {' '.join(text.split())}")
                counts.add("full")
    finally:
        session.stop()
    _report({"failures": failures[:3]})


def read_tables(stream_id: int, options: dict[str, Any], tally: str, tables: str) -> None:
    """Counts the rows of a pipeline's tables. A process of its own: deltalake keeps the threads it starts."""
    columns = {"bronze": ("gap_count", "gap_reason"), "silver": ("count", "reason")}
    counts: dict[str, Any] = {}
    for level, (number, reason) in columns.items():
        frames = _rows(Path(tables) / level / "frames", ["epoch", "seq"])
        gaps: Counter[str] = Counter()
        for row in _rows(Path(tables) / level / "gaps", ["epoch", number, reason]):
            gaps[f"{row['epoch']} {row[reason]}"] += row[number]
        counts[level] = {
            "frames": Counter(str(row["epoch"]) for row in frames), "gaps": gaps,
            "distinct": len({(row["epoch"], row["seq"]) for row in frames}),
        }  # fmt: skip
    Tally(Path(tally)).add("runs")
    _STOP.wait()
    _report(counts)


def _rows(table: Path, columns: list[str]) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq
    from deltalake import DeltaTable

    rows: list[dict[str, Any]] = []
    for file in DeltaTable(table).file_uris():
        with pq.ParquetFile(file) as opened:
            rows += opened.read(columns, use_threads=False).to_pylist()
    return rows


def flood(stream_id: int, options: dict[str, Any], tally: str, kind: str, seed: int, running: str) -> None:
    """Sends messages of one kind as fast as the control stream takes them, until it is asked to end.

    Makes the file `running` when the first were sent.
    """
    sent = 0
    with _open({**options, "mode": "standalone"}) as context:
        control = context.stream_ids.control
        publication = _native.Publication(context.connection.conductor, "aeron:ipc", control)
        messages = flood_messages(kind, random.Random(seed), stream_id)
        while not _STOP.is_set():
            sent += sum(publication.offer(message) == "sent" for message in islice(messages, 100))
            if sent and not Path(running).exists():
                Path(running).touch()
        publication.close()
    _report({"sent": sent})


def flood_messages(kind: str, rng: random.Random, stream_id: int) -> Iterator[bytes]:
    """Valid messages of ever new senders: attach requests, hellos, or discovery requests."""
    while True:
        sender = rng.randrange(1, 1 << 31)
        if kind == "attach requests":
            # A new stream each time, or one that exists.
            wanted = rng.choice((stream_id, rng.randrange(1, 1 << 31)))
            yield ShmAttachRequest(
                correlation_id=rng.getrandbits(62), stream_id=wanted, client_id=sender, role=Role.CONSUMER,
                publish_mode=PublishMode.EXISTING_OR_CREATE,
            ).encode()  # fmt: skip
        elif kind == "hellos":
            own = rng.choice((0, rng.randrange(1, 1 << 31)))
            yield ConsumerHello(
                stream_id=stream_id, consumer_id=sender, supports_shm=True, supports_progress=True,
                mode=Mode.STREAM, expected_layout_version=1, descriptor_stream_id=own,
                descriptor_channel="aeron:ipc" if own else "",
            ).encode()  # fmt: skip
        else:
            yield DiscoveryRequest(
                request_id=rng.getrandbits(62), client_id=sender, response_channel="aeron:ipc",
                response_stream_id=rng.randrange(1, 1 << 31),
            ).encode()  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main(sys.argv[1:])
