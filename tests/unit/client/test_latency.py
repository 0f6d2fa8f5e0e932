"""Latency figures of a consumer: values, text and JSON."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tensorpool import _native
from tensorpool.client import Latency, LatencySummary, ReportOptions
from tensorpool.transport import Connection

NO_CONNECTION: Connection = None  # type: ignore[assignment]
REPORT: Any = SimpleNamespace(
    since="publish",
    excluded=3,
    total=SimpleNamespace(count=100, p50_ns=2_000, p99_ns=40_000, max_ns=1_234_567),
    last=SimpleNamespace(count=0, p50_ns=0, p99_ns=0, max_ns=0),
)


def test_latency_has_the_report_of_the_native_consumer() -> None:
    latency = Latency.from_report(REPORT)
    assert latency == Latency(
        "publish", LatencySummary(0, 0, 0, 0), LatencySummary(100, 2_000, 40_000, 1_234_567), 3
    )
    assert str(latency.total) == "p50 2.0 µs, p99 40.0 µs, max 1,234.6 µs of 100"
    assert str(latency.last) == "no frames"


def test_latency_json_has_the_keys_of_the_status_stream() -> None:
    document = json.loads(json.dumps(Latency.from_report(REPORT).to_json()))
    assert document["total"] == {"count": 100, "p50_ns": 2_000, "p99_ns": 40_000, "max_ns": 1_234_567}
    assert (document["since"], document["excluded"], document["last"]["count"]) == ("publish", 3, 0)


@pytest.mark.parametrize("latency", [True, False])
def test_producer_has_no_latency_to_report(latency: bool) -> None:
    class FakeProducer:
        """Not a consumer: it has no latency."""

    endpoint: _native.Producer = FakeProducer()  # type: ignore[assignment]
    reports = ReportOptions(latency=latency, counters=False, ledgers=False)
    assert reports.start_reporter(endpoint, NO_CONNECTION) is None
