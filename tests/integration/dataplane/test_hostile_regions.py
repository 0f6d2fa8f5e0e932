"""Regions that a consumer must not map, announced to a real one (wire §15.1, §15.21a.5, §15.22).

Each is refused with its own word, raised once to whoever waits; nothing of it stays mapped; and the first
good announce heals the consumer.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorpool.errors import ReceiveTimeout, RegionRejected
from tests.integration.dataplane.hostile import HostileProducer

DEADLINE_S = 60.0
Changes = dict[str, Any]


def elsewhere(hostile: HostileProducer, path: Path | str) -> Changes:
    """An announce whose header ring is said to lie at `path`."""
    return {"header_region_uri": f"shm:file?path={path}"}


def other_pool(hostile: HostileProducer, **changes: Any) -> Changes:
    """An announce whose second pool differs."""
    first, second = hostile.announcement().payload_pools
    return {"payload_pools": (first, replace(second, **changes))}


def relative_path(hostile: HostileProducer) -> Changes:
    return elsewhere(hostile, "header.ring")


def refused_for_good(consumer: Any, heard: int = 0) -> bool:
    """Refused, and not for an owner that may have just left: only then is it counted."""
    return bool(consumer.counters()["refused"] > heard)


def detour(hostile: HostileProducer) -> Changes:
    name = hostile.directory.name
    return elsewhere(hostile, f"{hostile.directory}/../{name}/header.ring")


def outside(hostile: HostileProducer) -> Changes:
    return elsewhere(hostile, "/etc/hostname")


def linked_file(hostile: HostileProducer) -> Changes:
    link = hostile.directory / "link"
    link.symlink_to(hostile.header)
    return elsewhere(hostile, link)


def linked_directory(hostile: HostileProducer) -> Changes:
    link = hostile.directory / "linked"
    link.symlink_to(hostile.directory)
    return elsewhere(hostile, link / "header.ring")


def link_out_of_the_base(hostile: HostileProducer) -> Changes:
    link = hostile.directory / "out"
    link.symlink_to("/etc/hostname")
    return elsewhere(hostile, link)


def fifo(hostile: HostileProducer) -> Changes:
    os.mkfifo(hostile.directory / "fifo")
    return elsewhere(hostile, hostile.directory / "fifo")


def socket_file(hostile: HostileProducer) -> Changes:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(hostile.directory / "socket"))
    return elsewhere(hostile, hostile.directory / "socket")


def directory(hostile: HostileProducer) -> Changes:
    return elsewhere(hostile, hostile.directory)


def missing(hostile: HostileProducer) -> Changes:
    return elsewhere(hostile, hostile.directory / "missing.ring")


def short_file(hostile: HostileProducer) -> Changes:
    copy = hostile.directory / "short"
    copy.write_bytes(hostile.header.read_bytes()[:63])
    return elsewhere(hostile, copy)


def truncated_ring(hostile: HostileProducer) -> Changes:
    copy = hostile.directory / "truncated"
    copy.write_bytes(hostile.header.read_bytes()[:-1])
    return elsewhere(hostile, copy)


def truncated_pool(hostile: HostileProducer) -> Changes:
    copy = hostile.directory / "truncated"
    copy.write_bytes(hostile.pool(2).read_bytes()[:-1])
    return other_pool(hostile, region_uri=f"shm:file?path={copy}")


def poked(field: str, value: int) -> Callable[[HostileProducer], Changes]:
    """A copy of the header ring with another value in its superblock."""

    def poke(hostile: HostileProducer) -> Changes:
        copy = hostile.directory / "copy"
        shutil.copyfile(hostile.header, copy)
        hostile.poke_superblock(copy, field, value)
        return elsewhere(hostile, copy)

    return poke


def poked_pool(field: str, value: int) -> Callable[[HostileProducer], Changes]:
    def poke(hostile: HostileProducer) -> Changes:
        copy = hostile.directory / "copy"
        shutil.copyfile(hostile.pool(2), copy)
        hostile.poke_superblock(copy, field, value)
        return other_pool(hostile, region_uri=f"shm:file?path={copy}")

    return poke


def said(uri: str) -> Callable[[HostileProducer], Changes]:
    return lambda hostile: {"header_region_uri": uri.format(hostile.header)}


def pool_said(**changes: Any) -> Callable[[HostileProducer], Changes]:
    return lambda hostile: other_pool(hostile, **changes)


CASES = [
    (relative_path, "relative", "wire-15.21a.5-1"),
    (detour, "not_normal", "wire-15.21a.5-1"),
    (outside, "outside", "wire-15.21a.5-1"),
    (linked_file, "symlink", "wire-15.21a.5-3"),
    (linked_directory, "symlink", "wire-15.21a.5-3"),
    (link_out_of_the_base, "outside", "wire-15.21a.5-3"),
    (fifo, "not_regular", "wire-15.21a.5-2"),
    (socket_file, "not_regular", "wire-15.21a.5-2"),
    (directory, "not_regular", "wire-15.21a.5-2"),
    (missing, "missing", "wire-15.21a.5-5"),
    (short_file, "too_short", "wire-15.22-14"),
    (truncated_ring, "too_short", "wire-15.22-14"),
    (truncated_pool, "too_short", "wire-15.22-14"),
    (poked("magic", 1), "magic", "wire-7.1-2"),
    (poked("layout_version", 2), "layout_version", "wire-15.1-1"),
    (poked("epoch", 1), "epoch", "wire-15.1-2"),
    (poked("stream_id", 1), "stream_id", "wire-7.1-1"),
    (poked("region_type", 2), "region_type", "wire-15.1-1"),
    (poked("pool_id", 1), "pool_id", "wire-7.1-3"),
    (poked("nslots", 4), "nslots", "wire-15.1-1"),
    (poked("slot_bytes", 512), "slot_bytes", "wire-15.1-1"),
    (poked_pool("magic", 1), "magic", "wire-7.1-2"),
    (poked_pool("epoch", 1), "epoch", "wire-15.1-2"),
    (poked_pool("region_type", 1), "region_type", "wire-15.1-1"),
    (poked_pool("pool_id", 7), "pool_id", "wire-7.1-4"),
    (poked_pool("nslots", 4), "nslots", "wire-15.5-1"),
    (poked_pool("stride_bytes", 128), "stride_bytes", "wire-15.1-1"),
    (pool_said(pool_nslots=16), "nslots", "wire-15.5-1"),
    (pool_said(pool_id=9), "pool_id", "wire-7.1-4"),
    (pool_said(stride_bytes=32768), "stride_bytes", "wire-15.1-1"),
    (pool_said(stride_bytes=65537), "stride", "wire-15.22-10"),
    (pool_said(stride_bytes=32), "stride", "wire-15.22-10"),
    (pool_said(region_uri=""), "scheme", "wire-15.22-6"),
    (said("file://{}"), "scheme", "wire-15.22-6"),
    (said("shm:file?path={}|numa=1"), "uri", "wire-15.22-5"),
    (said("shm:file?path={}|require_hugepages=true"), "not_hugepages", "wire-15.22-7"),
    (lambda hostile: {"header_nslots": 12}, "nslots", "wire-15.22-12"),
]


def name_of(case: Callable[..., Changes], reason: str, number: int) -> str:
    name = getattr(case, "__name__", "poke")
    return f"{name}-{reason}-{number}" if name.startswith(("<", "poke")) else name


@pytest.mark.requirement("wire-15.22-13", "wire-15.22-14", "wire-15.21a.5-5")
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(spoil, reason, id=name_of(spoil, reason, i), marks=pytest.mark.requirement(requirement))
        for i, (spoil, reason, requirement) in enumerate(CASES)
    ],
)
def test_a_region_that_breaks_a_rule_is_refused_and_a_good_announce_heals(
    hostile, context, free_stream_id, numbers, spoil, reason
) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    changes = spoil(producer)
    producer.announce_until(lambda: refused_for_good(consumer), **changes)
    with pytest.raises(RegionRejected) as refused:
        consumer.receive(DEADLINE_S)
    assert refused.value.reason == reason
    assert str(refused.value).startswith("region ")
    assert consumer.epoch is None
    assert str(producer.directory) not in Path("/proc/self/maps").read_text()
    # Said once: a wait after it is an ordinary wait, and a frame is a frame of an unmapped stream.
    producer.publish(0)
    assert consumer.wait(DEADLINE_S)
    assert consumer.poll() == []
    assert consumer.ledger().outside["unmapped"] == 1

    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    producer.publish(1)
    np.testing.assert_array_equal(consumer.receive(DEADLINE_S).array, numbers)
    assert consumer.ledger().balanced


@pytest.mark.requirement("wire-15.21a.5-2")
def test_a_device_is_refused(open_context, free_stream_id, hostile) -> None:
    # /dev itself as a base: only the kind of the file is left to object to.
    consumer = open_context(allowed_base_dirs=["/dev"]).consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: refused_for_good(consumer), **elsewhere(producer, "/dev/null"))
    with pytest.raises(RegionRejected, match="character device") as refused:
        consumer.receive(DEADLINE_S)
    assert refused.value.reason == "not_regular"


@pytest.mark.requirement("wire-15.22-13")
@pytest.mark.parametrize("look", ["poll", "latest", "wait", "receive", "iterate"])
def test_whoever_looks_is_told_of_the_refusal_once(hostile, context, free_stream_id, look) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: refused_for_good(consumer), **missing(producer))
    looks: dict[str, Callable[[], object]] = {
        "poll": consumer.poll,
        "latest": consumer.latest,
        "wait": lambda: consumer.wait(DEADLINE_S),
        "receive": lambda: consumer.receive(DEADLINE_S),
        "iterate": lambda: next(consumer),
    }
    with pytest.raises(RegionRejected) as refused:
        looks[look]()
    assert refused.value.reason == "missing"
    assert consumer.poll() == []
    assert consumer.latest() is None
    heard = consumer.counters()["refused"]
    producer.announce_until(lambda: consumer.counters()["refused"] > heard, **missing(producer))
    assert consumer.poll() == []


def test_an_owner_that_left_between_its_announce_and_our_look_is_no_fault(
    hostile, context, free_stream_id
) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce(**missing(producer))
    with pytest.raises(ReceiveTimeout):
        consumer.receive(0.2)
    producer.announce_until(lambda: consumer.epoch == producer.epoch)


def test_another_fault_of_the_same_epoch_is_told_again(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    for changes, reason in ((missing(producer), "missing"), (directory(producer), "not_regular")):
        heard = consumer.counters()["refused"]
        producer.announce_until(lambda heard=heard: refused_for_good(consumer, heard), **changes)
        with pytest.raises(RegionRejected) as refused:
            consumer.receive(DEADLINE_S)
        assert refused.value.reason == reason


def test_a_refusal_is_an_event_of_the_context(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: refused_for_good(consumer), **missing(producer))
    event = next(event for event in context.events(DEADLINE_S) if event.kind == "refused")
    assert (event.stream_id, event.epoch) == (free_stream_id, producer.epoch)
    assert "no such file" in event.detail


@pytest.mark.requirement("wire-15.21-7", "wire-15.22-14")
def test_a_new_epoch_that_is_refused_ends_the_old_one_all_the_same(mapped, hostile) -> None:
    producer, consumer = mapped
    producer.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    producer.announce_until(lambda: refused_for_good(consumer), epoch=producer.epoch + 1, **missing(producer))
    assert consumer.epoch is None
    assert str(producer.directory) not in Path("/proc/self/maps").read_text()
    successor = hostile(epoch=producer.epoch + 2)
    successor.announce_until(lambda: consumer.epoch == successor.epoch)
    successor.publish(0)
    assert consumer.receive(DEADLINE_S).epoch == successor.epoch


def test_one_bad_pool_keeps_the_whole_epoch_out(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.pool(2).unlink()
    producer.announce_until(lambda: refused_for_good(consumer))
    assert consumer.epoch is None
    assert str(producer.directory) not in Path("/proc/self/maps").read_text()
    with pytest.raises(RegionRejected, match=r"2\.pool"):
        consumer.receive(DEADLINE_S)


@pytest.mark.requirement("wire-15.21a.2-1")
def test_a_consumer_maps_below_its_allowed_bases_only(
    open_context, hostile, free_stream_id, tmp_path
) -> None:
    strict = open_context(allowed_base_dirs=[tmp_path]).consumer(free_stream_id)
    lax = open_context(allowed_base_dirs=[tmp_path, "/dev/shm"]).consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: refused_for_good(strict) and lax.epoch == producer.epoch)
    with pytest.raises(RegionRejected, match="allowed_base_dirs") as refused:
        strict.receive(DEADLINE_S)
    assert refused.value.reason == "outside"


def test_a_base_that_does_not_exist_is_refused_when_the_context_opens(open_context, tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_context(allowed_base_dirs=[tmp_path / "nowhere"])


@pytest.mark.requirement("wire-15.22-9")
def test_a_stride_that_is_no_multiple_of_the_page_size_is_taken_as_announced(
    hostile, context, free_stream_id
) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile(pools=((5, 64), (6, 128)))
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    for seq in range(producer.nslots):
        payload = np.full(100, seq + 1, np.uint8)
        producer.publish(seq, payload, pool_id=6)
        np.testing.assert_array_equal(consumer.receive(DEADLINE_S).array, payload)
