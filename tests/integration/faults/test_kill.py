"""kill -9 on either side, in the middle of a frame: the other side goes on, and the next start works."""

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
# Where the process id lies in a superblock.
PID_AT = 40


@pytest.fixture
def driver(place: Environment) -> Any:
    return place.driver()


def assert_balanced(consumer: Any) -> dict[str, Any]:
    receiving = consumer.call("stop_receiving")
    ledger: dict[str, Any] = consumer.call("consumer_ledger")
    assert receiving["wrong"] == 0
    assert ledger["balanced"], ledger
    assert ledger["received"] == sum(count for _, _, count in receiving["received"].values())
    return ledger


@pytest.mark.leaves_files("the killed producer cannot remove its regions")
@pytest.mark.parametrize("moment", ["half_written", "at_full_speed"])
@pytest.mark.requirement("wire-15.2-1", "wire-15.21-5", "wire-8.3-4")
def test_a_killed_producer_is_followed_by_the_next_one(
    place: Environment, driver: Any, frames_flow: Any, wait_until: WaitUntil, moment: str
) -> None:
    consumer = place.consumer()
    first = place.producer(at_full_speed=moment == "at_full_speed")
    if moment == "half_written":
        wait_until(lambda: first.call("offer") and consumer.call("received_count") > 5)
        claimed = first.call("claim_half")
        # Frames behind the claim are in the ring too, and must not come out either.
        assert first.call("offer") == tp.Outcome.DEFERRED
    old = frames_flow(consumer)
    first.kill()

    second = place.producer(at_full_speed=True)
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
def test_a_consumer_lets_go_of_a_killed_producer_and_waits(
    place: Environment, driver: Any, frames_flow: Any, wait_until: WaitUntil
) -> None:
    consumer = place.consumer()
    producer = place.producer(at_full_speed=True)
    frames_flow(consumer)
    producer.kill()
    wait_until(lambda: consumer.call("mapped") is None)
    kinds = [event["kind"] for event in consumer.call("events")]
    assert kinds[-1] == "unmapped"
    assert_balanced(consumer)


@pytest.mark.parametrize("count", [1, 3])
def test_a_killed_consumer_disturbs_nobody(
    place: Environment, driver: Any, frames_flow: Any, wait_until: WaitUntil, count: int
) -> None:
    producer = place.producer(at_full_speed=True)
    stays = place.consumer()
    leave = [place.consumer() for _ in range(count)]
    for consumer in (stays, *leave):
        frames_flow(consumer)
    for consumer in leave:
        consumer.kill()
    # More than the stream holds, so that a reader that never comes back would stop it.
    before = producer.call("offering")["outcomes"][tp.Outcome.PUBLISHED]
    wait_until(lambda: producer.call("offering")["outcomes"]["published"] > before + 300_000, timeout=60)
    comes = place.consumer()
    frames_flow(comes)
    producer.call("stop_offering")
    assert producer.call("producer_ledger")["balanced"]
    assert_balanced(comes)
    assert_balanced(stays)


@pytest.mark.leaves_files("the killed producer cannot remove its regions")
def test_leftovers_go_with_a_later_start_once_they_are_old_and_their_maker_is_dead(
    place: Environment, driver: Any, wait_until: WaitUntil
) -> None:
    killed = place.producer()
    (old,) = place.epochs()
    killed.kill()
    # The maker is dead, but its last sign of life is young by the measure of this one.
    second = place.producer(announce_period=20.0)
    (young,) = place.epochs() - {old}
    assert young > old
    assert place.epochs() == {old, young}
    second.call("close")
    assert place.epochs() == {old}
    wait_until(lambda: age_s(place, old) > 3 * ANNOUNCE_PERIOD)
    # Old, but the process it names is alive: it may be someone who only stopped for a while.
    set_pid(place, old, os.getpid())
    third = place.producer()
    assert old in place.epochs()
    third.call("close")
    set_pid(place, old, killed.pid)
    fourth = place.producer()
    (left,) = place.epochs()
    assert left > young
    fourth.call("close")
    assert place.epochs() == set()


def header_ring(place: Environment, epoch: int) -> Path:
    (path,) = place.base.glob(f"tensorpool-*/default/{place.stream_id}/{epoch}/header.ring")
    return path


def age_s(place: Environment, epoch: int) -> float:
    superblock = _native.read_superblock(header_ring(place, epoch).read_bytes()[:64])
    return (time.monotonic_ns() - superblock["activity_timestamp_ns"]) / 1e9


def set_pid(place: Environment, epoch: int, pid: int) -> None:
    with open(header_ring(place, epoch), "r+b") as file:
        file.seek(PID_AT)
        file.write(struct.pack("<Q", pid))
    assert _native.read_superblock(header_ring(place, epoch).read_bytes()[:64])["pid"] == pid


@pytest.mark.leaves_files("the killed producer cannot remove its regions")
def test_the_lock_of_a_stream_dies_with_its_producer(place: Environment, driver: Any) -> None:
    first = place.producer()
    other = place.worker()
    with pytest.raises(RemoteError, match=f"StreamBusy: .*process {first.pid}"):
        other.call("produce", stream_id=place.stream_id)
    first.kill()
    assert other.call("produce", stream_id=place.stream_id) > 0
    other.call("close")
