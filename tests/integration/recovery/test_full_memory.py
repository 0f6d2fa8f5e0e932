"""Regions and media driver in the shared memory of a container: all fits; no process ends when it is full."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.runtime.counters import read_aeron_counters
from tests.remote_process import RemoteError, RemoteProcess

from .client_process import ClientProcess
from .deployment import STEADY, Deployment
from .recorder_process import RecorderProcess
from .test_filesystem import Filler, Mount

CONTAINER = "size=64m"
"""Shared memory of a container by default."""
MIB = 1 << 20


@pytest.fixture
def in_container(deployment: Deployment, mount: Mount) -> Deployment:
    """A deployment whose regions and media driver share the memory of a container."""
    mount("tmpfs", CONTAINER)
    deployment.aeron_dir = deployment.base / "aeron"
    deployment.configure(STEADY)
    return deployment


@pytest.fixture
def filler(in_container: Deployment) -> Filler:
    return Filler(in_container.base)


def used_bytes(deployment: Deployment) -> int:
    """Memory that the filesystem has given out."""
    statistics = os.statvfs(deployment.base)
    return (statistics.f_blocks - statistics.f_bfree) * statistics.f_frsize


def producer_with_short_terms(deployment: Deployment) -> RemoteProcess:
    """A streaming producer whose descriptors are soon in all three terms of its log."""
    process = deployment.start(ClientProcess, env={"TENSORPOOL_AERON__DESCRIPTOR_TERM": "64KiB"})
    return deployment.streaming_producer(process, per_second=2000)


def test_whole_idle_system_fits_the_shared_memory_of_a_container(
    in_container: Deployment, tmp_path: Path
) -> None:
    """All memory is taken at the start: what fits then never needs more."""
    in_container.driver()
    in_container.service()
    consumer, producer = in_container.consumer(), in_container.worker()
    producer.call("produce", stream_id=in_container.stream_id, pools=["1MiB"])
    with RecorderProcess(in_container, tmp_path / "recording") as recorder:
        in_container.until(lambda: recorder.ready)
        in_container.until(lambda: producer.call("offer") == "published" and consumer.call("received_count"))
        # Without the regions, 8 MiB in these.
        assert used_bytes(in_container) < (8 + 42) * MIB
        for path in in_container.aeron_dir.rglob("*"):
            if path.is_file():
                status = path.stat()
                assert status.st_blocks * 512 >= status.st_size, f"{path} is sparse"
        recorder.end()


def test_full_shared_memory_ends_no_process(
    in_container: Deployment, filler: Filler, tmp_path: Path, free_stream_ids: Callable[[], int]
) -> None:
    media_driver, service = in_container.driver(), in_container.service()
    consumer, worker = in_container.consumer(), in_container.worker()
    producer = producer_with_short_terms(in_container)
    with ExitStack() as stack:
        recorder = stack.enter_context(RecorderProcess(in_container, tmp_path / "recording"))
        in_container.until(lambda: recorder.ready)
        epoch = in_container.wait_epoch(consumer)
        other = free_stream_ids()
        filler.fill()
        with pytest.raises(RemoteError, match=r"insufficient storage space|no room for|No space left"):
            worker.call("produce", stream_id=other)
        in_container.wait_received(consumer, more=1000)
        # Now there is space for the region, and not for the publication of its descriptors.
        filler.free()
        filler.fill(leave=1 * MIB)
        with pytest.raises(RemoteError, match="insufficient storage space"):
            worker.call("produce", stream_id=other)
        filler.free()
        assert worker.call("produce", stream_id=other) > 0
        in_container.until(lambda: worker.call("offer") in ("published", "not_connected"))
        worker.call("close_producer")
        assert in_container.wait_epoch(consumer) == epoch
        assert all((media_driver.alive, service.alive, producer.alive, consumer.alive, recorder.alive))
        recorder.end()
    in_container.assert_balanced(producer, [consumer])


def test_producer_that_dies_while_memory_is_full_is_followed_by_another(
    in_container: Deployment, filler: Filler
) -> None:
    in_container.driver()
    in_container.service()
    consumer = in_container.consumer()
    first = in_container.streaming_producer()
    epoch = in_container.wait_epoch(consumer)
    filler.fill()
    first.kill()
    filler.free()
    second = in_container.streaming_producer()
    assert in_container.wait_epoch(consumer, after=epoch) > epoch
    in_container.assert_balanced(second, [consumer])


def test_large_message_stays_behind_the_small_ones_before_it(
    aeron_dir: Path, shm_base: Path, free_stream_ids: Callable[[], int], wait_until: Callable[..., object]
) -> None:
    """It has a publication of its own, and a subscriber reads publications in no fixed order."""
    with tp.open("standalone", aeron_dir=aeron_dir, shm_base_dir=shm_base) as context:
        # More small messages than the large one has fragments: a subscriber reads both logs in turn.
        stream_id, large = free_stream_ids(), b"x" * (140 << 10)
        publication = context.connection.publication(stream_id)
        subscription = context.connection.subscription(stream_id, tethered=True)
        wait_until(lambda: publication.is_connected and subscription.is_connected)
        small = [b"%d" % number for number in range(2_100)]
        received: list[bytes] = []

        def is_sent(message: bytes) -> bool:
            received.extend(subscription.poll(1))
            return publication.offer(message) == "sent"

        def publications() -> int:
            labels = [counter.label.split() for counter in read_aeron_counters(str(aeron_dir))]
            return sum(label[0] == "pub-lmt:" and label[3] == str(stream_id) for label in labels)

        for message in small[:2_000]:
            assert publication.offer(message) == "sent"
        assert publication.offer(large) == "back_pressured"
        wait_until(lambda: publications() == 2)
        for message in (large, *small[2_000:]):
            deadline = time.monotonic() + 60
            while not is_sent(message):
                assert time.monotonic() < deadline

        def all_are_received() -> bool:
            received.extend(subscription.poll())
            return len(received) == 2_101

        wait_until(all_are_received)
        publication.close()
        subscription.close()
    assert received == [*small[:2_000], large, *small[2_000:]]


def test_large_metadata_and_commands_pass_through_short_terms(
    deployment: Deployment, wait_until: Callable[..., object]
) -> None:
    """512 KiB were possible with long terms, and still are."""
    deployment.driver()
    deployment.service()
    text = "x" * (500 << 10)
    with tp.open(**deployment.options) as context:
        producer = context.producer(deployment.stream_id, pools=["4KiB"])
        consumer = context.consumer(deployment.stream_id)
        producer.set_metadata({"notes": text})
        frames: list[tp.Frame] = []

        def has_metadata() -> bool:
            producer.offer(np.zeros(4))
            frames.extend(filter(None, [consumer.receive_or_none(0.1)]))
            return bool(frames) and frames[-1].meta is not None and "notes" in frames[-1].meta

        wait_until(has_metadata)
        meta = frames[-1].meta
        assert meta is not None
        assert meta["notes"] == text
        frames.clear()
        with context.service("driver") as driver, pytest.raises(tp.CommandFailed) as caught:
            driver.call("leases", stream_id=text)
        # The reply quotes the argument, so it is as long.
        assert len(str(caught.value)) > len(text)
