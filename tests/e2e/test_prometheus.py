"""A real Prometheus scrapes the endpoint, loads our rules and answers the board's queries."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorpool.metrics import MetricsServer, MetricsSource
from tensorpool.monitor.snapshot import Snapshot
from tests.e2e.prometheus import needs_prometheus, program, prometheus
from tests.unit.top.scene import system

pytestmark = needs_prometheus
ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "tensorpool.rules.yml"
BOARD = ROOT / "deploy" / "grafana" / "tensorpool.json"


class Moving:
    """The system that has everything; its counters go on."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self) -> Snapshot:
        return moved(system(), int((time.monotonic() - self._began) * 100))


def moved(snapshot: Snapshot, n: int) -> Snapshot:
    def more(counts: Any) -> dict[str, int]:
        return {reason: count + n for reason, count in counts.items()}

    streams = tuple(
        replace(
            one,
            epochs=one.epochs + n // 100,
            producer=one.producer
            and replace(
                one.producer,
                current_seq=(one.producer.current_seq or 0) + n,
                nbytes=(one.producer.nbytes or 0) + n * 1000,
                unpublished=more(one.producer.unpublished),
            ),
            consumers=tuple(
                replace(reader, received=(reader.received or 0) + n, dropped=more(reader.dropped))
                for reader in one.consumers
            ),
        )
        for one in snapshot.streams
    )
    bridges = tuple(
        replace(
            one,
            mappings=tuple(replace(m, frames=m.frames + n, dropped=more(m.dropped)) for m in one.mappings),
        )
        for one in snapshot.bridges
    )
    recorders = tuple(replace(one, rows=one.rows + n, gaps=more(one.gaps)) for one in snapshot.recorders)
    return replace(
        snapshot, streams=streams, bridges=bridges, recorders=recorders, rejected=more(snapshot.rejected)
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
    """Each query of the board, with what Grafana would put in for its variables."""
    found = {}
    for panel in json.loads(BOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "10s").replace("$stream", ".*")
            found[f"{panel['title']} {target['refId']} {query}"] = query.replace("[10m]", "[10s]")
    return found


def test_every_query_of_the_board_has_data_and_the_alerts_fire(
    tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    with (
        MetricsServer("127.0.0.1:0", MetricsSource(Moving())) as server,
        prometheus(tmp_path, str(server.address), RULES) as there,
    ):
        wait_until(lambda: there.query('up{job="tensorpool"} == 1'), timeout=60)
        left = board_queries()
        assert len(left) > 30

        def all_have_data() -> bool:
            for name, query in list(left.items()):
                if there.query(query):
                    del left[name]
            return not left

        try:
            wait_until(all_have_data, timeout=60)
        except BaseException:
            pytest.fail(f"no data for {sorted(left)}\n{there.log.read_text()}")
        rules = there.get("/api/v1/rules")["groups"][0]["rules"]
        assert {one["health"] for one in rules} <= {"ok", "unknown"}, rules
        # Those without a time of waiting fire at once.
        assert wait_until(lambda: there.query('ALERTS{alertname="TensorPoolStreamRestarts"}'), timeout=60)
        assert there.query('ALERTS{alertname="TensorPoolIdCollision"}')
        assert there.query('ALERTS{alertname="TensorPoolLedgerMismatch", alertstate="firing"}')
        assert there.query('ALERTS{alertname="TensorPoolStreamStale"}')
        assert there.query("sum(tensorpool_streams)")[0]["value"][1] == "6"
        assert there.query('tensorpool_stream_info{name="camera-left"}')[0]["metric"]["stream_id"] == "10000"


def test_prometheus_has_nothing_to_say_against_names_units_and_text() -> None:
    done = promtool("check", "metrics", given=MetricsSource(system)())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_rules_and_the_example_configuration_are_sound() -> None:
    for arguments in (("rules", RULES), ("config", RULES.with_name("prometheus.yml"))):
        done = promtool("check", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    """`promtool test rules`: series of our own against the clock of the test."""
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
    # Words are for people; what is compared here is who fires.
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


def test_every_metric_in_the_board_and_the_rules_is_one_that_we_have() -> None:
    import re

    from tensorpool.metrics.collect import CATALOGUE

    known = {one.name for one in CATALOGUE}
    used = set(re.findall(r"tensorpool_\w+", BOARD.read_text("utf-8") + RULES.read_text("utf-8")))
    assert used <= known
