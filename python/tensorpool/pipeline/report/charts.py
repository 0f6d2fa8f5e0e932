"""SVG charts of any width. Labels are text of the page, so that they are not stretched."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

from ...units import format_time_utc
from .timeline import Floats, TimeRange

WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
_DAY_NS: Final = 86_400_000_000_000
_MONTH_TO_MINUTE: Final = slice(len("2026-"), len("2026-03-01 12:00"))
"""The part of a date and time that an axis of several days shows."""
# Allowed distances between the marks of an axis, times a power of ten.
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A series of a chart: a line, an area down to 0, a band down to `floor`, or bars."""

    name: str
    values: Floats
    tone: str
    kind: str = "line"
    floor: Floats | None = None


def chart(
    title: str, note: str, span: TimeRange, lines: Sequence[ChartLine], text: Callable[[float], str], *,
    extra: Callable[[int], str] | None = None, under: Sequence[ChartLine] = (),
) -> str:  # fmt: skip
    """A figure with axes. `text` formats a value; `extra` returns additional hover text of a bucket.

    The series of `under` are drawn below the others, without hover text.
    """
    low, marks = _axis([*under, *lines])
    top = marks[-1]

    def y(value: float) -> float:
        return HEIGHT - (value - low) / (top - low) * HEIGHT if top > low else HEIGHT

    drawn = "".join(_draw(line, span.buckets, y) for line in (*under, *lines))
    grid = "".join(
        f'<line class="grid" x1="0" x2="{WIDTH:g}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>' for mark in marks
    )
    labels = "".join(f'<span style="top:{y(mark):.1f}%">{escape(text(mark))}</span>' for mark in marks)
    legend = "".join(
        f'<span class="key"><i class="{escape(line.tone)}"></i>{escape(line.name)}</span>'
        for line in lines
        if len(lines) > 1
    )
    labels_json = escape(json.dumps(_bucket_texts(span, lines, text, extra), ensure_ascii=False))
    return (
        f'<figure class="chart"><figcaption><b>{escape(title)}</b><span class="note">{escape(note)}</span>'
        f'<span class="legend">{legend}</span></figcaption>'
        f'<div class="plot"><div class="ys" aria-hidden="true">{labels}</div>'
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}: {escape(note)}" data-words="{labels_json}">{grid}{drawn}</svg>'
        f'<output class="hover" hidden></output></div>{_times(span)}</figure>'
    )


def _axis(lines: Sequence[ChartLine]) -> tuple[float, list[float]]:
    known = np.concatenate(
        [
            series[np.isfinite(series)]
            for line in lines
            for series in (line.values, line.floor)
            if series is not None
        ]
    )
    top = float(known.max()) if len(known) else 1.0
    least = float(known.min()) if len(known) else 0.0
    low = min(least, 0.0)
    return low, [low + mark for mark in ticks(top - low)]


def ticks(top: float, max_steps: int = 4) -> list[float]:
    """Round numbers from 0 to the first one that is not below `top`, in at most `max_steps` steps."""
    if not math.isfinite(top) or top <= 0:
        return [0.0, 1.0]
    rough = top / max_steps
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in _STEPS if step * power >= rough * (1 - 1e-9)) * power
    count = max(math.ceil(top / step - 1e-9), 1)
    return [number * step for number in range(count + 1)]


def _bucket_texts(
    span: TimeRange,
    lines: Sequence[ChartLine],
    text: Callable[[float], str],
    extra: Callable[[int], str] | None,
) -> list[str]:
    """The hover text of each bucket."""
    texts = []
    for at in range(span.buckets):
        parts = [
            f"{line.name} {text(float(line.values[at]))}" for line in lines if np.isfinite(line.values[at])
        ]
        if extra is not None and (more := extra(at)):
            parts.append(more)
        when = format_time_utc(span.start_ns + at * span.bucket_ns)
        texts.append(f"{when}\n" + "\n".join(parts) if parts else "")
    return texts


def _draw(line: ChartLine, buckets: int, y: Callable[[float], float]) -> str:
    if line.kind == "bars":
        return _bars(line, buckets, y)
    paths = []
    for first, last in _runs(line):
        points = [(_x(at, buckets), y(float(line.values[at]))) for at in range(first, last + 1)]
        if first == last:
            # A single bucket is drawn as wide as the bucket.
            half = WIDTH / buckets / 2
            points = [(points[0][0] - half, points[0][1]), (points[0][0] + half, points[0][1])]
        path = "M" + "L".join(f"{x:.1f} {at:.1f}" for x, at in points)
        if line.kind == "line":
            paths.append(f'<path class="line {line.tone}" d="{path}"/>')
            continue
        floor = [0.0] * buckets if line.floor is None else line.floor
        below = [(x, y(float(floor[at]))) for (x, _), at in zip(points, range(first, last + 1), strict=False)]
        if first == last:
            below = [(x, y(float(floor[first]))) for x, _ in points]
        back = "L" + "L".join(f"{x:.1f} {at:.1f}" for x, at in reversed(below)) + "Z"
        paths.append(f'<path class="area {line.tone}" d="{path}{back}"/>')
    return "".join(paths)


def _x(at: int, buckets: int) -> float:
    return (at + 0.5) / buckets * WIDTH


def _runs(line: ChartLine) -> list[tuple[int, int]]:
    """Runs of buckets with values. Nothing is drawn for buckets without a value."""
    known = np.isfinite(line.values)
    if line.floor is not None:
        known &= np.isfinite(line.floor)
    edges = np.diff(np.concatenate(([0], known.astype(np.int8), [0])))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _bars(line: ChartLine, buckets: int, y: Callable[[float], float]) -> str:
    width = WIDTH / buckets
    path = "".join(
        f"M{at * width + width * 0.1:.1f} {HEIGHT:g}V{y(float(value)):.1f}h{width * 0.8:.1f}V{HEIGHT:g}Z"
        for at, value in enumerate(line.values)
        if np.isfinite(value) and value > 0
    )
    return f'<path class="bar {line.tone}" d="{path}"/>' if path else ""


def _times(span: TimeRange) -> str:
    is_long = span.end_ns - span.start_ns > _DAY_NS
    labels = []
    for share in (0.0, 0.5, 1.0):
        at = span.start_ns + int((span.end_ns - span.start_ns) * share)
        text = format_time_utc(at)[_MONTH_TO_MINUTE] if is_long else format_time_utc(at, with_date=False)
        labels.append(f"<span>{escape(text)}</span>")
    return f'<div class="xs" aria-hidden="true">{"".join(labels)}</div>'


def bars_of(counts: dict[str, int], tone: str) -> str:
    """Counts by name, as horizontal bars."""
    top = max(counts.values(), default=0)
    rows = "".join(
        f'<div class="row"><span class="what">{escape(name)}</span>'
        f'<span class="track"><i class="{tone}" style="width:{max(100 * count / top, 1.0):.1f}%"></i></span>'
        f"<b>{count:,}</b></div>"
        for name, count in counts.items()
    )
    return f'<div class="bars">{rows}</div>'


def sparkline(values: Sequence[float]) -> str:
    """A line chart of the values of a tensor with one dimension."""
    low, high = min(values), max(values)
    reach = high - low or 1.0
    step = WIDTH / max(len(values) - 1, 1)
    path = "M" + "L".join(
        f"{at * step:.1f} {HEIGHT - 4 - (value - low) / reach * (HEIGHT - 8):.1f}"
        for at, value in enumerate(values)
    )
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="values"><path class="line a" d="{path}"/></svg>'
    )
