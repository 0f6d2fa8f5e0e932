"""Writers of `df.write` and `df.writeStream`: into a recording, or publishing to a live stream."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
from ..recording.storage import is_uri
from . import staging
from .commit import commit
from .options import Options
from .scan import tune_worker
from .staging import check_incoming, incoming_frames

# Spark's names of the query and the micro-batch of a task.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class CurrentTask(NamedTuple):
    """Query, micro-batch and partition of a Spark task; no query outside of a streaming query."""

    query: str | None
    batch: int
    partition: int


@dataclass
class Staged(WriterCommitMessage):
    """Commit message of a task: the name of its staging directory."""

    key: str
    name: str
    rows: int


def make_writer(options: Options, schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    """The writer of a batch write. Raises ConfigError before any task runs."""
    _check(options, schema, overwrite)
    if options.is_live:
        from .live_sink import LiveBatchWriter

        return LiveBatchWriter(options)
    return RecordingBatchWriter(options)


def make_stream_writer(options: Options, schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    """The writer of a streaming query. Raises ConfigError before any task runs."""
    _check(options, schema, overwrite)
    if options.is_live:
        from .live_sink import LiveStreamWriter

        return LiveStreamWriter(options)
    return RecordingStreamWriter(options)


def _check(options: Options, schema: StructType, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError("a recording only grows: use mode append, or name another path")
    check_incoming(schema, options)
    if is_uri(options.path) and not options.is_live:
        raise ConfigError(
            f"the sink writes a recording to a directory, not to {options.path}: write to a path or "
            "file:///path, then `tensorpool recording push DIR URI` puts it into the store"
        )
    if not options.is_live:
        # Now, so that a directory without a recording is rejected before any task runs.
        create_root(Path(options.path), created_ns=SYSTEM_CLOCK.wall_ns())


def current_task() -> CurrentTask:
    """The task that this process runs."""
    context = TaskContext.get()
    if context is None:
        return CurrentTask(None, 0, 0)
    batch = context.getLocalProperty(_BATCH)
    return CurrentTask(context.getLocalProperty(_QUERY), int(batch) if batch else 0, context.partitionId())


class RecordingBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame into a recording, completely or not at all."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # Pickled with the writer: all tasks and the commit have the same key.
        self._key = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of one task."""
        options, partition = self._options, current_task().partition
        frames = incoming_frames(iterator, options)
        name, rows = staging.stage(Path(options.path), self._key, 0, partition, frames)
        tune_worker()
        return Staged(self._key, name, rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Moves the staged rows of all tasks into the recording."""
        _commit(self._options, messages, 0)
        _remove_query(Path(self._options.path), self._key)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Removes the staged rows."""
        _remove_query(Path(self._options.path), self._key)


class RecordingStreamWriter(DataSourceStreamArrowWriter):
    """Writes a streaming query into a recording: each micro-batch once, even if Spark sends it again."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of one task."""
        options, task = self._options, current_task()
        if task.query is None:
            raise ConfigError("the task belongs to no streaming query; Spark 4.1 or newer is needed")
        frames = incoming_frames(iterator, options)
        name, rows = staging.stage(Path(options.path), task.query, task.batch, task.partition, frames)
        tune_worker()
        return Staged(task.query, name, rows)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Moves the staged rows of a micro-batch into the recording."""
        _commit(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Removes the staged rows of a micro-batch."""
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
            [message.name for message in staged],
            epoch=options["epoch"],
            busy_ns=options["busyTimeout"],
        )


def _remove_query(root: Path, key: str) -> None:
    """Removes all files of a batch write: Spark never sends it again."""
    shutil.rmtree(staging.query_dir(root, key), ignore_errors=True)
