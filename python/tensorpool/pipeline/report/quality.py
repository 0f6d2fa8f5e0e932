"""Figures and series of `gold/quality` and `gold/statistics`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .figures import Report, StreamFigures
from .tables import TableFile, by_stream
from .timeline import BucketSeries, Floats, TimeRange
from .values import Histogram, numbers, whole

_TIME: Final = ["stream_id", "interval_start_ns", "interval_ns"]
_SUMS: Final = ("frames", "bytes", "dropped", "rejected")
_TYPICAL: Final = ("latency_ns_p50", "jitter_ns_p50")
_PEAKS: Final = ("latency_ns_p99", "latency_ns_max", "jitter_ns_p99", "jitter_ns_max")
_DEPTH: Final = "lineage_depth_max"
_COLUMNS: Final = [*_TIME, *_SUMS, *_TYPICAL, *_PEAKS, "epochs", "traced", _DEPTH]


def read(report: Report, streams: dict[int, StreamFigures], files: list[TableFile]) -> None:
    """Adds the figures of `gold/quality` to the streams, and the series for charts to the report."""
    span = _span(files)
    if span is None:
        return
    report.span = span
    typical: dict[tuple[int, str], Histogram] = {}
    for rows in _rows(files, _COLUMNS):
        ids = whole(rows.column("stream_id"))
        for stream_id in np.unique(ids).tolist():
            stream = streams.setdefault(stream_id, StreamFigures(stream_id))
            series = report.series.setdefault(stream_id, BucketSeries(span))
            part = rows.filter(pa.array(ids == stream_id))
            _add(stream, series, part)
            for name in _TYPICAL:
                known = part.filter(pc.is_valid(part.column(name)))
                # The median of an interval is weighted by the frames of the interval.
                typical.setdefault((stream_id, name), Histogram()).add(
                    whole(known.column(name)), whole(known.column("frames"))
                )
    for stream_id, series in report.series.items():
        stream = streams[stream_id]
        for what, into in (("latency", stream.latency_ns), ("jitter", stream.jitter_ns)):
            into["p50"] = typical[stream_id, f"{what}_ns_p50"].percentile(0.5)
            for name in ("p99", "max"):
                peak = series.peak(f"{what}_ns_{name}")
                into[name] = int(np.nanmax(peak)) if np.isfinite(peak).any() else None


def _rows(files: list[TableFile], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for file in files:
        yield from file.batches(columns)


def _span(files: list[TableFile]) -> TimeRange | None:
    start = end = finest = None
    for rows in _rows(files, _TIME[1:]):
        if not len(rows):
            continue
        starts, lengths = whole(rows.column("interval_start_ns")), whole(rows.column("interval_ns"))
        low, high, least = int(starts.min()), int((starts + lengths).max()), int(lengths.min())
        start = low if start is None else min(start, low)
        end = high if end is None else max(end, high)
        finest = least if finest is None else min(finest, least)
    if start is None or end is None or finest is None:
        return None
    return TimeRange.over(start, end, finest)


def _add(stream: StreamFigures, series: BucketSeries, rows: pa.RecordBatch) -> None:
    starts, lengths = whole(rows.column("interval_start_ns")), whole(rows.column("interval_ns"))
    at = series.span.place(starts)
    frames = numbers(rows.column("frames"))
    stream.counted += int(frames.sum())
    stream.traced += int(np.nansum(numbers(rows.column("traced"))))
    # An epoch counts in each of its intervals, so their sum is too large: the largest count is a lower bound.
    stream.epochs = max(stream.epochs or 0, int(whole(rows.column("epochs")).max()))
    depth = numbers(rows.column(_DEPTH))
    if np.isfinite(depth).any():
        stream.lineage_depth_max = max(stream.lineage_depth_max or 0, int(np.nanmax(depth)))
    for name in _SUMS:
        series.add(name, at, numbers(rows.column(name)))
    series.add("seconds", at, _covered(stream, starts, lengths) / 1e9)
    for name in _PEAKS:
        series.raise_to(name, at, numbers(rows.column(name)))
    for name in _TYPICAL:
        series.weigh(name, at, numbers(rows.column(name)), frames)


def _covered(stream: StreamFigures, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Floats:
    """The part of each interval between the first and the last frame of the stream."""
    ends = starts + lengths
    if stream.first_ns is None or stream.last_ns is None:
        return lengths.astype(np.float64)
    # The last frame is followed by one period, as the others are.
    last_ns = stream.last_ns + (round(1e9 / stream.rate_hz) if stream.rate_hz else 0)
    low, high = np.maximum(starts, stream.first_ns), np.minimum(ends, last_ns)
    inside = np.maximum(high - low, 0)
    return np.where(inside > 0, inside, lengths).astype(np.float64)


def read_tensors(report: Report, files: list[TableFile]) -> None:
    """Adds series of `gold/statistics` to the report: minimum, maximum and mean over time."""
    if report.span is None:
        return
    span = report.span
    for batch in _rows(files, ["stream_id", "receive_time_ns", "min", "max", "mean"]):
        for stream_id, rows in by_stream(batch):
            series = report.tensors.setdefault(stream_id, BucketSeries(span))
            at = span.place(whole(rows.column("receive_time_ns")))
            values = {name: numbers(rows.column(name)) for name in ("min", "max", "mean")}
            series.weigh("mean", at, values["mean"], np.ones(len(rows)))
            series.raise_to("max", at, values["max"])
            # The minimum is stored as the maximum of the negated values.
            series.raise_to("-min", at, -values["min"])
