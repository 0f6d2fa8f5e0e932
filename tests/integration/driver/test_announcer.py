"""The native announcer of a driver, with a real media driver and real processes."""

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
from tensorpool.driver.agent import AnnouncerOptions
from tensorpool.errors import ClosedError, RegionRejected
from tensorpool.sbe import ClockDomain
from tensorpool.transport import embed_lock_path
from tests.integration.driver.announcer_harness import (
    NEVER_NS,
    PERIOD_NS,
    SECOND_NS,
    AnnouncerHarness,
)
from tests.integration.driver.roles import LockHolder, UnprivilegedDriver
from tests.remote_process import RemoteProcess

# --- announces and activity timestamps


def is_dead(announcer: _native.StreamAnnouncer, stream_id: int, epoch: int) -> bool:
    """Whether the announcer reports the end of exactly this producer."""
    return [(dead.stream_id, dead.epoch) for dead in announcer.dead_producers()] == [(stream_id, epoch)]


@pytest.mark.requirement("driver-8-2")
def test_stream_is_announced_at_once_and_every_period(harness, stream_id, wait_until) -> None:
    listener, announcer, regions = harness.listener(), harness.announcer(), harness.regions(stream_id)
    announcer.announce(**regions.options(producer_id=42))
    assert len(announcer) == 1
    wait_until(lambda: len(listener.received(stream_id)) >= 12)
    for announce in listener.announces:
        assert (announce.producer_id, announce.epoch, announce.layout_version) == (42, regions.epoch, 1)
        assert (announce.header_nslots, announce.header_slot_bytes) == (8, 256)
        assert announce.header_region_uri == regions.files.header_uri
        announced = [(p.pool_id, p.stride_bytes, p.region_uri) for p in announce.payload_pools]
        assert announced == regions.files.pools
        assert {p.pool_nslots for p in announce.payload_pools} == {8}
        assert announce.announce_clock_domain == ClockDomain.MONOTONIC
    # At once (up to three times, while the subscription opens), then once a period.
    times = [announce.announce_timestamp_ns for announce in listener.announces]
    assert times == sorted(times)
    assert len(times) <= 3 + (times[-1] - times[0]) // PERIOD_NS + 2


def test_activity_timestamp_of_every_region_stays_fresh(harness, stream_id, wait_until) -> None:
    announcer, regions = harness.announcer(), harness.regions(stream_id)
    made_ns = regions.activity_ns
    announcer.announce(**regions.options())
    first_ns = regions.activity_ns
    assert first_ns > made_ns
    # Without a subscriber to announces: activity timestamps do not depend on one.
    wait_until(lambda: regions.activity_ns >= first_ns + 3 * PERIOD_NS)
    assert regions.activity_ns <= time.monotonic_ns()


def test_late_subscriber_gets_all_announces_at_once(harness, free_stream_ids, wait_until) -> None:
    announcer = harness.announcer(period_ns=NEVER_NS)
    ids = {free_stream_ids() for _ in range(5)}
    for stream_id in ids:
        announcer.announce(**harness.regions(stream_id).options())
    listener = harness.listener()
    wait_until(lambda: {announce.stream_id for announce in listener.poll()} == ids)
    # Twice: a consumer takes the first announce, before its join time, for a replay.
    wait_until(lambda: all(len(listener.received(stream_id)) == 2 for stream_id in ids))


def test_all_streams_are_announced_again_on_request(harness, free_stream_ids, wait_until) -> None:
    announcer, listener = harness.announcer(period_ns=NEVER_NS), harness.listener()
    wait_until(lambda: listener.is_open)
    ids = [free_stream_ids() for _ in range(3)]
    for stream_id in ids:
        announcer.announce(**harness.regions(stream_id).options())
    wait_until(lambda: all(listener.received(stream_id) for stream_id in ids))
    counted = {stream_id: len(listener.received(stream_id)) for stream_id in ids}
    announcer.announce_all()
    wait_until(lambda: all(len(listener.received(stream_id)) > counted[stream_id] for stream_id in ids))


def test_all_streams_are_announced_after_a_media_driver_restart(
    aeron_dir, shm_base, free_stream_ids, wait_until
) -> None:
    ids = {free_stream_ids() for _ in range(3)}
    with ExitStack() as stack:
        with tp.MediaDriver(str(aeron_dir)):
            harness = AnnouncerHarness(stack, str(aeron_dir), shm_base, free_stream_ids())
            listener, announcer = harness.listener(), harness.announcer(period_ns=NEVER_NS)
            for stream_id in ids:
                announcer.announce(**harness.regions(stream_id).options())
            wait_until(lambda: {announce.stream_id for announce in listener.poll()} == ids)
        wait_until(lambda: not harness.conductor.status().connected)
        left_ns = time.monotonic_ns()
        with tp.MediaDriver(str(aeron_dir)):
            wait_until(
                lambda: {a.stream_id for a in listener.poll() if a.announce_timestamp_ns > left_ns} == ids
            )
            stack.close()


def test_busy_interpreter_delays_no_announce(harness, stream_id, wait_until) -> None:
    listener, announcer, regions = harness.listener(), harness.announcer(), harness.regions(stream_id)
    announcer.announce(**regions.options())
    wait_until(lambda: listener.received(stream_id))
    # PyDLL keeps the GIL during the call: no other Python thread runs for two seconds.
    start_ns = time.monotonic_ns()
    ctypes.PyDLL(None).usleep(2_000_000)
    end_ns = time.monotonic_ns()
    during = [a for a in listener.received(stream_id) if start_ns < a.announce_timestamp_ns < end_ns]
    assert len(during) >= (end_ns - start_ns) // PERIOD_NS // 2
    assert regions.activity_ns > end_ns - SECOND_NS


# --- a stalled driver


def test_announces_and_activity_stop_without_a_beat(harness, stream_id, wait_until) -> None:
    listener, regions = harness.listener(), harness.regions(stream_id)
    announcer = harness.announcer(stall_ns=3 * SECOND_NS)
    announcer.announce(**regions.options())

    def announced_while_alive() -> bool:
        announcer.heartbeat()
        return bool(listener.received(stream_id))

    wait_until(announced_while_alive)
    beat_ns = time.monotonic_ns()
    wait_until(lambda: time.monotonic_ns() > beat_ns + 5 * SECOND_NS)
    assert max(a.announce_timestamp_ns for a in listener.received(stream_id)) <= beat_ns + 3 * SECOND_NS
    assert regions.activity_ns <= beat_ns + 3 * SECOND_NS
    count = len(listener.received(stream_id))
    announcer.heartbeat()
    wait_until(lambda: len(listener.received(stream_id)) > count)
    assert regions.activity_ns > beat_ns + 5 * SECOND_NS


# --- producers that end


@pytest.mark.requirement("driver-7-1")
def test_killed_producer_is_reported_once(harness, stream_id, wait_until, wait_for_lock_poll) -> None:
    announcer, regions = harness.announcer(), harness.regions(stream_id)
    with RemoteProcess(LockHolder) as holder:
        announcer.announce(**regions.options(producer_id=42))
        holder.call("lock", path=str(regions.directory / "header.ring"))
        wait_for_lock_poll(regions)
        assert announcer.dead_producers() == []
        holder.kill()
        wait_until(lambda: is_dead(announcer, stream_id, regions.epoch))
        # Another release of this lock is not a producer's end.
        with RemoteProcess(LockHolder) as second:
            second.call("lock", path=str(regions.directory / "header.ring"))
            wait_for_lock_poll(regions)
            second.kill()
        wait_for_lock_poll(regions)
        assert announcer.dead_producers() == []


def test_stopped_producer_is_not_dead(harness, stream_id, wait_until, wait_for_lock_poll) -> None:
    announcer, regions = harness.announcer(), harness.regions(stream_id)
    with RemoteProcess(LockHolder) as holder:
        announcer.announce(**regions.options(producer_id=42))
        holder.call("lock", path=str(regions.directory / "header.ring"))
        wait_for_lock_poll(regions)
        holder.stop()
        wait_for_lock_poll(regions)
        assert announcer.dead_producers() == []
        holder.resume()
        holder.kill()
        wait_until(lambda: is_dead(announcer, stream_id, regions.epoch))


def test_lock_on_regions_without_a_producer_is_ignored(
    harness, stream_id, wait_until, wait_for_lock_poll
) -> None:
    announcer, regions = harness.announcer(), harness.regions(stream_id)
    with RemoteProcess(LockHolder) as holder:
        announcer.announce(**regions.options(producer_id=0))
        holder.call("lock", path=str(regions.directory / "header.ring"))
        wait_for_lock_poll(regions)
        holder.kill()
        wait_for_lock_poll(regions)
        assert announcer.dead_producers() == []


# --- streams that are added, replaced and removed


def test_next_epoch_replaces_the_previous_one(harness, stream_id, wait_until) -> None:
    listener, announcer, regions = harness.listener(), harness.announcer(), harness.regions(stream_id)
    wait_until(lambda: listener.is_open)
    announcer.announce(**regions.options())
    wait_until(lambda: listener.received(stream_id))
    regions.assign(regions.epoch + 1)
    announcer.announce(**regions.options(producer_id=7))
    assert len(announcer) == 1
    assert str(regions.directory.parent / "1000/") not in Path("/proc/self/maps").read_text()
    wait_until(lambda: [a for a in listener.received(stream_id) if a.epoch == regions.epoch])
    replaced = next(i for i, a in enumerate(listener.announces) if a.epoch == regions.epoch)
    wait_until(lambda: len(listener.received(stream_id)) >= replaced + 4)
    assert {(a.epoch, a.producer_id) for a in listener.announces[:replaced]} == {(1_000, 0)}
    assert {(a.epoch, a.producer_id) for a in listener.announces[replaced:]} == {(1_001, 7)}


def test_removed_stream_is_withdrawn_and_unmapped(harness, free_stream_ids, wait_until) -> None:
    listener, announcer = harness.listener(), harness.announcer()
    gone, stays = harness.regions(free_stream_ids()), harness.regions(free_stream_ids())
    for regions in (gone, stays):
        announcer.announce(**regions.options())
    wait_until(lambda: listener.received(gone.stream_id) and listener.received(stays.stream_id))
    assert announcer.withdraw(gone.stream_id)
    assert not announcer.withdraw(gone.stream_id)
    removed_ns = time.monotonic_ns()
    assert str(gone.directory) not in Path("/proc/self/maps").read_text()
    wait_until(
        lambda: listener.received(stays.stream_id)[-1].announce_timestamp_ns > removed_ns + 5 * PERIOD_NS
    )
    assert listener.received(gone.stream_id)[-1].announce_timestamp_ns <= removed_ns
    assert gone.activity_ns <= removed_ns
    assert len(announcer) == 1


def test_regions_that_contradict_the_announce_are_refused(harness, stream_id) -> None:
    announcer, regions = harness.announcer(), harness.regions(stream_id)
    announcer.announce(**regions.options())
    with pytest.raises(RegionRejected) as refused:
        announcer.announce(**regions.options(epoch=5))
    assert refused.value.reason == "epoch"
    assert len(announcer) == 0
    with pytest.raises(RegionRejected) as refused:
        announcer.announce(**regions.options(header_uri="shm:file?path=/etc/passwd"))
    assert refused.value.reason == "outside"


def test_close_unmaps_every_region(harness, stream_id) -> None:
    announcer, regions = harness.announcer(), harness.regions(stream_id)
    announcer.announce(**regions.options(producer_id=1))
    assert str(regions.directory) in Path("/proc/self/maps").read_text()
    announcer.close()
    announcer.close()
    assert str(regions.directory) not in Path("/proc/self/maps").read_text()
    assert len(announcer) == 0
    with pytest.raises(ClosedError):
        announcer.announce(**regions.options())


def test_regions_are_locked_in_memory_on_request(harness, stream_id) -> None:
    announcer, regions = harness.announcer(lock_memory=True), harness.regions(stream_id)
    announcer.announce(**regions.options())
    smaps = Path("/proc/self/smaps").read_text()
    locked = smaps[smaps.index(str(regions.directory)) :].partition("Locked:")[2].split()[0]
    assert int(locked) > 0


def test_failed_mlock_error_names_the_remedy(shm_base) -> None:
    aeron_dir = str(shm_base / "none")
    with RemoteProcess(UnprivilegedDriver, str(shm_base)) as poor:
        number, options, streams = poor.call("put", aeron_dir=aeron_dir, lock=str(embed_lock_path(aeron_dir)))
    assert number in (errno.ENOMEM, errno.EPERM, errno.EAGAIN)
    assert "stream 1: cannot keep the regions in memory" in options
    assert "ulimit -l" in options
    assert streams == 0
    shutil.rmtree(shm_base / "tensorpool-me")


def test_zero_periods_are_refused(harness) -> None:
    for period_ns, stall_ns in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="above 0"):
            _native.StreamAnnouncer(harness.conductor, AnnouncerOptions(period_ns, stall_ns, []))
