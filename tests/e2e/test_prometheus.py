"""A real Prometheus that scrapes the endpoint, loads our rules and answers the dashboard's queries."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorpool.metrics.collect import CATALOGUE, MetricsCollector
from tensorpool.metrics.server import MetricsServer
from tensorpool.monitor.snapshot import Snapshot
from tests.e2e.prometheus import needs_prometheus, program, prometheus
from tests.unit.top.snapshots import system

pytestmark = needs_prometheus
ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "tensorpool.rules.yml"
BOARD = ROOT / "deploy" / "grafana" / "tensorpool.json"


class GrowingSystem:
    """A source of snapshots of the complete system, whose counters grow."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self) -> Snapshot:
        return advance(system(), int((time.monotonic() - self._started) * 100))


def advance(snapshot: Snapshot, n: int) -> Snapshot:
    """The snapshot with `n` added to its counters."""

    def add_n(counts: Any) -> dict[str, int]:
        return {reason: count + n for reason, count in counts.items()}

    streams = tuple(
        replace(
            stream,
            epochs=stream.epochs + n // 100,
            producer=stream.producer
            and replace(
                stream.producer,
                current_seq=(stream.producer.current_seq or 0) + n,
                nbytes=(stream.producer.nbytes or 0) + n * 1000,
                unpublished=add_n(stream.producer.unpublished),
            ),
            consumers=tuple(
                replace(consumer, received=(consumer.received or 0) + n, dropped=add_n(consumer.dropped))
                for consumer in stream.consumers
            ),
        )
        for stream in snapshot.streams
    )
    bridges = tuple(
        replace(
            bridge,
            mappings=tuple(
                replace(m, frames=m.frames + n, dropped=add_n(m.dropped)) for m in bridge.mappings
            ),
        )
        for bridge in snapshot.bridges
    )
    recorders = tuple(
        replace(recorder, rows=recorder.rows + n, gaps=add_n(recorder.gaps))
        for recorder in snapshot.recorders
    )
    return replace(
        snapshot, streams=streams, bridges=bridges, recorders=recorders, rejected=add_n(snapshot.rejected)
    )


def promtool(*arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program("promtool")), *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def board_queries() -> dict[str, str]:
    """Each query of the dashboard, with values for Grafana's variables."""
    queries = {}
    for panel in json.loads(BOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "10s").replace("$stream", ".*")
            queries[f"{panel['title']} {target['refId']} {query}"] = query.replace("[10m]", "[10s]")
    return queries


def test_dashboard_queries_have_data_and_alerts_fire(tmp_path: Path, wait_until: Callable[..., Any]) -> None:
    with (
        MetricsServer("127.0.0.1:0", MetricsCollector(GrowingSystem()).page) as server,
        prometheus(tmp_path, str(server.address), RULES) as database,
    ):
        wait_until(lambda: database.query('up{job="tensorpool"} == 1'), timeout=60)
        pending = board_queries()
        assert len(pending) > 30

        def all_have_data() -> bool:
            for name, query in list(pending.items()):
                if database.query(query):
                    del pending[name]
            return not pending

        try:
            wait_until(all_have_data, timeout=60)
        except BaseException:
            pytest.fail(f"no data for {sorted(pending)}\n{database.log.read_text()}")
        rules = database.get("/api/v1/rules")["groups"][0]["rules"]
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}, rules
        # Alerts without a `for:` fire at once.
        assert wait_until(lambda: database.query('ALERTS{alertname="TensorPoolStreamRestarts"}'), timeout=60)
        assert database.query('ALERTS{alertname="TensorPoolIdCollision"}')
        assert database.query('ALERTS{alertname="TensorPoolLedgerMismatch", alertstate="firing"}')
        assert database.query('ALERTS{alertname="TensorPoolStreamStale"}')
        assert database.query("sum(tensorpool_streams)")[0]["value"][1] == "6"
        assert (
            database.query('tensorpool_stream_info{name="camera-left"}')[0]["metric"]["stream_id"] == "10000"
        )


def test_promtool_accepts_names_units_and_text() -> None:
    done = promtool("check", "metrics", given=MetricsCollector(system).page())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_accepts_the_rules_and_the_example_configuration() -> None:
    for arguments in (("rules", RULES), ("config", RULES.with_name("prometheus.yml"))):
        done = promtool("check", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_at_the_expected_times(tmp_path: Path) -> None:
    """`promtool test rules` evaluates the rules on synthetic series."""
    who = 'instance="h", stream_id="1", consumer_id="2"'
    series = {
        f"tensorpool_consumer_frames_received_total{{{who}}}": "0+290x60",
        f'tensorpool_consumer_frames_dropped_total{{{who}, reason="late"}}': "0+10x60",
        'tensorpool_consumer_frames_received_total{instance="h", stream_id="1", consumer_id="3"}': "0+300x60",
        'tensorpool_consumer_frames_dropped_total{instance="h", stream_id="1", consumer_id="3", '
        'reason="rate_limited"}': "0+300x60",
        f"tensorpool_consumer_backlog_frames{{{who}}}": "5x60",
        'tensorpool_stream_slots{instance="h", stream_id="1"}': "8x60",
        'tensorpool_recorder_disk_free_bytes{instance="h", recorder="r"}': "1000000-10000x60",
        'tensorpool_ledger_paths{instance="h", verdict="mismatch"}': "0x23 2x60",
        'tensorpool_ledger_paths{instance="h", verdict="exact"}': "5x60",
        'tensorpool_bridge_connected{instance="h", bridge="b", direction="send"}': "1x11 0x60",
    }

    def firing(at: str, alert: str, **labels: str) -> dict[str, Any]:
        return {"eval_time": at, "alertname": alert, "exp_alerts": [{"exp_labels": labels}] if labels else []}

    reader = {"severity": "warning", "instance": "h", "stream_id": "1", "consumer_id": "2"}
    bridge = {"severity": "critical", "instance": "h", "bridge": "b", "direction": "send"}
    expected = [
        firing("30s", "TensorPoolConsumerLosesFrames"),
        firing("5m", "TensorPoolConsumerLosesFrames", **reader),
        firing("15s", "TensorPoolConsumerFallsBehind"),
        firing("2m", "TensorPoolConsumerFallsBehind", **reader),
        firing("5m", "TensorPoolRecorderDiskFillsUp", severity="warning", instance="h", recorder="r"),
        firing("1m", "TensorPoolLedgerMismatch"),
        firing("3m", "TensorPoolLedgerMismatch", severity="critical", instance="h", verdict="mismatch"),
        firing("1m", "TensorPoolBridgeSilent"),
        firing("5m", "TensorPoolBridgeSilent", **bridge),
    ]
    text = RULES.read_text("utf-8")
    # Without the annotations: only which alert fires for which labels is compared.
    bare = [
        line
        for line in text.splitlines()
        if not line.strip().startswith(("annotations:", "summary:", "remedy:"))
    ]
    (tmp_path / "rules.yml").write_text("\n".join(bare))
    tests = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "5s",
        "tests": [
            {
                "interval": "5s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": expected,
            }
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps(tests))
    done = promtool("test", "rules", tmp_path / "test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_and_rules_use_only_metrics_of_the_catalogue() -> None:
    known = {metric.name for metric in CATALOGUE}
    used = set(re.findall(r"tensorpool_\w+", BOARD.read_text("utf-8") + RULES.read_text("utf-8")))
    assert used <= known
