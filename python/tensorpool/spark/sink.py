"""`df.write[Stream].format("tensorpool")`: into a recording, or published into a live stream."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ..clock import SYSTEM_CLOCK
from ..errors import ConfigError
from ..recording.layout import create_root
from . import staging
from .commit import commit
from .options import Options
from .staging import check_incoming, frames_of
from .worker import tune_worker

# Spark's own names for what identifies a micro-batch inside a task.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged."""

    key: str
    name: str
    rows: int


def make_writer(options: Options, schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    _check(options, schema, overwrite)
    if options.is_live:
        from .live_sink import LiveBatchWriter

        return LiveBatchWriter(options)
    return RecordingBatchWriter(options)


def make_stream_writer(options: Options, schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    _check(options, schema, overwrite)
    if options.is_live:
        from .live_sink import LiveStreamWriter

        return LiveStreamWriter(options)
    return RecordingStreamWriter(options)


def _check(options: Options, schema: StructType, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError("a recording only grows: use mode append, or name another path")
    check_incoming(schema, options)
    if not options.is_live:
        # Now, so that a directory of something else is refused before any task has run.
        create_root(Path(options.path), created_ns=SYSTEM_CLOCK.wall_ns())


def task() -> tuple[str | None, int, int]:
    """Query, batch and number of the task this process is at."""
    context = TaskContext.get()
    if context is None:
        return None, 0, 0
    batch = context.getLocalProperty(_BATCH)
    return context.getLocalProperty(_QUERY), int(batch) if batch else 0, context.partitionId()


class RecordingBatchWriter(DataSourceArrowWriter):
    """A DataFrame into a recording: all of it, or none."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # Pickled with the writer: every task and the commit have the same one.
        self._key = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = self._options
        name, rows = staging.stage(Path(options.path), self._key, 0, task()[2], frames_of(iterator, options))
        tune_worker()
        return Staged(self._key, name, rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, 0)
        _forget(Path(self._options.path), self._key)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _forget(Path(self._options.path), self._key)


class RecordingStreamWriter(DataSourceStreamArrowWriter):
    """A stream into a recording: each micro-batch once, however often Spark sends it."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = self._options
        key, batch, number = task()
        if key is None:
            raise ConfigError("the task belongs to no streaming query; Spark 4.1 or newer is needed")
        name, rows = staging.stage(Path(options.path), key, batch, number, frames_of(iterator, options))
        tune_worker()
        return Staged(key, name, rows)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for message in messages:
            if isinstance(message, Staged):
                staging.discard(Path(self._options.path), message.key, only=[message.name])


def _commit(options: Options, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
    staged = [message for message in messages if isinstance(message, Staged)]
    if staged:
        commit(
            Path(options.path),
            staged[0].key,
            batch_id,
            [one.name for one in staged],
            epoch=options["epoch"],
            busy_ns=options["busyTimeout"],
        )


def _forget(root: Path, key: str) -> None:
    """Nothing of a finished batch write is kept: it is never sent again."""
    import shutil

    shutil.rmtree(staging.query_dir(root, key), ignore_errors=True)
