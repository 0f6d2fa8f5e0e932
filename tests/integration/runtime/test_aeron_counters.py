"""Our counters among those of a real media driver."""

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
from tensorpool.transport import embed_lock_path

LABEL = "tensorpool: sample/lab frames (frames)"


class SampleCounters(CounterSet, name="sample"):
    """What is counted here."""

    frames = counter("Frames.", unit="frames", aeron=True)
    backlog = gauge("Bytes that wait.", unit="bytes", aeron=True)
    dropped = counters_by("reason", ["late", "lost"], "Frames lost.", unit="frames", aeron=True)
    private = counter("Nobody else's business.", unit="things")


@contextmanager
def conductor_at(aeron_dir):
    """A conductor on a media driver that runs elsewhere, and comes and goes as it likes."""
    conductor = _native.Conductor(
        aeron_dir=str(aeron_dir),
        media_driver_lock=embed_lock_path(str(aeron_dir)),
        embed=False,
        dir_mode=0o700,
        driver_timeout_ms=1000,
        announce_channel="aeron:ipc",
        announce_stream_id=1001,
        announce_period_ns=1_000_000_000,
        control_channel="aeron:ipc",
        control_stream_id=1000,
        qos_stream_id=1200,
        allowed_base_dirs=["/dev/shm"],
    )
    try:
        yield conductor
    finally:
        conductor.close()


def ours(aeron_dir) -> dict[str, tuple[int, int]]:
    """Label → type and value."""
    found = read_aeron_counters(str(aeron_dir))
    return {one.label: (one.type_id, one.value) for one in found if one.is_tensorpool}


def test_the_chosen_counters_are_read_back_from_the_media_driver(aeron_dir, wait_until):
    counters = SampleCounters(instance="lab")
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        exposure = CounterPublisher(conductor, counters)
        counters.frames.add(41)
        counters.frames.add()
        counters.backlog.set(-7)
        counters.dropped["late"].add(2)
        counters.dropped["lost"].add(3)
        exposure.update()
        expected = {
            LABEL: (COUNTER_TYPE_ID, 42),
            "tensorpool: sample/lab backlog (bytes)": (GAUGE_TYPE_ID, -7),
            "tensorpool: sample/lab dropped (frames)": (COUNTER_TYPE_ID, 5),
        }
        wait_until(lambda: ours(aeron_dir) == expected)
        places = {
            one.label: one.counter_id for one in read_aeron_counters(str(aeron_dir)) if one.is_tensorpool
        }
        assert exposure.counter_ids == places
        exposure.close()
        wait_until(lambda: ours(aeron_dir) == {})


def test_values_are_carried_over_ten_times_a_second(aeron_dir, wait_until):
    clock = ManualClock()
    counters = SampleCounters(instance="lab")
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        exposure = CounterPublisher(conductor, counters, clock=clock)
        counters.frames.add(1)
        exposure.do_work()
        counters.frames.add(1)
        exposure.do_work()
        wait_until(lambda: ours(aeron_dir).get(LABEL) == (COUNTER_TYPE_ID, 1))
        clock.advance(0.1)
        exposure.do_work()
        wait_until(lambda: ours(aeron_dir).get(LABEL) == (COUNTER_TYPE_ID, 2))
        exposure.close()


def test_a_counter_outlives_its_media_driver(aeron_dir, wait_until):
    with conductor_at(aeron_dir) as conductor:
        shown = _native.AeronCounter(conductor, LABEL, COUNTER_TYPE_ID)
        shown.add(5)
        assert shown.counter_id is None
        with tp.MediaDriver(str(aeron_dir)):
            wait_until(lambda: ours(aeron_dir) == {LABEL: (COUNTER_TYPE_ID, 5)})
        wait_until(lambda: shown.counter_id is None)
        shown.add(2)
        with tp.MediaDriver(str(aeron_dir)):
            wait_until(lambda: ours(aeron_dir) == {LABEL: (COUNTER_TYPE_ID, 7)})
            shown.close()


def test_one_called_off_before_it_was_there_leaves_nothing(aeron_dir, wait_until):
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        assert conductor.wait_connected(30)
        for _ in range(200):
            _native.AeronCounter(conductor, "tensorpool: brief", COUNTER_TYPE_ID).close()
        last = _native.AeronCounter(conductor, "tensorpool: last", COUNTER_TYPE_ID)
        wait_until(lambda: list(ours(aeron_dir)) == ["tensorpool: last"])
        assert last.failure is None


def test_a_label_that_is_too_long_is_cut(aeron_dir, wait_until):
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        shown = _native.AeronCounter(conductor, "x" * 5000, COUNTER_TYPE_ID)
        wait_until(lambda: shown.counter_id is not None)
        assert shown.label == "x" * 380
        assert list(ours(aeron_dir)) == ["x" * 380]


@pytest.mark.long
def test_a_media_driver_without_room_refuses_and_the_rest_goes_on(aeron_dir, wait_until):
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        assert conductor.wait_connected(30)
        many = [_native.AeronCounter(conductor, f"tensorpool: {n}", COUNTER_TYPE_ID) for n in range(66_000)]
        wait_until(lambda: all(one.counter_id is not None or one.failure for one in many), timeout=100)
        refused = [one for one in many if one.failure]
        assert 0 < len(refused) < 2_000
        assert all(one.counter_id is None for one in refused)
        refused[0].add(3)
        assert refused[0].value == 3
        many[0].set(5)
        wait_until(lambda: ours(aeron_dir)["tensorpool: 0"] == (COUNTER_TYPE_ID, 5))


def test_counters_of_the_media_driver_itself_are_read_too(aeron_dir):
    with tp.MediaDriver(str(aeron_dir)):
        found = read_aeron_counters(str(aeron_dir))
    labels = [one.label for one in found]
    assert any(label.startswith("Bytes sent") for label in labels)
    assert len({one.counter_id for one in found}) == len(found) > 10
    assert not any(one.is_tensorpool for one in found)


def test_without_a_media_driver_there_is_nothing_to_read(aeron_dir):
    with pytest.raises(MediaDriverError, match="cannot read the counters") as caught:
        read_aeron_counters(str(aeron_dir))
    assert caught.value.aeron_dir == str(aeron_dir)


def test_more_than_six_in_all_are_refused(aeron_dir):
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        sets = [SampleCounters(instance=name) for name in "abc"]
        with pytest.raises(ValueError, match="9 Aeron counters are too many; 6 at most"):
            CounterPublisher(conductor, *sets)


def test_a_forked_child_is_refused_and_disturbs_nothing(aeron_dir, wait_until, tmp_path):
    with tp.MediaDriver(str(aeron_dir)), conductor_at(aeron_dir) as conductor:
        shown = _native.AeronCounter(conductor, LABEL, COUNTER_TYPE_ID)
        wait_until(lambda: shown.counter_id is not None)
        child = os.fork()
        if child == 0:
            try:
                shown.add(1)
                status = 1
            except ForkedError:
                status = 7
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        shown.set(3)
        wait_until(lambda: ours(aeron_dir) == {LABEL: (COUNTER_TYPE_ID, 3)})
