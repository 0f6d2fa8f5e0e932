"""A control stream that others block or fill: no lease is lost, and the driver says what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.clock import ManualClock
from tensorpool.doctor.drivers import check_control_stream
from tensorpool.driver import EmbeddedDriver
from tensorpool.driver.control_stream import ControlStream
from tensorpool.driver.counters import DriverCounters
from tensorpool.runtime.counters import read_aeron_counters
from tensorpool.sbe import Role
from tests.unit.driver.agent_harness import IDS, STREAM, AgentHarness, RawClient
from tests.unit.driver.log_buffer import claim_for_ever

JUNK = bytes(4096)
MAX_JUNK = 4096
"""More messages than the stream has room for."""


def test_blocked_control_stream_expires_no_lease(
    make_agent: Callable[..., AgentHarness], raw_client: Callable[..., RawClient], media_driver: Path
) -> None:
    driver = make_agent()
    client = raw_client(driver)
    granted = client.attach(STREAM, 5, Role.PRODUCER)
    claim_for_ever(media_driver, IDS.control)
    client.keep_alive(granted, 5, Role.PRODUCER)
    # Three times a lease's duration: a media driver of others may take that long.
    for _ in range(90):
        driver.clock.advance(0.1)
        driver.step()
    assert driver.driver.counters.expired.value == 0
    assert driver.driver.counters.keepalives.value == 0
    fault = driver.driver.control_fault()
    assert fault is not None
    assert fault.startswith("blocked for 9.")
    assert driver.driver.counters.blocked.value == 1
    # The media driver unblocks the log; the keepalive behind the claim is read, and counts.
    client.until(lambda: driver.driver.counters.keepalives.value == 1)
    assert driver.driver.control_fault() is None
    driver.clock.advance(2.9)
    driver.step()
    assert len(driver.driver.state.leases) == 1
    driver.clock.advance(0.2)
    client.until(lambda: len(driver.driver.state.leases) == 0)


def test_attach_succeeds_while_the_control_stream_is_blocked(
    embed: Callable[..., EmbeddedDriver], media_driver: Path, shm_base: Path
) -> None:
    embed()
    with tp.open(
        "driver", aeron_dir=media_driver, media_driver="external", shm_base_dir=shm_base, stream_ids=IDS
    ) as ctx:
        first = ctx.consumer(STREAM)
        claim_for_ever(media_driver, IDS.control)
        # Within the default timeout: the media driver unblocks a log sooner.
        with ctx.producer(STREAM) as producer:
            assert producer.epoch is not None
        lease = first.lease()
        assert lease is not None
        assert (lease.granted, lease.ended) == (1, 0)


def test_full_control_stream_is_reported(
    embed: Callable[..., EmbeddedDriver],
    raw_client: Callable[..., RawClient],
    conductor: _native.Conductor,
    media_driver: Path,
    wait_until: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = embed()
    client = raw_client()
    foreign = _native.Subscription(conductor, "aeron:ipc?tether=true", IDS.control)
    wait_until(lambda: foreign.is_connected)
    fill(conductor, wait_until)
    with client.service() as service:
        wait_until(lambda: service.call("status")["control_fault"])
        status = service.call("status")
        assert "full for" in status["control_fault"]
        assert "a tethered subscription does not poll" in status["control_fault"]
        assert status["counters"]["full"] == 1
        assert [text for text in caplog.messages if "accepts no messages" in text] != []
        found = check_control_stream(read_aeron_counters(str(media_driver)), IDS.control)
        assert found is not None
        assert "(aeron:ipc?tether=true) is" in found.found
        assert "bytes behind, and holds it back" in found.found
        foreign.close()
        wait_until(lambda: service.call("status")["control_fault"] is None)
    assert check_control_stream(read_aeron_counters(str(media_driver)), IDS.control) is None
    assert driver.is_running
    # The first client's untethered subscription was left behind too.
    assert raw_client().attach(STREAM, 5, Role.PRODUCER).lease_id is not None


def test_foreign_subscription_without_polls_does_not_fill_the_control_stream(
    embed: Callable[..., EmbeddedDriver],
    raw_client: Callable[..., RawClient],
    conductor: _native.Conductor,
    wait_until: Callable[..., Any],
) -> None:
    """Its channel says nothing about tethers, as in most programs: our media driver leaves it behind."""
    driver = embed()
    foreign = _native.Subscription(conductor, "aeron:ipc", IDS.control)
    wait_until(lambda: foreign.is_connected)
    publication = _native.Publication(conductor, "aeron:ipc", IDS.control)
    wait_until(lambda: publication.is_connected)
    for _ in range(MAX_JUNK):
        wait_until(lambda: publication.offer(JUNK) == "sent")
    assert raw_client().attach(STREAM, 5, Role.PRODUCER).lease_id is not None
    assert driver.agent.counters.full.value == 0
    foreign.close()
    publication.close()


def fill(conductor: _native.Conductor, wait_until: Callable[..., Any]) -> None:
    """Writes until the stream accepts no more."""
    publication = _native.Publication(conductor, "aeron:ipc", IDS.control)
    wait_until(lambda: publication.is_connected)
    refused_since = time.monotonic()
    for _ in range(100 * MAX_JUNK):
        if publication.offer(JUNK) == "sent":
            refused_since = time.monotonic()
        elif time.monotonic() - refused_since > 0.2:
            break
        else:
            time.sleep(0.001)
    else:
        raise AssertionError("the stream never filled")
    publication.close()


def test_busy_control_stream_is_not_reported_as_blocked(
    conductor: _native.Conductor, wait_until: Callable[..., Any]
) -> None:
    """Under a flood no poll is empty for seconds; then a message arrives right behind an empty poll."""
    clock, counters = ManualClock(), DriverCounters()
    control = ControlStream(conductor, "aeron:ipc", IDS.control, counters=counters, clock=clock)
    flood = _native.Publication(conductor, "aeron:ipc", IDS.control)
    try:
        wait_until(lambda: control.is_ready and flood.is_connected)
        start_ns = clock.monotonic_ns()
        assert control.read_until_ns(start_ns) == start_ns
        for _ in range(20):
            clock.advance(0.1)
            wait_until(lambda: flood.offer(JUNK) == "sent")
            wait_until(lambda: control.poll(16))
        wait_until(lambda: flood.offer(JUNK) == "sent")
        assert control.read_until_ns(clock.monotonic_ns()) == start_ns, "not all is read"
        assert (counters.blocked.value, control.blocked_s(clock.monotonic_ns())) == (0, 0.0)
        clock.advance(0.6)
        control.read_until_ns(clock.monotonic_ns())
        assert counters.blocked.value == 1, "nothing moved"
    finally:
        flood.close()
        control.close()


def test_awaited_messages_go_before_all_others(
    conductor: _native.Conductor, wait_until: Callable[..., Any]
) -> None:
    """What the flood of another got waits in a queue of its own, and cannot push out an answer."""
    counters = DriverCounters()
    control = ControlStream(conductor, "aeron:ipc", IDS.control, counters=counters, clock=ManualClock())
    try:
        wait_until(lambda: control.is_ready)
        for number in range(5000):
            control.send(b"other %d" % number)
        control.send(b"first", is_awaited=True)
        control.send(b"second", is_awaited=True)
        assert counters.unsent.value == 5000 - 4096
        read: list[bytes] = []

        def read_all() -> bool:
            control.publish()
            read.extend(received.message for received in control.poll(1024))
            return len(read) == 4098

        wait_until(read_all)
        assert read[:3] == [b"first", b"second", b"other 904"]
    finally:
        control.close()


def test_long_duty_cycle_does_not_make_the_control_stream_seem_blocked(
    conductor: _native.Conductor, wait_until: Callable[..., Any]
) -> None:
    """A duty cycle of a flood takes long, and knows only the time at which it began."""
    clock, counters = ManualClock(), DriverCounters()
    control = ControlStream(conductor, "aeron:ipc", IDS.control, counters=counters, clock=clock)
    other = _native.Publication(conductor, "aeron:ipc", IDS.control)
    try:
        wait_until(lambda: control.is_ready and other.is_connected)
        began_ns = clock.monotonic_ns()
        clock.advance(0.6)
        assert control.read_until_ns(began_ns) == began_ns
        wait_until(lambda: other.offer(JUNK) == "sent")
        next_ns = clock.monotonic_ns()
        control.read_until_ns(next_ns)
        assert (counters.blocked.value, control.blocked_s(next_ns)) == (0, 0.0), "one moment is no block"
    finally:
        other.close()
        control.close()
