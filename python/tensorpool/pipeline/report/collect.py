"""The figures of a pipeline's tables. Memory is bounded by streams and buckets, not by rows."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ... import __version__
from ...recording.table_store import is_object_store, open_store
from .. import layout, marker
from . import alignment, ledgers, quality
from .figures import Counts, Report, StreamFigures, TableFigures
from .samples import samples_of
from .tables import TableFile, by_stream, files_of

# A running pipeline may replace files while they are read: then all files are read again.
_TRIES: Final = 3


def collect(root: str | os.PathLike[str], *, samples: int = 4) -> Report:
    """The figures of the pipeline at `root`, with `samples` previews of each stream. Raises PipelineError."""
    for left in reversed(range(_TRIES)):
        try:
            return _collect(root, samples)
        except (FileNotFoundError, pa.ArrowInvalid):
            if not left:
                raise
    raise AssertionError("the last attempt returns or raises")


def _collect(root: str | os.PathLike[str], samples: int) -> Report:
    pipelines = marker.read_all(root)
    store = open_store(root)
    report = Report(
        root=store.url if is_object_store(store.url) else os.path.abspath(store.url),
        made_ns=time.time_ns(),
        made_by=f"tensorpool {__version__}",
        pipeline_id=", ".join(known.pipeline_id for known in pipelines),
        versions=pipelines[0].versions,
        definition=pipelines[0].definition
        if len(pipelines) == 1
        else {known.name or "": known.definition for known in pipelines},
    )
    names = marker.tables(pipelines)
    files = {name: found for name in names if (found := files_of(store, name)) is not None}
    report.tables = [_table(name, table_files) for name, table_files in files.items()]
    streams = _Streams()
    _count_frames(streams, files)
    for stream_id, rows in _streams_of(files, layout.SILVER_REJECTS, ["reason"]):
        _count(streams.at(stream_id).rejected, rows.column("reason"))
    for stream_id, rows in _streams_of(files, layout.SILVER_GAPS, ["reason", "count"]):
        _count(streams.at(stream_id).dropped, rows.column("reason"), rows.column("count"))
    _name(streams, files)
    intervals = [*files.get(layout.GOLD_QUALITY, []), *files.get(layout.GOLD_QUALITY_OPEN, [])]
    quality.read(report, streams.known, intervals)
    quality.read_tensors(report, files.get(layout.GOLD_STATISTICS, []))
    report.streams = [streams.known[stream_id] for stream_id in sorted(streams.known)]
    alignments = {name: own for known in pipelines for name, own in known.alignments.items()}
    alignment.read(report, files, alignments)
    if samples > 0:
        report.samples = samples_of(files.get(layout.SILVER_FRAMES, []), samples)
    report.faults = faults(report, has_gold=layout.GOLD_QUALITY in files)
    here = [(filter(known.is_here, known.recordings), known.streams) for known in pipelines]
    elsewhere = [
        f"{each} is on host {known.host}, and this is another one"
        for known in pipelines for each in known.recordings if not known.is_here(each)
    ]  # fmt: skip
    lacking, unread = ledgers.compare(report, here)
    report.unread_recordings = [*unread, *elsewhere]
    # The tables have rows of all hosts, so they are compared with all recordings or with none.
    report.faults += [] if elsewhere else lacking
    return report


class _Streams:
    """The streams of the files, by id."""

    def __init__(self) -> None:
        self.known: dict[int, StreamFigures] = {}

    def at(self, stream_id: int) -> StreamFigures:
        return self.known.setdefault(stream_id, StreamFigures(stream_id))


def _table(name: str, files: list[TableFile]) -> TableFigures:
    return TableFigures(name, sum(file.rows for file in files), len(files), sum(file.bytes for file in files))


def _batches(files: dict[str, list[TableFile]], table: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for file in files.get(table, []):
        yield from file.batches(columns)


def _streams_of(
    files: dict[str, list[TableFile]], table: str, columns: list[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in _batches(files, table, ["stream_id", *columns]):
        yield from by_stream(batch)


def _count(into: Counts, reasons: pa.Array, weights: pa.Array | None = None) -> None:
    grouped = pa.table(
        {"reason": reasons, "count": weights if weights is not None else pa.repeat(1, len(reasons))}
    )
    for row in grouped.group_by("reason", use_threads=False).aggregate([("count", "sum")]).to_pylist():
        reason = str(row["reason"])
        into[reason] = into.get(reason, 0) + int(row["count_sum"] or 0)


def _count_frames(streams: _Streams, files: dict[str, list[TableFile]]) -> None:
    for stream_id, batch in _streams_of(files, layout.BRONZE_FRAMES, []):
        streams.at(stream_id).recorded += len(batch)
    for stream_id, batch in _streams_of(files, layout.SILVER_FRAMES, ["receive_time_ns", "payload_bytes"]):
        stream = streams.at(stream_id)
        stream.frames += len(batch)
        stream.bytes += pc.sum(batch.column("payload_bytes")).as_py() or 0
        ends = pc.min_max(batch.column("receive_time_ns")).as_py()
        if ends["min"] is not None:
            stream.first_ns = min(
                ends["min"], stream.first_ns if stream.first_ns is not None else ends["min"]
            )
            stream.last_ns = max(ends["max"], stream.last_ns if stream.last_ns is not None else ends["max"])


def _name(streams: _Streams, files: dict[str, list[TableFile]]) -> None:
    """The names of the streams, from the latest announce of each."""
    for batch in _batches(files, layout.BRONZE_METADATA, ["stream_id", "kind", "json"]):
        announces = batch.filter(pc.fill_null(pc.equal(batch.column("kind"), "DataSourceAnnounce"), False))
        for row in announces.to_pylist():
            try:
                name = json.loads(row["json"] or "{}").get("name")
            except (ValueError, AttributeError):
                continue
            if name and row["stream_id"] in streams.known:
                streams.known[row["stream_id"]].name = str(name)


def faults(report: Report, *, has_gold: bool) -> list[str]:
    """Differences between the tables. While a pipeline runs, one table may be ahead of another."""
    differences = []
    for stream in report.streams:
        checked = stream.frames + sum(stream.rejected.values())
        if stream.recorded != checked:
            differences.append(
                f"stream {stream.stream_id}: bronze has {stream.recorded:,} frames, "
                f"silver checked {checked:,}"
            )
        if has_gold and stream.counted != stream.frames:
            differences.append(
                f"stream {stream.stream_id}: silver has {stream.frames:,} frames, gold counts "
                f"{stream.counted:,}"
            )
    return differences
