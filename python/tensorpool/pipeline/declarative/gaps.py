"""Gaps of recordings without what another one has, and with a time. Runs in executors."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from ..sequence_runs import SequenceRuns, runs_of
from ..silver import GapTimes
from ..table_files import dates, moments

GAPS: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("stream_id", "epoch", "seq", "receive_time_ns")),
        ("is_sound", pa.bool_()),
        ("gap_count", pa.int64()),
        ("gap_reason", pa.string()),
        ("recording", pa.string()),
        ("latest_ns", pa.int64()),
    ]
)
"""Gaps and frames in one table: a frame has no `gap_count`."""


def explained(gaps: pa.Table, frames: pa.Table, schema: pa.Schema) -> pa.Table:
    """The gaps of one epoch of a stream. `frames` are its frames; those with `is_sound` are in silver."""
    if not len(gaps):
        return schema.empty_table()
    seqs, received = frames["seq"].to_numpy(), frames["receive_time_ns"].to_numpy()
    sound = frames["is_sound"].to_numpy(zero_copy_only=False)
    known = SequenceRuns(runs_of(seqs[sound]), most=1 << 30)
    stream, epoch = (gaps[name][0].as_py() for name in ("stream_id", "epoch"))
    times = GapTimes(_edges(epoch, seqs[~sound], received[~sound]))
    rows: list[dict[str, Any]] = []
    for gap in sorted(gaps.to_pylist(), key=lambda one: (one["seq"], one["recording"])):
        for first, last in known.missing(gap["seq"], gap["gap_count"]):
            at = times.of(first, last)
            rows.append(
                {
                    "stream_id": stream, "epoch": epoch, "first_seq": first, "count": last - first + 1,
                    "reason": gap["gap_reason"], "receive_time_ns": gap["latest_ns"] if at is None else at,
                }
            )  # fmt: skip
            known.add([(first, last)])
    if not rows:
        return schema.empty_table()
    at_ns = np.array([row["receive_time_ns"] for row in rows], np.int64)
    columns = {"time": moments(at_ns), "date": dates(at_ns)}
    arrays = [
        columns[field.name].cast(field.type)
        if field.name in columns
        else pa.array([row[field.name] for row in rows], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _edges(epoch: int, seqs: Any, received: Any) -> list[list[int]]:
    """Where runs begin and end, and when those frames came."""
    if not len(seqs):
        return []
    order = np.argsort(seqs, kind="stable")
    ordered, times = seqs[order], received[order]
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    lows = np.concatenate(([0], breaks + 1)).tolist()
    highs = np.concatenate((breaks, [len(ordered) - 1])).tolist()
    return [
        [epoch, int(ordered[low]), int(ordered[high]), int(times[low]), int(times[high])]
        for low, high in zip(lows, highs, strict=True)
    ]
