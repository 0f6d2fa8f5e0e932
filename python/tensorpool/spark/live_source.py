"""The live source, `option("mode", "live")`: frames from shared memory on the executor's host, at most once.

A micro-batch receives frames for a while. Nothing can be read again: frames that were published while no
micro-batch ran, or too fast, become gap rows. The executor's Python process keeps its consumers from one
micro-batch to the next, so that frames published in between stay in the header ring. A thread closes a
consumer that no micro-batch has used for a while: the query has ended, or runs in another process.
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
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict
from urllib.parse import quote

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
from ..durable import replace_file, state_dir
from ..errors import AttachError, LockHeld, MediaDriverError, ServiceError
from ..recording import Gap
from ..recording.layout import signed
from .options import Options, arrow_schema, check_schema
from .scan import gap_batch
from .sink import current_task

MISSED: Final = "missed"
"""The reason of gaps between received frames."""
_IDLE_TIMEOUT_S: Final = 30.0
_BATCH_KEY: Final = "batch"
BatchOffset: TypeAlias = dict[str, str]
"""The number of a micro-batch, under `batch`: a live source has no positions to return to."""
_MAX_ROWS: Final = 1_024


class _ConsumerKey(NamedTuple):
    aeron_dir: str | None
    stream: int | str


class _OpenConsumer(NamedTuple):
    context: Context
    consumer: Consumer


_lock = threading.RLock()
_consumers: dict[_ConsumerKey, _OpenConsumer] = {}
_last_used: dict[_ConsumerKey, float] = {}
"""Idle consumers → when they were last used, by the monotonic clock."""
_closer: threading.Thread | None = None


@contextmanager
def live_consumer(stream: int | str, aeron_dir: str | None) -> Iterator[Consumer]:
    """The process's consumer of a stream, opened now or kept from an earlier micro-batch."""
    global _closer  # noqa: PLW0603  one thread per process
    key = _ConsumerKey(aeron_dir, stream)
    with _lock:
        if key not in _consumers:
            _consumers[key] = _open(stream, aeron_dir)
        consumer = _consumers[key].consumer
        _last_used.pop(key, None)
        if _closer is None:
            _closer = threading.Thread(target=_close_idle_consumers, name="spark-consumers", daemon=True)
            _closer.start()
    try:
        yield consumer
    finally:
        with _lock:
            _last_used[key] = time.monotonic()


def _open(stream: int | str, aeron_dir: str | None) -> _OpenConsumer:
    try:
        context = open_context("driver", aeron_dir=aeron_dir)
        try:
            label = consumer_label(current_task().query)
            if isinstance(stream, str):
                return _OpenConsumer(context, context.consumer(name=stream, label=label))
            return _OpenConsumer(context, context.consumer(stream, label=label))
        except BaseException:
            context.close()
            raise
    except (AttachError, MediaDriverError, ServiceError) as error:
        raise RuntimeError(
            f"mode live reads shared memory of the executor's own host, but {socket.gethostname()} has no "
            f"driver to attach to ({error}); run the query on the producer's host, or record the stream "
            "there and read the recording"
        ) from error


def consumer_label(query: str | None) -> str:
    """What the consumers of a query are called where a person looks at the system."""
    return "Spark" if query is None else f"Spark query {query[:8]}"


def _close_idle_consumers() -> None:
    while True:
        time.sleep(_IDLE_TIMEOUT_S / 6)
        close_idle(before=time.monotonic() - _IDLE_TIMEOUT_S)


def close_idle(*, before: float) -> None:
    """Closes the consumers that were last used before a monotonic time."""
    with _lock:
        for key in [key for key, used in _last_used.items() if used <= before]:
            del _last_used[key]
            context, consumer = _consumers.pop(key)
            consumer.close()
            context.close()


@dataclass(frozen=True, slots=True)
class LiveRange:
    """One task: receive frames of one stream, which is given by its id or its name."""

    stream: int | str


class LiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of live mode. Its offsets only count micro-batches: frames cannot be read again."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._is_single = False
        self._last_batch: int | None = None

    def initialOffset(self) -> BatchOffset:
        """The number of the first micro-batch."""
        return {_BATCH_KEY: "0"}

    def latestOffset(self, start: BatchOffset, limit: ReadLimit) -> BatchOffset:
        """The number of the next micro-batch."""
        batch = int(start[_BATCH_KEY])
        if self._is_single and self._last_batch is not None:
            return {_BATCH_KEY: str(max(batch, self._last_batch))}
        self._last_batch = batch + 1
        return {_BATCH_KEY: str(self._last_batch)}

    def prepareForTriggerAvailableNow(self) -> None:
        """Limits the run to one micro-batch."""
        self._is_single = True

    def partitions(self, start: BatchOffset, end: BatchOffset) -> list[InputPartition]:
        """One task per stream."""
        return [InputPartition(LiveRange(stream)) for stream in self._options["streams"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        live_range = partition.value
        assert isinstance(live_range, LiveRange), "nothing else is planned"
        return receive_batches(live_range.stream, self._options, arrow_schema(self._schema))


def receive_batches(stream: int | str, options: Options, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The frames received within the window, and gap rows for frames missed since the last micro-batch."""
    directory = state_dir("spark")
    name = f"{current_task().query or 'alone'}-{quote(str(stream), safe='')}"
    try:
        # Two tasks of one query on the same stream would both return the same frames.
        lock = _native.FileLock(directory / f"{name}.lock", "a task of this query")
    except LockHeld:
        return
    try:
        with live_consumer(stream, options["aeronDir"]) as consumer:
            yield from _receive(consumer, directory / f"{name}.json", options, schema)
    finally:
        lock.release()


def _receive(consumer: Consumer, mark: Path, options: Options, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows = LiveRows(schema, options, _read_mark(mark))
    deadline = time.monotonic() + options["liveWindow"] / 1e9
    max_rows = options["maxRowsPerTrigger"]
    while (left := deadline - time.monotonic()) > 0 and (max_rows is None or rows.count < max_rows):
        frame = consumer.receive_or_none(min(left, 0.1))
        if frame is not None:
            rows.add(frame)
        if rows.is_full:
            yield from rows.batches()
    yield from rows.batches()
    if rows.last is not None:
        replace_file(mark, json.dumps([str(part) for part in rows.last]).encode())


def _read_mark(path: Path) -> tuple[int, int] | None:
    """Epoch and sequence of the last frame that a task of the query returned."""
    try:
        epoch, seq = json.loads(path.read_bytes())
        return int(epoch), int(seq)
    except (OSError, ValueError, TypeError):
        return None


class _LiveRow(TypedDict):
    """The columns of a received frame, by their names in the schema of the source."""

    stream_id: int
    epoch: int
    seq: int
    timestamp_ns: int
    publish_timestamp_ns: int | None
    receive_time_ns: int
    time: int
    """In microseconds, as Spark's timestamps."""
    meta_version: int
    trace_id: int | None
    dtype: str
    shape: list[int]
    strides: list[int]
    major_order: str
    payload_bytes: int
    crc32c: int | None
    payload: bytes


class LiveRows:
    """Received frames and the gaps between them, collected for Arrow batches."""

    def __init__(self, schema: pa.Schema, options: Options, last: tuple[int, int] | None) -> None:
        self._schema = schema
        self._limit = options["maxBatchBytes"]
        self._with_payload = "payload" in schema.names
        self._with_gaps = bool(options["includeGaps"])
        self._rows: list[_LiveRow] = []
        self._gaps: list[Gap] = []
        self._size = 0
        self.last = last
        """Epoch and sequence of the last frame."""
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Whether the collected rows should be returned as a batch."""
        return self._size >= self._limit or len(self._rows) >= _MAX_ROWS

    def add(self, frame: _native.Frame) -> None:
        """Copies a frame, unless it was returned before or is overwritten meanwhile."""
        position = frame.epoch, frame.seq
        # Another process of this executor may have returned it already.
        if self.last is not None and position <= self.last:
            return
        array = _contiguous(frame.array)
        data = bytes(array.ravel("K").view("uint8")) if self._with_payload else b""
        row = _row(frame, array, data)
        if not frame.valid():
            # Overwritten while it was copied: it becomes part of a gap when the next frame is added.
            return
        if self.last is not None:
            last_epoch, last_seq = self.last
            if last_epoch == frame.epoch and frame.seq > (first := last_seq + 1):
                self._gaps.append(Gap(frame.stream_id, frame.epoch, first, frame.seq - first, MISSED))
        self._rows.append(row)
        self._size += len(data)
        self.last = position
        self.count += 1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The collected frames and gaps as batches, and forgets them."""
        if self._rows:
            columns = [
                pa.array([row.get(field.name) for row in self._rows], field.type) for field in self._schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if self._gaps and self._with_gaps:
            yield gap_batch(self._gaps, self._schema)
        self._rows, self._gaps, self._size = [], [], 0


def _contiguous(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array itself if it is contiguous in row or column order, else a contiguous copy."""
    is_contiguous = array.flags.c_contiguous or array.flags.f_contiguous
    return array if is_contiguous else np.ascontiguousarray(array)


def _row(frame: _native.Frame, array: npt.NDArray[Any], data: bytes) -> _LiveRow:
    received_ns = time.time_ns()
    return {
        "stream_id": frame.stream_id,
        "epoch": signed(frame.epoch),
        "seq": signed(frame.seq),
        "timestamp_ns": signed(frame.timestamp_ns),
        "publish_timestamp_ns": None
        if frame.publish_timestamp_ns is None
        else signed(frame.publish_timestamp_ns),
        "receive_time_ns": received_ns,
        "time": received_ns // 1_000,
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
