"""What a driver says and watches through the native beacons: real media driver, real processes."""

from __future__ import annotations

import ctypes
import errno
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.errors import ClosedError, RegionRejected
from tensorpool.sbe import ClockDomain
from tests.integration.driver.roles import LockHolder, PoorDriver
from tests.integration.driver.stage import NEVER_NS, PERIOD_NS, SECOND_NS, Stage, conductor_words
from tests.remote_process import RemoteProcess

# --- announces and signs of life


@pytest.mark.requirement("driver-8-2")
def test_a_stream_is_announced_with_all_its_fields_at_once_and_every_period(
    stage, stream_id, wait_until
) -> None:
    ear, beacons, regions = stage.ear(), stage.beacons(), stage.regions(stream_id)
    beacons.put(**regions.words(producer_id=42))
    assert len(beacons) == 1
    wait_until(lambda: len(ear.of(stream_id)) >= 12)
    for announce in ear.heard:
        assert (announce.producer_id, announce.epoch, announce.layout_version) == (42, regions.epoch, 1)
        assert (announce.header_nslots, announce.header_slot_bytes) == (8, 256)
        assert announce.header_region_uri == regions.header_uri
        told = [(p.pool_id, p.stride_bytes, p.region_uri) for p in announce.payload_pools]
        assert told == regions.pools
        assert {p.pool_nslots for p in announce.payload_pools} == {8}
        assert announce.announce_clock_domain == ClockDomain.MONOTONIC
    # At once (up to three times, while the ear is just being opened), then once a period.
    times = [announce.announce_timestamp_ns for announce in ear.heard]
    assert times == sorted(times)
    assert len(times) <= 3 + (times[-1] - times[0]) // PERIOD_NS + 2


def test_the_sign_of_life_of_every_region_stays_fresh(stage, stream_id, wait_until) -> None:
    beacons, regions = stage.beacons(), stage.regions(stream_id)
    made_ns = regions.activity_ns
    beacons.put(**regions.words())
    first_ns = regions.activity_ns
    assert first_ns > made_ns
    # Nobody listens to announces here: memory needs no listener.
    wait_until(lambda: regions.activity_ns >= first_ns + 3 * PERIOD_NS)
    assert regions.activity_ns <= time.monotonic_ns()


def test_who_comes_late_hears_of_every_stream_without_waiting_for_a_period(
    stage, free_stream_ids, wait_until
) -> None:
    beacons = stage.beacons(period_ns=NEVER_NS)
    ids = {free_stream_ids() for _ in range(5)}
    for stream_id in ids:
        beacons.put(**stage.regions(stream_id).words())
    ear = stage.ear()
    wait_until(lambda: {announce.stream_id for announce in ear.listen()} == ids)
    # Twice: the first comes before a listener knows that it has joined, and is taken for a replay.
    wait_until(lambda: all(len(ear.of(stream_id)) == 2 for stream_id in ids))


def test_all_are_announced_again_when_asked(stage, free_stream_ids, wait_until) -> None:
    beacons, ear = stage.beacons(period_ns=NEVER_NS), stage.ear()
    wait_until(lambda: ear.is_open)
    ids = [free_stream_ids() for _ in range(3)]
    for stream_id in ids:
        beacons.put(**stage.regions(stream_id).words())
    wait_until(lambda: all(ear.of(stream_id) for stream_id in ids))
    counted = {stream_id: len(ear.of(stream_id)) for stream_id in ids}
    beacons.announce_all()
    wait_until(lambda: all(len(ear.of(stream_id)) > counted[stream_id] for stream_id in ids))


def test_all_are_announced_again_when_the_media_driver_is_back(
    aeron_dir, shm_base, free_stream_ids, wait_until
) -> None:
    ids = {free_stream_ids() for _ in range(3)}
    with ExitStack() as stack:
        with tp.MediaDriver(str(aeron_dir)):
            stage = Stage(stack, str(aeron_dir), shm_base, free_stream_ids())
            ear, beacons = stage.ear(), stage.beacons(period_ns=NEVER_NS)
            for stream_id in ids:
                beacons.put(**stage.regions(stream_id).words())
            wait_until(lambda: {announce.stream_id for announce in ear.listen()} == ids)
        wait_until(lambda: not stage.conductor.status()["connected"])
        left_ns = time.monotonic_ns()
        with tp.MediaDriver(str(aeron_dir)):
            wait_until(
                lambda: {a.stream_id for a in ear.listen() if a.announce_timestamp_ns > left_ns} == ids
            )
            stack.close()


def test_a_busy_interpreter_delays_no_announce(stage, stream_id, wait_until) -> None:
    ear, beacons, regions = stage.ear(), stage.beacons(), stage.regions(stream_id)
    beacons.put(**regions.words())
    wait_until(lambda: ear.of(stream_id))
    # PyDLL keeps the GIL during the call: no other Python thread runs for two seconds.
    start_ns = time.monotonic_ns()
    ctypes.PyDLL(None).usleep(2_000_000)
    end_ns = time.monotonic_ns()
    during = [a for a in ear.of(stream_id) if start_ns < a.announce_timestamp_ns < end_ns]
    assert len(during) >= (end_ns - start_ns) // PERIOD_NS // 2
    assert regions.activity_ns > end_ns - SECOND_NS


# --- a driver that has stopped doing its duty


def test_without_a_beat_announces_and_signs_of_life_stop_and_return_with_it(
    stage, stream_id, wait_until
) -> None:
    ear, regions = stage.ear(), stage.regions(stream_id)
    beacons = stage.beacons(stall_ns=3 * SECOND_NS)
    beacons.put(**regions.words())

    def heard_while_alive() -> bool:
        beacons.beat()
        return bool(ear.of(stream_id))

    wait_until(heard_while_alive)
    beat_ns = time.monotonic_ns()
    wait_until(lambda: time.monotonic_ns() > beat_ns + 5 * SECOND_NS)
    assert max(a.announce_timestamp_ns for a in ear.of(stream_id)) <= beat_ns + 3 * SECOND_NS
    assert regions.activity_ns <= beat_ns + 3 * SECOND_NS
    told = len(ear.of(stream_id))
    beacons.beat()
    wait_until(lambda: len(ear.of(stream_id)) > told)
    assert regions.activity_ns > beat_ns + 5 * SECOND_NS


# --- producers that die


@pytest.mark.requirement("driver-7-1")
def test_a_producer_killed_while_it_holds_its_lock_is_told_of_once(
    stage, stream_id, wait_until, looked_at
) -> None:
    beacons, regions = stage.beacons(), stage.regions(stream_id)
    with RemoteProcess(LockHolder) as holder:
        beacons.put(**regions.words(producer_id=42))
        holder.call("lock", path=str(regions.directory / "header.ring"))
        looked_at(regions)
        assert beacons.deaths() == []
        holder.kill()
        wait_until(lambda: beacons.deaths() == [(stream_id, regions.epoch)])
        # A second end of a lock there is nobody's death.
        with RemoteProcess(LockHolder) as second:
            second.call("lock", path=str(regions.directory / "header.ring"))
            looked_at(regions)
            second.kill()
        looked_at(regions)
        assert beacons.deaths() == []


def test_a_stopped_producer_is_not_dead(stage, stream_id, wait_until, looked_at) -> None:
    beacons, regions = stage.beacons(), stage.regions(stream_id)
    with RemoteProcess(LockHolder) as holder:
        beacons.put(**regions.words(producer_id=42))
        holder.call("lock", path=str(regions.directory / "header.ring"))
        looked_at(regions)
        holder.stop()
        looked_at(regions)
        assert beacons.deaths() == []
        holder.resume()
        holder.kill()
        wait_until(lambda: beacons.deaths() == [(stream_id, regions.epoch)])


def test_a_lock_on_regions_without_a_producer_is_nobodys(stage, stream_id, wait_until, looked_at) -> None:
    beacons, regions = stage.beacons(), stage.regions(stream_id)
    with RemoteProcess(LockHolder) as holder:
        beacons.put(**regions.words(producer_id=0))
        holder.call("lock", path=str(regions.directory / "header.ring"))
        looked_at(regions)
        holder.kill()
        looked_at(regions)
        assert beacons.deaths() == []


# --- streams that come, change and go


def test_the_next_epoch_takes_the_place_of_the_one_before(stage, stream_id, wait_until) -> None:
    ear, beacons, regions = stage.ear(), stage.beacons(), stage.regions(stream_id)
    wait_until(lambda: ear.is_open)
    beacons.put(**regions.words())
    wait_until(lambda: ear.of(stream_id))
    regions.assign(regions.epoch + 1)
    beacons.put(**regions.words(producer_id=7))
    assert len(beacons) == 1
    assert str(regions.directory.parent / "1000/") not in Path("/proc/self/maps").read_text()
    wait_until(lambda: [a for a in ear.of(stream_id) if a.epoch == regions.epoch])
    replaced = next(i for i, a in enumerate(ear.heard) if a.epoch == regions.epoch)
    wait_until(lambda: len(ear.of(stream_id)) >= replaced + 4)
    assert {(a.epoch, a.producer_id) for a in ear.heard[:replaced]} == {(1_000, 0)}
    assert {(a.epoch, a.producer_id) for a in ear.heard[replaced:]} == {(1_001, 7)}


def test_a_stream_that_was_removed_is_silent_and_unmapped(stage, free_stream_ids, wait_until) -> None:
    ear, beacons = stage.ear(), stage.beacons()
    gone, stays = stage.regions(free_stream_ids()), stage.regions(free_stream_ids())
    for regions in (gone, stays):
        beacons.put(**regions.words())
    wait_until(lambda: ear.of(gone.stream_id) and ear.of(stays.stream_id))
    assert beacons.remove(gone.stream_id)
    assert not beacons.remove(gone.stream_id)
    removed_ns = time.monotonic_ns()
    assert str(gone.directory) not in Path("/proc/self/maps").read_text()
    wait_until(lambda: ear.of(stays.stream_id)[-1].announce_timestamp_ns > removed_ns + 5 * PERIOD_NS)
    assert ear.of(gone.stream_id)[-1].announce_timestamp_ns <= removed_ns
    assert gone.activity_ns <= removed_ns
    assert len(beacons) == 1


def test_regions_that_are_not_what_is_announced_are_refused_and_the_stream_is_silent(
    stage, stream_id
) -> None:
    beacons, regions = stage.beacons(), stage.regions(stream_id)
    beacons.put(**regions.words())
    with pytest.raises(RegionRejected) as refused:
        beacons.put(**regions.words(epoch=5))
    assert refused.value.reason == "epoch"
    assert len(beacons) == 0
    with pytest.raises(RegionRejected) as refused:
        beacons.put(**regions.words(header_uri="shm:file?path=/etc/passwd"))
    assert refused.value.reason == "outside"


def test_the_end_lets_go_of_every_region(stage, stream_id) -> None:
    beacons, regions = stage.beacons(), stage.regions(stream_id)
    beacons.put(**regions.words(producer_id=1))
    assert str(regions.directory) in Path("/proc/self/maps").read_text()
    beacons.close()
    beacons.close()
    assert str(regions.directory) not in Path("/proc/self/maps").read_text()
    assert len(beacons) == 0
    with pytest.raises(ClosedError):
        beacons.put(**regions.words())


def test_memory_is_locked_where_asked(stage, stream_id) -> None:
    beacons, regions = stage.beacons(), stage.regions(stream_id)
    beacons.put(**regions.words(), lock_memory=True)
    smaps = Path("/proc/self/smaps").read_text()
    locked = smaps[smaps.index(str(regions.directory)) :].partition("Locked:")[2].split()[0]
    assert int(locked) > 0


def test_memory_that_may_not_be_locked_is_an_error_that_says_what_to_do(shm_base) -> None:
    with RemoteProcess(PoorDriver, str(shm_base)) as poor:
        number, words, streams = poor.call(
            "put", conductor=conductor_words(str(shm_base / "none"), 1, shm_base)
        )
    assert number in (errno.ENOMEM, errno.EPERM, errno.EAGAIN)
    assert "stream 1: cannot keep the regions in memory" in words
    assert "ulimit -l" in words
    assert streams == 0
    shutil.rmtree(shm_base / "tensorpool-me")


def test_periods_of_nothing_are_refused(stage) -> None:
    for words in ({"period_ns": 0, "stall_ns": 1}, {"period_ns": 1, "stall_ns": 0}):
        with pytest.raises(ValueError, match="above 0"):
            _native.Beacons(stage.conductor, **words)
