"""From the picture to metrics."""

from __future__ import annotations

from pathlib import Path

from tensorpool.metrics import Family, Limits, collect
from tensorpool.metrics.collect import CATALOGUE
from tensorpool.monitor.snapshot import Snapshot
from tests.unit.top.scene import consumer, stream, system

ROOT = Path(__file__).parents[3]


def samples(snapshot: Snapshot, limits: Limits | None = None) -> dict[str, dict[tuple[str, ...], float]]:
    found: list[Family] = collect(snapshot, limits or Limits(), version="1.2.3")
    return {one.metric.name: one.samples for one in found}


def test_every_metric_of_the_catalogue_has_a_sample_in_a_system_that_has_everything() -> None:
    found = samples(system())
    optional = {"tensorpool_producer_frames_dropped_total"}
    assert {name for name, values in found.items() if not values} == optional
    assert list(found) == [one.name for one in CATALOGUE]


def test_figures_are_those_of_the_picture_in_base_units() -> None:
    found = samples(system())
    assert found["tensorpool_streams"] == {
        ("live",): 3, ("quiet",): 1, ("no_producer",): 1, ("stale",): 1,
    }  # fmt: skip
    assert found["tensorpool_consumers"] == {(): 3}
    assert found["tensorpool_stream_info"]["10000", "camera-left"] == 1
    assert found["tensorpool_stream_state"]["10030", "stale"] == 1
    assert found["tensorpool_stream_state"]["10030", "live"] == 0
    assert found["tensorpool_producer_sequences_total"]["10000",] == 994
    assert found["tensorpool_producer_frames_published_total"]["10000",] == 993
    assert found["tensorpool_producer_frames_unpublished_total"]["10000", "back_pressured"] == 1
    assert found["tensorpool_producer_quiet_seconds"]["10020",] == 12.0
    assert found["tensorpool_consumer_frames_dropped_total"]["10000", "502", "late"] == 120
    assert found["tensorpool_consumer_latency_p99_seconds"]["10000", "502"] == 0.048
    assert found["tensorpool_consumer_rate_limited"] == {
        ("10000", "501"): 0, ("10000", "502"): 0, ("10001", "503"): 1,
    }  # fmt: skip
    assert found["tensorpool_bridge_network_frames"] == {("b1", "receive", "30000", "10020"): 4}
    assert found["tensorpool_recorder_gap_frames_total"]["r1", "recorder_backlog"] == 4
    assert found["tensorpool_recorder_state"]["r1", "recording"] == 1
    assert found["tensorpool_ledger_paths"]["mismatch",] == 1
    assert found["tensorpool_id_collisions"] == {("consumer",): 1, ("producer",): 0, ("stream",): 0}


def test_what_nobody_told_has_no_sample() -> None:
    assert samples(Snapshot(0))["tensorpool_ledger_paths"] == {}
    found = samples(system())
    assert ("10040",) not in found["tensorpool_stream_activity_age_seconds"]
    assert ("10040",) not in found["tensorpool_producer_sequences_total"]


def test_labels_are_bounded_and_what_is_left_out_is_counted() -> None:
    crowd = tuple(
        stream(n, consumers=tuple(consumer(n, m, {f"reason-{r}": 1 for r in range(60)}) for m in range(4)))
        for n in range(50, 0, -1)
    )
    found = samples(Snapshot(0, streams=crowd), Limits(streams=10, consumers=12))
    assert sorted(int(one) for one, _ in found["tensorpool_stream_info"]) == list(range(1, 11))
    assert len(found["tensorpool_consumer_info"]) == 12
    left_out = found["tensorpool_metrics_left_out"]
    assert (left_out["streams",], left_out["consumers",]) == (40, 188)
    dropped = found["tensorpool_consumer_frames_dropped_total"]
    assert dropped["1", "0", "other"] == 28
    assert len(dropped) == 12 * 33
    assert found["tensorpool_streams"]["live",] == 50
