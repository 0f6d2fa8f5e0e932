"""`tensorpool stream`: which streams count as announced, their age, and the latency of their consumers."""

from __future__ import annotations

from dataclasses import replace

from tensorpool.cli.stream_watch import announce_age_ns, announced_streams, highest_latency
from tensorpool.monitor.model import SystemModel
from tensorpool.monitor.reports import LatencyStatus
from tensorpool.monitor.snapshot import Snapshot
from tests.unit.monitor.test_model import announce, report, source, stream_of

S = 1_000_000_000


class FakeMonitor:
    """A model without a listener."""

    def __init__(self) -> None:
        self.model = SystemModel()
        self.limits = self.model.limits
        self.now_ns = 0

    def snapshot(self) -> Snapshot:
        return self.model.snapshot(self.now_ns)

    def announced_ids(self, now_ns: int) -> list[int]:
        self.now_ns = now_ns
        return [stream.stream_id for stream in announced_streams(self)]  # type: ignore[arg-type]


def test_streams_are_announced_for_three_periods_and_listed_by_id() -> None:
    monitor = FakeMonitor()
    for stream_id in (9, 7):
        monitor.model.observe(replace(announce(stream_id), announce_timestamp_ns=S), S)
    # Metadata alone is no announce.
    monitor.model.observe(replace(source("camera"), stream_id=8), S)
    assert monitor.announced_ids(4 * S) == [7, 9]
    assert monitor.announced_ids(4 * S + 1) == []


def test_announce_that_was_sent_long_ago_is_not_listed() -> None:
    monitor = FakeMonitor()
    monitor.model.observe(replace(announce(), announce_timestamp_ns=S), 10 * S)
    assert announce_age_ns(stream_of(monitor.model, 10 * S)) == 9 * S
    assert monitor.announced_ids(10 * S) == []
    # A time in the future counts as the time of receipt.
    monitor.model.observe(replace(announce(), announce_timestamp_ns=1000 * S), 11 * S)
    assert announce_age_ns(stream_of(monitor.model, 12 * S)) == S


def test_latency_report_has_the_highest_values_of_all_consumers() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    assert highest_latency(stream_of(model, 0)) is None
    for consumer_id, values in ((7, (10, 90, 100)), (8, (20, 50, 200))):
        model.observe(report(consumer_id), 0)
        model.observe(LatencyStatus(5, consumer_id, 1, *values, "publish"), 0)
    assert highest_latency(stream_of(model, 0)) == {
        "consumers": 2, "p50_ns": 20, "p99_ns": 90, "max_ns": 200,
    }  # fmt: skip
