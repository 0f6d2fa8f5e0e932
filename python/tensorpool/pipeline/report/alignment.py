"""`silver/aligned` and `silver/unaligned` as figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .figures import AlignmentFigures, Report
from .histogram import Histogram
from .tables import TableFile
from .timeline import BucketSeries
from .values import whole

_ABOVE, _BESIDE = "silver/aligned/", "silver/unaligned/"


def read(report: Report, files: dict[str, list[TableFile]]) -> None:
    """Adds each alignment that the tables or the definition know."""
    asked = {str(one.get("name")): one for one in _asked(report.definition)}
    there = {name.rpartition("/")[2] for name in files if name.startswith((_ABOVE, _BESIDE))}
    for name in sorted({*asked, *there}):
        terms = asked.get(name, {})
        found = AlignmentFigures(name, terms.get("by"), [int(one) for one in terms.get("streams", [])])
        series = None if report.span is None else BucketSeries(report.span)
        spread = Histogram()
        for file in files.get(_ABOVE + name, []):
            for rows in file.batches(["time", "spread"]):
                found.rows += len(rows)
                spread.add(whole(rows.column("spread")))
                _place(series, "aligned", rows)
        for file in files.get(_BESIDE + name, []):
            for rows in file.batches(["time", "reason"]):
                for row in pc.value_counts(rows.column("reason")).to_pylist():
                    reason = str(row["values"])
                    found.unaligned[reason] = found.unaligned.get(reason, 0) + row["counts"]
                _place(series, "unaligned", rows)
        found.spread = {
            "p50": spread.percentile(0.5),
            "p99": spread.percentile(0.99),
            "max": spread.largest if spread.count else None,
        }
        report.alignments.append(found)
        if series is not None:
            report.aligned_series[name] = series


def _asked(definition: dict[str, Any]) -> list[dict[str, Any]]:
    found = definition.get("alignments", [])
    return [one for one in found if isinstance(one, dict)]


def _place(series: BucketSeries | None, name: str, rows: pa.RecordBatch) -> None:
    if series is None or not len(rows):
        return
    known = rows.filter(pc.is_valid(rows.column("time")))
    times_ns = whole(pc.cast(known.column("time"), pa.timestamp("us", tz="UTC"))) * 1_000
    series.add(name, series.span.place(times_ns), np.ones(len(known)))
