"""The live sink, `option("mode", "live")`: rows published to a live stream, at least once.

A stream has one producer, so tasks with rows of the same stream take turns. A batch that Spark sends again is
published again with the same trace ids, by which consumers can recognise it.
"""

from __future__ import annotations

import hashlib
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ..client import Outcome, Producer
from ..context import Context
from ..context import open as open_context
from ..errors import AttachError, MediaDriverError, ServiceError, StreamBusy
from ..recording.tensors import as_array
from .options import Options
from .sink import current_task
from .staging import IncomingFrame, incoming_frames

# Temporary: consumers catch up, or the lease is granted again.
_RETRIED = (Outcome.BACK_PRESSURED, Outcome.DETACHED, Outcome.SLOT_CLAIMED, Outcome.CLOSED)


@dataclass
class Published(WriterCommitMessage):
    """Commit message of a task: the number of published frames."""

    frames: int


class LiveBatchWriter(DataSourceArrowWriter):
    """Publishes a DataFrame."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # Pickled with the writer: a repeated task has the same key, another write has another one.
        self._key = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publishes the rows of one task."""
        return Published(publish(iterator, self._options, self._key))


class LiveStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the micro-batches of a streaming query."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publishes the rows of one task."""
        return Published(publish(iterator, self._options))


def publish(batches: Iterator[pa.RecordBatch], options: Options, key: str | None = None) -> int:
    """Publishes every row to its stream and returns their number. `key` identifies a batch write."""
    count = 0
    with ExitStack() as stack:
        context: Context | None = None
        producers: dict[int, Producer] = {}
        for number, frame in enumerate(incoming_frames(batches, options)):
            if context is None:
                context = stack.enter_context(_context(options))
            if frame.stream_id not in producers:
                producers[frame.stream_id] = stack.enter_context(_producer(context, frame.stream_id, options))
                # A new epoch: consumers must map its regions before they can read a frame.
                time.sleep(options["linger"] / 1e9)
            _offer(producers[frame.stream_id], frame, trace_id_of(frame, number, key), options["busyTimeout"])
            count += 1
        if producers:
            # The regions are removed with the producer: consumers get time to read the last frames.
            time.sleep(options["linger"] / 1e9)
    return count


def _context(options: Options) -> Context:
    try:
        return open_context("driver", aeron_dir=options["aeronDir"])
    except (MediaDriverError, AttachError, ServiceError) as error:
        raise RuntimeError(
            f"mode live publishes on the executor's own host, but {socket.gethostname()} has no driver to "
            f"attach to ({error}); start one (tensorpool driver), or write into a recording and replay it"
        ) from error


def _producer(context: Context, stream_id: int, options: Options) -> Producer:
    """The producer of a stream. Waits while the stream has another one."""
    pools = [part.strip() for part in options["pools"].split(",")] if options["pools"] else None
    deadline = time.monotonic_ns() + options["busyTimeout"]
    while True:
        try:
            return context.producer(stream_id, pools=pools, nslots=options["nslots"])
        except (AttachError, StreamBusy):
            if time.monotonic_ns() >= deadline:
                raise
        time.sleep(0.05)


def _offer(producer: Producer, frame: IncomingFrame, trace_id: int, timeout_ns: int) -> None:
    array = as_array(frame.data, frame.dtype, frame.shape, frame.strides, frame)
    deadline = time.monotonic_ns() + timeout_ns
    while True:
        offered = producer.offer(array, timestamp_ns=frame.timestamp_ns, trace_id=trace_id)
        outcome = _outcome(offered)
        if outcome in (Outcome.PUBLISHED, Outcome.DEFERRED, Outcome.NOT_CONNECTED):
            return
        if outcome not in _RETRIED or time.monotonic_ns() >= deadline:
            raise RuntimeError(
                f"{frame}: {frame.data.nbytes} bytes were not published: {outcome}; see options pools, nslots"
            )
        time.sleep(0.002)


def _outcome(offered: Any) -> Outcome:
    return Outcome(getattr(offered, "outcome", offered))


def trace_id_of(frame: IncomingFrame, number: int, key: str | None = None) -> int:
    """The row's own trace id, or one that is the same whenever this row of this query is published."""
    if frame.trace_id:
        return frame.trace_id
    task = current_task()
    if frame.seq is not None:
        name: tuple[int | None, ...] = frame.stream_id, frame.epoch, frame.seq
    else:
        name = task.batch, task.partition, number
    digest = hashlib.blake2b(repr((task.query or key, name)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
