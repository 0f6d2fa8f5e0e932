"""Blobs in chunks: delivered complete, or not at all (wire §10.3.3, §15.9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.sbe import MetaBlobAnnounce, MetaBlobChunk, MetaBlobComplete, decode

from .conftest import DEADLINE_S, MetadataHarness

ARRAY = np.zeros(4, np.uint8)
FLAT = 1


def random_floats(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(count, np.float32)


def send_frame(producer: tp.Producer, consumer: tp.Consumer) -> tp.Frame:
    assert producer.offer(ARRAY)
    return consumer.receive(DEADLINE_S)


def test_blob_of_many_chunks_is_delivered_complete(harness: MetadataHarness) -> None:
    producer, consumer = harness.pair()
    flat = random_floats(1_500_001)
    assert producer.set_blob(FLAT, flat.reshape(1, -1)) == 1
    assert producer.set_blob(2, b"") == 2
    frame = send_frame(producer, consumer)
    assert consumer.blob(FLAT, frame, timeout=DEADLINE_S) == flat.tobytes()
    assert consumer.blob(2, frame, timeout=DEADLINE_S) == b""
    assert consumer.blob(FLAT) == flat.tobytes()
    assert consumer.blob(3) is None
    counters = consumer.metadata_counters()
    assert counters is not None
    assert counters.blobs == 2
    assert set(counters.blobs_discarded.values()) == {0}


def test_each_frame_has_the_blob_of_its_version(harness: MetadataHarness) -> None:
    producer, consumer = harness.pair(metadata={"gain": 1})
    before = send_frame(producer, consumer)
    producer.set_blob(FLAT, b"first")
    first = send_frame(producer, consumer)
    producer.set_metadata({"gain": 2})
    third = send_frame(producer, consumer)
    producer.set_blob(FLAT, b"second")
    second = send_frame(producer, consumer)
    assert consumer.blob(FLAT, second, timeout=DEADLINE_S) == b"second"
    assert consumer.blob(FLAT, first) == consumer.blob(FLAT, third) == b"first"
    assert consumer.blob(FLAT, before) is None
    producer.set_blob(FLAT, None)
    last = send_frame(producer, consumer)
    assert last.meta is not None
    assert last.meta["gain"] == 2
    assert consumer.blob(FLAT, last) is None
    assert consumer.blob(FLAT, second) == b"second"


def test_late_consumer_receives_the_blob(harness: MetadataHarness) -> None:
    producer, first = harness.pair()
    flat = random_floats(300_000)
    producer.set_blob(FLAT, flat)
    assert first.blob(FLAT, timeout=DEADLINE_S) == flat.tobytes()
    late = harness.context().consumer(harness.stream_id, timeout=DEADLINE_S)
    assert late.blob(FLAT, timeout=DEADLINE_S) == flat.tobytes()


@pytest.mark.requirement("wire-10.3.3-1", "wire-15.9-1")
def test_blob_chunks_are_contiguous_and_at_most_64_kib(harness: MetadataHarness, until) -> None:
    producer, _ = harness.pair()
    ctx = harness.context()
    subscription = ctx.connection.subscription(ctx.stream_ids.metadata, tethered=True)
    until(lambda: subscription.is_ready)
    flat = random_floats(100_000)
    producer.set_blob(FLAT, flat)
    messages: list[Any] = []

    def is_complete() -> bool:
        decoded = map(decode, subscription.poll(1024))
        messages.extend(
            message
            for message in decoded
            if isinstance(message, MetaBlobAnnounce | MetaBlobChunk | MetaBlobComplete)
        )
        return any(isinstance(message, MetaBlobComplete) for message in messages)

    until(is_complete)
    first = next(index for index, message in enumerate(messages) if isinstance(message, MetaBlobAnnounce))
    announce, *chunks, complete = messages[first : first + 2 + -(-flat.nbytes // 65536)]
    assert announce.total_len == flat.nbytes
    assert announce.checksum == complete.checksum == _native.crc32c(flat.tobytes())
    assert [chunk.chunk_offset for chunk in chunks] == list(range(0, flat.nbytes, 65536))
    assert max(len(chunk.bytes) for chunk in chunks) == 65536
    assert b"".join(chunk.bytes for chunk in chunks) == flat.tobytes()


# --- invalid blobs


@pytest.fixture
def raw_metadata(harness: MetadataHarness, until) -> Iterator[tuple[tp.Consumer, Callable[..., None]]]:
    """A consumer, and a function that publishes messages on its metadata stream."""
    consumer, ctx = harness.context().consumer(harness.stream_id), harness.context()
    publication = ctx.connection.publication(ctx.stream_ids.metadata)
    until(lambda: publication.is_connected)

    def publish(*messages: Any) -> None:
        for encoded in [message.encode() for message in messages]:
            until(lambda data=encoded: publication.offer(data) == "sent")

    yield consumer, publish
    publication.close()


BODY = bytes(range(256)) * 8
CRC = _native.crc32c(BODY)


@pytest.mark.requirement("wire-10.3.3-1", "wire-15.9-1")
@pytest.mark.parametrize(
    ("reason", "chunks", "checksum"),
    [
        ("gap", [(0, 1000), (1500, 548)], 0),
        ("gap", [(0, 1000)], 0),
        ("gap", [(1000, 1048)], 0),
        ("overlap", [(0, 1000), (999, 1049)], 0),
        ("overlap", [(0, 2048), (0, 2048)], 0),
        ("overrun", [(0, 1000), (1000, 1049)], 0),
        ("checksum", [(0, 1000), (1000, 1048)], CRC ^ 1),
    ],
)
def test_invalid_blob_is_discarded_and_the_next_one_delivered(
    raw_metadata, harness: MetadataHarness, until, reason: str, chunks: list[tuple[int, int]], checksum: int
) -> None:
    consumer, publish = raw_metadata
    common = {"stream_id": harness.stream_id, "meta_version": 5}
    announce = MetaBlobAnnounce(**common, blob_type=FLAT, total_len=len(BODY), checksum=checksum)
    complete = MetaBlobComplete(**common, checksum=0)
    publish(announce)
    for offset, length in chunks:
        publish(MetaBlobChunk(**common, chunk_offset=offset, bytes=(BODY * 2)[offset : offset + length]))
    publish(complete)
    until(lambda: consumer.metadata_counters().blobs_discarded[reason] == 1)
    assert consumer.blob(FLAT) is None
    publish(MetaBlobAnnounce(**common, blob_type=FLAT, total_len=len(BODY), checksum=CRC))
    for offset in range(0, len(BODY), 512):
        publish(MetaBlobChunk(**common, chunk_offset=offset, bytes=BODY[offset : offset + 512]))
    publish(complete)
    assert consumer.blob(FLAT, timeout=DEADLINE_S) == BODY


def test_blob_that_is_too_large_is_refused(raw_metadata, harness: MetadataHarness, until) -> None:
    consumer, publish = raw_metadata
    common = {"stream_id": harness.stream_id, "meta_version": 5}
    publish(MetaBlobAnnounce(**common, blob_type=FLAT, total_len=1 << 60))
    until(lambda: consumer.metadata_counters().blobs_discarded["too_large"] == 1)
    producer, _ = harness.pair()
    with pytest.raises(ValueError, match="consumers keep up to"):
        producer.set_blob(FLAT, bytes((128 << 20) + 1))
    with pytest.raises(ValueError, match="blob type"):
        producer.set_blob(-1, b"")
