"""The driver on a real media driver, spoken to in raw messages (driver §4.5, §4.11, §4.12, §8)."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorpool import _native
from tensorpool.driver import StreamSettings, read_holder
from tensorpool.errors import ConfigError, DriverAlreadyRunning
from tensorpool.runtime import AgentFinished, read_aeron_counters
from tensorpool.runtime.config import Secret
from tensorpool.sbe import (
    ControlResponse,
    LeaseRevokeReason,
    ResponseCode,
    Role,
    ShmAttachResponse,
    ShmDetachResponse,
    ShmDriverShutdown,
    ShmDriverShutdownRequest,
    ShmLeaseRevoked,
    ShutdownReason,
)
from tests.unit.driver.party import IDS, STREAM, Client, Stage


@pytest.mark.requirement("driver-4.5-1", "driver-4.2-1", "driver-8-2", "driver-3-3")
def test_attach_keepalive_detach(
    stage: Callable[..., Stage], join: Callable[..., Client], shm_base: Path
) -> None:
    driver = stage()
    client = join(driver)
    granted = client.attach(STREAM, 5, Role.PRODUCER)
    assert granted.code is ResponseCode.OK, granted.error_message
    assert granted.epoch is not None
    announce = client.announce(STREAM, granted.epoch - 1)
    assert (announce.epoch, announce.producer_id) == (granted.epoch, 5)
    assert announce.header_region_uri == granted.header_region_uri
    assert announce.payload_pools == granted.payload_pools
    superblock = _native.open_region(
        granted.header_region_uri,
        base_dirs=[shm_base],
        epoch=granted.epoch,
        stream_id=STREAM,
        nslots=4,
    )
    assert superblock["pid"] == os.getpid()
    for _ in range(5):
        driver.clock.advance(2.5)
        client.keep_alive(granted, 5, Role.PRODUCER)
        client.until(lambda: driver.driver.counters.keepalives.value)
        driver.turn()
    correlation = client.detach(granted, 5, Role.PRODUCER)
    assert client.next(ShmDetachResponse, correlation_id=correlation).code is ResponseCode.OK
    assert client.next(ShmLeaseRevoked, lease_id=granted.lease_id).reason is LeaseRevokeReason.DETACHED
    after = client.announce(STREAM, granted.epoch)
    assert after.producer_id == 0


@pytest.mark.requirement("driver-4.4-4", "driver-4.7-2")
def test_a_silent_producer_expires_and_the_grown_epoch_is_announced(
    stage: Callable[..., Stage], join: Callable[..., Client]
) -> None:
    driver = stage()
    client = join(driver)
    granted = client.attach(STREAM, 5, Role.PRODUCER)
    consumer = client.attach(STREAM, 6, Role.CONSUMER)
    assert consumer.epoch == granted.epoch
    driver.clock.advance(2.9)
    client.keep_alive(consumer, 6, Role.CONSUMER)
    client.until(lambda: driver.driver.counters.keepalives.value == 1)
    driver.clock.advance(0.1)
    notice = client.next(ShmLeaseRevoked)
    assert (notice.lease_id, notice.reason) == (granted.lease_id, LeaseRevokeReason.EXPIRED)
    assert granted.epoch is not None
    assert client.announce(STREAM, granted.epoch).producer_id == 0
    assert len(driver.driver.state.leases) == 1


def test_keepalives_that_waited_through_a_stall_are_read_before_anyone_is_judged(
    stage: Callable[..., Stage], join: Callable[..., Client]
) -> None:
    driver = stage()
    client = join(driver)
    granted = [client.attach(STREAM, n, Role.CONSUMER) for n in range(1, 20)]
    # The driver sleeps: nobody turns it while keepalives arrive.
    sleeping = join()
    for n, one in enumerate(granted, start=1):
        sleeping.keep_alive(one, n, Role.CONSUMER)
    driver.clock.advance(100)
    driver.turn()
    assert driver.driver.counters.expired.value == 0
    assert len(driver.driver.state.leases) == 19


class Flood:
    """A control stream that is never read to its end."""

    is_ready = True

    def poll(self, limit: int) -> list[bytes]:
        return [b"\0" * 8]


def test_a_flood_does_not_keep_a_silent_client_alive_for_ever(
    stage: Callable[..., Stage], join: Callable[..., Client]
) -> None:
    driver = stage()
    join(driver).attach(STREAM, 5, Role.CONSUMER)
    parts: Any = driver.driver._running
    real, parts.requests = parts.requests, Flood()
    try:
        driver.clock.advance(5.9)
        driver.turn()
        # Its keepalive may be somewhere in the flood.
        assert len(driver.driver.state.leases) == 1
        driver.clock.advance(0.1)
        driver.turn()
        assert len(driver.driver.state.leases) == 0
    finally:
        parts.requests = real


@pytest.mark.requirement("driver-8-1")
def test_the_epoch_of_a_producer_that_ended_is_announced_no_more(
    stage: Callable[..., Stage], join: Callable[..., Client]
) -> None:
    # Its quota has no room for fresh files as long as the old ones are there.
    tight = StreamSettings(stream_id=STREAM, nslots=4, pools=(4096,), quota_bytes=20_000)
    driver = stage(streams=(tight,))
    client = join(driver)
    granted = client.attach(STREAM, 5, Role.PRODUCER)
    assert granted.code is ResponseCode.OK, granted.error_message
    client.attach(20_000, 6, Role.CONSUMER)
    client.detach(granted, 5, Role.PRODUCER)
    client.next(ShmLeaseRevoked, lease_id=granted.lease_id)

    def others() -> int:
        return sum(one.stream_id == 20_000 for one in client.announces)

    first = others()
    # Whatever was on its way has arrived by then.
    client.until(lambda: others() > first + 1)
    seen = len(client.announces)
    client.until(lambda: others() > first + 5)
    assert {one.stream_id for one in client.announces[seen:]} == {20_000}


@pytest.mark.requirement("driver-7-1")
def test_a_producer_that_lets_go_of_its_lock_is_dead_at_once(
    stage: Callable[..., Stage], join: Callable[..., Client]
) -> None:
    driver = stage()
    client = join(driver)
    granted = client.attach(STREAM, 5, Role.PRODUCER)
    path, _ = _native.parse_region_uri(granted.header_region_uri)
    lock = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    with open(path, "r+b") as ring:
        fcntl.fcntl(ring.fileno(), fcntl.F_OFD_SETLK, lock)
        # Held long enough to be seen, and longer than any number of looks.
        before = len(client.announces)
        client.until(lambda: len(client.announces) > before + 3)
        assert driver.driver.counters.deaths.value == 0
    notice = client.next(ShmLeaseRevoked, lease_id=granted.lease_id)
    assert notice.reason is LeaseRevokeReason.EXPIRED
    assert driver.driver.counters.deaths.value == 1
    assert granted.epoch is not None
    assert client.announce(STREAM, granted.epoch).producer_id == 0


@pytest.mark.requirement("driver-8-1")
def test_announces_and_activity_go_on_without_the_duty_cycle(
    stage: Callable[..., Stage], join: Callable[..., Client], shm_base: Path
) -> None:
    driver = stage()
    granted = join(driver).attach(STREAM, 5, Role.CONSUMER)
    assert granted.epoch is not None
    listener = join()
    words: dict[str, Any] = {
        "base_dirs": [shm_base],
        "epoch": granted.epoch,
        "stream_id": STREAM,
        "nslots": 4,
    }

    def activity() -> int:
        return _native.open_region(granted.header_region_uri, **words)["activity_timestamp_ns"]

    before = activity()
    listener.until(lambda: len(listener.announces) > 5)
    assert {one.epoch for one in listener.announces} == {granted.epoch}
    assert activity() > before


def test_a_superseded_directory_goes_and_a_thousand_are_never_there(
    stage: Callable[..., Stage], join: Callable[..., Client], shm_base: Path
) -> None:
    driver = stage()
    client = join(driver)
    stream = None
    for n in range(1, 30):
        granted = client.attach(STREAM, n, Role.PRODUCER)
        stream = Path(_native.parse_region_uri(granted.header_region_uri)[0]).parents[1]
        client.detach(granted, n, Role.PRODUCER)
        client.next(ShmLeaseRevoked, lease_id=granted.lease_id)
        assert len(list(stream.iterdir())) <= 3
    assert stream is not None
    client.until(lambda: driver.driver.state.records[STREAM].state == "clean")
    driver.clock.advance(3)
    client.until(lambda: len(list(stream.iterdir())) == 1)


def test_garbage_is_answered_or_counted_and_harms_nobody(
    stage: Callable[..., Stage], join: Callable[..., Client]
) -> None:
    driver = stage()
    client = join(driver)
    request = client.attach(STREAM, 5, Role.CONSUMER)
    header = struct.pack("<HHHH", 24, 1, 901, 1)
    client.say(b"")
    client.say(b"\xff" * 100)
    client.say(header + struct.pack("<q", 77))
    client.say(struct.pack("<HHHH", 24, 1, 901, 9) + struct.pack("<q", 78) + b"\0" * 16)
    client.say(b"x" * 100_000)
    assert client.next(ShmAttachResponse, correlation_id=77).code is ResponseCode.INVALID_PARAMS
    assert client.next(ShmAttachResponse, correlation_id=78).code is ResponseCode.UNSUPPORTED
    client.keep_alive(request, 5, Role.CONSUMER)
    client.until(lambda: driver.driver.counters.keepalives.value == 1)
    assert driver.driver.counters.unusable["short"].value <= 1


@pytest.mark.requirement("driver-4.12-1", "driver-4.12-2")
def test_stop_by_token(stage: Callable[..., Stage], join: Callable[..., Client], shm_base: Path) -> None:
    driver = stage(shutdown_token=Secret("open sesame"))
    client = join(driver)
    client.attach(STREAM, 5, Role.PRODUCER)
    client.say(ShmDriverShutdownRequest(correlation_id=1, reason=ShutdownReason.ADMIN, token="wrong"))
    assert client.next(ControlResponse, correlation_id=1).code is ResponseCode.REJECTED
    assert not driver.runner.stopped
    client.say(ShmDriverShutdownRequest(correlation_id=2, reason=ShutdownReason.ADMIN, token="open sesame"))
    assert client.next(ControlResponse, correlation_id=2).code is ResponseCode.OK
    client.until(lambda: driver.runner.stopped)
    driver.runner.close()
    assert client.next(ShmDriverShutdown).reason is ShutdownReason.ADMIN
    assert list(shm_base.iterdir()) == []
    assert read_holder(shm_base, "default") is None


@pytest.mark.requirement("driver-4.12-2")
def test_an_orderly_end_says_goodbye_and_leaves_nothing(
    stage: Callable[..., Stage], join: Callable[..., Client], shm_base: Path
) -> None:
    driver = stage()
    client = join(driver)
    client.attach(STREAM, 5, Role.PRODUCER)
    client.attach(20_000, 6, Role.CONSUMER)
    driver.runner.close()
    assert client.next(ShmDriverShutdown).reason is ShutdownReason.NORMAL
    assert list(shm_base.iterdir()) == []
    count = len(client.announces)
    client.listen()
    assert len(client.announces) - count <= 2
    with pytest.raises(ValueError, match="has ended"):
        driver.driver.do_work()


@pytest.mark.requirement("driver-2.1-1", "driver-10-2", "driver-4.8-2")
def test_a_second_driver_is_refused_and_a_restarted_one_goes_on_from_a_larger_epoch(
    stage: Callable[..., Stage], join: Callable[..., Client], on: _native.Conductor, shm_base: Path
) -> None:
    first = stage()
    client = join(first)
    granted = client.attach(STREAM, 5, Role.CONSUMER)
    with pytest.raises(DriverAlreadyRunning, match=f"process {os.getpid()}"):
        stage()
    first.runner.close()
    second = stage()
    client = join(second)
    client.keep_alive(granted, 5, Role.CONSUMER)
    assert client.next(ShmLeaseRevoked, lease_id=granted.lease_id).reason is LeaseRevokeReason.REVOKED
    again = client.attach(STREAM, 5, Role.CONSUMER)
    assert again.epoch is not None
    assert granted.epoch is not None
    assert again.epoch > granted.epoch
    assert again.lease_id != granted.lease_id


@pytest.mark.requirement("driver-13-1")
def test_recreate_at_start_makes_all_static_streams_before_it_is_ready(
    stage: Callable[..., Stage],
) -> None:
    driver = stage(recreate_at_start=True)
    assert driver.driver.state.records[STREAM].state == "clean"


def test_an_unknown_group_ends_the_start(stage: Callable[..., Stage], shm_base: Path) -> None:
    with pytest.raises(ConfigError, match="no such group"):
        stage(group="no-such-group")
    assert read_holder(shm_base, "default") is None


class NoMoreMemory:
    """The beacons of a process that has locked as much memory as it may."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def put(self, *, lock_memory: bool, **words: Any) -> None:
        if lock_memory:
            raise OSError(12, "mlock: Cannot allocate memory")
        self._real.put(lock_memory=lock_memory, **words)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("mlock", [True, False])
def test_memory_that_may_not_be_locked_is_a_refusal_with_the_reason(
    stage: Callable[..., Stage], join: Callable[..., Client], shm_base: Path, mlock: bool
) -> None:
    driver = stage(mlock=mlock)
    parts: Any = driver.driver._running
    parts.beacons = NoMoreMemory(parts.beacons)
    granted = join(driver).attach(STREAM, 5, Role.PRODUCER)
    if not mlock:
        assert granted.code is ResponseCode.OK
        return
    assert granted.code is ResponseCode.INTERNAL_ERROR
    assert "the driver cannot map the regions: [Errno 12] mlock" in granted.error_message
    driver.runner.close()
    assert list(shm_base.iterdir()) == []


def test_memory_is_locked_where_the_settings_say_so(
    stage: Callable[..., Stage], join: Callable[..., Client]
) -> None:
    def locked_kib() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmLck:")[1].split()[0])

    before = locked_kib()
    granted = join(stage(mlock=True)).attach(STREAM, 5, Role.PRODUCER)
    if granted.code is not ResponseCode.OK:
        pytest.skip(f"this process may not lock memory: {granted.error_message}")
    assert locked_kib() > before


@pytest.mark.requirement("driver-4.11-1")
def test_a_driver_is_seen_among_the_media_drivers_counters(
    stage: Callable[..., Stage], join: Callable[..., Client], media_driver: Path
) -> None:
    driver = stage()
    client = join(driver)
    client.attach(STREAM, 5, Role.PRODUCER)

    def shown() -> dict[str, int]:
        driver.clock.advance(0.1)
        return {one.label: one.value for one in read_aeron_counters(str(media_driver)) if one.is_tensorpool}

    client.until(lambda: shown().get("tensorpool: driver attaches (requests)") == 1)
    found = shown()
    assert found[f"tensorpool-driver: namespace default, control stream {IDS.control}"] == os.getpid()
    ours = {name.split()[2] for name in found if name.startswith("tensorpool: driver")}
    assert ours == {"streams", "leases", "attaches", "rejects", "expired", "revoked"}


def test_the_agent_ends_by_itself_after_a_stop(stage: Callable[..., Stage]) -> None:
    driver = stage()
    driver.turn()
    driver.driver.stop("enough")
    with pytest.raises(AgentFinished):
        driver.driver.do_work()
