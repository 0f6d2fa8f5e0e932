"""From a pipeline's tables to figures. Memory is bounded by streams and buckets, not by rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ... import __version__
from .. import layout, marker
from ..layout import Layout
from . import alignment, ledgers, quality
from .figures import Counts, Report, StreamFigures, TableFigures
from .samples import samples_of
from .tables import TableFile, files_of

# A pipeline that runs replaces files: then the look is taken again.
_TRIES: Final = 3


def collect(root: Path, *, samples: int = 4) -> Report:
    """The figures of the pipeline at `root`; `samples` pictures of each stream."""
    for left in reversed(range(_TRIES)):
        try:
            return _collect(root, samples)
        except (FileNotFoundError, pa.ArrowInvalid):
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _collect(root: Path, samples: int) -> Report:
    known = marker.read(root)
    places = Layout(root)
    report = Report(
        root=str(root.absolute()),
        made_ns=time.time_ns(),
        made_by=f"tensorpool {__version__}",
        pipeline_id=known.pipeline_id,
        versions=known.versions,
        definition=known.definition,
    )
    files = {name: files_of(places.table(name)) for name in places.tables()}
    report.tables = [_table(name, found) for name, found in files.items()]
    streams = _Streams()
    _count_frames(streams, files)
    for file, batch in _batches(files, layout.SILVER_REJECTS, ["reason"]):
        _count(streams.of(file).rejected, batch.column("reason"))
    for file, batch in _batches(files, layout.SILVER_GAPS, ["reason", "count"]):
        _count(streams.of(file).dropped, batch.column("reason"), batch.column("count"))
    _name(streams, files)
    quality.read(report, streams.known, files.get(layout.GOLD_QUALITY, []))
    quality.read_tensors(report, files.get(layout.GOLD_STATISTICS, []))
    report.streams = [streams.known[stream_id] for stream_id in sorted(streams.known)]
    alignment.read(report, files)
    if samples > 0:
        report.samples = samples_of(files.get(layout.SILVER_FRAMES, []), samples)
    report.faults = faults(report, has_gold=layout.GOLD_QUALITY in files)
    lacking, report.unread_recordings = ledgers.compare(report)
    report.faults += lacking
    return report


class _Streams:
    """Streams by id, as files tell of them."""

    def __init__(self) -> None:
        self.known: dict[int, StreamFigures] = {}

    def of(self, file: TableFile) -> StreamFigures:
        stream_id = file.stream_id
        assert stream_id is not None, f"{file.path} is of no stream"
        return self.at(stream_id)

    def at(self, stream_id: int) -> StreamFigures:
        return self.known.setdefault(stream_id, StreamFigures(stream_id))


def _table(name: str, files: list[TableFile]) -> TableFigures:
    rows = 0
    for file in files:
        with file.open() as opened:
            rows += opened.metadata.num_rows
    return TableFigures(name, rows, len(files), sum(file.path.stat().st_size for file in files))


def _batches(
    files: dict[str, list[TableFile]], table: str, columns: list[str]
) -> Iterator[tuple[TableFile, pa.RecordBatch]]:
    for file in files.get(table, []):
        for batch in file.batches(columns):
            yield file, batch


def _count(into: Counts, reasons: pa.Array, weights: pa.Array | None = None) -> None:
    grouped = pa.table(
        {"reason": reasons, "count": weights if weights is not None else pa.repeat(1, len(reasons))}
    )
    for row in grouped.group_by("reason", use_threads=False).aggregate([("count", "sum")]).to_pylist():
        reason = str(row["reason"])
        into[reason] = into.get(reason, 0) + int(row["count_sum"] or 0)


def _count_frames(streams: _Streams, files: dict[str, list[TableFile]]) -> None:
    for file in files.get(layout.BRONZE_FRAMES, []):
        with file.open() as opened:
            streams.of(file).recorded += opened.metadata.num_rows
    for file, batch in _batches(files, layout.SILVER_FRAMES, ["receive_time_ns", "payload_bytes"]):
        stream = streams.of(file)
        stream.frames += len(batch)
        stream.bytes += pc.sum(batch.column("payload_bytes")).as_py() or 0
        ends = pc.min_max(batch.column("receive_time_ns")).as_py()
        if ends["min"] is not None:
            stream.first_ns = min(
                ends["min"], stream.first_ns if stream.first_ns is not None else ends["min"]
            )
            stream.last_ns = max(ends["max"], stream.last_ns if stream.last_ns is not None else ends["max"])


def _name(streams: _Streams, files: dict[str, list[TableFile]]) -> None:
    """What producers call their streams; the last word counts."""
    for _, batch in _batches(files, layout.BRONZE_METADATA, ["stream_id", "kind", "json"]):
        announces = batch.filter(pc.fill_null(pc.equal(batch.column("kind"), "DataSourceAnnounce"), False))
        for row in announces.to_pylist():
            try:
                name = json.loads(row["json"] or "{}").get("name")
            except (ValueError, AttributeError):
                continue
            if name and row["stream_id"] in streams.known:
                streams.known[row["stream_id"]].name = str(name)


def faults(report: Report, *, has_gold: bool) -> list[str]:
    """What does not add up between the tables. A pipeline that runs may be between two of them."""
    found = []
    for stream in report.streams:
        checked = stream.frames + sum(stream.rejected.values())
        if stream.recorded != checked:
            found.append(
                f"stream {stream.stream_id}: bronze has {stream.recorded:,} frames, "
                f"silver checked {checked:,}"
            )
        if has_gold and stream.counted != stream.frames:
            found.append(
                f"stream {stream.stream_id}: silver has {stream.frames:,} frames, gold counts "
                f"{stream.counted:,}"
            )
    return found
