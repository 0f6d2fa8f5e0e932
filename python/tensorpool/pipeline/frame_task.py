"""The task of a micro-batch: reads frames once, and writes bronze, silver, statistics and functions.

Runs in executors. A payload is mapped once for its checksum, its statistics and its functions. The rows that
alignments and quality need are small, and return to the pipeline's process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..recording.table_store import open_store
from . import schemas
from .definition import PipelineSettings
from .functions import Callables, TableFunction, table_functions
from .schemas import MEMBER
from .table_files import TableFileWriter, dates, inlined, moments
from .validation import Findings, FrameValidator, StreamContext

if TYPE_CHECKING:
    from ..spark.options import Options
    from ..spark.plan import FrameRange, LostRange
    from .delta import DataFile

FRAMES: Final = pa.schema(
    [
        *(field for field in MEMBER if field.name != "key"),
        pa.field("latency_ns", pa.int64()),
        pa.field("trace_id", pa.int64()),
    ]
)
"""The columns of accepted frames that the pipeline's process gets."""
REJECTS: Final = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in ("stream_id", "epoch", "seq", "receive_time_ns")),
        pa.field("reason", pa.string()),
    ]
)
"""The columns of rejected frames that the pipeline's process gets."""


class SourceRange(NamedTuple):
    """A range of frames of a recording."""

    recording: str
    frames: FrameRange | LostRange


@dataclass(slots=True)
class GapRow:
    """Sequences that a recording misses."""

    stream_id: int
    epoch: int
    first_seq: int
    count: int
    reason: str


@dataclass(slots=True)
class FrameTask:
    """Ranges of frames. Ranges that may contain the same frame are in one task."""

    root: str
    number: int
    """The number of the decision."""
    settings: PipelineSettings
    ranges: list[SourceRange]
    streams: dict[int, StreamContext]
    anchors: dict[str, list[list[int]]]
    """Recording → its clock anchors."""
    place: str | None = None


@dataclass(slots=True)
class FrameResult:
    """What a task has written and found."""

    files: list[DataFile]
    findings: dict[int, Findings]
    gaps: list[GapRow]
    frames: pa.Table
    rejects: pa.Table
    recorded_rows: int = 0
    recorded_bytes: int = 0
    function_rows: dict[str, int] = field(default_factory=dict)


def frame_work(callables: Callables) -> Any:
    """The function for `Tasks.run`, with the function objects of a Python definition."""
    return partial(_run, dict(callables))


def _run(callables: Callables, task: FrameTask) -> FrameResult:
    return _FramePass(task, callables).run()


def source_options(settings: PipelineSettings, recording: str) -> Options:
    """The options of the Spark source for a recording of the definition."""
    from ..spark.options import STREAM, Options

    given: dict[str, str | int] = {
        "path": recording,
        "payload": "ref",
        "includeGaps": "true",
        "failOnDataLoss": str(settings.fail_on_loss).lower(),
        "maxRowsPerTrigger": max(settings.max_rows // len(settings.recordings), 1),
        "maxBytesPerTrigger": max(settings.max_bytes // len(settings.recordings), 1),
    }
    if settings.streams:
        given["streams"] = ",".join(map(str, settings.streams))
    return Options(given, STREAM)


class _FramePass:
    """The state of one task."""

    def __init__(self, task: FrameTask, callables: Callables) -> None:
        from ..spark.tensors.rows import Segments

        settings = task.settings
        self._task = task
        self._payload = settings.payload
        self._segments = Segments()
        self._files = TableFileWriter(
            open_store(task.root), task.number, settings.target_file_bytes, pipeline=settings.name
        )
        self._functions: list[TableFunction] = table_functions(settings, callables, task.place)
        self._bronze = schemas.bronze_frames(settings.payload)
        self._silver = schemas.silver_frames(settings.payload)
        self._rejects = schemas.silver_rejects(settings.payload)
        self._validators: dict[int, FrameValidator] = {}
        self._accepted_rows: list[pa.RecordBatch] = []
        self._rejected_rows: list[pa.RecordBatch] = []
        self._result = FrameResult([], {}, [], FRAMES.empty_table(), REJECTS.empty_table())

    def run(self) -> FrameResult:
        for recording, batch in self._batches():
            is_gap = pc.is_valid(batch["gap_count"])
            if batch["gap_count"].null_count < len(batch):
                self._take_gaps(batch.filter(is_gap), recording)
            rows = batch.filter(pc.invert(is_gap))
            if not len(rows):
                continue
            received = rows["receive_time_ns"].to_numpy()
            rows = rows.append_column("recording", pa.repeat(recording, len(rows)))
            rows = rows.append_column("time", moments(received)).append_column("date", dates(received))
            for part in self._parts(rows):
                self._take_frames(part)
        result = self._result
        result.files = self._files.close()
        result.findings = {stream: found.findings for stream, found in self._validators.items()}
        if self._accepted_rows:
            result.frames = pa.Table.from_batches(self._accepted_rows)
        if self._rejected_rows:
            result.rejects = pa.Table.from_batches(self._rejected_rows)
        return result

    def _batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        from ..spark.options import spark_schema
        from ..spark.reader import read_range

        options: dict[str, Options] = {}
        for recording, frames in self._task.ranges:
            if recording not in options:
                options[recording] = source_options(self._task.settings, recording)
            schema = spark_schema(options[recording])
            for batch in read_range(frames, options[recording], schema):
                yield recording, batch

    def _parts(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of one stream each, with their payloads if tables contain them."""
        streams = rows["stream_id"]
        values = streams.unique().to_pylist()
        for stream in values:
            own = rows if len(values) == 1 else rows.filter(pc.equal(streams, stream))
            if self._payload == "ref":
                yield own
            else:
                yield from inlined(own, self._task.settings.target_file_bytes)

    def _take_gaps(self, rows: pa.RecordBatch, recording: str) -> None:
        self._files.add(
            schemas.bronze_gaps(), rows.append_column("recording", pa.repeat(recording, len(rows)))
        )
        columns = (
            rows[name].to_pylist() for name in ("stream_id", "epoch", "seq", "gap_count", "gap_reason")
        )
        self._result.gaps += [GapRow(*values) for values in zip(*columns, strict=True)]

    def _take_frames(self, rows: pa.RecordBatch) -> None:
        self._files.add(self._bronze, rows)
        self._result.recorded_rows += len(rows)
        self._result.recorded_bytes += int(rows["payload_bytes"].to_numpy().sum())
        accepted, rejected = self._validator(rows["stream_id"][0].as_py()).check(rows)
        if len(rejected):
            self._files.add(self._rejects, rejected)
            self._rejected_rows.append(_columns(rejected, REJECTS))
        if len(accepted):
            self._files.add(self._silver, accepted)
            self._accepted_rows.append(_columns(accepted, FRAMES))
            self._call_functions(accepted)

    def _validator(self, stream: int) -> FrameValidator:
        if stream not in self._validators:
            task = self._task
            context = task.streams.get(stream) or StreamContext()
            silver = task.settings.silver
            self._validators[stream] = FrameValidator(
                context, self._segments, task.anchors, verify=silver.verify, max_runs=silver.max_runs
            )
        return self._validators[stream]

    def _call_functions(self, accepted: pa.RecordBatch) -> None:
        for function in self._functions:
            rows = function.rows(accepted, self._segments)
            if rows is not None:
                self._files.add(function.table, rows)
                counts = self._result.function_rows
                counts[function.name] = counts.get(function.name, 0) + len(rows)


def _columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema; null where the rows have no such column."""
    names = set(rows.schema.names)
    arrays = [
        rows[field.name].cast(field.type) if field.name in names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
