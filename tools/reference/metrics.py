"""The reference page of all metrics, from the code."""

from __future__ import annotations

from typing import Final

from tensorpool.metrics.collect import GROUPS, MAX_REASONS
from tensorpool.metrics.config import DEFAULT_LIMITS
from tensorpool.metrics.otel import otel_name
from tensorpool.metrics.server import MAX_LABEL, Address

_OPENING: Final = f"""\
# Metrics

All metrics of the endpoint. This page is generated from the code by
`python -m tools.reference`; a test keeps it up to date.
[Watch a system](../how-to/monitor-a-system.md) says how to set it up.

| | |
|---|---|
| where | `tensorpool supervisor --metrics`, or by itself `tensorpool metrics`: `http://{Address()}/metrics` |
| format | Prometheus' text format 0.0.4; GET and HEAD, one page a connection |
| settings | the table `[metrics]` of the [configuration](configuration.md#metrics) |
| access | from this machine only, unless another address is set; no password: a proxy can ask for one |
| host names | requests may use an address or `localhost`; `metrics.hosts` adds other names |
| freshness | the page is collected at most twice a second |
| registries | `tensorpool.metrics.collect.MetricsCollector` is a collector for `prometheus_client` |

`rate()` computes rates from the counters. A counter restarts with a new producer, consumer, bridge or
recorder, which `rate()` handles. A value that is not known has no sample; it is not zero.

Labels are bounded: at most `metrics.max_streams` ({DEFAULT_LIMITS.streams:,}) streams and
`metrics.max_consumers` ({DEFAULT_LIMITS.consumers:,}) consumers, those with the lowest stream ids, get
metrics of their own; `tensorpool_metrics_excluded` counts the rest. Reasons beyond the first {MAX_REASONS}
are summed as `other`. A label value has at most {MAX_LABEL} characters.

OpenTelemetry (`metrics.otlp`, with the extra `otel`) receives the same metrics under the names of the
last column.
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
