"""Silver, the part beside Spark's driver: which files go to which task, which sequences were seen, and the
gaps."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from . import layout, schemas
from .commit import Commit
from .definition import PipelineSettings
from .latency import AnchorReader
from .metadata import merge_metadata
from .sequence_runs import Run, SequenceRuns
from .silver_task import validate_files
from .table_files import StagedFile, TableFileWriter, dates, moments, read_file
from .tasks import Item, Tasks
from .validation import rules_for

_FOREVER = 1 << 63
_MAX_EPOCHS = 64
"""Of a stream whose runs are remembered: epochs only grow, so older ones do not come back."""


def step(
    settings: PipelineSettings,
    root: Path,
    bronze: Commit,
    state: dict[str, Any],
    anchors: dict[str, AnchorReader],
    tasks: Tasks,
    staging: str,
) -> tuple[list[StagedFile], dict[str, Any], dict[str, Any]]:
    """One micro-batch: the files it brings, what is remembered, and what was counted."""
    for one in anchors.values():
        one.refresh()
    notes = merge_metadata(state.get("notes", {}), rows_of(root, bronze.of(layout.BRONZE_METADATA)))
    seen: dict[str, dict[str, Any]] = {**state.get("seen", {})}
    accounted: dict[str, dict[str, Any]] = {**state.get("accounted", {})}
    items: list[Item] = [
        {
            "stream_id": stream,
            "files": [str(root / one["path"]) for one in group],
            "staging": staging,
            "target_bytes": settings.target_file_bytes,
            "payload": settings.payload,
            "verify": settings.silver.verify,
            "max_runs": settings.silver.max_runs,
            "rules": [rule.to_json() for rule in rules_for(stream, settings.rules)],
            "seen": _touched(seen.get(str(stream), {}), group),
            "notes": notes.get(str(stream), {}),
            "anchors": _anchors(anchors, group),
        }
        for stream, group in groups(bronze.of(layout.BRONZE_FRAMES))
    ]
    written: list[StagedFile] = []
    counts: Counter[str] = Counter()
    rows = payload_bytes = 0
    edges: dict[int, list[list[int]]] = {}
    for item, result in zip(items, tasks.run(validate_files, items), strict=True):
        written += [StagedFile.from_json(one) for one in result["files"]]
        stream = item["stream_id"]
        for known in (seen, accounted):
            known[str(stream)] = _remembered(
                known.get(str(stream), {}), result["accepted"], settings.silver.max_runs
            )
        edges.setdefault(stream, []).extend(result["edges"])
        counts.update(result["reasons"])
        rows += result["rows"]
        payload_bytes += result["bytes"]
    gaps, accounted, missing = _gaps(settings, root, bronze, accounted, edges, staging)
    last = {**state.get("last", {})}
    for stream, runs in edges.items():
        last[str(stream)] = max(last.get(str(stream), 0), *(one[4] for one in runs))
    found = {"seen": seen, "accounted": accounted, "notes": notes, "last": last}
    counted = {"rows": rows, "bytes": payload_bytes, "missing": missing, "rejects": dict(counts)}
    return [*written, *gaps], found, counted


def groups(files: Sequence[dict[str, Any]]) -> Iterable[tuple[int, list[dict[str, Any]]]]:
    """Files that may hold the same frame belong to one task; the others each to their own."""
    by_stream: dict[int, list[dict[str, Any]]] = {}
    for one in files:
        by_stream.setdefault(int(one["partition"]["stream_id"]), []).append(one)
    for stream, own in sorted(by_stream.items()):
        group: list[dict[str, Any]] = []
        end: tuple[float, float] = (-np.inf, -np.inf)
        for one in sorted(own, key=lambda of: (_span(of), of["path"])):
            low, high = _span(one)
            if group and low > end:
                yield stream, group
                group = []
            group.append(one)
            end = max(end, high)
        if group:
            yield stream, group


def _span(file: dict[str, Any]) -> tuple[tuple[float, float], tuple[float, float]]:
    (first, last), (low, high) = file["epoch"], file["seq"]
    # The bounds of sequences are those of the whole file: of several epochs they say nothing of each.
    return ((first, low), (last, high)) if first == last else ((first, -np.inf), (last, np.inf))


def _touched(seen: dict[str, Any], group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of what is remembered, the part that these files can meet."""
    found = {}
    for epoch, one in seen.items():
        of = [f["seq"] for f in group if f["epoch"][0] <= int(epoch) <= f["epoch"][1]]
        if of:
            low, high = min(bounds[0] for bounds in of), max(bounds[1] for bounds in of)
            runs = [run for run in one["runs"] if run[0] <= high and run[1] >= low]
            found[epoch] = {"runs": runs, "closed": one["closed"]}
    return found


def _remembered(before: dict[str, Any], more: dict[str, list[Run]], most: int) -> dict[str, Any]:
    found = dict(before)
    for epoch, runs in more.items():
        one = found.get(epoch, {"runs": [], "closed": None})
        made = SequenceRuns(one["runs"], closed=one["closed"], most=most)
        made.add((int(first), int(last)) for first, last in runs)
        found[epoch] = made.to_json()
    kept = sorted(found, key=int)[-_MAX_EPOCHS:]
    return {epoch: found[epoch] for epoch in kept}


def _anchors(anchors: dict[str, AnchorReader], group: Sequence[dict[str, Any]]) -> dict[str, list[list[int]]]:
    first = min(one["receive_time_ns"][0] for one in group)
    last = max(one["receive_time_ns"][1] for one in group)
    return {name: one.between(first, last) for name, one in anchors.items()}


def _gaps(
    settings: PipelineSettings,
    root: Path,
    bronze: Commit,
    accounted: dict[str, Any],
    edges: dict[int, list[list[int]]],
    staging: str,
) -> tuple[list[StagedFile], dict[str, Any], int]:
    """What nobody has: gaps of the recordings without what another recording had, or reported of before."""
    accounted, most = {**accounted}, settings.silver.max_runs
    names = ("stream_id", "epoch", "first_seq", "count", "reason", "receive_time_ns")
    rows: list[tuple[Any, ...]] = []
    latest = max((one[4] for runs in edges.values() for one in runs), default=bronze.at_ns)
    for file in bronze.of(layout.BRONZE_GAPS):
        stream = int(file["partition"]["stream_id"])
        own = accounted.get(str(stream), {})
        known: dict[int, SequenceRuns] = {}
        dated: dict[int, GapTimes] = {}
        reported: dict[str, list[Run]] = {}
        for row in read_file(root / file["path"]).to_pylist():
            epoch = row["epoch"]
            if epoch not in known:
                known[epoch] = SequenceRuns(own.get(str(epoch), {"runs": []})["runs"], most=1 << 30)
                dated[epoch] = GapTimes([one for one in edges.get(stream, ()) if one[0] == epoch])
            for first, last in known[epoch].missing(row["seq"], row["gap_count"]):
                at = dated[epoch].of(first, last)
                at = latest if at is None else at
                rows.append((stream, epoch, first, last - first + 1, row["gap_reason"], at))
                reported.setdefault(str(epoch), []).append((first, last))
                known[epoch].add([(first, last)])
        accounted[str(stream)] = _remembered(own, reported, most)
    files = TableFileWriter(staging, settings.target_file_bytes)
    if rows:
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        times = np.array(columns["receive_time_ns"], np.int64)
        made = {name: pa.array(values) for name, values in columns.items()}
        files.add(schemas.silver_gaps(), pa.table({**made, "time": moments(times), "date": dates(times)}))
    return files.close(), accounted, sum(row[3] for row in rows)


class GapTimes:
    """Dates gaps by the frames around them. `edges`: epoch, first and last sequence of a run, and their
    times."""

    def __init__(self, edges: Sequence[Sequence[int]]) -> None:
        self._firsts = sorted((edge[1], edge[3]) for edge in edges)
        self._lasts = sorted((edge[2], edge[4]) for edge in edges)

    def of(self, first: int, last: int) -> int | None:
        """When the frame behind the gap came, else the one before."""
        at = bisect.bisect_right(self._firsts, (last, _FOREVER))
        if at < len(self._firsts):
            return self._firsts[at][1]
        at = bisect.bisect_left(self._lasts, (first, -_FOREVER))
        return self._lasts[at - 1][1] if at else None


def rows_of(root: Path, files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of small files."""
    return [row for one in files for row in read_file(root / one["path"]).to_pylist()]
