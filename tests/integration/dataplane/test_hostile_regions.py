"""Announced regions that a consumer must reject (wire §15.1, §15.21a.5, §15.22).

Each is rejected with its own reason, which is raised once. No part of it stays mapped. The next valid
announce is mapped.
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

import tensorpool as tp
from tensorpool.errors import ReceiveTimeout, RegionRejected
from tests.integration.dataplane.hostile import HostileProducer

DEADLINE_S = 60.0
Changes = dict[str, Any]


def header_at(hostile: HostileProducer, path: Path | str) -> Changes:
    """An announce with another path of the header ring."""
    return {"header_region_uri": f"shm:file?path={path}"}


def other_pool(hostile: HostileProducer, **changes: Any) -> Changes:
    """An announce whose second pool differs."""
    first, second = hostile.announcement().payload_pools
    return {"payload_pools": (first, replace(second, **changes))}


def relative_path(hostile: HostileProducer) -> Changes:
    return header_at(hostile, "header.ring")


def is_rejected(consumer: Any, count: int = 0) -> bool:
    """Whether more than `count` announces were rejected. Missing files count only if announced again."""
    return bool(consumer.counters().refused > count)


def path_with_parent_reference(hostile: HostileProducer) -> Changes:
    name = hostile.directory.name
    return header_at(hostile, f"{hostile.directory}/../{name}/header.ring")


def outside(hostile: HostileProducer) -> Changes:
    return header_at(hostile, "/etc/hostname")


def linked_file(hostile: HostileProducer) -> Changes:
    link = hostile.directory / "link"
    link.symlink_to(hostile.header)
    return header_at(hostile, link)


def linked_directory(hostile: HostileProducer) -> Changes:
    link = hostile.directory / "linked"
    link.symlink_to(hostile.directory)
    return header_at(hostile, link / "header.ring")


def link_out_of_the_base(hostile: HostileProducer) -> Changes:
    link = hostile.directory / "out"
    link.symlink_to("/etc/hostname")
    return header_at(hostile, link)


def fifo(hostile: HostileProducer) -> Changes:
    os.mkfifo(hostile.directory / "fifo")
    return header_at(hostile, hostile.directory / "fifo")


def socket_file(hostile: HostileProducer) -> Changes:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(hostile.directory / "socket"))
    return header_at(hostile, hostile.directory / "socket")


def directory(hostile: HostileProducer) -> Changes:
    return header_at(hostile, hostile.directory)


def missing(hostile: HostileProducer) -> Changes:
    return header_at(hostile, hostile.directory / "missing.ring")


def short_file(hostile: HostileProducer) -> Changes:
    copy = hostile.directory / "short"
    copy.write_bytes(hostile.header.read_bytes()[:63])
    return header_at(hostile, copy)


def truncated_ring(hostile: HostileProducer) -> Changes:
    copy = hostile.directory / "truncated"
    copy.write_bytes(hostile.header.read_bytes()[:-1])
    return header_at(hostile, copy)


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
        return header_at(hostile, copy)

    return poke


def poked_pool(field: str, value: int) -> Callable[[HostileProducer], Changes]:
    def poke(hostile: HostileProducer) -> Changes:
        copy = hostile.directory / "copy"
        shutil.copyfile(hostile.pool(2), copy)
        hostile.poke_superblock(copy, field, value)
        return other_pool(hostile, region_uri=f"shm:file?path={copy}")

    return poke


def header_uri(uri: str) -> Callable[[HostileProducer], Changes]:
    return lambda hostile: {"header_region_uri": uri.format(hostile.header)}


def announced_pool(**changes: Any) -> Callable[[HostileProducer], Changes]:
    return lambda hostile: other_pool(hostile, **changes)


CASES = [
    (relative_path, "relative", "wire-15.21a.5-1"),
    (path_with_parent_reference, "not_normal", "wire-15.21a.5-1"),
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
    (announced_pool(pool_nslots=16), "nslots", "wire-15.5-1"),
    (announced_pool(pool_id=9), "pool_id", "wire-7.1-4"),
    (announced_pool(stride_bytes=32768), "stride_bytes", "wire-15.1-1"),
    (announced_pool(stride_bytes=65537), "stride", "wire-15.22-10"),
    (announced_pool(stride_bytes=32), "stride", "wire-15.22-10"),
    (announced_pool(region_uri=""), "scheme", "wire-15.22-6"),
    (header_uri("file://{}"), "scheme", "wire-15.22-6"),
    (header_uri("shm:file?path={}|numa=1"), "uri", "wire-15.22-5"),
    (header_uri("shm:file?path={}|require_hugepages=true"), "not_hugepages", "wire-15.22-7"),
    (lambda hostile: {"header_nslots": 12}, "nslots", "wire-15.22-12"),
]


def case_name(case: Callable[..., Changes], reason: str, number: int) -> str:
    name = getattr(case, "__name__", "poke")
    return f"{name}-{reason}-{number}" if name.startswith(("<", "poke")) else name


@pytest.mark.requirement("wire-15.22-13", "wire-15.22-14", "wire-15.21a.5-5")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            change, reason, id=case_name(change, reason, i), marks=pytest.mark.requirement(requirement)
        )
        for i, (change, reason, requirement) in enumerate(CASES)
    ],
)
def test_invalid_region_is_rejected_until_a_valid_announce(
    hostile, context, free_stream_id, numbers, change, reason
) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    changes = change(producer)
    producer.announce_until(lambda: is_rejected(consumer), **changes)
    with pytest.raises(RegionRejected) as refused:
        consumer.receive(DEADLINE_S)
    assert refused.value.reason == reason
    assert str(refused.value).startswith("region ")
    assert consumer.epoch is None
    assert str(producer.directory) not in Path("/proc/self/maps").read_text()
    # The error is raised once. A later frame is a frame of an unmapped stream.
    producer.publish(0)
    assert consumer.wait(DEADLINE_S)
    assert consumer.poll() == []
    assert consumer.ledger().outside["unmapped"] == 1

    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    producer.publish(1)
    np.testing.assert_array_equal(consumer.receive(DEADLINE_S).array, numbers)
    assert consumer.ledger().balanced


@pytest.mark.requirement("wire-15.21a.5-2")
def test_device_file_is_rejected(open_context, free_stream_id, hostile) -> None:
    # With /dev as an allowed directory only the file type is wrong.
    consumer = open_context(allowed_base_dirs=["/dev"]).consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: is_rejected(consumer), **header_at(producer, "/dev/null"))
    with pytest.raises(RegionRejected, match="character device") as refused:
        consumer.receive(DEADLINE_S)
    assert refused.value.reason == "not_regular"


@pytest.mark.requirement("wire-15.22-13")
@pytest.mark.parametrize("method", ["poll", "latest", "wait", "receive", "iterate"])
def test_rejection_is_raised_once_by_any_method(hostile, context, free_stream_id, method) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: is_rejected(consumer), **missing(producer))
    calls: dict[str, Callable[[], object]] = {
        "poll": consumer.poll,
        "latest": consumer.latest,
        "wait": lambda: consumer.wait(DEADLINE_S),
        "receive": lambda: consumer.receive(DEADLINE_S),
        "iterate": lambda: next(consumer),
    }
    with pytest.raises(RegionRejected) as refused:
        calls[method]()
    assert refused.value.reason == "missing"
    assert consumer.poll() == []
    assert consumer.latest() is None
    count = consumer.counters().refused
    producer.announce_until(lambda: is_rejected(consumer, count), **missing(producer))
    assert consumer.poll() == []


def test_single_announce_of_missing_files_raises_nothing(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce(**missing(producer))
    with pytest.raises(ReceiveTimeout):
        consumer.receive(0.2)
    producer.announce_until(lambda: consumer.epoch == producer.epoch)


def test_second_fault_of_an_epoch_is_raised_again(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    for changes, reason in ((missing(producer), "missing"), (directory(producer), "not_regular")):
        count = consumer.counters().refused
        producer.announce_until(lambda count=count: is_rejected(consumer, count), **changes)
        with pytest.raises(RegionRejected) as refused:
            consumer.receive(DEADLINE_S)
        assert refused.value.reason == reason


def test_rejection_is_an_event_of_the_context(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: is_rejected(consumer), **missing(producer))
    event = next(event for event in context.events(DEADLINE_S) if event.kind == "refused")
    assert (event.stream_id, event.epoch) == (free_stream_id, producer.epoch)
    assert "no such file" in event.detail


def other_stream(hostile: HostileProducer) -> Changes:
    """A valid ring of the later epoch, and another stream's."""
    changes = poked("stream_id", 1)(hostile)
    hostile.poke_superblock(hostile.directory / "copy", "epoch", hostile.epoch + 1)
    return changes


def unreadable(hostile: HostileProducer) -> Changes:
    """A valid region that only another user may read."""
    copy = hostile.directory / "unreadable"
    shutil.copyfile(hostile.header, copy)
    copy.chmod(0)
    return header_at(hostile, copy)


UNUSABLE = [missing, outside, directory, other_stream, unreadable, truncated_ring]


@pytest.mark.requirement("wire-15.22-14")
@pytest.mark.parametrize("change", UNUSABLE)
def test_rejected_announce_of_a_later_epoch_ends_nothing(
    mapped, hostile, context, free_stream_id, change
) -> None:
    """Any client may announce any regions: those that cannot be used do not end those that are."""
    producer, consumer = mapped
    producer.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    changes = change(producer)
    producer.announce_until(lambda: is_rejected(consumer), **{"epoch": producer.epoch + 1} | changes)
    for seq in range(1, 20):
        producer.publish(seq)
        assert consumer.receive(DEADLINE_S).seq == seq
    assert (consumer.epoch, consumer.phase) == (producer.epoch, tp.Phase.MAPPED)
    assert consumer.ledger().balanced
    assert not any(consumer.counters().drops.values())
    assert consumer.counters().mapped == 1
    event = next(event for event in context.events(DEADLINE_S) if event.kind == "refused")
    assert (event.stream_id, event.epoch) == (free_stream_id, producer.epoch + 1)
    # The good epoch's announces still count, and a later epoch that can be opened ends it.
    producer.announce()
    successor = hostile(epoch=producer.epoch + 2)
    successor.announce_until(lambda: consumer.epoch == successor.epoch)
    successor.publish(0)
    assert consumer.receive(DEADLINE_S).epoch == successor.epoch


def test_announce_of_a_stale_later_epoch_ends_nothing(mapped, hostile) -> None:
    producer, consumer = mapped
    dead = hostile(epoch=producer.epoch + 1)
    dead.refresh_activity(1)
    dead.announce_until(lambda: consumer.counters().announces_ignored["stale"])
    producer.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    assert consumer.counters().mapped == 1


def test_rejection_quotes_one_short_line(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    uri = "shm:file?path=/" + "\n\x1b[2J" * 400
    producer.announce_until(lambda: is_rejected(consumer), header_region_uri=uri)
    with pytest.raises(RegionRejected) as refused:
        consumer.receive(DEADLINE_S)
    for text in (str(refused.value), refused.value.uri):
        assert text.isprintable()
    assert len(refused.value.uri) <= 200
    assert len(str(refused.value)) <= 450


def test_one_invalid_pool_rejects_the_whole_epoch(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.pool(2).unlink()
    producer.announce_until(lambda: is_rejected(consumer))
    assert consumer.epoch is None
    assert str(producer.directory) not in Path("/proc/self/maps").read_text()
    with pytest.raises(RegionRejected, match=r"2\.pool"):
        consumer.receive(DEADLINE_S)


@pytest.mark.requirement("wire-15.21a.2-1")
def test_consumer_maps_only_below_its_allowed_directories(
    open_context, hostile, free_stream_id, tmp_path
) -> None:
    strict = open_context(allowed_base_dirs=[tmp_path]).consumer(free_stream_id)
    lax = open_context(allowed_base_dirs=[tmp_path, "/dev/shm"]).consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: is_rejected(strict) and lax.epoch == producer.epoch)
    with pytest.raises(RegionRejected, match="allowed_base_dirs") as refused:
        strict.receive(DEADLINE_S)
    assert refused.value.reason == "outside"


def test_missing_allowed_directory_is_an_error_at_open(open_context, tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_context(allowed_base_dirs=[tmp_path / "nowhere"])


@pytest.mark.requirement("wire-15.22-9")
def test_stride_need_not_be_a_multiple_of_the_page_size(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile(pools=((5, 64), (6, 128)))
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    for seq in range(producer.nslots):
        payload = np.full(100, seq + 1, np.uint8)
        producer.publish(seq, payload, pool_id=6)
        np.testing.assert_array_equal(consumer.receive(DEADLINE_S).array, payload)
