"""kill -9 of a producer or consumer in the middle of a frame: the other continues, and a restart works."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool import _native
from tests.remote_process import RemoteError

from .conftest import ANNOUNCE_PERIOD, Environment

WaitUntil = Callable[..., Any]
# Offset of the process id in a superblock.
PID_OFFSET = 40


@pytest.fixture
def driver(environment: Environment) -> Any:
    return environment.driver()


def assert_balanced(consumer: Any) -> dict[str, Any]:
    """Stops a consumer and checks its frames and its ledger."""
    receiving = consumer.call("stop_receiving")
    ledger: dict[str, Any] = consumer.call("consumer_ledger")
    assert receiving["wrong"] == 0
    assert ledger["balanced"], ledger
    assert ledger["received"] == sum(count for _, _, count in receiving["received"].values())
    return ledger


@pytest.mark.leaves_files("the killed producer cannot remove its regions")
@pytest.mark.parametrize("moment", ["half_written", "at_full_speed"])
@pytest.mark.requirement("wire-15.2-1", "wire-15.21-5", "wire-8.3-4")
def test_killed_producer_is_followed_by_the_next(
    environment: Environment, driver: Any, frames_flow: Any, wait_until: WaitUntil, moment: str
) -> None:
    consumer = environment.consumer()
    first = environment.producer(at_full_speed=moment == "at_full_speed")
    if moment == "half_written":
        wait_until(lambda: first.call("offer") and consumer.call("received_count") > 5)
        claimed = first.call("claim_half")
        # Frames after the open claim are in the ring too, and must not be received either.
        assert first.call("offer") == tp.Outcome.DEFERRED
    old = frames_flow(consumer)
    first.kill()

    second = environment.producer(at_full_speed=True)
    new = frames_flow(consumer, after=old)

    assert new > old
    if moment == "half_written":
        assert consumer.call("receiving")["received"][str(old)][1] < claimed
    second.call("stop_offering")
    written = second.call("producer_ledger")
    assert written["balanced"]
    wait_until(lambda: consumer.call("consumer_ledger")["last_seq"] == written["next_seq"] - 1)
    ledger = assert_balanced(consumer)
    assert ledger["outside"]["regressed"] == 0
    assert [event["kind"] for event in consumer.call("events")].count("mapped") == 2


@pytest.mark.leaves_files("the killed producer cannot remove its regions")
@pytest.mark.requirement("wire-15.1-3")
def test_consumer_unmaps_a_killed_producer_and_waits(
    environment: Environment, driver: Any, frames_flow: Any, wait_until: WaitUntil
) -> None:
    consumer = environment.consumer()
    producer = environment.producer(at_full_speed=True)
    frames_flow(consumer)
    producer.kill()
    wait_until(lambda: consumer.call("mapped") is None)
    kinds = [event["kind"] for event in consumer.call("events")]
    assert kinds[-1] == "unmapped"
    assert_balanced(consumer)


@pytest.mark.parametrize("count", [1, 3])
def test_killed_consumer_affects_no_other(
    environment: Environment, driver: Any, frames_flow: Any, wait_until: WaitUntil, count: int
) -> None:
    producer = environment.producer(at_full_speed=True)
    surviving = environment.consumer()
    killed = [environment.consumer() for _ in range(count)]
    for consumer in (surviving, *killed):
        frames_flow(consumer)
    for consumer in killed:
        consumer.kill()
    # More than the stream holds: a tethered reader would have blocked it.
    before = producer.call("offering")["outcomes"][tp.Outcome.PUBLISHED]
    wait_until(lambda: producer.call("offering")["outcomes"]["published"] > before + 300_000, timeout=60)
    added = environment.consumer()
    frames_flow(added)
    producer.call("stop_offering")
    assert producer.call("producer_ledger")["balanced"]
    assert_balanced(added)
    assert_balanced(surviving)


@pytest.mark.leaves_files("the killed producer cannot remove its regions")
def test_leftover_epochs_are_removed_when_stale_and_their_owner_is_dead(
    environment: Environment, driver: Any, wait_until: WaitUntil
) -> None:
    killed = environment.producer()
    (old,) = environment.epochs()
    killed.kill()
    # The owner is dead, but its activity timestamp is fresh by the period of this producer.
    second = environment.producer(announce_period=20.0)
    (fresh,) = environment.epochs() - {old}
    assert fresh > old
    assert environment.epochs() == {old, fresh}
    second.call("close")
    assert environment.epochs() == {old}
    wait_until(lambda: age_s(environment, old) > 3 * ANNOUNCE_PERIOD)
    # Stale, but its process is alive: it may only be stopped.
    set_pid(environment, old, os.getpid())
    third = environment.producer()
    assert old in environment.epochs()
    third.call("close")
    set_pid(environment, old, killed.pid)
    fourth = environment.producer()
    (remaining,) = environment.epochs()
    assert remaining > fresh
    fourth.call("close")
    assert environment.epochs() == set()


def header_ring(environment: Environment, epoch: int) -> Path:
    """Path of the header ring of an epoch."""
    (path,) = environment.base.glob(f"tensorpool-*/default/{environment.stream_id}/{epoch}/header.ring")
    return path


def age_s(environment: Environment, epoch: int) -> float:
    """Age of the activity timestamp of an epoch, in seconds."""
    superblock = _native.read_superblock(header_ring(environment, epoch).read_bytes()[:64])
    return (time.monotonic_ns() - superblock.activity_timestamp_ns) / 1e9


def set_pid(environment: Environment, epoch: int, pid: int) -> None:
    """Changes the process id in the superblock of an epoch."""
    with open(header_ring(environment, epoch), "r+b") as file:
        file.seek(PID_OFFSET)
        file.write(struct.pack("<Q", pid))
    assert _native.read_superblock(header_ring(environment, epoch).read_bytes()[:64]).pid == pid


@pytest.mark.leaves_files("the killed producer cannot remove its regions")
def test_stream_lock_ends_with_its_producer(environment: Environment, driver: Any) -> None:
    first = environment.producer()
    other = environment.worker()
    with pytest.raises(RemoteError, match=f"StreamBusy: .*process {first.pid}"):
        other.call("produce", stream_id=environment.stream_id)
    first.kill()
    assert other.call("produce", stream_id=environment.stream_id) > 0
    other.call("close")
