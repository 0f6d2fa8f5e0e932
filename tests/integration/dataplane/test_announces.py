"""Which announces a consumer accepts, and field it maps and unmaps (wire §10.1.1, §15.1, §15.21)."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorpool.sbe import ClockDomain

DEADLINE_S = 60.0
SECOND_NS = 1_000_000_000


def ignored(consumer, reason: str) -> int:
    return consumer.counters().announces_ignored[reason]


def wait_processed(hostile, consumer) -> None:
    """Waits until the consumer has processed all announces so far.

    Announces arrive in order on one stream: as soon as the consumer has counted an announce of an unknown
    layout, it has processed those before it.
    """
    count = ignored(consumer, "layout")
    hostile.announce_until(lambda: ignored(consumer, "layout") > count, layout_version=99)


# --- time


@pytest.mark.requirement("wire-10.1.1-3")
def test_announce_from_before_the_subscription_is_ignored(
    hostile, context, free_stream_id, wait_until
) -> None:
    before = time.monotonic_ns()
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce(announce_timestamp_ns=before)
    wait_until(lambda: ignored(consumer, "before_join"))
    assert (consumer.epoch, consumer.counters().mapped) == (None, 0)
    producer.announce_until(lambda: consumer.epoch == producer.epoch)


@pytest.mark.requirement("wire-10.1.1-4")
def test_announce_on_a_synchronised_clock_may_precede_the_subscription(
    hostile, context, free_stream_id, wait_until
) -> None:
    before = time.time_ns() - SECOND_NS
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce(announce_timestamp_ns=before, announce_clock_domain=ClockDomain.REALTIME_SYNCED)
    wait_until(lambda: consumer.epoch == producer.epoch)
    assert not any(consumer.counters().announces_ignored.values())


@pytest.mark.requirement("wire-10.1.1-4", "wire-10.1.1-1")
def test_freshness_on_a_synchronised_clock_uses_that_clock(
    hostile, context, free_stream_id, wait_until
) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce(
        announce_timestamp_ns=time.time_ns() - 3600 * SECOND_NS,
        announce_clock_domain=ClockDomain.REALTIME_SYNCED,
    )
    wait_until(lambda: ignored(consumer, "stale"))
    assert consumer.epoch is None


@pytest.mark.requirement("wire-10.1.1-1", "wire-10.1.1-2")
def test_announce_older_than_the_freshness_window_is_ignored(
    open_context, hostile, free_stream_id, wait_until, clock_passes
) -> None:
    consumer = open_context(announce_period=0.1).consumer(free_stream_id)
    producer = hostile()
    # After the first accepted announce only the age of an announce counts.
    wait_processed(producer, consumer)
    replays = ignored(consumer, "before_join")
    old_ns = time.monotonic_ns()
    clock_passes(old_ns + SECOND_NS)
    producer.announce(announce_timestamp_ns=old_ns)
    wait_until(lambda: ignored(consumer, "stale"))
    assert (consumer.epoch, ignored(consumer, "before_join")) == (None, replays)


@pytest.mark.requirement("wire-15.1-3")
def test_regions_with_a_stale_activity_timestamp_are_not_mapped(
    hostile, open_context, free_stream_id, wait_until
) -> None:
    consumer = open_context(announce_period=1.0).consumer(free_stream_id)
    producer = hostile()
    producer.refresh_activity(time.monotonic_ns() - 4 * SECOND_NS)
    producer.announce_until(lambda: ignored(consumer, "stale"))
    assert consumer.epoch is None
    assert str(producer.directory) not in Path("/proc/self/maps").read_text()
    producer.refresh_activity()
    producer.announce_until(lambda: consumer.epoch == producer.epoch)


@pytest.mark.requirement("wire-15.1-3", "wire-15.21-8")
def test_stale_producer_is_unmapped_and_remapped_when_fresh(
    open_context, hostile, free_stream_id, wait_until
) -> None:
    context = open_context(announce_period=0.5)
    consumer = context.consumer(free_stream_id)
    producer = hostile()

    def is_mapped_again() -> bool:
        producer.refresh_activity()
        producer.announce()
        return consumer.epoch == producer.epoch

    wait_until(is_mapped_again)
    wait_until(lambda: consumer.epoch is None)
    assert str(producer.directory) not in Path("/proc/self/maps").read_text()
    producer.publish(0)
    assert consumer.wait(DEADLINE_S)
    assert consumer.poll() == []
    # The frame is in the span of its epoch: it must not also count as outside.
    assert consumer.ledger().dropped["paused"] == 1
    assert consumer.ledger().outside["unmapped"] == 0

    wait_until(is_mapped_again)
    producer.publish(1)
    producer.refresh_activity()
    assert consumer.receive(DEADLINE_S).seq == 1
    assert consumer.ledger().span == 2
    assert consumer.ledger().balanced
    kinds = [event.kind for event in context.events(0.0) if event.stream_id == free_stream_id]
    assert kinds[:3] == ["mapped", "unmapped", "mapped"]


# --- epochs


@pytest.mark.requirement("wire-10.1.1-2")
def test_lower_epoch_is_ignored_while_the_mapped_one_is_fresh(mapped, hostile, wait_until) -> None:
    producer, consumer = mapped
    older = hostile(epoch=producer.epoch - 1)
    older.announce_until(lambda: ignored(consumer, "older_epoch"))
    assert consumer.epoch == producer.epoch
    producer.publish(0)
    assert consumer.receive(DEADLINE_S).epoch == producer.epoch


def test_lower_epoch_is_mapped_once_the_higher_one_is_stale(
    open_context, hostile, free_stream_id, wait_until
) -> None:
    consumer = open_context(announce_period=0.2).consumer(free_stream_id)
    higher, lower = hostile(epoch=2_000), hostile(epoch=1_000)

    def is_mapped(producer) -> bool:
        producer.refresh_activity()
        producer.announce()
        return consumer.epoch == producer.epoch

    wait_until(lambda: is_mapped(higher))
    lower.announce()
    wait_until(lambda: is_mapped(lower))
    assert consumer.counters().mapped >= 2


@pytest.mark.requirement("wire-15.2-1", "wire-15.21-5", "wire-15.21-6")
def test_higher_epoch_ends_the_mapped_one(mapped, hostile, numbers) -> None:
    producer, consumer = mapped
    producer.publish(7)
    first = consumer.receive(DEADLINE_S)
    # Published, but not polled before the new epoch is mapped.
    producer.publish(8)
    producer.publish(9)
    successor = hostile(epoch=producer.epoch + 1)
    successor.announce_until(lambda: consumer.epoch == successor.epoch)
    successor.publish(0, numbers + 1)
    frame = consumer.receive(DEADLINE_S)
    assert (frame.epoch, frame.seq) == (successor.epoch, 0)
    np.testing.assert_array_equal(frame.array, numbers + 1)
    # A late descriptor of the old epoch.
    producer.describe(10)
    successor.publish(1)
    assert consumer.receive(DEADLINE_S).seq == 1
    ledger = consumer.ledger()
    assert (ledger.outside["epoch"], ledger.dropped["ended"]) == (1, 2)
    assert (ledger.span, ledger.received, ledger.balanced) == (5, 3, True)
    np.testing.assert_array_equal(first.array, numbers)


@pytest.mark.requirement("wire-15.21-7", "wire-10.2.1-6")
def test_frames_of_an_unmapped_epoch_are_dropped(mapped, hostile, wait_until) -> None:
    producer, consumer = mapped
    successor = hostile(epoch=producer.epoch + 1)
    successor.publish(0)
    assert consumer.wait(DEADLINE_S)
    assert consumer.poll() == []
    assert consumer.ledger().outside["epoch"] == 1
    successor.announce_until(lambda: consumer.epoch == successor.epoch)
    successor.publish(1)
    assert consumer.receive(DEADLINE_S).seq == 1


def test_repeated_announce_changes_nothing(mapped, wait_until) -> None:
    producer, consumer = mapped
    producer.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    for _ in range(5):
        producer.announce()
    wait_processed(producer, consumer)
    assert consumer.counters().mapped == 1
    producer.publish(2)
    assert consumer.receive(DEADLINE_S).seq == 2
    assert consumer.ledger().dropped["gap"] == 1


# --- contents


@pytest.mark.requirement("wire-15.1-1")
@pytest.mark.parametrize("change", [{"layout_version": 2}, {"header_slot_bytes": 512}], ids=str)
def test_announce_of_an_unknown_layout_is_ignored(
    hostile, context, free_stream_id, wait_until, change
) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: ignored(consumer, "layout"), **change)
    assert (consumer.epoch, consumer.counters().refused) == (None, 0)
    producer.announce_until(lambda: consumer.epoch == producer.epoch)


@pytest.mark.requirement("wire-15.1-1", "wire-7.1-1")
@pytest.mark.parametrize("field", ["nslots", "stride_bytes", "pool_id", "pool_nslots"])
def test_announce_that_contradicts_the_superblocks_ends_nothing(mapped, field) -> None:
    producer, consumer = mapped
    producer.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    first, second = producer.announcement().payload_pools
    wrong: dict[str, dict[str, Any]] = {
        "nslots": {"header_nslots": 16},
        "stride_bytes": {"payload_pools": (first, replace(second, stride_bytes=32768))},
        "pool_id": {"payload_pools": (first, replace(second, pool_id=9))},
        "pool_nslots": {"payload_pools": (first, replace(second, pool_nslots=4))},
    }
    # Any client may have sent it: what it announces is opened, refused and counted, and what is mapped stays.
    producer.announce_until(lambda: consumer.counters().refused, **wrong[field])
    assert (consumer.epoch, consumer.counters().mapped, consumer.poll()) == (producer.epoch, 1, [])
    producer.publish(1)
    assert consumer.receive(DEADLINE_S).seq == 1
    assert consumer.ledger().balanced


@pytest.mark.requirement("wire-15.1-1")
def test_pool_that_is_no_longer_announced_is_not_used(mapped, wait_until) -> None:
    producer, consumer = mapped
    producer.publish(0, pool_id=2)
    assert consumer.receive(DEADLINE_S).seq == 0
    only = producer.announcement().payload_pools[:1]
    producer.announce_until(lambda: consumer.counters().mapped == 2, payload_pools=only)
    producer.publish(1, pool_id=2)
    producer.publish(2, pool_id=1)
    assert consumer.receive(DEADLINE_S).seq == 2
    assert consumer.ledger().dropped["pool_id"] == 1


@pytest.mark.requirement("wire-15.1-2", "wire-7.1-2")
@pytest.mark.parametrize("region", ["ring", "pool"])
@pytest.mark.parametrize("field", ["magic", "epoch"])
def test_magic_and_epoch_are_checked_at_every_announce(mapped, region, field) -> None:
    producer, consumer = mapped
    path = producer.header if region == "ring" else producer.pool(2)
    value = {"magic": 0x544F504C53484D31, "epoch": producer.epoch}[field]
    producer.poke_superblock(path, field, 5)
    producer.announce_until(lambda: consumer.epoch is None)
    producer.poke_superblock(path, field, value)
    producer.announce_until(lambda: consumer.epoch == producer.epoch)


def test_malformed_announces_are_ignored(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    valid = producer.announcement().encode()
    for length in (0, 3, 8, 20, len(valid) - 1):
        producer.send_announce(valid[:length])
    producer.send_announce(valid[:8] + b"\xff" * (len(valid) - 8))
    producer.send_announce(os.urandom(200))
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    assert consumer.counters().refused == 0


def test_announce_of_another_stream_is_ignored(hostile, context, free_stream_ids, wait_until) -> None:
    producer = hostile()
    consumer = context.consumer(free_stream_ids())
    ours = context.consumer(producer.stream_id)
    producer.announce_until(lambda: ours.epoch == producer.epoch)
    assert consumer.epoch is None
    assert not any(consumer.counters().announces_ignored.values())


@pytest.mark.requirement("wire-15.21a.1-1", "wire-15.21a.4-2", "wire-15.21a.4-3")
def test_regions_are_mapped_only_by_announced_paths(
    hostile, context, free_stream_id, wait_until, numbers
) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    # Regions at the canonical paths with a published frame, but without an announce, are not mapped.
    producer.publish(0)
    assert consumer.wait(DEADLINE_S)
    assert consumer.poll() == []
    assert (consumer.epoch, consumer.ledger().outside["unmapped"]) == (None, 1)
    # Announced regions with any file names are mapped.
    ring, pool = producer.directory / "a.bin", producer.directory / "b.bin"
    producer.header.rename(ring)
    producer.pool(1).rename(pool)
    first, second = producer.announcement().payload_pools
    producer.announce_until(
        lambda: consumer.epoch == producer.epoch,
        header_region_uri=f"shm:file?path={ring}",
        payload_pools=(replace(first, region_uri=f"shm:file?path={pool}"), second),
    )
    producer.publish(1)
    np.testing.assert_array_equal(consumer.receive(DEADLINE_S).array, numbers)
