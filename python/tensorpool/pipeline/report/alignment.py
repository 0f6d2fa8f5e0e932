"""Figures of the alignments, from `silver/aligned` and `silver/unaligned`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..marker import DefinedAlignment
from .figures import AlignmentFigures, Report
from .tables import TableFile
from .timeline import BucketSeries
from .values import Histogram, whole

_ABOVE, _BESIDE = "silver/aligned/", "silver/unaligned/"


def read(report: Report, files: dict[str, list[TableFile]], defined: dict[str, DefinedAlignment]) -> None:
    """Adds each alignment of the tables or of the definition to the report."""
    there = {name.rpartition("/")[2] for name in files if name.startswith((_ABOVE, _BESIDE))}
    for name in sorted({*defined, *there}):
        figures = AlignmentFigures(name, None, [])
        if name in defined:
            figures.by, figures.streams = defined[name].by, list(defined[name].streams)
        series = None if report.span is None else BucketSeries(report.span)
        spread = Histogram()
        for file in files.get(_ABOVE + name, []):
            for rows in file.batches(["time", "spread"]):
                figures.rows += len(rows)
                spread.add(whole(rows.column("spread")))
                _place(series, "aligned", rows)
        for file in files.get(_BESIDE + name, []):
            for rows in file.batches(["time", "reason"]):
                for row in pc.value_counts(rows.column("reason")).to_pylist():
                    reason = str(row["values"])
                    figures.unaligned[reason] = figures.unaligned.get(reason, 0) + row["counts"]
                _place(series, "unaligned", rows)
        figures.spread = {
            "p50": spread.percentile(0.5),
            "p99": spread.percentile(0.99),
            "max": spread.largest if spread.count else None,
        }
        report.alignments.append(figures)
        if series is not None:
            report.aligned_series[name] = series


def _place(series: BucketSeries | None, name: str, rows: pa.RecordBatch) -> None:
    if series is None or not len(rows):
        return
    known = rows.filter(pc.is_valid(rows.column("time")))
    times_ns = whole(pc.cast(known.column("time"), pa.timestamp("us", tz="UTC"))) * 1_000
    series.add(name, series.span.place(times_ns), np.ones(len(known)))
