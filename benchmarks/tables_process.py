"""The process that measures tables and stores: `python -m benchmarks.tables_process PLAN`."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from deltalake import DeltaTable

from tensorpool import recording
from tensorpool.pipeline import definition, layout, marker, schemas
from tensorpool.pipeline.delta import LOG, DeltaTables
from tensorpool.pipeline.engine import Engine, tables_of
from tensorpool.pipeline.tasks import LocalTasks
from tensorpool.recording import archive
from tensorpool.recording.layout import SEALED
from tensorpool.recording.storage import CONNECTIONS, PART_BYTES
from tensorpool.spark.source import TensorPoolSource
from tests.s3_server import S3Server

STREAM = 10_000
_STREAMS = 100
_START_NS = 1_772_366_400_000_000_000
_BATCH_NS = 10_000_000_000
_MERGED = 1_000
"""Small files that become one."""
_PER_COMMIT = 10_000
_FRAME = (640, 1024)


# --- reads beside a pipeline


def _ingest(root: Path, out: Path, stop: Any) -> None:
    """A pipeline that ingests small micro-batches, and merges and removes files all the time."""
    table = {"recordings": [str(root)], "out": str(out), "retain": "1h", "quality": {"enabled": False}}
    settings = definition.parse({"pipeline": table})
    seq = 0
    with recording.RecordingWriter(root) as writer:
        engine: Engine | None = None
        while not stop.is_set():
            for _ in range(20):
                writer.append(np.full((4, 8), seq, np.uint16), stream_id=STREAM, epoch=1, seq=seq)
                seq += 1
            writer.flush()
            if engine is None:
                begun = marker.begin(settings, tables_of(settings))
                engine = Engine(settings, pipeline_id=begun.pipeline_id)
                engine.recover()
            engine.run_batch(LocalTasks())
            if seq % 160 == 0:
                engine.compact()
        if engine is not None:
            engine.close_sources()


def measure_reads(directory: Path, reads: int) -> dict[str, float]:
    """Reads a table over and over while a pipeline changes it; counts the reads that fail."""
    root, out = directory / "growing", directory / "tables"
    context = get_context("spawn")
    stop = context.Event()
    pipeline = context.Process(target=_ingest, args=(root, out, stop))
    pipeline.start()
    uri, failed, versions = str(out / layout.SILVER_FRAMES), 0, set()
    try:
        deadline = time.monotonic() + 120
        while not DeltaTable.is_deltatable(uri):
            assert time.monotonic() < deadline, "the pipeline does not begin"
            time.sleep(0.05)
        for _ in range(reads):
            try:
                table = DeltaTable(uri)
                seqs = table.to_pyarrow_table(columns=["seq"])["seq"].to_numpy()
                assert len(np.unique(seqs)) == len(seqs) == (seqs.max() + 1 if len(seqs) else 0)
                versions.add(table.version())
            except Exception as error:  # Whatever a reader gets to see is a failed read.
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                failed += 1
    finally:
        stop.set()
        pipeline.join(60)
    assert pipeline.exitcode == 0, "the pipeline failed"
    return {"reads": reads, "failed": failed, "versions": len(versions)}


# --- the plan of a query


def _day(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(time_ns // 1_000_000_000))


def _entry(kind: str, number: int, count: int) -> str:
    """The line of a log that adds or removes the file of some micro-batches."""
    start = _START_NS + number * _BATCH_NS
    day = _day(start)
    what: dict[str, Any] = {
        "path": f"date={day}/{'m' if count > 1 else 'b'}{number:08}.parquet",
        "partitionValues": {"date": day},
        "size": 20_000 * count,
        "dataChange": count == 1,
    }
    if kind == "remove":
        return json.dumps({"remove": {**what, "deletionTimestamp": time.time_ns() // 1_000_000}})
    low = {"stream_id": STREAM, "receive_time_ns": start}
    high = {"stream_id": STREAM + _STREAMS - 1, "receive_time_ns": start + count * _BATCH_NS - 1}
    statistics = {"numRecords": 200 * count, "minValues": low, "maxValues": high, "nullCount": {}}
    return json.dumps({"add": {**what, "modificationTime": 0, "stats": json.dumps(statistics)}})


def _commits(files: int) -> Iterator[list[str]]:
    for first in range(0, files, _PER_COMMIT):
        numbers = range(first, min(first + _PER_COMMIT, files))
        yield [_entry("add", number, 1) for number in numbers]
        merged = [_entry("add", number, _MERGED) for number in numbers if number % _MERGED == 0]
        yield [*(_entry("remove", number, 1) for number in numbers), *merged]


def measure_planning(directory: Path, files: int) -> dict[str, float]:
    """Seconds to plan one stream and one minute in a table with so many committed files, and its files."""
    root = directory / "history"
    DeltaTables(str(root)).prepare(schemas.silver_frames())
    log = root / layout.SILVER_FRAMES / LOG
    for number, lines in enumerate(_commits(files), 1):
        (log / f"{number:020}.json").write_text("\n".join(lines) + "\n")
    table = DeltaTable(str(root / layout.SILVER_FRAMES))
    table.create_checkpoint()
    active = len(table.file_uris())
    middle = _START_NS + files // 2 * _BATCH_NS
    given = {
        "path": str(root), "table": layout.SILVER_FRAMES, "streams": str(STREAM + 7),
        "startingTimestamp": str(middle), "endingTimestamp": str(middle + 60_000_000_000),
    }  # fmt: skip
    # Imports what planning needs; this version of the table is empty.
    TensorPoolSource({**given, "version": "0"}).schema()
    started = time.perf_counter()
    # As in Spark: one process asks for the columns, and another one for the tasks.
    source = TensorPoolSource(given)
    schema = source.schema()
    parts = pickle.loads(pickle.dumps(source)).reader(schema).partitions()
    elapsed = time.perf_counter() - started
    opened = sum(len(part.value.files) for part in parts)
    return {"files": files, "active": active, "planning_s": elapsed, "opened": opened}


# --- payloads from a store


def measure_store(directory: Path, frames: int, rounds: int) -> dict[str, float]:
    """Seconds to read all payloads of an archived recording, and to read the same objects by plain ranges."""
    root = directory / "archived"
    rng = np.random.default_rng(5)
    with recording.RecordingWriter(root) as writer:
        for seq in range(frames):
            writer.append(rng.integers(0, 256, _FRAME, np.uint8), stream_id=STREAM, epoch=1, seq=seq)
    server = S3Server(directory / "s3")
    server.directory.mkdir()
    server.start()
    try:
        os.environ.update(server.environment)
        uri = server.uri("recording")
        archive.push(root, uri)
        keys = [key for key in server.objects() if key.endswith(SEALED) and "stream=" in key]
        work: dict[str, Callable[[], int]] = {
            "scan_s": lambda: _scan(uri),
            "plain_s": lambda: _plain(server, keys),
        }
        best: dict[str, float] = {}
        for number in range(rounds + 1):
            for name, read in work.items():
                started = time.perf_counter()
                size = read()
                elapsed = time.perf_counter() - started
                assert size >= frames * _FRAME[0] * _FRAME[1], f"{name}: only {size} bytes"
                if number:
                    best[name] = min(elapsed, best.get(name, elapsed))
    finally:
        server.stop()
    return {"bytes": frames * _FRAME[0] * _FRAME[1], **best}


def _scan(uri: str) -> int:
    with recording.open(uri) as opened:
        return sum(frame.array[:1].size and frame.array.nbytes for frame in opened.frames(STREAM))


def _plain(server: S3Server, keys: list[str]) -> int:
    """Reads objects by ranges, with as many connections as a recording has."""
    from pyarrow.fs import S3FileSystem

    store = S3FileSystem(
        access_key=server.access_key, secret_key=server.secret_key, region="us-east-1", scheme="http",
        endpoint_override=f"127.0.0.1:{server.port}",
    )  # fmt: skip
    files = [store.open_input_file(f"{server.bucket}/{key}") for key in keys]
    parts = [(file, at) for file in files for at in range(0, file.size(), PART_BYTES)]

    def read(part: tuple[Any, int]) -> int:
        file, at = part
        return len(file.read_at(min(PART_BYTES, file.size() - at), at))

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return sum(pool.map(read, parts))


def main() -> None:
    """Runs the plan of the command line."""
    plan = json.loads(sys.argv[1])
    directory = Path(plan["directory"])
    figures = measure_store(directory, plan["frames"], plan["rounds"])
    figures |= measure_planning(directory, plan["files"])
    figures |= measure_reads(directory, plan["reads"])
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
