"""Standalone producers: region paths, announces, activity and removal (wire §7.1, §15.21a)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.sbe import ClockDomain, ShmPoolAnnounce
from tensorpool.shm.epoch_files import user_name
from tests import leaks
from tests.integration.dataplane.region_files import regions_of

DEADLINE_S = 60.0


@pytest.fixture
def announces(context):
    """`announces(stream_id, count)`: decoded announces of a stream."""
    subscription = context.connection.subscription(context.stream_ids.announce, tethered=True)
    assert leaks.wait_for(lambda: subscription.is_ready, timeout=DEADLINE_S)

    def receive(stream_id: int, count: int) -> list[ShmPoolAnnounce]:
        received: list[ShmPoolAnnounce] = []

        def has_enough() -> bool:
            messages = (ShmPoolAnnounce.decode(message) for message in subscription.poll())
            received.extend(announce for announce in messages if announce.stream_id == stream_id)
            return len(received) >= count

        assert leaks.wait_for(has_enough, timeout=DEADLINE_S)
        return received

    yield receive
    subscription.close()


# --- paths and layouts


@pytest.mark.requirement("wire-15.21a.2-1", "wire-15.21a.3-1", "wire-15.21a.3-2", "wire-15.21a.3-4")
def test_base_directory_and_namespace_are_settings(open_context, shm_base, free_stream_id) -> None:
    base = shm_base / "elsewhere"
    base.mkdir()
    context = open_context(shm_base_dir=base, namespace="lab1")
    with context.producer(free_stream_id, pools=[64]) as producer:
        expected = base / f"tensorpool-{user_name()}" / "lab1" / str(free_stream_id) / str(producer.epoch)
        assert regions_of(producer).directory == expected
        assert sorted(path.name for path in expected.iterdir()) == ["1.pool", "header.ring"]
    base.rmdir()


def test_namespace_with_a_parent_reference_is_refused(open_context, shm_base) -> None:
    with pytest.raises(tp.ConfigError, match="namespace"):
        open_context(namespace="../../up")
    assert list(shm_base.iterdir()) == []


def test_stream_has_8_slots_and_3_pools_by_default(context, free_stream_id) -> None:
    with context.producer(free_stream_id) as producer:
        regions = regions_of(producer)
        assert regions.superblock().nslots == 8
        strides = [regions.superblock(f"{pool_id}.pool").stride_bytes for pool_id in (1, 2, 3)]
    assert strides == [64 << 10, 1 << 20, 4 << 20]


@pytest.mark.parametrize("stream_id", [0, -1, 0xFFFF_FFFF, 1 << 40])
def test_stream_id_outside_the_wire_range_is_refused(context, stream_id) -> None:
    with pytest.raises(tp.ConfigError, match="use 1 to 4294967294"):
        context.producer(stream_id)
    with pytest.raises(tp.ConfigError, match="use 1 to 4294967294"):
        context.consumer(stream_id)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"nslots": 6}, tp.ConfigError),
        ({"nslots": 0}, tp.ConfigError),
        ({"pools": [48]}, tp.ConfigError),
    ],
    ids=str,
)
def test_invalid_layout_leaves_no_files(context, shm_base, free_stream_id, settings, error) -> None:
    with pytest.raises(error, match="power of two"):
        context.producer(free_stream_id, **settings)
    assert list(shm_base.iterdir()) == []
    with context.producer(free_stream_id, pools=[64]) as producer:
        assert producer.next_seq == 0


def test_closed_context_refuses_producers_and_consumers(open_context, free_stream_id) -> None:
    context = open_context()
    context.close()
    with pytest.raises(tp.ClosedError):
        context.producer(free_stream_id)
    with pytest.raises(tp.ClosedError):
        context.consumer(free_stream_id)


# --- announces


@pytest.mark.requirement("wire-15.21a.4-1")
def test_announce_has_absolute_paths_of_all_regions(open_context, announces, free_stream_id) -> None:
    before = time.monotonic_ns()
    producer = open_context(announce_period=0.05).producer(free_stream_id, nslots=4, pools=[64, 128])
    directory = regions_of(producer).directory
    first, second = announces(free_stream_id, 2)[:2]
    assert directory.is_absolute()
    assert before <= first.announce_timestamp_ns < second.announce_timestamp_ns <= time.monotonic_ns()
    assert (first.epoch, first.layout_version, first.announce_clock_domain) == (
        producer.epoch,
        1,
        ClockDomain.MONOTONIC,
    )
    assert (first.header_nslots, first.header_slot_bytes) == (4, 256)
    assert first.header_region_uri == f"shm:file?path={directory}/header.ring"
    pools = [
        (pool.pool_id, pool.pool_nslots, pool.stride_bytes, pool.region_uri) for pool in first.payload_pools
    ]
    assert pools == [
        (1, 4, 64, f"shm:file?path={directory}/1.pool"),
        (2, 4, 128, f"shm:file?path={directory}/2.pool"),
    ]
    assert first.producer_id == second.producer_id


def test_regions_are_complete_before_they_are_announced(open_context, announces, free_stream_id) -> None:
    producer = open_context(announce_period=0.05).producer(free_stream_id, pools=[64])
    announce = announces(free_stream_id, 1)[0]
    uris = [announce.header_region_uri, *(pool.region_uri for pool in announce.payload_pools)]
    for uri in uris:
        path = Path(uri.removeprefix("shm:file?path="))
        assert regions_of(producer).superblock(path.name).epoch == announce.epoch


def test_every_announce_refreshes_all_activity_timestamps(open_context, free_stream_id, wait_until) -> None:
    producer = open_context(announce_period=0.05).producer(free_stream_id, pools=[64])
    regions = regions_of(producer)
    for name in ("header.ring", "1.pool"):
        started = regions.superblock(name)
        wait_until(
            lambda n=name, s=started: regions.superblock(n).activity_timestamp_ns > s.activity_timestamp_ns
        )
        now = regions.superblock(name)
        assert (now.start_timestamp_ns, now.pid) == (started.start_timestamp_ns, os.getpid())


# --- one producer a stream


def test_stream_has_one_producer_at_a_time(open_context, context, free_stream_id) -> None:
    with context.producer(free_stream_id, pools=[64]):
        with pytest.raises(tp.StreamBusy, match="has a producer already") as busy:
            open_context().producer(free_stream_id, pools=[64])
        assert busy.value.stream_id == free_stream_id
        assert str(os.getpid()) in busy.value.holder
    with open_context().producer(free_stream_id, pools=[64]) as successor:
        assert successor.next_seq == 0


def test_same_stream_id_in_another_namespace_is_another_stream(open_context, context, free_stream_id) -> None:
    with (
        context.producer(free_stream_id, pools=[64]) as one,
        open_context(namespace="other").producer(free_stream_id, pools=[64]) as other,
    ):
        assert one.epoch != other.epoch


# --- the end


def test_closed_producer_removes_its_files(context, shm_base, free_stream_id) -> None:
    producer = context.producer(free_stream_id, pools=[64])
    assert regions_of(producer).header.exists()
    producer.close()
    assert list(shm_base.iterdir()) == []
    producer.close()


def test_closed_producer_keeps_the_directories_of_others(context, free_stream_ids) -> None:
    closed, kept = (context.producer(free_stream_ids(), pools=[64]) for _ in range(2))
    closed.close()
    assert not regions_of(closed).directory.parent.exists()
    assert regions_of(kept).header.exists()


def test_producers_may_open_and_close_concurrently(open_context, free_stream_ids) -> None:
    # Each removes its empty directories, which another producer may just be using.
    failures: list[BaseException] = []

    def open_and_close() -> None:
        context = open_context()
        try:
            for _ in range(25):
                context.producer(free_stream_ids(), pools=[64]).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_and_close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.requirement("wire-15.21a.7-1", "wire-15.2-1")
def test_files_of_a_killed_producer_are_removed_by_the_next(
    media_driver, open_context, shm_base, free_stream_id, clock_passes
) -> None:
    script = (
        "import sys, time, tensorpool as tp\n"
        "context = tp.open(aeron_dir=sys.argv[1], media_driver='external', shm_base_dir=sys.argv[2])\n"
        "producer = context.producer(int(sys.argv[3]), pools=[64])\n"
        "print(producer.epoch, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, media_driver.aeron_dir, str(shm_base), str(free_stream_id)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        killed_epoch = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    (leftover,) = shm_base.glob(f"*/*/{free_stream_id}/*")
    assert leftover.name == str(killed_epoch)
    clock_passes(time.monotonic_ns() + 600_000_000)
    with open_context(announce_period=0.1).producer(free_stream_id, pools=[64]) as successor:
        assert not leftover.exists()
        assert successor.epoch is not None
        assert successor.epoch > killed_epoch
        assert successor.offer(np.zeros(1)).seq == 0


def test_late_consumer_maps_at_the_next_announce(open_context, context, free_stream_id) -> None:
    producer = open_context(announce_period=0.1).producer(free_stream_id, pools=[64])
    for _ in range(3):
        producer.offer(np.zeros(1))
    consumer = context.consumer(free_stream_id)
    assert leaks.wait_for(
        lambda: consumer.epoch == producer.epoch and producer.is_connected, timeout=DEADLINE_S
    )
    producer.offer(np.full(1, 9.0))
    frame = consumer.receive(DEADLINE_S)
    assert (frame.seq, frame.array[0]) == (3, 9.0)
    assert (consumer.ledger().span, consumer.ledger().balanced) == (1, True)
