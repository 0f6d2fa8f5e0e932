"""The HTML page of a report: the figures, tables and charts that the template `page.html` shows.

The page contains everything it needs and loads nothing from the network. The template escapes all text; only
our own style, script and charts, which escape their texts themselves, are inserted as they are.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

import numpy as np
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from ...units import format_bytes, format_count, format_number, format_precise_duration, format_time_utc
from .charts import ChartLine, bars_of, chart, sparkline
from .figures import AlignmentFigures, Counts, Report, Sample, StreamFigures
from .timeline import BucketSeries, Floats

MAX_CHARTS: Final = 24
"""Streams that get a chart of each kind; the table has all streams."""
UNKNOWN: Final = "\N{EN DASH}"
"""Stands for a figure that is not known."""
_FILES: Final = resources.files(__package__)

Cell = str | Markup


def duration_text(ns: float | None) -> str:
    """A duration as text."""
    return UNKNOWN if ns is None else format_precise_duration(ns)


@dataclass(frozen=True, slots=True)
class TableView:
    """A table: its first column is the name of the row."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    footer: Sequence[Cell] | None = None
    kind: str = "wide"
    """The style class: a wide table becomes a list on a phone."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure at the top of the page; `tone` is its style class."""

    value: str
    label: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class LossView:
    """Counts by reason as bars."""

    title: str
    bars: Markup


@dataclass(frozen=True, slots=True)
class SampleView:
    """A sample frame: an image, a line or a text, and its caption."""

    title: str
    seq: int
    epoch: int
    frame: str
    array: str
    time: str
    image: str
    line: Markup
    text: str


def page(report: Report) -> str:
    """The whole document. Only our own script may run in it."""
    style = _FILES.joinpath("style.css").read_text("utf-8")
    script = _FILES.joinpath("hover.js").read_text("utf-8")
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return _template().render(
        report=report,
        style=Markup(style),
        script=Markup(script),
        policy=policy,
        time_range=_time_range(report),
        made_at=format_time_utc(report.made_ns),
        tiles=_tiles(report),
        ledger=_ledger(report),
        rates=_rate_charts(report),
        latencies=_time_charts(report, "latency"),
        jitters=_time_charts(report, "jitter"),
        more_streams=len(report.series) - MAX_CHARTS,
        losses=_losses(report),
        alignments=_alignments(report),
        alignment_charts=_alignment_charts(report),
        tensors=_tensor_charts(report),
        samples=_samples(report),
        origin=_origin(report),
        tables=_tables(report),
        definition=json.dumps(report.definition, indent=2, ensure_ascii=False, default=str),
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(_FILES.joinpath("page.html").read_text("utf-8"))


def _time_range(report: Report) -> str:
    starts = [stream.first_ns for stream in report.streams if stream.first_ns is not None]
    ends = [stream.last_ns for stream in report.streams if stream.last_ns is not None]
    if not starts or not ends:
        return "no frames yet"
    first, last = min(starts), max(ends)
    return f"{format_time_utc(first)} to {format_time_utc(last)} UTC, {duration_text(last - first)}"


def _tiles(report: Report) -> list[Tile]:
    dropped = sum(report.reasons("dropped").values())
    rejected = sum(report.reasons("rejected").values())
    rates = [stream.rate_hz for stream in report.streams if stream.rate_hz is not None]
    tiles = [
        Tile(format_count(report.total("frames")), "frames in silver"),
        Tile(format_bytes(report.total("bytes")), "of tensors"),
        Tile(f"{format_number(sum(rates))} Hz" if rates else UNKNOWN, "all streams together"),
        Tile(format_count(dropped), "never recorded", "warn" if dropped else ""),
        Tile(format_count(rejected), "rejected", "bad" if rejected else ""),
    ]
    shares = [alignment.share for alignment in report.alignments if alignment.share is not None]
    if shares:
        tiles.append(Tile(f"{min(shares):.1%}", "aligned" if len(shares) == 1 else "aligned, at least"))
    return tiles


# --- tables


def _title(stream: StreamFigures) -> str:
    return f"{stream.stream_id} {stream.name}" if stream.name else f"stream {stream.stream_id}"


def _reasons(counts: Counts) -> Cell:
    if not counts:
        return "0"
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts.items()))
    return Markup("{:,} <small>{}</small>").format(sum(counts.values()), reasons)


def _ledger(report: Report) -> TableView | None:
    """The numbers to compare with a ledger."""
    if not report.streams:
        return None
    headings = [
        "stream", "recorded", "in silver", "rejected", "dropped", "size", "rate", "latency p50", "p99",
        "jitter p99",
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            _title(stream), format_count(stream.recorded), format_count(stream.frames),
            _reasons(stream.rejected), _reasons(stream.dropped), format_bytes(stream.bytes),
            f"{format_number(stream.rate_hz)} Hz" if stream.rate_hz is not None else UNKNOWN,
            duration_text(stream.latency_ns.get("p50")), duration_text(stream.latency_ns.get("p99")),
            duration_text(stream.jitter_ns.get("p99")),
        ]
        for stream in report.streams
    ]  # fmt: skip
    footer: list[Cell] = [
        "all", format_count(report.total("recorded")), format_count(report.total("frames")),
        format_count(sum(report.reasons("rejected").values())),
        format_count(sum(report.reasons("dropped").values())), format_bytes(report.total("bytes")),
        "", "", "", "",
    ]  # fmt: skip
    if any(stream.traced for stream in report.streams):
        headings.append("steps from source")
        footer.append("")
        for row, stream in zip(rows, report.streams, strict=True):
            depth = stream.lineage_depth_max
            row.append(UNKNOWN if depth is None else format_count(depth))
    return TableView(headings, rows, footer if len(rows) > 1 else None)


def _alignments(report: Report) -> TableView | None:
    if not report.alignments:
        return None
    headings = ("alignment", "streams", "by", "rows", "not aligned", "share", "spread p50", "p99", "largest")
    rows: list[list[Cell]] = [
        [
            alignment.name,
            ", ".join(map(str, alignment.streams)),
            alignment.by or UNKNOWN,
            format_count(alignment.rows),
            _reasons(alignment.unaligned),
            f"{alignment.share:.2%}" if alignment.share is not None else UNKNOWN,
            *(_spread(alignment, key) for key in ("p50", "p99", "max")),
        ]
        for alignment in report.alignments
    ]
    return TableView(headings, rows)


def _spread(alignment: AlignmentFigures, key: str) -> str:
    value = alignment.spread.get(key)
    if value is None:
        return UNKNOWN
    return format_count(value) if alignment.by == "sequence" else duration_text(value)


def _tables(report: Report) -> TableView:
    rows = [
        [table.name, format_count(table.rows), format_count(table.files), format_bytes(table.bytes)]
        for table in report.tables
    ]
    return TableView(("table", "rows", "files", "size"), rows, kind="slim")


def _origin(report: Report) -> list[tuple[str, str]]:
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    return [
        ("tables", report.root),
        ("pipeline", report.pipeline_id),
        ("schema versions", versions),
        ("report", f"{format_time_utc(report.made_ns)} UTC, {report.made_by}"),
    ]


# --- charts


def _charted(report: Report) -> list[tuple[StreamFigures, BucketSeries]]:
    streams = [stream for stream in report.streams if stream.stream_id in report.series]
    return [(stream, report.series[stream.stream_id]) for stream in streams[:MAX_CHARTS]]


def _rate_charts(report: Report) -> list[Markup]:
    charts = []
    for stream, series in _charted(report):
        seconds = series.sum("seconds")
        rate = np.divide(series.sum("frames"), seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
        dropped, rejected = series.sum("dropped"), series.sum("rejected")
        lost = np.divide(dropped, seconds, out=np.zeros(len(seconds)), where=seconds > 0)

        def rejected_text(bucket: int, rejected: Floats = rejected) -> str:
            return f"rejected {rejected[bucket]:,.0f}" if rejected[bucket] else ""

        lines = [ChartLine("received", rate, "a")]
        if lost.any():
            lines.append(ChartLine("dropped", lost, "bad", "bars"))
        area = [ChartLine("received", rate, "a", "area")]
        note = _hz(stream.rate_hz) if stream.rate_hz is not None else ""
        charts.append(
            Markup(chart(_title(stream), note, series.span, lines, _hz, extra=rejected_text, under=area))
        )
    return charts


def _hz(value: float) -> str:
    return f"{format_number(value)} Hz"


def _time_charts(report: Report, what: str) -> list[Markup]:
    """Charts of the latency or the jitter: p50 and p99."""
    charts = []
    for stream, series in _charted(report):
        p50, p99 = series.mean(f"{what}_ns_p50"), series.peak(f"{what}_ns_p99")
        if not np.isfinite(p50).any():
            continue
        figures = stream.latency_ns if what == "latency" else stream.jitter_ns
        lines = [ChartLine("p99", p99, "b"), ChartLine("p50", p50, "a")]
        note = f"p50 {duration_text(figures.get('p50'))}, worst {duration_text(figures.get('max'))}"
        band = [ChartLine("", p99, "b", "area", p50)]
        charts.append(Markup(chart(_title(stream), note, series.span, lines, duration_text, under=band)))
    return charts


def _losses(report: Report) -> list[LossView]:
    losses = []
    for key, title, tone in (("dropped", "Dropped", "warn"), ("rejected", "Rejected", "bad")):
        if counts := report.reasons(key):
            losses.append(LossView(title, Markup(bars_of(counts, tone))))
    return losses


def _alignment_charts(report: Report) -> list[Markup]:
    charts = []
    for alignment in report.alignments[:MAX_CHARTS]:
        series = report.aligned_series.get(alignment.name)
        if series is None:
            continue
        lines = [ChartLine("aligned", series.sum("aligned"), "a", "bars")]
        if series.sum("unaligned").any():
            lines.append(ChartLine("not aligned", series.sum("unaligned"), "bad", "bars"))
        charts.append(Markup(chart(alignment.name, "rows over time", series.span, lines, format_number)))
    return charts


def _tensor_charts(report: Report) -> list[Markup]:
    charts = []
    streams = {stream.stream_id: stream for stream in report.streams}
    for stream_id in sorted(report.tensors)[:MAX_CHARTS]:
        series = report.tensors[stream_id]
        mean, greatest, least = series.mean("mean"), series.peak("max"), -series.peak("-min")
        if not np.isfinite(mean).any():
            continue
        title = _title(streams.get(stream_id, StreamFigures(stream_id)))
        lines = [ChartLine("mean", mean, "a")]
        band = [ChartLine("", greatest, "b", "area", least)]
        charts.append(
            Markup(chart(title, "mean, least to largest", series.span, lines, format_number, under=band))
        )
    return charts


# --- sample frames


def _samples(report: Report) -> list[SampleView]:
    titles = {stream.stream_id: _title(stream) for stream in report.streams}
    return [_sample(sample, titles.get(sample.stream_id, str(sample.stream_id))) for sample in report.samples]


def _sample(sample: Sample, title: str) -> SampleView:
    shape = " x ".join(map(str, sample.shape))
    time = ""
    if sample.time_ns is not None:
        time = format_time_utc(sample.time_ns, with_date=False, with_ms=True)
    return SampleView(
        title=title,
        seq=sample.seq,
        epoch=sample.epoch,
        frame=f"{sample.seq:,}",
        array=f"{sample.dtype} {shape}",
        time=time,
        image="" if sample.image is None else base64.b64encode(sample.image).decode(),
        line=Markup(sparkline(sample.line)) if sample.line else Markup(),
        text=sample.problem or "nothing to show",
    )
