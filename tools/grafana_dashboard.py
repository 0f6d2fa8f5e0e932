"""The Grafana dashboard deploy/grafana/tensorpool.json, generated from a table of panels.

python -m tools.grafana_dashboard > deploy/grafana/tensorpool.json
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

_WIDTH: Final = 24
_STREAM: Final = 'stream_id=~"$stream"'
_NAMED: Final = " * on (instance, stream_id) group_left (name) tensorpool_stream_info"
_LOST: Final = 'reason!~"rate_limited|skipped"'
_RATE: Final = "[$__rate_interval]"
_BY_STREAM: Final = "{{stream_id}} {{name}}"
_BY_MAPPING: Final = "{{bridge}} {{direction}} {{source_stream_id}} → {{dest_stream_id}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard."""

    title: str
    queries: tuple[tuple[str, str], ...]
    """Queries and their legends."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    doc: str = ""


def _rate(counter: str, labels: str = "", by: str = "instance, stream_id") -> str:
    return f"sum by ({by}) (rate({counter}{{{labels}}}{_RATE}))"


def _stat(title: str, query: str, unit: str = "short") -> Panel:
    return Panel(title, ((query, ""),), unit, "stat", 3, 4)


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "The system": (
        _stat("Streams live", 'sum(tensorpool_streams{state="live"})'),
        _stat("Streams stale", 'sum(tensorpool_streams{state="stale"})'),
        _stat("Consumers", "sum(tensorpool_consumers)"),
        _stat("Frames", f"sum(rate(tensorpool_producer_sequences_total{_RATE}))", "cps"),
        _stat("Payload", f"sum(rate(tensorpool_producer_payload_bytes_total{_RATE}))", "Bps"),
        _stat("Lost", f"sum(rate(tensorpool_consumer_frames_dropped_total{{{_LOST}}}{_RATE}))", "cps"),
        _stat("Ledger mismatches", 'sum(tensorpool_ledger_paths{verdict="mismatch"})'),
        _stat("Alerts", 'count(ALERTS{alertname=~"TensorPool.*", alertstate="firing"}) or vector(0)'),
    ),
    "Streams": (
        Panel(
            "Frames a second",
            ((_rate("tensorpool_producer_sequences_total", _STREAM) + _NAMED, _BY_STREAM),),
            "cps",
        ),
        Panel(
            "Payload a second",
            ((_rate("tensorpool_producer_payload_bytes_total", _STREAM) + _NAMED, _BY_STREAM),),
            "Bps",
        ),
        Panel(
            "State",
            ((f"tensorpool_stream_state{{{_STREAM}}} == 1", "{{stream_id}} {{state}}"),),
            kind="state-timeline",
        ),
        Panel(
            "Since the last frame",
            ((f"tensorpool_producer_quiet_seconds{{{_STREAM}}}{_NAMED}", _BY_STREAM),),
            "s",
        ),
        Panel(
            "New epochs",
            ((f"increase(tensorpool_stream_epochs_total{{{_STREAM}}}[10m])", "{{stream_id}}"),),
            doc="A stream that starts again and again has a producer that dies.",
        ),
        Panel(
            "Not published, by reason",
            (
                (
                    _rate("tensorpool_producer_frames_unpublished_total", _STREAM, "stream_id, reason"),
                    "{{stream_id}} {{reason}}",
                ),
            ),
            "cps",
        ),
        Panel("Memory", ((f"tensorpool_stream_memory_bytes{{{_STREAM}}}{_NAMED}", _BY_STREAM),), "bytes"),
        Panel("Consumers", ((f"tensorpool_stream_consumers{{{_STREAM}}}{_NAMED}", _BY_STREAM),)),
    ),
    "Consumers": (
        Panel(
            "Frames received a second",
            (
                (
                    _rate("tensorpool_consumer_frames_received_total", _STREAM, "stream_id, consumer_id"),
                    "{{stream_id}} {{consumer_id}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Frames dropped a second, by reason",
            (
                (
                    _rate("tensorpool_consumer_frames_dropped_total", _STREAM, "stream_id, reason"),
                    "{{stream_id}} {{reason}}",
                ),
            ),
            "cps",
        ),
        Panel(
            "Latency",
            (
                (
                    f"tensorpool_consumer_latency_p50_seconds{{{_STREAM}}}",
                    "p50 {{stream_id}} {{consumer_id}}",
                ),
                (
                    f"tensorpool_consumer_latency_p99_seconds{{{_STREAM}}}",
                    "p99 {{stream_id}} {{consumer_id}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Backlog",
            ((f"tensorpool_consumer_backlog_frames{{{_STREAM}}}", "{{stream_id}} {{consumer_id}}"),),
        ),
        Panel(
            "At a limited rate",
            ((f"tensorpool_consumer_rate_limited{{{_STREAM}}}", "{{stream_id}} {{consumer_id}}"),),
            kind="state-timeline",
        ),
        Panel(
            "Slowest frame",
            ((f"tensorpool_consumer_latency_max_seconds{{{_STREAM}}}", "{{stream_id}} {{consumer_id}}"),),
            "s",
        ),
    ),
    "Drivers and leases": (
        Panel(
            "Memory",
            (
                ("tensorpool_driver_memory_bytes", "{{namespace}} {{driver}}"),
                ("tensorpool_driver_quota_bytes", "quota of {{namespace}} {{driver}}"),
            ),
            "bytes",
        ),
        Panel("Leases", (("sum by (role, state) (tensorpool_leases)", "{{role}} {{state}}"),)),
        Panel("Ids that two go by", (("sum by (kind) (tensorpool_id_collisions)", "{{kind}}"),)),
        Panel(
            "Excluded from these metrics, and rejected",
            (
                ("tensorpool_metrics_excluded", "{{what}}"),
                (
                    f"sum by (reason) (rate(tensorpool_messages_rejected_total{_RATE}))",
                    "rejected: {{reason}}",
                ),
            ),
        ),
    ),
    "Bridges": (
        Panel("Frames a second", ((f"rate(tensorpool_bridge_frames_total{_RATE})", _BY_MAPPING),), "cps"),
        Panel(
            "Frames dropped a second, by reason",
            ((f"rate(tensorpool_bridge_frames_dropped_total{_RATE})", _BY_MAPPING + " {{reason}}"),),
            "cps",
        ),
        Panel("Connected", (("tensorpool_bridge_connected", _BY_MAPPING),), kind="state-timeline"),
        Panel("Lost on the way, or still on it", (("tensorpool_bridge_network_frames", _BY_MAPPING),)),
    ),
    "Recorders": (
        Panel("Rows a second", ((f"rate(tensorpool_recorder_rows_total{_RATE})", "{{recorder}}"),), "cps"),
        Panel("Bytes a second", (("tensorpool_recorder_written_bytes_per_second", "{{recorder}}"),), "Bps"),
        Panel(
            "Frames not written, by reason",
            ((f"rate(tensorpool_recorder_gap_frames_total{_RATE})", "{{recorder}} {{reason}}"),),
            "cps",
        ),
        Panel(
            "State", (("tensorpool_recorder_state == 1", "{{recorder}} {{state}}"),), kind="state-timeline"
        ),
        Panel("Not yet on disk", (("tensorpool_recorder_backlog_bytes", "{{recorder}}"),), "bytes"),
        Panel("Disk free", (("tensorpool_recorder_disk_free_bytes", "{{recorder}}"),), "bytes"),
    ),
}

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The dashboard as JSON."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(_row(len(panels) + 1, title, y))
        y, x, line = y + 1, 0, 0
        for panel in row:
            if x + panel.width > _WIDTH:
                x, y, line = 0, y + line, 0
            panels.append(_panel(len(panels) + 1, panel, x, y))
            x, line = x + panel.width, max(line, panel.height)
        y += line
    return {
        "title": "TensorPool",
        "uid": "tensorpool",
        "tags": ["tensorpool"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "templating": {"list": [_datasource(), _streams()]},
        "panels": panels,
    }


def _row(number: int, title: str, y: int) -> dict[str, Any]:
    position = {"h": 1, "w": _WIDTH, "x": 0, "y": y}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": position,
        "panels": [],
    }


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + n), "datasource": _SOURCE, "expr": query, "legendFormat": legend or "__auto"}
        for n, (query, legend) in enumerate(panel.queries)
    ]
    result: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.doc,
        "datasource": _SOURCE,
        "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }
    if panel.kind == "timeseries":
        result["options"] = {
            "legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return result


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _streams() -> dict[str, Any]:
    return {
        "name": "stream",
        "label": "Stream",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(tensorpool_stream_info, stream_id)", "refId": "stream"},
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1, ensure_ascii=False))
