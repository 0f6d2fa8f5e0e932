"""Published counters in the counters file of a real media driver."""

from __future__ import annotations

import os
from contextlib import contextmanager

import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.clock import ManualClock
from tensorpool.errors import ForkedError, MediaDriverError
from tensorpool.runtime import CounterPublisher, CounterSet, counter, counters_by, gauge, read_aeron_counters
from tensorpool.runtime.counters import COUNTER_TYPE_ID, GAUGE_TYPE_ID
from tests.integration.conductors import open_conductor

LABEL = "tensorpool: sample/lab frames (frames)"


class SampleCounters(CounterSet, name="sample"):
    """Counters of a sample role."""

    frames = counter("Frames.", unit="frames", aeron=True)
    backlog = gauge("Bytes that wait.", unit="bytes", aeron=True)
    dropped = counters_by("reason", ["late", "lost"], "Frames lost.", unit="frames", aeron=True)
    private = counter("Not published.", unit="things")


@contextmanager
def conductor_at(aeron_dir):
    """A conductor of an external media driver, which may stop and restart."""
    conductor = open_conductor(str(aeron_dir), base_dir="/dev/shm", driver_timeout_s=1.0)
    try:
        yield conductor
    finally:
        conductor.close()


def published(aeron_dir) -> dict[str, tuple[int, int]]:
    """Type and value of each published counter, by label."""
    values = read_aeron_counters(str(aeron_dir))
    return {value.label: (value.type_id, value.value) for value in values if value.is_tensorpool}


def test_published_counters_are_read_back_from_the_media_driver(aeron_dir, wait_until):
    counters = SampleCounters(instance="lab")
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        publisher = CounterPublisher(conductor, counters)
        counters.frames.add(41)
        counters.frames.add()
        counters.backlog.set(-7)
        counters.dropped["late"].add(2)
        counters.dropped["lost"].add(3)
        publisher.update()
        expected = {
            LABEL: (COUNTER_TYPE_ID, 42),
            "tensorpool: sample/lab backlog (bytes)": (GAUGE_TYPE_ID, -7),
            "tensorpool: sample/lab dropped (frames)": (COUNTER_TYPE_ID, 5),
        }
        wait_until(lambda: published(aeron_dir) == expected)
        values = read_aeron_counters(str(aeron_dir))
        assert publisher.counter_ids == {v.label: v.counter_id for v in values if v.is_tensorpool}
        publisher.close()
        wait_until(lambda: published(aeron_dir) == {})


def test_counter_publisher_updates_ten_times_a_second(aeron_dir, wait_until):
    clock = ManualClock()
    counters = SampleCounters(instance="lab")
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        publisher = CounterPublisher(conductor, counters, clock=clock)
        counters.frames.add(1)
        publisher.do_work()
        counters.frames.add(1)
        publisher.do_work()
        wait_until(lambda: published(aeron_dir).get(LABEL) == (COUNTER_TYPE_ID, 1))
        clock.advance(0.1)
        publisher.do_work()
        wait_until(lambda: published(aeron_dir).get(LABEL) == (COUNTER_TYPE_ID, 2))
        publisher.close()


def test_aeron_counter_survives_its_media_driver(aeron_dir, wait_until):
    with conductor_at(aeron_dir) as conductor:
        aeron_counter = _native.AeronCounter(conductor, LABEL, COUNTER_TYPE_ID)
        aeron_counter.add(5)
        assert aeron_counter.counter_id is None
        with tp.MediaDriver(str(aeron_dir)):
            wait_until(lambda: published(aeron_dir) == {LABEL: (COUNTER_TYPE_ID, 5)})
        wait_until(lambda: aeron_counter.counter_id is None)
        aeron_counter.add(2)
        with tp.MediaDriver(str(aeron_dir)):
            wait_until(lambda: published(aeron_dir) == {LABEL: (COUNTER_TYPE_ID, 7)})
            aeron_counter.close()


def test_aeron_counter_closed_while_pending_leaves_nothing(aeron_dir, wait_until):
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        assert conductor.wait_connected(30)
        for _ in range(200):
            _native.AeronCounter(conductor, "tensorpool: brief", COUNTER_TYPE_ID).close()
        last = _native.AeronCounter(conductor, "tensorpool: last", COUNTER_TYPE_ID)
        wait_until(lambda: list(published(aeron_dir)) == ["tensorpool: last"])
        assert last.failure is None


def test_long_counter_label_is_truncated(aeron_dir, wait_until):
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        aeron_counter = _native.AeronCounter(conductor, "x" * 5000, COUNTER_TYPE_ID)
        wait_until(lambda: aeron_counter.counter_id is not None)
        assert aeron_counter.label == "x" * 380
        assert list(published(aeron_dir)) == ["x" * 380]


@pytest.mark.long
def test_full_media_driver_refuses_only_further_counters(aeron_dir, wait_until):
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        assert conductor.wait_connected(30)
        many = [_native.AeronCounter(conductor, f"tensorpool: {n}", COUNTER_TYPE_ID) for n in range(66_000)]
        wait_until(lambda: all(c.counter_id is not None or c.failure for c in many), timeout=100)
        refused = [aeron_counter for aeron_counter in many if aeron_counter.failure]
        assert 0 < len(refused) < 2_000
        assert all(aeron_counter.counter_id is None for aeron_counter in refused)
        refused[0].add(3)
        assert refused[0].value == 3
        many[0].set(5)
        wait_until(lambda: published(aeron_dir)["tensorpool: 0"] == (COUNTER_TYPE_ID, 5))


def test_counters_of_the_media_driver_itself_are_read(aeron_dir):
    with tp.MediaDriver(str(aeron_dir)):
        values = read_aeron_counters(str(aeron_dir))
    labels = [value.label for value in values]
    assert any(label.startswith("Bytes sent") for label in labels)
    assert len({value.counter_id for value in values}) == len(values) > 10
    assert not any(value.is_tensorpool for value in values)


def test_read_aeron_counters_needs_a_media_driver(aeron_dir):
    with pytest.raises(MediaDriverError, match="cannot read the counters") as caught:
        read_aeron_counters(str(aeron_dir))
    assert caught.value.aeron_dir == str(aeron_dir)


def test_more_than_six_published_counters_are_refused(aeron_dir):
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        sets = [SampleCounters(instance=name) for name in "abc"]
        with pytest.raises(ValueError, match="9 Aeron counters are more than 6"):
            CounterPublisher(conductor, *sets)


def test_aeron_counter_is_refused_in_a_forked_child(aeron_dir, wait_until, tmp_path):
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        aeron_counter = _native.AeronCounter(conductor, LABEL, COUNTER_TYPE_ID)
        wait_until(lambda: aeron_counter.counter_id is not None)
        child = os.fork()
        if child == 0:
            try:
                aeron_counter.add(1)
                status = 1
            except ForkedError:
                status = 7
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        aeron_counter.set(3)
        wait_until(lambda: published(aeron_dir) == {LABEL: (COUNTER_TYPE_ID, 3)})
