"""The reference page of all metrics, from the code."""

from __future__ import annotations

from typing import Final

from tensorpool.metrics.collect import DEFAULT_LIMITS, GROUPS
from tensorpool.metrics.exposition import LONGEST_LABEL
from tensorpool.metrics.otel import otel_name
from tensorpool.metrics.server import Address

_OPENING: Final = f"""\
# Metrics

Everything that the endpoint tells. This page is made from the code by
`python -m tools.reference`; a test keeps it up to date.
[Watch a system](../how-to/watch-a-system.md) says how to set it up.

| | |
|---|---|
| where | `tensorpool supervisor --metrics`, or by itself `tensorpool metrics`: `http://{Address()}/metrics` |
| format | Prometheus' text format 0.0.4; GET and HEAD, one page a connection |
| settings | the table `[metrics]` of the [configuration](configuration.md#metrics) |
| who may read | this machine, unless another address is set. It asks for no password: a proxy can |
| names | the endpoint answers to addresses and `localhost`; other names are in `metrics.hosts` |
| freshness | a page is made anew at most twice a second |

`rate()` makes rates of the counters. A counter begins anew with a new producer, consumer, bridge or recorder;
Prometheus knows how to read that. What nobody has told yet is left out, and is not zero.

Labels are bounded: at most `metrics.max_streams` ({DEFAULT_LIMITS.streams:,}) streams and
`metrics.max_consumers` ({DEFAULT_LIMITS.consumers:,}) consumers, those with the lowest stream ids, get
metrics of their own; `tensorpool_metrics_left_out` counts the rest. Reasons beyond the first 32 of a thing
are put together as `other`. A label has at most {LONGEST_LABEL} characters.

OpenTelemetry (`metrics.otlp`, with the extra `otel`) gets the same figures by the names in the last column.
"""


def render() -> str:
    """The text of the page."""
    parts = [_OPENING]
    for title, metrics in GROUPS.items():
        parts.append(f"## {title}\n")
        parts.append("| metric | kind | labels | | OpenTelemetry |\n|---|---|---|---|---|")
        for metric in metrics:
            name, unit = otel_name(metric)
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            otel = f"`{name}`" + ("" if unit == "1" else f", {unit}")
            parts.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.doc} | {otel} |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"
