"""Epochs that the driver owes: their files could not be created at once, and no client attaches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorpool import _native
from tensorpool.clock import ManualClock
from tensorpool.driver.config import StreamSettings
from tensorpool.driver.leases import Refusal
from tensorpool.driver.plan import StreamLayout
from tensorpool.sbe import ResponseCode, Role, ShmLeaseRevoked
from tests.unit.driver.agent_harness import STREAM, AgentHarness, RawClient, agent
from tests.unit.driver.state_harness import StateHarness

FULL = Refusal(ResponseCode.INTERNAL_ERROR, "the filesystem is full")
SHAPE = StreamLayout(8, (4096,))


@pytest.fixture
def harness() -> StateHarness:
    return StateHarness(streams=(StreamSettings(stream_id=10_000, pools=(4096,)),))


@pytest.mark.requirement("driver-4.7-2")
def test_owed_epoch_is_announced_when_space_returns(harness: StateHarness) -> None:
    granted = harness.producer(10_000, 5)
    harness.refuse_files = FULL
    harness.detach(granted, 5, Role.PRODUCER)
    harness.work()
    assert harness.announced == {}
    for _ in range(20):
        harness.tick(1)
        harness.work()
    assert harness.announced == {}
    assert harness.state.records[10_000].state == "waiting"
    assert harness.state.records[10_000].fault == FULL.reason
    harness.refuse_files = None
    harness.tick(2)
    harness.work()
    assert harness.announced == {10_000: (granted.epoch + 1, 0)}
    assert harness.state.records[10_000].state == "clean"
    assert harness.state.records[10_000].fault is None


def test_owed_epoch_is_tried_at_most_every_two_seconds(harness: StateHarness) -> None:
    granted = harness.producer(10_000, 5)
    harness.refuse_files = FULL
    harness.detach(granted, 5, Role.PRODUCER)
    harness.work()
    for _ in range(1000):
        harness.tick(0.1)
        harness.work()
    # After a quarter of a second, half a second, one second, then every two seconds of the hundred.
    assert 50 <= harness.state.counters.failures.value <= 55


def test_owed_epoch_waits_for_the_quota_that_another_stream_uses() -> None:
    harness = StateHarness(nslots=8, pools=(4096,), quota_bytes=2 * SHAPE.nbytes)
    first, other = harness.producer(20_000, 1), harness.producer(20_001, 2)
    harness.detach(first, 1, Role.PRODUCER)
    harness.tick(2.9)
    # The other stream's epoch is owed too, and takes the room that the first one leaves.
    harness.detach(other, 2, Role.PRODUCER)
    for _ in range(10):
        harness.tick(1)
        harness.work()
    assert harness.announced == {20_000: (first.epoch + 1, 0), 20_001: (other.epoch + 1, 0)}


def test_files_lost_during_assignment_are_owed_to_consumers(harness: StateHarness) -> None:
    consumer = harness.attach(10_000, 1)
    correlation_id = harness.request_attach(10_000, 5, Role.PRODUCER)
    harness.refuse_files = FULL
    harness.work()
    assert harness.refusal(correlation_id) == (FULL.code, FULL.reason)
    harness.refuse_files = None
    harness.tick(1)
    harness.work()
    assert harness.announced == {10_000: (consumer.epoch + 1, 0)}


def test_unmappable_files_are_tried_again_after_a_pause(harness: StateHarness) -> None:
    granted = harness.producer(10_000, 5)
    harness.announce_failure = "mlock: Cannot allocate memory"
    harness.detach(granted, 5, Role.PRODUCER)
    harness.work()
    # The removal of the files that could not be mapped does not start the next attempt at once.
    assert harness.state.counters.snapshot()["failures"] == 1
    harness.announce_failure = None
    harness.tick(1)
    harness.work()
    assert harness.announced == {10_000: (granted.epoch + 2, 0)}


def test_unused_dynamic_stream_is_given_up_after_the_idle_time() -> None:
    harness = StateHarness(nslots=8, pools=(4096,), release_idle_ns=10_000_000_000)
    granted = harness.producer(20_000, 5)
    harness.refuse_files = FULL
    harness.detach(granted, 5, Role.PRODUCER)
    for _ in range(20):
        harness.tick(1)
        harness.work()
    assert list(harness.state.records) == []
    failures = harness.state.counters.snapshot()["failures"]
    harness.tick(10)
    harness.work()
    assert harness.state.counters.snapshot()["failures"] == failures


def test_driver_on_a_full_filesystem_announces_after_the_space_returned(
    mounted: Callable[..., Path],
    conductor: _native.Conductor,
    media_driver: Path,
    raw_client: Callable[..., RawClient],
    caplog: pytest.LogCaptureFixture,
) -> None:
    base = mounted("tmpfs", "size=1m")
    clock = ManualClock()
    stream = StreamSettings(stream_id=STREAM, nslots=4, pools=(64 << 10,))
    driver = AgentHarness(agent(conductor, media_driver, base, streams=(stream,), clock=clock), clock)
    try:
        client = raw_client(driver)
        granted = client.attach(STREAM, 5, Role.PRODUCER)
        free = os.statvfs(base).f_bavail * os.statvfs(base).f_frsize
        ballast = base / "ballast"
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free)
        client.detach(granted, 5, Role.PRODUCER)
        client.next(ShmLeaseRevoked, lease_id=granted.lease_id)
        client.until(lambda: driver.driver.counters.failures.value)
        ballast.unlink()
        assert STREAM in driver.driver.state.records
        ended = granted.epoch or 0

        def announced() -> bool:
            clock.advance(0.01)
            return any(announce.epoch > ended for announce in client.announces)

        client.until(announced)
        assert [line for line in caplog.messages if "the next epoch cannot be created yet" in line] != []
    finally:
        driver.runner.close()
