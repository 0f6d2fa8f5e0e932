"""Consumers that an executor's Python process keeps between micro-batches.

They hear what comes while nobody reads, as far as the ring goes. One that no micro-batch has used for a while
is let go by a thread: the query has ended, or another process of the executor has its turn.

`option("mode", "live")`: frames straight from a pool on the executor's own host, at most once.

A micro-batch listens for a while. There is nothing to go back to: what came while nobody listened, or came
too fast, is a gap row. Consumers are kept by the executor's Python process from one micro-batch to the next.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from .. import _native
from ..client import Consumer
from ..context import Context
from ..context import open as open_context
from ..durable import replace_file
from ..errors import AttachError, LockHeld, MediaDriverError, ServiceError
from ..recording import Gap
from ..recording.layout import signed
from ..state_dir import state_dir
from .options import Options, arrow_schema, check_schema
from .scan import gap_batch
from .sink import task

_KEPT_S: Final = 30.0
_Key = tuple[str | None, int]
_lock = threading.RLock()
_kept: dict[_Key, tuple[Context, Consumer]] = {}
_used: dict[_Key, float] = {}
_keeper: threading.Thread | None = None


@contextmanager
def live_consumer(stream_id: int, aeron_dir: str | None) -> Iterator[Consumer]:
    """The consumer of a stream, made now or kept from before."""
    global _keeper  # noqa: PLW0603  one thread a process
    key = aeron_dir, stream_id
    with _lock:
        if key not in _kept:
            _kept[key] = _open(stream_id, aeron_dir)
        consumer = _kept[key][1]
        _used.pop(key, None)
        if _keeper is None:
            _keeper = threading.Thread(target=_keep, name="spark-listeners", daemon=True)
            _keeper.start()
    try:
        yield consumer
    finally:
        with _lock:
            _used[key] = time.monotonic()


def _open(stream_id: int, aeron_dir: str | None) -> tuple[Context, Consumer]:
    try:
        context = open_context("driver", aeron_dir=aeron_dir)
        try:
            return context, context.consumer(stream_id)
        except BaseException:
            context.close()
            raise
    except (AttachError, MediaDriverError, ServiceError) as error:
        raise RuntimeError(
            f"mode live reads shared memory of the executor's own host, and on {socket.gethostname()} there "
            f"is no driver to attach to ({error}); run the query where the pool is, or record the stream "
            "there and read the recording"
        ) from error


def _keep() -> None:
    while True:
        time.sleep(_KEPT_S / 6)
        close_idle(before=time.monotonic() - _KEPT_S)


def close_idle(*, before: float) -> None:
    """Lets go of consumers that were last used before then."""
    with _lock:
        for key in [key for key, used in _used.items() if used <= before]:
            del _used[key]
            context, consumer = _kept.pop(key)
            consumer.close()
            context.close()


MISSED: Final = "missed"
_COUNT: Final = "batch"
_ROWS: Final = 1_024


@dataclass(frozen=True, slots=True)
class LiveRange:
    """One task: listen to one stream."""

    stream_id: int


class LiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets only count micro-batches: the pool itself keeps no history."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._is_single = False
        self._given: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {_COUNT: "0"}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        count = int(start[_COUNT])
        if self._is_single and self._given is not None:
            return {_COUNT: str(max(count, self._given))}
        self._given = count + 1
        return {_COUNT: str(self._given)}

    def prepareForTriggerAvailableNow(self) -> None:
        """What is available now is what one micro-batch hears."""
        self._is_single = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(LiveRange(stream)) for stream in self._options["streams"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        what = partition.value
        assert isinstance(what, LiveRange), "nothing else is planned"
        return listen(what.stream_id, self._options, arrow_schema(self._schema))


def listen(stream_id: int, options: Options, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """What comes within the window, in batches; gap rows for what was missed since the last one."""
    directory = state_dir("spark")
    name = f"{task()[0] or 'alone'}-{stream_id}"
    try:
        # Two tasks of one query at the same stream would each hand out the same frames.
        lock = _native.FileLock(directory / f"{name}.lock", "a task of this query")
    except LockHeld:
        return
    try:
        with live_consumer(stream_id, options["aeronDir"]) as consumer:
            yield from _heard(consumer, directory / f"{name}.json", options, schema)
    finally:
        lock.release()


def _heard(consumer: Consumer, mark: Path, options: Options, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows = LiveRows(schema, options, _read_mark(mark))
    deadline = time.monotonic() + options["liveWindow"] / 1e9
    most = options["maxRowsPerTrigger"]
    while (left := deadline - time.monotonic()) > 0 and (most is None or rows.count < most):
        frame = consumer.receive_or_none(min(left, 0.1))
        if frame is not None:
            rows.add(frame)
        if rows.is_full:
            yield from rows.batches()
    yield from rows.batches()
    if rows.last is not None:
        replace_file(mark, json.dumps([str(part) for part in rows.last]).encode())


def _read_mark(path: Path) -> tuple[int, int] | None:
    try:
        epoch, seq = json.loads(path.read_bytes())
        return int(epoch), int(seq)
    except (OSError, ValueError, TypeError):
        return None


class LiveRows:
    """Frames on their way to Arrow, and the gaps between them."""

    def __init__(self, schema: pa.Schema, options: Options, last: tuple[int, int] | None) -> None:
        self._schema = schema
        self._limit = options["maxBatchBytes"]
        self._with_payload = "payload" in schema.names
        self._with_gaps = bool(options["includeGaps"])
        self._rows: list[dict[str, Any]] = []
        self._gaps: list[Gap] = []
        self._size = 0
        self.last = last
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self._size >= self._limit or len(self._rows) >= _ROWS

    def add(self, frame: _native.Frame) -> None:
        place = frame.epoch, frame.seq
        # Another process of this executor, at its turn, may have handed it out already.
        if self.last is not None and place <= self.last:
            return
        array = _in_one_run(frame.array)
        data = bytes(array.ravel("K").view("uint8")) if self._with_payload else b""
        row = _row(frame, array, data)
        if not frame.valid():
            # Overwritten while it was copied: it shows as missed when the next one comes.
            return
        if self.last is not None and self.last[0] == frame.epoch and frame.seq > self.last[1] + 1:
            first = self.last[1] + 1
            self._gaps.append(Gap(frame.stream_id, frame.epoch, first, frame.seq - first, MISSED))
        self._rows.append(row)
        self._size += len(data)
        self.last = place
        self.count += 1

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            columns = [
                pa.array([row.get(field.name) for row in self._rows], field.type) for field in self._schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if self._gaps and self._with_gaps:
            yield gap_batch(self._gaps, self._schema)
        self._rows, self._gaps, self._size = [], [], 0


def _in_one_run(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As it lies in memory, in whichever order; a copy where there are holes between its elements."""
    is_one = array.flags.c_contiguous or array.flags.f_contiguous
    return array if is_one else np.ascontiguousarray(array)


def _row(frame: _native.Frame, array: npt.NDArray[Any], data: bytes) -> dict[str, Any]:
    return {
        "stream_id": frame.stream_id,
        "epoch": signed(frame.epoch),
        "seq": signed(frame.seq),
        "timestamp_ns": signed(frame.timestamp_ns),
        "publish_timestamp_ns": None
        if frame.publish_timestamp_ns is None
        else signed(frame.publish_timestamp_ns),
        "receive_time_ns": time.time_ns(),
        "meta_version": frame.meta_version,
        "trace_id": None if not frame.trace_id else signed(frame.trace_id),
        "dtype": frame.element_type,
        "shape": list(array.shape),
        "strides": list(array.strides),
        "major_order": "row" if array.flags.c_contiguous else "column",
        "payload_bytes": array.nbytes,
        "crc32c": _native.crc32c(data) if data else None,
        "payload": data,
    }
