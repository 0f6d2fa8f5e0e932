"""Gold, the part beside Spark's driver: which files go to which task, and what is carried from one to the
next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from . import layout
from .commit import Commit
from .definition import PipelineSettings
from .lineage import trace_depths
from .metadata import parents_of
from .quality import EVENTS, TRACE
from .quality_task import TRACES, measure_files
from .silver import rows_of
from .table_files import StagedFile, TableFileWriter, read_file
from .tasks import Tasks

_GROUPS: Final = 8
"""Streams are measured in so many tasks. A stream's group never changes: its carried events lie there."""


def quality_step(
    settings: PipelineSettings,
    root: Path,
    silver: Commit,
    links: Sequence[dict[str, Any]],
    state: dict[str, Any],
    tasks: Tasks,
    staging: str,
) -> tuple[list[StagedFile], list[StagedFile], list[StagedFile], dict[str, Any]]:
    """Rows of closed intervals, rows of open ones, events to carry, and what is remembered."""
    traces, known = _traces(root, silver, links, state.get("traces", {}), staging)
    carried = state.get("carried", {})
    items = []
    for group in range(_GROUPS):
        own = {
            name: [
                [int(one["partition"]["stream_id"]), str(root / one["path"])]
                for one in silver.of(table)
                if int(one["partition"]["stream_id"]) % _GROUPS == group
            ]
            for name, table in (
                ("frames", layout.SILVER_FRAMES),
                ("gaps", layout.SILVER_GAPS),
                ("rejects", layout.SILVER_REJECTS),
            )
        }
        carry = [str(root / name) for name in carried.get(f"quality-{group}", [])]
        if carry or any(own.values()):
            items.append(
                {
                    **own,
                    "group": group,
                    "groups": _GROUPS,
                    "carry": carry,
                    "traces": traces,
                    "places": state.get("places", {}),
                    "interval_ns": settings.quality.interval_ns,
                    "lateness_ns": settings.quality.lateness_ns,
                    "staging": staging,
                    "target_bytes": settings.target_file_bytes,
                }
            )
    closed: list[StagedFile] = []
    still_open: list[StagedFile] = []
    kept: list[StagedFile] = []
    places = dict(state.get("places", {}))
    for item, result in zip(items, tasks.run(measure_files, items), strict=True):
        closed += [StagedFile.from_json(one) for one in result["closed"]]
        still_open += [StagedFile.from_json(one) for one in result["open"]]
        for one in result["carried"]:
            made = StagedFile.from_json(one)
            made.table = f"quality-{item['group']}"
            kept.append(made)
        places |= result["places"]
    return closed, still_open, kept, {"places": places, "traces": known}


def _traces(
    root: Path, silver: Commit, links: Sequence[dict[str, Any]], known: dict[str, Any], staging: str
) -> tuple[str | None, dict[str, Any]]:
    """The depth of every traced frame, in a file for the tasks. Traces cross streams, so one place looks at
    all."""
    names = ["epoch", "seq", "receive_time_ns", "timestamp_ns", "trace_id"]
    parts = []
    for one in silver.of(layout.SILVER_FRAMES):
        part = read_file(root / one["path"], names)
        part = part.filter(part["trace_id"].is_valid())
        if len(part):
            stream = np.full(len(part), int(one["partition"]["stream_id"]), np.int64)
            parts.append(part.append_column("stream_id", pa.array(stream)))
    if not parts:
        return None, known
    rows = pa.concat_tables(parts)
    columns = [rows[name].to_pylist() for name in ("trace_id", "stream_id", "timestamp_ns")]
    parents = parents_of(rows_of(root, links))
    found, known = trace_depths(zip(*columns, strict=True), parents, known)
    events = pa.table(
        {
            "stream_id": rows["stream_id"],
            "kind": pa.array(np.full(len(rows), TRACE, np.int8)),
            "at_ns": rows["receive_time_ns"],
            "epoch": rows["epoch"],
            "seq": rows["seq"],
            "amount": pa.array(found, pa.int64()),
            "latency_ns": pa.nulls(len(rows), pa.int64()),
            "reason": pa.nulls(len(rows), pa.string()),
        }
    ).cast(EVENTS)
    files = TableFileWriter(staging, 1 << 40)
    files.add(TRACES, events)
    return files.close()[0].staged, known
