"""The metrics of a snapshot of the system model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tensorpool.metrics.collect import CATALOGUE, collect
from tensorpool.metrics.config import DEFAULT_LIMITS, Limits
from tensorpool.monitor.snapshot import Snapshot
from tests.unit.top.snapshots import consumer, stream, system

ROOT = Path(__file__).parents[3]

Samples = dict[tuple[str, ...], float]


def samples(snapshot: Snapshot, limits: Limits = DEFAULT_LIMITS) -> dict[str, Samples]:
    """The samples of every metric of the catalogue, by label values."""
    by_name: dict[str, Samples] = {metric.name: {} for metric in CATALOGUE}
    labels = {metric.name: metric.labels for metric in CATALOGUE}
    for family in collect(snapshot, limits, version="1.2.3"):
        for sample in family.samples:
            assert tuple(sample.labels) == labels[sample.name]
            key = tuple(sample.labels.values())
            assert key not in by_name[sample.name], "two samples with the same labels"
            by_name[sample.name][key] = sample.value
    return by_name


def test_complete_system_has_samples_of_every_metric() -> None:
    found = samples(system())
    optional = {"tensorpool_producer_frames_dropped_total"}
    assert {name for name, values in found.items() if not values} == optional


def test_families_are_in_the_order_of_the_catalogue() -> None:
    names = [family.name for family in collect(system())]
    order = [metric.name.removesuffix("_total") for metric in CATALOGUE]
    assert names == [name for name in order if name in names]


def test_values_are_those_of_the_snapshot_in_base_units() -> None:
    found = samples(system())
    assert found["tensorpool_streams"] == {
        ("live",): 3, ("quiet",): 1, ("vacant",): 1, ("stale",): 1,
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


def test_unknown_values_have_no_sample() -> None:
    assert samples(Snapshot(0))["tensorpool_ledger_paths"] == {}
    found = samples(system())
    assert ("10040",) not in found["tensorpool_stream_activity_age_seconds"]
    assert ("10040",) not in found["tensorpool_producer_sequences_total"]


def test_labels_are_bounded_and_the_excluded_are_counted() -> None:
    streams = tuple(
        stream(n, consumers=tuple(consumer(n, m, {f"reason-{r}": 1 for r in range(60)}) for m in range(4)))
        for n in range(50, 0, -1)
    )
    found = samples(Snapshot(0, streams=streams), Limits(streams=10, consumers=12))
    assert sorted(int(stream_id) for stream_id, _ in found["tensorpool_stream_info"]) == list(range(1, 11))
    assert len(found["tensorpool_consumer_info"]) == 12
    excluded = found["tensorpool_metrics_excluded"]
    assert (excluded["streams",], excluded["consumers",]) == (40, 188)
    dropped = found["tensorpool_consumer_frames_dropped_total"]
    assert dropped["1", "0", "other"] == 28
    assert len(dropped) == 12 * 33
    assert found["tensorpool_streams"]["live",] == 50


def test_two_recorders_of_one_instance_give_one_sample() -> None:
    snapshot = system()
    [recorder] = snapshot.recorders
    long = "r" * 200
    twins = tuple(
        replace(recorder, instance=long + suffix, rows=rows) for suffix, rows in (("a", 1), ("b", 2))
    )
    found = samples(replace(snapshot, recorders=twins))
    assert list(found["tensorpool_recorder_rows_total"].values()) == [2]
