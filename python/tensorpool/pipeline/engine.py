"""The engine of one root: plans a micro-batch, runs its tasks, decides it, and applies the decision.

Runs in the process that was started, on classic Spark and on Connect alike; executors only read frames and
write files. One job of Spark does a micro-batch: tasks write bronze, silver, statistics and functions in one
pass. Alignments and quality are computed here, where their rows are few. What was read up to where is part of
the decision, so nothing outside the root is needed to continue.
"""

from __future__ import annotations

import io
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from ..errors import PipelineError
from ..recording.arrow_format import TABLES
from ..recording.table_store import TableStore, is_object_store, open_store
from . import layout, marker, schemas
from .alignment import PENDING, AlignmentState, align_frames
from .decisions import (
    BatchDecision,
    DecisionLog,
    DerivedRows,
    EpochRuns,
    Memory,
    StageFigures,
    StageTotals,
)
from .definition import FunctionSettings, PipelineSettings
from .delta import CompactionResult, DataFile, DeltaTables
from .frame_task import (
    FRAMES,
    REJECTS,
    FrameResult,
    FrameTask,
    GapRow,
    SourceRange,
    frame_work,
    source_options,
)
from .functions import ArrayTask, Callables, publish_work, recording_work
from .metadata import (
    LINKS,
    AnchorReader,
    MetadataMessage,
    RecordingTables,
    merge_metadata,
    messages_of,
    parents_of,
    trace_depths,
    traced_frames,
)
from .quality import EVENTS, frame_events, gap_events, measure, reject_events, trace_events
from .schemas import Table, parse_columns
from .sequence_runs import Run, SequenceRuns, StoredRuns
from .table_files import TableFileWriter, day_of
from .tasks import Tasks
from .validation import Edge, GapTimes, MissingRun, StreamContext, missing_table, rules_for

if TYPE_CHECKING:
    from ..spark.offsets import OffsetsJson, Position
    from ..spark.plan import FrameRange
    from ..spark.reader import FrameStreamReader

_MAX_EPOCHS: Final = 64
"""Epochs of a stream whose runs are kept. Epochs only grow, so frames of older ones do not arrive."""
_MIN_TASK_BYTES: Final = 8 << 20
_MAX_TASK_BYTES: Final = 512 << 20
_MERGE_PERIOD: Final = 32
"""Micro-batches after which small files are merged. Their files have a sixteenth of the target size first."""
_WHOLE_PERIOD: Final = 512
"""Micro-batches after which files are merged up to the target size."""
_DAY_OVER_NS: Final = 3_600_000_000_000
_BUSY_NS: Final = 60_000_000_000


@dataclass(slots=True)
class _Batch:
    """A micro-batch in the making."""

    memory: Memory
    files: list[DataFile] = field(default_factory=list)
    replaces: list[str] = field(default_factory=list)
    derived: list[DerivedRows] = field(default_factory=list)
    figures: dict[str, StageFigures] = field(default_factory=dict)


class Engine:
    """The stages of one root."""

    def __init__(
        self,
        settings: PipelineSettings,
        *,
        pipeline_id: str,
        place: str | None = None,
        callables: Callables | None = None,
    ) -> None:
        self._settings = settings
        self._id = pipeline_id
        self._place = place
        self._callables = dict(callables or {})
        self._store = open_store(settings.out)
        self._pipeline_store = open_store(layout.pipeline_directory(self._store.url, settings.name))
        self._delta = DeltaTables(self._store.url, retain_ns=settings.retain_ns)
        self.tables = tables_of(settings)
        self.log = DecisionLog(self._pipeline_store, self._delta, pipeline_id=pipeline_id, name=settings.name)
        self._sources: dict[str, FrameStreamReader] = {}
        self._recording_tables = {root: RecordingTables(root) for root in settings.recordings}
        self._anchors = {root: AnchorReader(tables) for root, tables in self._recording_tables.items()}
        self._merged_day: str | None = None
        self._applied: tuple[int, str] | None = None
        """Number and writer of the decision that this process has applied last."""

    def recover(self) -> None:
        """Creates the tables, and applies the last decision where it is missing. Call it first."""
        # A reader finds all tables from the beginning, also those that have no rows yet.
        for table in self.tables.values():
            self._delta.prepare(table)
            self._delta.set_retention(table.name)
        self._last()

    def apply_last(self) -> int:
        """Applies the last decision where it is missing. Returns its number; -1 if there is none."""
        last = self._last()
        return -1 if last is None else last.number

    def close_sources(self) -> None:
        """Releases the recordings."""
        for source in self._sources.values():
            source.stop()
        self._sources.clear()
        for tables in self._recording_tables.values():
            tables.close()

    def _last(self) -> BatchDecision | None:
        """The newest decision, applied. Read again for each micro-batch: another process may have made it."""
        last = self.log.last()
        # What this process has applied is not looked for again: that takes requests for each table.
        if last is not None and self._applied != (last.number, last.writer):
            self._apply(last)
        return last

    def _apply(self, decision: BatchDecision) -> None:
        self.log.apply(decision, self.tables)
        for rows in decision.derived:
            from ..spark.commit import commit

            root = Path(self._store.url) / layout.DERIVED / rows.function
            commit(root, rows.key, decision.number, rows.names, epoch=None, busy_ns=_BUSY_NS)
        self._applied = decision.number, decision.writer

    # --- sources

    def _source(self, recording: str) -> FrameStreamReader:
        from ..spark.options import spark_schema
        from ..spark.reader import FrameStreamReader

        source = self._sources.get(recording)
        if source is None:
            options = source_options(self._settings, recording)
            source = self._sources[recording] = FrameStreamReader(options, spark_schema(options))
        return source

    def fix_end(self) -> None:
        """Leaves frames that are recorded from now on to the next run."""
        for recording in self._settings.recordings:
            self._source(recording).prepareForTriggerAvailableNow()

    def behind(self) -> dict[int, int]:
        """Stream → recorded frames that are in no table yet, of all epochs."""
        last = self.log.last()
        offsets = {} if last is None else last.memory.offsets
        unread: Counter[int] = Counter()
        for recording in self._settings.recordings:
            source = self._source(recording)
            start = offsets.get(recording) or source.initialOffset()
            for stream, backlog in source.backlogs(start).items():
                unread[stream] += backlog.rows
        return dict(unread)

    def _plan(
        self, memory: Memory, parallelism: int
    ) -> tuple[list[list[SourceRange]], dict[str, OffsetsJson]]:
        """The tasks of the next micro-batch, and the offsets after it; no tasks if nothing is new."""
        settings, ends = self._settings, dict(memory.offsets)
        starts: dict[str, OffsetsJson] = {}
        sizes: dict[tuple[str, int], int] = {}
        for recording in settings.recordings:
            source = self._source(recording)
            starts[recording] = memory.offsets.get(recording) or source.initialOffset()
            ends[recording] = source.latestOffset(starts[recording], source.getDefaultReadLimit())
            for stream, backlog in source.backlogs(starts[recording], ends[recording]).items():
                sizes[recording, stream] = backlog.bytes
        largest = settings.target_file_bytes if settings.payload == "inline" else _MAX_TASK_BYTES
        target = min(max(-(-sum(sizes.values()) // parallelism), _MIN_TASK_BYTES), max(largest, 1))
        ranges = [
            SourceRange(recording, frames)
            for recording, start in starts.items()
            if ends[recording] != start
            for frames in self._source(recording).ranges(start, ends[recording], task_bytes=target)
        ]
        return plan_tasks(ranges, sizes, target), ends

    # --- micro-batches

    def run_batch(self, tasks: Tasks) -> bool:
        """Takes the next frames of all recordings into the tables. Returns whether there were any."""
        last = self._last()
        memory = Memory() if last is None else last.memory
        planned, ends = self._plan(memory, tasks.parallelism)
        if not planned:
            return False
        number = 0 if last is None else last.number + 1
        begun = time.monotonic()
        batch = _Batch(replace(memory, offsets=ends, carried=dict(memory.carried)))
        files = self._file_writer(number)
        messages = self._read_metadata(batch.memory, files)
        results = tasks.run(frame_work(self._callables), self._tasks(planned, batch.memory, number))
        seconds = {layout.BRONZE: time.monotonic() - begun}
        batch.files += [file for result in results for file in result.files]
        batch.figures[layout.BRONZE] = self._bronze_figures(results)
        gaps = self._account(batch, results, files)
        frames = pa.concat_tables([FRAMES.empty_table(), *(result.frames for result in results)])
        rejects = pa.concat_tables([REJECTS.empty_table(), *(result.rejects for result in results)])
        marked = time.monotonic()
        self._align(batch, frames, files, number, closing=False)
        seconds[layout.ALIGN] = time.monotonic() - marked
        marked = time.monotonic()
        self._measure(batch, frames, gaps, rejects, messages, files, number)
        self._call_array_functions(batch, results, number, tasks)
        self._gold_figures(batch, results)
        seconds[layout.GOLD] = time.monotonic() - marked
        batch.files += files.close()
        self._decide(last, batch, number, seconds)
        for recording, end in ends.items():
            if recording in self._sources:
                self._sources[recording].commit(end)
        self._merge_after(number, batch)
        return True

    def close(self) -> None:
        """Decides all pending frames of the alignments, at the end of the input."""
        last = self._last()
        if last is None or not any(state.pending for state in last.memory.alignments.values()):
            return
        number, begun = last.number + 1, time.monotonic()
        batch = _Batch(replace(last.memory, carried=dict(last.memory.carried)))
        files = self._file_writer(number)
        self._align(batch, FRAMES.empty_table(), files, number, closing=True)
        batch.files += files.close()
        self._decide(last, batch, number, {layout.ALIGN: time.monotonic() - begun})

    def _file_writer(self, number: int) -> TableFileWriter:
        return TableFileWriter(
            self._store, number, self._settings.target_file_bytes, pipeline=self._settings.name
        )

    def _decide(
        self, last: BatchDecision | None, batch: _Batch, number: int, seconds: dict[str, float]
    ) -> None:
        stages = {} if last is None else dict(last.stages)
        for stage, figures in batch.figures.items():
            totals = stages.get(stage, StageFigures()).totals
            totals.add(figures.totals)
            figures.totals = totals
            figures.batch, figures.at_ns = number, time.time_ns()
            figures.seconds = seconds.get(stage, seconds.get(layout.BRONZE, 0.0))
            stages[stage] = figures
        decision = BatchDecision(
            number, self.log.writer, time.time_ns(), batch.files, batch.replaces, batch.derived, stages,
            batch.memory,
        )  # fmt: skip
        self.log.create(decision)
        self._apply(decision)
        self.log.forget(decision)

    def _tasks(self, planned: list[list[SourceRange]], memory: Memory, number: int) -> list[FrameTask]:
        from ..spark.plan import FrameRange

        for reader in self._anchors.values():
            reader.refresh()
        since = min(memory.last_frames.values(), default=0) if memory.last_frames else 0
        anchors = {name: reader.between(since, 1 << 62) for name, reader in self._anchors.items()}
        items = []
        for ranges in planned:
            by_stream: dict[int, list[FrameRange]] = {}
            for part in ranges:
                if isinstance(part.frames, FrameRange):
                    by_stream.setdefault(part.frames.stream_id, []).append(part.frames)
            contexts = {stream: self._context(stream, own, memory) for stream, own in by_stream.items()}
            items.append(
                FrameTask(self._store.url, number, self._settings, ranges, contexts, anchors, self._place)
            )
        return items

    def _context(self, stream: int, own: Sequence[FrameRange], memory: Memory) -> StreamContext:
        low, high = min(frames.start.epoch for frames in own), max(frames.end.epoch for frames in own)
        seen = {epoch: runs for epoch, runs in memory.seen.get(stream, {}).items() if low <= epoch <= high}
        rules = rules_for(stream, self._settings.rules)
        return StreamContext(rules, seen, memory.metadata.get(stream, {}))

    # --- bronze and silver

    def _read_metadata(self, memory: Memory, files: TableFileWriter) -> list[MetadataMessage]:
        """Adds the new metadata of the recordings to bronze; returns its rows."""
        names = TABLES["metadata"].names
        wanted = np.array(self._settings.streams, np.int64)
        offsets = dict(memory.metadata_offsets)
        rows: list[MetadataMessage] = []
        for root, tables in self._recording_tables.items():
            tables.refresh()
            for batch in tables.new_batches("metadata", offsets):
                if not set(names) <= set(batch.schema.names):
                    continue
                chosen = batch.select(names).append_column("recording", pa.repeat(root, len(batch)))
                if len(wanted):
                    chosen = chosen.filter(pa.array(np.isin(chosen["stream_id"].to_numpy(), wanted)))
                files.add(schemas.bronze_metadata(), chosen)
                rows += messages_of(chosen)
        memory.metadata_offsets = offsets
        memory.metadata = merge_metadata(memory.metadata, rows)
        return rows

    def _bronze_figures(self, results: Sequence[FrameResult]) -> StageFigures:
        rows = sum(result.recorded_rows for result in results)
        size = sum(result.recorded_bytes for result in results)
        count = sum(len(result.files) for result in results)
        return StageFigures(rows=rows, bytes=size, totals=StageTotals(frames=rows, bytes=size, files=count))

    def _account(self, batch: _Batch, results: Sequence[FrameResult], files: TableFileWriter) -> pa.Table:
        """Remembers the accepted sequences, and adds sequences that no recording has to `silver/gaps`."""
        memory, max_runs = batch.memory, self._settings.silver.max_runs
        seen, accounted, last = dict(memory.seen), dict(memory.accounted), dict(memory.last_frames)
        edges: dict[int, list[Edge]] = {}
        reasons: Counter[str] = Counter()
        for result in results:
            for stream, found in result.findings.items():
                for known in (seen, accounted):
                    known[stream] = _with_runs(known.get(stream, {}), found.accepted, max_runs)
                edges.setdefault(stream, []).extend(found.edges)
                reasons.update(found.reasons)
        for stream, own in edges.items():
            last[stream] = max(last.get(stream, 0), *(edge.last_ns for edge in own))
        rows = _missing([gap for result in results for gap in result.gaps], accounted, edges, max_runs)
        memory.seen, memory.accounted, memory.last_frames = seen, accounted, last
        gaps = missing_table(rows)
        files.add(schemas.silver_gaps(), gaps)
        count = sum(len(result.frames) for result in results)
        size = sum(int(result.frames["payload_bytes"].to_numpy().sum()) for result in results)
        missing = sum(row.count for row in rows)
        batch.figures[layout.SILVER] = StageFigures(
            rows=count, bytes=size, totals=StageTotals(count, size, missing=missing, rejects=dict(reasons))
        )
        return gaps

    # --- alignments

    def _align(
        self, batch: _Batch, frames: pa.Table, files: TableFileWriter, number: int, *, closing: bool
    ) -> None:
        if not self._settings.alignments:
            return
        memory, counts, rows = batch.memory, {}, 0
        states = dict(memory.alignments)
        for alignment in self._settings.alignments:
            kind = f"align-{alignment.name}"
            state = states.get(alignment.name, AlignmentState())
            pending = self._carried(memory, kind, PENDING)
            result = align_frames(alignment, frames, pending, state, closing=closing)
            for table, found in (
                (schemas.aligned(alignment.name), result.aligned),
                (schemas.unaligned(alignment.name), result.unaligned),
            ):
                if found is not None:
                    files.add(table, found)
                    rows += len(found)
            states[alignment.name] = result.state
            counts[alignment.name] = result.counts
            carried_rows(self._pipeline_store, memory, kind, result.pending, number)
        memory.alignments = states
        batch.figures[layout.ALIGN] = StageFigures(rows=rows, totals=StageTotals(alignments=counts))

    # --- gold

    def _measure(
        self,
        batch: _Batch,
        frames: pa.Table,
        gaps: pa.Table,
        rejects: pa.Table,
        messages: list[MetadataMessage],
        files: TableFileWriter,
        number: int,
    ) -> None:
        quality, memory = self._settings.quality, batch.memory
        if not quality.enabled:
            return
        traced = frames.filter(frames["trace_id"].is_valid())
        parents = parents_of(row.message for row in messages if row.kind == LINKS)
        depths, memory.traces = trace_depths(traced_frames(traced), parents, memory.traces)
        parts = [frame_events(frames), gap_events(gaps), reject_events(rejects), trace_events(traced, depths)]
        events = pa.concat_tables([self._carried(memory, "quality", EVENTS), *parts])
        measured = measure(events, memory.positions, quality.interval_ns, quality.lateness_ns)
        memory.positions = measured.positions
        carried_rows(self._pipeline_store, memory, "quality", measured.events, number)
        if measured.closed is not None:
            files.add(schemas.quality(), measured.closed)
        if measured.still_open is not None:
            files.add(schemas.quality(is_open=True), measured.still_open)
        batch.replaces.append(layout.GOLD_QUALITY_OPEN)

    def _call_array_functions(
        self, batch: _Batch, results: Sequence[FrameResult], number: int, tasks: Tasks
    ) -> None:
        paths = [f.path for result in results for f in result.files if f.table == layout.SILVER_FRAMES]
        ends = dict(batch.memory.ends)
        for function in self._settings.functions:
            if function.output == "table" or not paths:
                continue
            key = f"{self._id}-{function.name.replace('_', '-')}"
            item = ArrayTask(self._store.url, paths, function, key, number, 0, self._place)
            call = self._callables.get(function.name)
            if function.output == "stream":
                # A stream has one producer: a single task publishes all arrays, in order.
                tasks.run(publish_work(call), [item])
                continue
            _create_derived(self._store.url, function)
            after = ends.get(function.name, {})
            items = [replace(item, paths=[path], part=part, after=after) for part, path in enumerate(paths)]
            found = tasks.run(recording_work(call), items)
            ends[function.name] = dict(after)
            for result in found:
                for stream, end in result.ends.items():
                    own = ends[function.name]
                    own[stream] = max(own.get(stream, end), end)
            names = [result.name for result in found if result.name is not None]
            batch.derived.append(DerivedRows(function.name, key, names))
        batch.memory.ends = ends

    def _gold_figures(self, batch: _Batch, results: Sequence[FrameResult]) -> None:
        counts: Counter[str] = Counter()
        for result in results:
            counts.update(result.function_rows)
        own = {function.name: counts.get(function.name, 0) for function in self._settings.functions}
        size = batch.figures[layout.SILVER].bytes
        rows = sum(file.rows for file in batch.files if file.table.startswith("gold/"))
        batch.figures[layout.GOLD] = StageFigures(rows=rows, bytes=size, totals=StageTotals(functions=own))

    # --- rows for the next micro-batch

    def _carried(self, memory: Memory, kind: str, schema: pa.Schema) -> pa.Table:
        name = memory.carried.get(kind)
        if name is None:
            return schema.empty_table()
        content = self._pipeline_store.get(name)
        if content is None:
            last = self.log.last()
            if (
                last is not None
                and memory.offsets != last.memory.offsets
                and name not in (last.memory.carried.values())
            ):
                raise self.log.overtaken(last.number)
            raise PipelineError(
                f"{self._pipeline_store.url}/{name} is gone: another program removes files below the root. "
                "Stop it, and use another root"
            )
        return pa.ipc.open_file(pa.BufferReader(content)).read_all().cast(schema)

    # --- small files

    def compact(self) -> dict[str, CompactionResult]:
        """Merges all small files of all tables, and removes files that nothing needs any more."""
        results = {}
        for name in self.tables:
            if name != layout.GOLD_QUALITY_OPEN:
                result = self._delta.compact(name, self._settings.target_file_bytes)
                if result.before:
                    results[name] = result
            self._delta.vacuum(name, self._settings.retain_ns, unreferenced=True)
        return results

    def _merge_after(self, number: int, batch: _Batch) -> None:
        when, target = self._settings.compact, self._settings.target_file_bytes
        if when == "never":
            return
        latest = max(batch.memory.last_frames.values(), default=None)
        today = None if latest is None else day_of(latest - _DAY_OVER_NS)
        if today is not None and today != self._merged_day:
            if self._merged_day is not None:
                self._merge(target, before=today)
            self._merged_day = today
        if when == "always" and number % _MERGE_PERIOD == _MERGE_PERIOD - 1:
            is_whole = number % _WHOLE_PERIOD == _WHOLE_PERIOD - 1
            self._merge(target if is_whole else max(target // 16, 1 << 20), since=today)

    def _merge(self, target: int, *, before: str | None = None, since: str | None = None) -> None:
        for name in self.tables:
            # Each pipeline replaces its own files of the open intervals.
            if name != layout.GOLD_QUALITY_OPEN:
                self._delta.compact(name, target, before=before, since=since)
            self._delta.vacuum(name, self._settings.retain_ns)


def carried_rows(store: TableStore, memory: Memory, kind: str, rows: pa.Table, number: int) -> None:
    """Stores rows for the next micro-batch, and names them in the memory of decision `number`."""
    if not len(rows):
        memory.carried.pop(kind, None)
        return
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    name = f"{layout.STATE}/{number:012}-{secrets.token_hex(6)}.arrow"
    store.put_new(name, sink.getvalue())
    memory.carried[kind] = name


def apply_decisions(root: str) -> dict[str | None, int]:
    """Applies the last decisions of all pipelines of a root where they are missing; returns their numbers."""
    numbers = {}
    for known in marker.read_all(root):
        settings = replace(known.settings, out=root)
        numbers[known.name] = Engine(settings, pipeline_id=known.pipeline_id).apply_last()
    return numbers


def tables_of(settings: PipelineSettings) -> dict[str, Table]:
    """The tables of a definition, by name."""
    payload = settings.payload
    tables = [
        schemas.bronze_frames(payload),
        schemas.bronze_gaps(),
        schemas.bronze_metadata(),
        schemas.silver_frames(payload),
        schemas.silver_rejects(payload),
        schemas.silver_gaps(),
    ]
    for alignment in settings.alignments:
        tables += [schemas.aligned(alignment.name), schemas.unaligned(alignment.name)]
    if settings.quality.enabled:
        tables += [schemas.quality(), schemas.quality(is_open=True)]
    if settings.statistics.enabled:
        tables.append(schemas.statistics())
    for function in settings.functions:
        if function.columns is not None:
            tables.append(schemas.function(function.name, parse_columns(function.columns)))
    return {table.name: table for table in tables}


def plan_tasks(
    ranges: Sequence[SourceRange], sizes: dict[tuple[str, int], int], target_bytes: int
) -> list[list[SourceRange]]:
    """Ranges in tasks of about `target_bytes`, in the order of streams and frames.

    Ranges of several recordings that may contain the same frame are in one task, which accepts it once.
    """
    from ..spark.plan import FrameRange

    tasks: list[list[SourceRange]] = []
    streams: dict[int, list[tuple[SourceRange, FrameRange]]] = {}
    counts: Counter[tuple[str, int]] = Counter()
    for part in ranges:
        if isinstance(part.frames, FrameRange):
            streams.setdefault(part.frames.stream_id, []).append((part, part.frames))
            counts[part.recording, part.frames.stream_id] += 1
        else:
            tasks.append([part])
    filled = target_bytes
    for stream, own in sorted(streams.items()):
        for group in _overlapping(own):
            size = 0
            for part in group:
                size += sizes.get((part.recording, stream), 0) // counts[part.recording, stream]
            if filled + size > target_bytes or not filled:
                tasks.append([])
                filled = 0
            tasks[-1] += group
            filled += max(size, 1)
    return tasks


def _bounds(entry: tuple[SourceRange, FrameRange]) -> tuple[Position, Position]:
    _, frames = entry
    return frames.start, frames.end


def _overlapping(ranges: Sequence[tuple[SourceRange, FrameRange]]) -> Iterable[list[SourceRange]]:
    """Groups of ranges of one stream. Ranges of one recording never contain the same frame."""
    if len({part.recording for part, _ in ranges}) == 1:
        for part, _ in ranges:
            yield [part]
        return
    group: list[SourceRange] = []
    end: Position | None = None
    for part, frames in sorted(ranges, key=_bounds):
        if end is not None and frames.start >= end:
            yield group
            group, end = [], None
        end = frames.end if end is None else max(end, frames.end)
        group.append(part)
    if group:
        yield group


def _with_runs(before: EpochRuns, more: dict[int, list[Run]], max_runs: int) -> EpochRuns:
    epochs = dict(before)
    for epoch, runs in more.items():
        merged = SequenceRuns.load(epochs.get(epoch, StoredRuns()), max_runs=max_runs)
        merged.add(runs)
        epochs[epoch] = merged.store()
    return {epoch: epochs[epoch] for epoch in sorted(epochs)[-_MAX_EPOCHS:]}


def _missing(
    gaps: Sequence[GapRow], accounted: dict[int, EpochRuns], edges: dict[int, list[Edge]], max_runs: int
) -> list[MissingRun]:
    """Gaps that no recording fills and that no earlier batch has reported. Adds them to `accounted`."""
    rows: list[MissingRun] = []
    latest = max((edge.last_ns for own in edges.values() for edge in own), default=time.time_ns())
    known: dict[tuple[int, int], SequenceRuns] = {}
    times: dict[tuple[int, int], GapTimes] = {}
    reported: dict[int, dict[int, list[Run]]] = {}
    for gap in gaps:
        stream, epoch = key = gap.stream_id, gap.epoch
        if key not in known:
            stored = accounted.get(stream, {}).get(epoch, StoredRuns())
            known[key] = SequenceRuns(stored.runs, max_runs=1 << 30)
            times[key] = GapTimes(edge for edge in edges.get(stream, ()) if edge.epoch == epoch)
        for first, last in known[key].missing(gap.first_seq, gap.count):
            at = times[key].between(first, last)
            count = last - first + 1
            rows.append(MissingRun(stream, epoch, first, count, gap.reason, latest if at is None else at))
            reported.setdefault(stream, {}).setdefault(epoch, []).append((first, last))
            known[key].add([(first, last)])
    for stream, own in reported.items():
        accounted[stream] = _with_runs(accounted.get(stream, {}), own, max_runs)
    return rows


def _create_derived(root: str, function: FunctionSettings) -> None:
    from ..clock import SYSTEM_CLOCK
    from ..recording.layout import create_root

    assert not is_object_store(root), "a definition with recorded arrays has a local root"
    directory = Path(root) / layout.DERIVED / function.name
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    create_root(directory, created_ns=SYSTEM_CLOCK.wall_ns())
