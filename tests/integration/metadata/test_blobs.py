"""Blobs in chunks: whole, or not at all (wire §10.3.3, §15.9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.sbe import MetaBlobAnnounce, MetaBlobChunk, MetaBlobComplete, decode

from .conftest import DEADLINE_S, Stage

ARRAY = np.zeros(4, np.uint8)
FLAT = 1


def pattern(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(count, np.float32)


def frame_of(producer: tp.Producer, consumer: tp.Consumer) -> tp.Frame:
    assert producer.offer(ARRAY)
    return consumer.receive(DEADLINE_S)


def test_a_blob_of_many_chunks_comes_whole(stage: Stage) -> None:
    producer, consumer = stage.pair()
    flat = pattern(1_500_001)
    assert producer.set_blob(FLAT, flat.reshape(1, -1)) == 1
    assert producer.set_blob(2, b"") == 2
    frame = frame_of(producer, consumer)
    assert consumer.blob(FLAT, frame, timeout=DEADLINE_S) == flat.tobytes()
    assert consumer.blob(2, frame, timeout=DEADLINE_S) == b""
    assert consumer.blob(FLAT) == flat.tobytes()
    assert consumer.blob(3) is None
    counters = consumer.metadata_counters()
    assert counters["blobs"] == 2
    assert set(counters["blobs_discarded"].values()) == {0}


def test_each_frame_has_the_blob_that_goes_with_it(stage: Stage) -> None:
    producer, consumer = stage.pair(metadata={"gain": 1})
    before = frame_of(producer, consumer)
    producer.set_blob(FLAT, b"first")
    first = frame_of(producer, consumer)
    producer.set_metadata({"gain": 2})
    still = frame_of(producer, consumer)
    producer.set_blob(FLAT, b"second")
    second = frame_of(producer, consumer)
    assert consumer.blob(FLAT, second, timeout=DEADLINE_S) == b"second"
    assert consumer.blob(FLAT, first) == consumer.blob(FLAT, still) == b"first"
    assert consumer.blob(FLAT, before) is None
    producer.set_blob(FLAT, None)
    gone = frame_of(producer, consumer)
    assert gone.meta is not None
    assert gone.meta["gain"] == 2
    assert consumer.blob(FLAT, gone) is None
    assert consumer.blob(FLAT, second) == b"second"


def test_who_comes_later_gets_it_soon(stage: Stage) -> None:
    producer, first = stage.pair()
    flat = pattern(300_000)
    producer.set_blob(FLAT, flat)
    assert first.blob(FLAT, timeout=DEADLINE_S) == flat.tobytes()
    late = stage.context().consumer(stage.stream_id, timeout=DEADLINE_S)
    assert late.blob(FLAT, timeout=DEADLINE_S) == flat.tobytes()


@pytest.mark.requirement("wire-10.3.3-1", "wire-15.9-1")
def test_chunks_rise_without_gap_or_overlap_and_are_no_longer_than_64_kib(stage: Stage, until) -> None:
    producer, _ = stage.pair()
    ctx = stage.context()
    ear = ctx.connection.subscription(ctx.stream_ids.metadata, tethered=True)
    until(lambda: ear.is_ready)
    flat = pattern(100_000)
    producer.set_blob(FLAT, flat)
    heard: list[Any] = []

    def is_whole() -> bool:
        heard.extend(map(decode, ear.poll(1024)))
        return any(isinstance(one, MetaBlobComplete) for one in heard)

    until(is_whole)
    messages: list[Any] = [
        one for one in heard if isinstance(one, MetaBlobAnnounce | MetaBlobChunk | MetaBlobComplete)
    ]
    begin = next(at for at, one in enumerate(messages) if isinstance(one, MetaBlobAnnounce))
    announce, *chunks, complete = messages[begin : begin + 2 + -(-flat.nbytes // 65536)]
    assert announce.total_len == flat.nbytes
    assert announce.checksum == complete.checksum == _native.crc32c(flat.tobytes())
    assert [chunk.chunk_offset for chunk in chunks] == list(range(0, flat.nbytes, 65536))
    assert max(len(chunk.bytes) for chunk in chunks) == 65536
    assert b"".join(chunk.bytes for chunk in chunks) == flat.tobytes()


# --- a source that breaks the rules


@pytest.fixture
def liar(stage: Stage, until) -> Iterator[tuple[tp.Consumer, Callable[..., None]]]:
    """A consumer, and a voice on its metadata stream."""
    consumer, ctx = stage.context().consumer(stage.stream_id), stage.context()
    voice = ctx.connection.publication(ctx.stream_ids.metadata)
    until(lambda: voice.is_connected)

    def say(*messages: Any) -> None:
        for message in messages:
            until(lambda one=message: voice.offer(one.encode()) == "sent")

    yield consumer, say
    voice.close()


BODY = bytes(range(256)) * 8
CRC = _native.crc32c(BODY)


@pytest.mark.requirement("wire-10.3.3-1", "wire-15.9-1")
@pytest.mark.parametrize(
    ("why", "chunks", "checksum"),
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
def test_a_broken_blob_is_discarded_and_the_next_whole_one_kept(
    liar, stage: Stage, until, why: str, chunks: list[tuple[int, int]], checksum: int
) -> None:
    consumer, say = liar
    common = {"stream_id": stage.stream_id, "meta_version": 5}
    announce = MetaBlobAnnounce(**common, blob_type=FLAT, total_len=len(BODY), checksum=checksum)
    complete = MetaBlobComplete(**common, checksum=0)
    say(announce)
    for offset, length in chunks:
        say(MetaBlobChunk(**common, chunk_offset=offset, bytes=(BODY * 2)[offset : offset + length]))
    say(complete)
    until(lambda: consumer.metadata_counters()["blobs_discarded"][why] == 1)
    assert consumer.blob(FLAT) is None
    say(MetaBlobAnnounce(**common, blob_type=FLAT, total_len=len(BODY), checksum=CRC))
    for offset in range(0, len(BODY), 512):
        say(MetaBlobChunk(**common, chunk_offset=offset, bytes=BODY[offset : offset + 512]))
    say(complete)
    assert consumer.blob(FLAT, timeout=DEADLINE_S) == BODY


def test_a_blob_that_claims_too_much_is_refused(liar, stage: Stage, until) -> None:
    consumer, say = liar
    common = {"stream_id": stage.stream_id, "meta_version": 5}
    say(MetaBlobAnnounce(**common, blob_type=FLAT, total_len=1 << 60))
    until(lambda: consumer.metadata_counters()["blobs_discarded"]["too_large"] == 1)
    producer, _ = stage.pair()
    with pytest.raises(ValueError, match="consumers keep up to"):
        producer.set_blob(FLAT, bytes((128 << 20) + 1))
    with pytest.raises(ValueError, match="blob type"):
        producer.set_blob(-1, b"")
