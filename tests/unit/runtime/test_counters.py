"""Counters, counter sets and their labels."""

from __future__ import annotations

import threading

import pytest

from tensorpool.runtime import CounterSet, CounterValue, counter, counters_by, gauge
from tensorpool.runtime.counters import label_of


class RecorderCounters(CounterSet, name="recorder"):
    """Counters of a recorder."""

    frames = counter("Frames written.", unit="frames", aeron=True)
    backlog = gauge("Bytes that wait.", unit="bytes")
    dropped = counters_by("reason", ["late", "no_room"], "Frames lost.", unit="frames", aeron=True)


def test_each_instance_counts_for_itself():
    first, second = RecorderCounters(), RecorderCounters(instance="lab")
    first.frames.add()
    first.frames.add(4)
    first.backlog.set(7)
    first.backlog.add(-2)
    first.dropped["late"].add(3)
    assert first.snapshot() == {"frames": 5, "backlog": 5, "dropped": {"late": 3, "no_room": 0}}
    assert second.snapshot() == {"frames": 0, "backlog": 0, "dropped": {"late": 0, "no_room": 0}}
    assert (first.value_of("dropped"), first.dropped.total) == (3, 3)


def test_counter_values_have_kind_unit_doc_and_labels():
    counters = RecorderCounters()
    counters.dropped["no_room"].add(2)
    assert list(counters) == [
        CounterValue("frames", "counter", "frames", "Frames written.", 0),
        CounterValue("backlog", "gauge", "bytes", "Bytes that wait.", 0),
        CounterValue("dropped", "counter", "frames", "Frames lost.", 0, {"reason": "late"}),
        CounterValue("dropped", "counter", "frames", "Frames lost.", 2, {"reason": "no_room"}),
    ]


def test_counter_declarations_have_docs():
    assert RecorderCounters.__dict__["frames"].__doc__ == "Frames written."
    assert RecorderCounters.declarations["backlog"].unit == "bytes"


def test_undeclared_label_value_is_an_error():
    with pytest.raises(KeyError, match="bored"):
        RecorderCounters().dropped["bored"].add()


def test_no_count_is_lost_between_threads():
    counters = RecorderCounters()

    def count() -> None:
        for _ in range(20_000):
            counters.frames.add()

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.frames.value == 160_000


def test_counter_value_may_be_bound_to_a_function():
    counters = RecorderCounters()
    native = {"frames": 41}
    counters.frames.bind(lambda: native["frames"])
    native["frames"] += 1
    assert counters.snapshot()["frames"] == 42


def test_gauge_can_keep_the_highest():
    counters = RecorderCounters()
    for value in (3, 9, 4):
        counters.backlog.raise_to(value)
    assert counters.backlog.value == 9


def test_counter_set_may_be_extended():
    class More(RecorderCounters, name="more"):
        segments = counter("Segments sealed.", unit="segments")

    assert list(More.declarations) == ["frames", "backlog", "dropped", "segments"]
    assert (More.name, RecorderCounters.name) == ("more", "recorder")


def test_more_than_six_aeron_counters_are_refused():
    declared = {f"c{n}": counter("A number.", unit="numbers", aeron=True) for n in range(7)}
    with pytest.raises(TypeError, match="has 7 Aeron counters, more than 6"):
        type("TooMany", (CounterSet,), declared)


def test_label_names_role_instance_counter_and_unit():
    assert label_of(RecorderCounters(instance="lab"), "frames") == "tensorpool: recorder/lab frames (frames)"
    assert label_of(RecorderCounters(), "frames") == "tensorpool: recorder frames (frames)"
