"""The sections of the page, each as HTML; one without figures is left out."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from typing import Final

import numpy as np

from .charts import ChartLine, bars_of, chart, sparkline
from .figures import AlignmentFigures, Counts, Report, Sample, StreamFigures
from .scales import UNKNOWN, count_text, moment, short, size_text, span_text
from .timeline import BucketSeries, Floats

CHARTS: Final = 24
"""A chart for each of so many streams; the table has all."""


def _section(title: str, body: str, lead: str = "") -> str:
    said = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f"<section><h2>{escape(title)}</h2>{said}{body}</section>" if body else ""


def _title(stream: StreamFigures) -> str:
    return f"{stream.stream_id} {stream.name}" if stream.name else f"stream {stream.stream_id}"


def _table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    foot: Sequence[str] | None = None,
    *,
    kind: str = "wide",
) -> str:
    """Cells are HTML already. On a phone each row of a wide one is a list with the names of its columns."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)

    def cells(row: Sequence[str]) -> str:
        first, *others = row
        rest = "".join(
            f'<td data-name="{escape(name)}"><span>{cell}</span></td>' if cell else "<td></td>"
            for name, cell in zip(head[1:], others, strict=True)
        )
        return f"<tr><td>{first}</td>{rest}</tr>"

    body = "".join(cells(row) for row in rows)
    below = f"<tfoot>{cells(foot)}</tfoot>" if foot is not None else ""
    return (
        f'<div class="card"><table class="{kind}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody>{below}'
        "</table></div>"
    )


def _reasons(counts: Counts) -> str:
    if not counts:
        return "0"
    listed = ", ".join(f"{escape(reason)} {count:,}" for reason, count in sorted(counts.items()))
    return f"{sum(counts.values()):,} <small>{listed}</small>"


def accounts(report: Report) -> str:
    """The numbers to compare with a ledger."""
    if not report.streams:
        return ""
    head = [
        "stream", "recorded", "in silver", "rejected", "dropped", "size", "rate", "latency p50", "p99",
        "jitter p99",
    ]  # fmt: skip
    rows = [
        [
            escape(_title(one)), count_text(one.recorded), count_text(one.frames), _reasons(one.rejected),
            _reasons(one.dropped), size_text(one.bytes),
            f"{short(one.rate_hz)} Hz" if one.rate_hz is not None else UNKNOWN,
            span_text(one.latency_ns.get("p50")), span_text(one.latency_ns.get("p99")),
            span_text(one.jitter_ns.get("p99")),
        ]
        for one in report.streams
    ]  # fmt: skip
    foot = [
        "all", count_text(report.total("recorded")), count_text(report.total("frames")),
        count_text(sum(report.reasons("rejected").values())),
        count_text(sum(report.reasons("dropped").values())), size_text(report.total("bytes")), "", "", "", "",
    ]  # fmt: skip
    if any(one.traced for one in report.streams):
        head.append("steps from source")
        foot.append("")
        for row, one in zip(rows, report.streams, strict=True):
            row.append(UNKNOWN if one.lineage_depth_max is None else count_text(one.lineage_depth_max))
    lead = (
        "Recorded is bronze; it equals silver and rejects together. Dropped frames are sequences that the "
        "recording does not have, with the reason that was given for it."
    )
    return _section("Accounts", _table(head, rows, foot if len(rows) > 1 else None), lead)


def _charted(report: Report) -> list[tuple[StreamFigures, BucketSeries]]:
    drawn = [(one, report.series[one.stream_id]) for one in report.streams if one.stream_id in report.series]
    return drawn[:CHARTS]


def _grid(report: Report, charts: list[str]) -> str:
    if not charts:
        return ""
    left = len(report.series) - CHARTS
    more = f'<p class="soft">{left} more streams are in the table above.</p>' if left > 0 else ""
    return f'<div class="charts">{"".join(charts)}</div>{more}'


def rates(report: Report) -> str:
    charts = []
    for stream, series in _charted(report):
        seconds = series.sum("seconds")
        rate = np.divide(series.sum("frames"), seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
        dropped, rejected = series.sum("dropped"), series.sum("rejected")
        lost = np.divide(dropped, seconds, out=np.zeros(len(seconds)), where=seconds > 0)

        def more(at: int, rejected: Floats = rejected) -> str:
            return f"rejected {rejected[at]:,.0f}" if rejected[at] else ""

        lines = [ChartLine("received", rate, "a", "area"), ChartLine("received", rate, "a")]
        shown = lines[1:] if not lost.any() else [*lines[1:], ChartLine("dropped", lost, "bad", "bars")]
        note = f"{short(stream.rate_hz)} Hz" if stream.rate_hz is not None else ""
        charts.append(chart(_title(stream), note, series.span, [*shown], _hz, extra=more, under=lines[:1]))
    return _section("Frames per second", _grid(report, charts))


def _hz(value: float) -> str:
    return f"{short(value)} Hz"


def _times(report: Report, what: str) -> list[str]:
    charts = []
    for stream, series in _charted(report):
        p50, p99 = series.mean(f"{what}_ns_p50"), series.peak(f"{what}_ns_p99")
        if not np.isfinite(p50).any():
            continue
        figures = stream.latency_ns if what == "latency" else stream.jitter_ns
        lines = [ChartLine("p99", p99, "b"), ChartLine("p50", p50, "a")]
        note = f"p50 {span_text(figures.get('p50'))}, worst {span_text(figures.get('max'))}"
        band = [ChartLine("", p99, "b", "area", p50)]
        charts.append(chart(_title(stream), note, series.span, lines, span_text, under=band))
    return charts


def latencies(report: Report) -> str:
    lead = "From publishing to receipt by the recorder. The upper line is the worst p99 of its time."
    return _section("Latency", _grid(report, _times(report, "latency")), lead)


def jitters(report: Report) -> str:
    lead = "How far the time between two frames is from its median."
    return _section("Jitter", _grid(report, _times(report, "jitter")), lead)


def reasons(report: Report) -> str:
    cards = []
    for key, title, tone in (("dropped", "Dropped", "warn"), ("rejected", "Rejected", "bad")):
        if counts := report.reasons(key):
            cards.append(f'<div class="card"><h3>{title}</h3>{bars_of(counts, tone)}</div>')
    return _section("What was lost, and why", f'<div class="pair">{"".join(cards)}</div>' if cards else "")


def alignments(report: Report) -> str:
    if not report.alignments:
        return ""
    head = ("alignment", "streams", "by", "rows", "not aligned", "share", "spread p50", "p99", "largest")
    rows = [
        [
            escape(one.name), escape(", ".join(map(str, one.streams))), escape(one.by or UNKNOWN),
            count_text(one.rows), _reasons(one.unaligned),
            f"{one.share:.2%}" if one.share is not None else UNKNOWN,
            *(_spread(one, key) for key in ("p50", "p99", "max")),
        ]
        for one in report.alignments
    ]  # fmt: skip
    charts = []
    for one in report.alignments[:CHARTS]:
        series = report.aligned_series.get(one.name)
        if series is None:
            continue
        lines = [ChartLine("aligned", series.sum("aligned"), "a", "bars")]
        if series.sum("unaligned").any():
            lines.append(ChartLine("not aligned", series.sum("unaligned"), "bad", "bars"))
        charts.append(chart(one.name, "rows over time", series.span, lines, short))
    body = _table(head, rows) + (
        f'<div class="charts" style="margin-top:12px">{"".join(charts)}</div>' if charts else ""
    )
    return _section("Alignment", body)


def _spread(one: AlignmentFigures, key: str) -> str:
    value = one.spread.get(key)
    if value is None:
        return UNKNOWN
    return count_text(value) if one.by == "sequence" else span_text(value)


def tensors(report: Report) -> str:
    charts = []
    known = {one.stream_id: one for one in report.streams}
    for stream_id in sorted(report.tensors)[:CHARTS]:
        series = report.tensors[stream_id]
        mean, top, low = series.mean("mean"), series.peak("max"), -series.peak("-min")
        if not np.isfinite(mean).any():
            continue
        stream = known.get(stream_id, StreamFigures(stream_id))
        lines = [ChartLine("mean", mean, "a")]
        band = [ChartLine("", top, "b", "area", low)]
        charts.append(chart(_title(stream), "mean, least to largest", series.span, lines, short, under=band))
    return _section(
        "What is in the tensors", f'<div class="charts">{"".join(charts)}</div>' if charts else ""
    )


def samples(report: Report) -> str:
    names = {one.stream_id: _title(one) for one in report.streams}
    figures = "".join(_sample(one, names.get(one.stream_id, str(one.stream_id))) for one in report.samples)
    return _section("Frames", f'<div class="samples">{figures}</div>' if figures else "")


def _sample(one: Sample, title: str) -> str:
    if one.image is not None:
        data = base64.b64encode(one.image).decode()
        inside = f'<img alt="frame {one.seq} of {escape(title)}" src="data:image/png;base64,{data}">'
    elif one.line:
        inside = sparkline(one.line)
    else:
        inside = f"<p>{escape(one.problem or 'nothing to see')}</p>"
    shape = " x ".join(map(str, one.shape))
    when = f"<br>{moment(one.time_ns, with_date=False, fraction=True)}" if one.time_ns is not None else ""
    return (
        f'<figure class="sample"><div class="frame">{inside}</div><figcaption><b>{escape(title)}</b><br>'
        f"epoch {one.epoch}, frame {one.seq:,}<br>{escape(one.dtype)} {shape}{when}</figcaption></figure>"
    )


def provenance(report: Report) -> str:
    known = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    facts = [
        ("tables", report.root),
        ("pipeline", report.pipeline_id),
        ("schema versions", known),
        ("report", f"{moment(report.made_ns)} UTC, {report.made_by}"),
    ]
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    rows = [
        [escape(one.name), count_text(one.rows), count_text(one.files), size_text(one.bytes)]
        for one in report.tables
    ]
    definition = json.dumps(report.definition, indent=2, ensure_ascii=False, default=str)
    return _section(
        "Where this comes from",
        f'<div class="card"><dl>{listed}</dl></div><div style="height:12px"></div>'
        f"{_table(('table', 'rows', 'files', 'size'), rows, kind='slim')}"
        f"<details><summary>Definition</summary><pre>{escape(definition)}</pre></details>",
    )
