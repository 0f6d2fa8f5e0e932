"""The driver on a real media driver, used with raw messages (driver §4.5, §4.11, §4.12, §8)."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensorpool import _native
from tensorpool.driver import StreamSettings, read_holder
from tensorpool.driver.actions import Action
from tensorpool.driver.state import DriverState
from tensorpool.errors import ConfigError, DriverAlreadyRunning, RoleFailed
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
from tests.unit.driver.agent_harness import IDS, STREAM, AgentHarness, RawClient


@pytest.mark.requirement("driver-4.5-1", "driver-4.2-1", "driver-8-2", "driver-3-3")
def test_attach_keepalive_detach(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient], shm_base: Path
) -> None:
    driver = make_agent()
    client = raw_client(driver)
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
    assert superblock.pid == os.getpid()
    for _ in range(5):
        driver.clock.advance(2.5)
        client.keep_alive(granted, 5, Role.PRODUCER)
        client.until(lambda: driver.driver.counters.keepalives.value)
        driver.step()
    correlation = client.detach(granted, 5, Role.PRODUCER)
    assert client.next(ShmDetachResponse, correlation_id=correlation).code is ResponseCode.OK
    assert client.next(ShmLeaseRevoked, lease_id=granted.lease_id).reason is LeaseRevokeReason.DETACHED
    after = client.announce(STREAM, granted.epoch)
    assert after.producer_id == 0


@pytest.mark.requirement("driver-4.4-4", "driver-4.7-2")
def test_producer_without_keepalives_expires_and_the_epoch_grows(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient]
) -> None:
    driver = make_agent()
    client = raw_client(driver)
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


def test_keepalives_received_during_a_stall_prevent_expiry(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient]
) -> None:
    driver = make_agent()
    client = raw_client(driver)
    granted = [client.attach(STREAM, n, Role.CONSUMER) for n in range(1, 20)]
    # The driver runs no duty cycle while keepalives arrive.
    sleeping = raw_client()
    for n, lease in enumerate(granted, start=1):
        sleeping.keep_alive(lease, n, Role.CONSUMER)
    driver.clock.advance(100)
    driver.step()
    assert driver.driver.counters.expired.value == 0
    assert len(driver.driver.state.leases) == 19


class Flood:
    """A control stream that always has more messages."""

    def poll(self, limit: int) -> list[Any]:
        return [SimpleNamespace(message=b"\0" * 8, session_id=1)]

    def send(self, message: bytes, *, is_awaited: bool = False) -> None:
        pass

    def publish(self) -> int:
        return 0


@contextmanager
def flooded(driver: AgentHarness, flood: Flood) -> Iterator[None]:
    """Puts a flood in the place of the control stream."""
    parts: Any = driver.driver._resources
    real, parts.control = parts.control, flood
    try:
        yield
    finally:
        parts.control = real


def test_flood_does_not_prevent_expiry_forever(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient]
) -> None:
    driver = make_agent()
    raw_client(driver).attach(STREAM, 5, Role.CONSUMER)
    with flooded(driver, Flood()):
        driver.clock.advance(5.9)
        driver.step()
        # The flood may contain its keepalive.
        assert len(driver.driver.state.leases) == 1
        driver.clock.advance(0.1)
        driver.step()
        assert len(driver.driver.state.leases) == 0


def test_duty_cycle_reads_a_flood_for_a_time_only(make_agent: Callable[..., AgentHarness]) -> None:
    """Answers, and files that are ready, do not wait until all is read that has come."""
    driver = make_agent()
    limits: list[int] = []

    class SlowFlood(Flood):
        """Its messages take four milliseconds."""

        def poll(self, limit: int) -> list[Any]:
            driver.clock.advance(0.004)
            limits.append(limit)
            return super().poll(limit) * limit

    with flooded(driver, SlowFlood()):
        driver.step()
    assert len(limits) == 3
    assert max(limits) <= 64, "a request that needs files takes a millisecond"


@pytest.mark.requirement("driver-8-1")
def test_epoch_of_an_ended_producer_is_withdrawn(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient]
) -> None:
    # The quota has no room for new files until the old files are removed.
    tight = StreamSettings(stream_id=STREAM, nslots=4, pools=(4096,), quota_bytes=20_000)
    driver = make_agent(streams=(tight,))
    client = raw_client(driver)
    granted = client.attach(STREAM, 5, Role.PRODUCER)
    assert granted.code is ResponseCode.OK, granted.error_message
    client.attach(20_000, 6, Role.CONSUMER)
    client.detach(granted, 5, Role.PRODUCER)
    client.next(ShmLeaseRevoked, lease_id=granted.lease_id)

    def others() -> int:
        return sum(announce.stream_id == 20_000 for announce in client.announces)

    first = others()
    # By then, announces that were in flight have arrived.
    client.until(lambda: others() > first + 1)
    seen = len(client.announces)
    client.until(lambda: others() > first + 5)
    assert {announce.stream_id for announce in client.announces[seen:]} == {20_000}


@pytest.mark.requirement("driver-7-1")
def test_producer_that_releases_its_lock_is_dead_at_once(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient]
) -> None:
    driver = make_agent()
    client = raw_client(driver)
    granted = client.attach(STREAM, 5, Role.PRODUCER)
    path = _native.parse_region_uri(granted.header_region_uri).path
    lock = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    with open(path, "r+b") as ring:
        fcntl.fcntl(ring.fileno(), fcntl.F_OFD_SETLK, lock)
        # Held long enough for the announcer to poll the lock.
        before = len(client.announces)
        client.until(lambda: len(client.announces) > before + 3)
        assert driver.driver.counters.dead_producers.value == 0
    notice = client.next(ShmLeaseRevoked, lease_id=granted.lease_id)
    assert notice.reason is LeaseRevokeReason.EXPIRED
    assert driver.driver.counters.dead_producers.value == 1
    assert granted.epoch is not None
    assert client.announce(STREAM, granted.epoch).producer_id == 0


@pytest.mark.requirement("driver-8-1")
def test_announces_and_activity_continue_without_the_duty_cycle(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient], shm_base: Path
) -> None:
    driver = make_agent()
    granted = raw_client(driver).attach(STREAM, 5, Role.CONSUMER)
    assert granted.epoch is not None
    listener = raw_client()
    options: dict[str, Any] = {
        "base_dirs": [shm_base],
        "epoch": granted.epoch,
        "stream_id": STREAM,
        "nslots": 4,
    }

    def activity() -> int:
        return _native.open_region(granted.header_region_uri, **options).activity_timestamp_ns

    before = activity()
    listener.until(lambda: len(listener.announces) > 5)
    assert {announce.epoch for announce in listener.announces} == {granted.epoch}
    assert activity() > before


def test_superseded_directories_are_removed_and_never_accumulate(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient], shm_base: Path
) -> None:
    driver = make_agent()
    client = raw_client(driver)
    stream = None
    for n in range(1, 30):
        granted = client.attach(STREAM, n, Role.PRODUCER)
        stream = Path(_native.parse_region_uri(granted.header_region_uri).path).parents[1]
        client.detach(granted, n, Role.PRODUCER)
        client.next(ShmLeaseRevoked, lease_id=granted.lease_id)
        assert len(list(stream.iterdir())) <= 3
    assert stream is not None
    client.until(lambda: driver.driver.state.records[STREAM].state == "clean")
    driver.clock.advance(3)
    client.until(lambda: len(list(stream.iterdir())) == 1)


def test_malformed_messages_get_a_response_or_are_counted(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient]
) -> None:
    driver = make_agent()
    client = raw_client(driver)
    request = client.attach(STREAM, 5, Role.CONSUMER)
    header = struct.pack("<HHHH", 24, 1, 901, 1)
    client.send(b"")
    client.send(b"\xff" * 100)
    client.send(header + struct.pack("<q", 77))
    client.send(struct.pack("<HHHH", 24, 1, 901, 9) + struct.pack("<q", 78) + b"\0" * 16)
    client.send(b"x" * 100_000)
    assert client.next(ShmAttachResponse, correlation_id=77).code is ResponseCode.INVALID_PARAMS
    assert client.next(ShmAttachResponse, correlation_id=78).code is ResponseCode.UNSUPPORTED
    client.keep_alive(request, 5, Role.CONSUMER)
    client.until(lambda: driver.driver.counters.keepalives.value == 1)
    assert driver.driver.counters.invalid["short"].value <= 1


@pytest.mark.requirement("driver-4.12-1", "driver-4.12-2")
def test_stop_by_token(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient], shm_base: Path
) -> None:
    driver = make_agent(shutdown_token=Secret("open sesame"))
    client = raw_client(driver)
    client.attach(STREAM, 5, Role.PRODUCER)
    client.send(ShmDriverShutdownRequest(correlation_id=1, reason=ShutdownReason.ADMIN, token="wrong"))
    assert client.next(ControlResponse, correlation_id=1).code is ResponseCode.REJECTED
    assert not driver.runner.stopped
    client.send(ShmDriverShutdownRequest(correlation_id=2, reason=ShutdownReason.ADMIN, token="open sesame"))
    assert client.next(ControlResponse, correlation_id=2).code is ResponseCode.OK
    client.until(lambda: driver.runner.stopped)
    driver.runner.close()
    assert client.next(ShmDriverShutdown).reason is ShutdownReason.ADMIN
    assert list(shm_base.iterdir()) == []
    assert read_holder(shm_base, "default") is None


@pytest.mark.requirement("driver-4.12-2")
def test_fatal_error_is_the_reason_of_the_shutdown_notice(
    make_agent: Callable[..., AgentHarness],
    raw_client: Callable[..., RawClient],
    shm_base: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = make_agent()
    client = raw_client(driver)
    client.attach(STREAM, 5, Role.PRODUCER)

    def fail(*args: object, **options: object) -> list[Action]:
        raise RoleFailed("the disk is gone")

    monkeypatch.setattr(DriverState, "on_tick", fail)
    with pytest.raises(RoleFailed, match="the disk is gone"):
        driver.step()
    # As the runner's own loop does after such an error.
    driver.runner.close()
    notice = client.next(ShmDriverShutdown)
    assert (notice.reason, notice.error_message) == (ShutdownReason.ERROR, "RoleFailed: the disk is gone")
    assert list(shm_base.iterdir()) == []


@pytest.mark.requirement("driver-4.12-2")
def test_orderly_end_announces_the_shutdown_and_leaves_no_files(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient], shm_base: Path
) -> None:
    driver = make_agent()
    client = raw_client(driver)
    client.attach(STREAM, 5, Role.PRODUCER)
    client.attach(20_000, 6, Role.CONSUMER)
    driver.runner.close()
    assert client.next(ShmDriverShutdown).reason is ShutdownReason.NORMAL
    assert list(shm_base.iterdir()) == []
    count = len(client.announces)
    client.poll()
    assert len(client.announces) - count <= 2
    with pytest.raises(ValueError, match="is not running"):
        driver.driver.do_work()


@pytest.mark.requirement("driver-2.1-1", "driver-10-2", "driver-4.8-2")
def test_second_driver_is_refused_and_a_restart_grows_the_epoch(
    make_agent: Callable[..., AgentHarness],
    raw_client: Callable[..., RawClient],
    conductor: _native.Conductor,
    shm_base: Path,
) -> None:
    first = make_agent()
    client = raw_client(first)
    granted = client.attach(STREAM, 5, Role.CONSUMER)
    with pytest.raises(DriverAlreadyRunning, match=f"process {os.getpid()}"):
        make_agent()
    first.runner.close()
    second = make_agent()
    client = raw_client(second)
    client.keep_alive(granted, 5, Role.CONSUMER)
    assert client.next(ShmLeaseRevoked, lease_id=granted.lease_id).reason is LeaseRevokeReason.REVOKED
    again = client.attach(STREAM, 5, Role.CONSUMER)
    assert again.epoch is not None
    assert granted.epoch is not None
    assert again.epoch > granted.epoch
    assert again.lease_id != granted.lease_id


@pytest.mark.requirement("driver-13-1")
def test_recreate_at_start_creates_static_streams_before_ready(
    make_agent: Callable[..., AgentHarness],
) -> None:
    driver = make_agent(recreate_at_start=True)
    assert driver.driver.state.records[STREAM].state == "clean"


def test_unknown_group_ends_the_start(make_agent: Callable[..., AgentHarness], shm_base: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        make_agent(group="no-such-group")
    assert read_holder(shm_base, "default") is None


class NoMoreMemory:
    """An announcer of a process that has reached its limit of locked memory."""

    def __init__(self, real: Any, *, locks_memory: bool) -> None:
        self._real, self._locks_memory = real, locks_memory

    def announce(self, *arguments: Any) -> None:
        if self._locks_memory:
            raise OSError(12, "mlock: Cannot allocate memory")
        self._real.announce(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("mlock", [True, False])
def test_failed_mlock_is_a_refusal_with_the_reason(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient], shm_base: Path, mlock: bool
) -> None:
    driver = make_agent(mlock=mlock)
    parts: Any = driver.driver._resources
    parts.announcer = NoMoreMemory(parts.announcer, locks_memory=mlock)
    granted = raw_client(driver).attach(STREAM, 5, Role.PRODUCER)
    if not mlock:
        assert granted.code is ResponseCode.OK
        return
    assert granted.code is ResponseCode.INTERNAL_ERROR
    assert "the driver cannot map the regions: [Errno 12] mlock" in granted.error_message
    driver.runner.close()
    assert list(shm_base.iterdir()) == []


def test_regions_are_locked_in_memory_if_configured(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient]
) -> None:
    def locked_kib() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmLck:")[1].split()[0])

    before = locked_kib()
    granted = raw_client(make_agent(mlock=True)).attach(STREAM, 5, Role.PRODUCER)
    if granted.code is not ResponseCode.OK:
        pytest.skip(f"this process may not lock memory: {granted.error_message}")
    assert locked_kib() > before


def test_driver_has_an_aeron_counter(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient], media_driver: Path
) -> None:
    driver = make_agent()
    client = raw_client(driver)
    client.attach(STREAM, 5, Role.PRODUCER)

    def shown() -> dict[str, int]:
        driver.clock.advance(0.1)
        return {
            counter.label: counter.value
            for counter in read_aeron_counters(str(media_driver))
            if counter.is_tensorpool
        }

    client.until(lambda: shown().get("tensorpool: driver attaches (requests)") == 1)
    labels = shown()
    assert labels[f"tensorpool-driver: namespace default, control stream {IDS.control}"] == os.getpid()
    ours = {name.split()[2] for name in labels if name.startswith("tensorpool: driver")}
    assert ours == {"streams", "leases", "attaches", "rejects", "expired", "revoked"}


def test_agent_finishes_after_a_stop(make_agent: Callable[..., AgentHarness]) -> None:
    driver = make_agent()
    driver.step()
    driver.driver.stop("enough")
    with pytest.raises(AgentFinished):
        driver.driver.do_work()
