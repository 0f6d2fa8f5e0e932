"""Attributes from a producer to its consumers: each frame those of its own version (wire §10.3)."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.sbe import Attribute, DataSourceAnnounce, DataSourceMeta, FrameDescriptor, decode

from .conftest import DEADLINE_S, Stage

ARRAY = np.zeros(4, np.uint8)


def test_each_frame_has_the_attributes_of_its_own_version(stage: Stage) -> None:
    producer, consumer = stage.pair(name="Kamera Süd", tags=["lab"], metadata={"number": 0})
    for number in range(1, 200):
        # The words are said before the frame: not once is it ahead of them.
        producer.set_metadata({"number": number, "serial": "A1"})
        producer.offer(np.array([number], np.uint32))
        frame = consumer.receive(DEADLINE_S)
        assert frame.meta is not None
        assert (frame.meta["number"], int(frame.array[0])) == (number, number)
        assert frame.meta_version == producer.meta_version == number + 1
    assert consumer.metadata is not None
    assert consumer.metadata["tensorpool.tags"] == ["lab"]
    assert frame.meta is frame.meta, "decoded once"
    assert isinstance(frame.meta, tp.Metadata)
    assert consumer.metadata == frame.meta
    assert consumer.source_name == "Kamera Süd"
    assert producer.metadata == {"number": 199, "serial": "A1"}


def test_frames_of_two_versions_that_are_read_late_keep_theirs(stage: Stage) -> None:
    producer, consumer = stage.pair(metadata={"gain": 1}, nslots=8)
    producer.offer(ARRAY)
    with producer.claim((4,), "u1") as slot:
        # A slot that was claimed before the change was begun under the old version.
        producer.set_metadata({"gain": 2})
        slot.array[:] = 0
    producer.offer(ARRAY)
    producer.offer(ARRAY, meta_version=1)
    frames = [consumer.receive(DEADLINE_S) for _ in range(4)]
    assert [frame.meta["gain"] for frame in frames if frame.meta] == [1, 1, 2, 1]


def test_the_same_attributes_need_no_version_of_their_own(stage: Stage) -> None:
    producer, _ = stage.pair()
    assert producer.meta_version == 0
    assert producer.set_metadata({"a": [1, 2]}) == 1
    assert producer.set_metadata({"a": [1, 2]}) == 1
    assert producer.set_metadata({"a": [1, 2]}, name="other") == 2
    assert producer.set_metadata({}) == 3


def test_without_metadata_there_is_none(stage: Stage) -> None:
    producer, consumer = stage.pair()
    producer.offer(ARRAY)
    producer.offer(ARRAY, meta_version=77)
    plain, unknown = (consumer.receive(DEADLINE_S) for _ in range(2))
    assert (plain.meta_version, plain.meta, unknown.meta_version, unknown.meta) == (0, None, 77, None)
    assert (consumer.metadata, consumer.source_name, consumer.wait_for_metadata(0)) == (None, None, None)


def test_slot_and_descriptor_carry_the_version(stage: Stage, until) -> None:
    producer, consumer = stage.pair(metadata={"a": 1})
    ctx = stage.context()
    ear = ctx.connection.subscription(ctx.stream_ids.descriptor, tethered=True)
    until(lambda: ear.is_connected)
    producer.offer(ARRAY)
    (descriptor,) = until(lambda: [decode(message) for message in ear.poll()])
    assert isinstance(descriptor, FrameDescriptor)
    assert descriptor.meta_version == consumer.receive(DEADLINE_S).meta_version == 1


def test_who_comes_later_hears_it_too(stage: Stage, until) -> None:
    producer, _ = stage.pair(name="camera", metadata={"serial": "A1"})
    late = stage.context().consumer(stage.stream_id, timeout=DEADLINE_S)
    assert late.wait_for_producer(DEADLINE_S)
    found = late.wait_for_metadata(DEADLINE_S)
    assert found == {"serial": "A1"}
    assert late.source_name == "camera"
    until(lambda: producer.offer(ARRAY))
    assert late.receive(DEADLINE_S).meta == {"serial": "A1"}


def test_words_are_repeated_by_themselves_and_say_when_they_were_set(stage: Stage, until) -> None:
    before_ns = time.monotonic_ns()
    producer, _ = stage.pair(name="camera", metadata={"serial": "A1"})
    ctx = stage.context()
    ear = ctx.connection.subscription(ctx.stream_ids.metadata, tethered=True)
    heard: list[object] = []

    def rounds() -> bool:
        heard.extend(map(decode, ear.poll()))
        return len(heard) >= 8

    until(rounds)
    announces = [one for one in heard if isinstance(one, DataSourceAnnounce)]
    metas = [one for one in heard if isinstance(one, DataSourceMeta)]
    assert len(announces) >= 3
    assert {(a.stream_id, a.epoch, a.meta_version, a.name) for a in announces} == {
        (stage.stream_id, producer.epoch, 1, "camera")
    }
    assert 0 not in {a.producer_id for a in announces}
    assert all(meta == metas[0] for meta in metas)
    assert before_ns <= metas[0].timestamp_ns <= time.monotonic_ns()


def test_streams_have_metadata_streams_of_their_own_if_they_want(stage: Stage, until) -> None:
    _, there = stage.pair(metadata={"a": 1}, metadata_stream_id=1399)
    here = stage.context().consumer(stage.stream_id, timeout=DEADLINE_S, metadata_stream_id=1399)
    assert here.wait_for_metadata(DEADLINE_S) == {"a": 1}
    assert there.metadata is None


def test_what_is_too_long_is_refused_and_changes_nothing(stage: Stage) -> None:
    producer, consumer = stage.pair(metadata={"a": 1})
    with pytest.raises(ValueError, match="set_blob"):
        producer.set_metadata({"table": bytes(600_000)})
    assert (producer.metadata, producer.meta_version) == ({"a": 1}, 1)
    producer.set_metadata({"table": bytes(400_000)})
    producer.offer(ARRAY)
    frame = consumer.receive(DEADLINE_S)
    assert frame.meta is not None
    assert len(frame.meta["table"]) == 400_000
    with pytest.raises(ValueError, match="ASCII"):
        stage.context().producer(stage.stream_id + 500, pools=[64], metadata={"größe": 1})


def test_a_closed_producer_says_nothing_more(stage: Stage) -> None:
    producer, _ = stage.pair(metadata={"a": 1})
    producer.close()
    with pytest.raises(tp.ClosedError):
        producer.set_metadata({"a": 2})
    with pytest.raises(tp.ClosedError):
        producer.set_blob(1, b"")


def test_garbage_on_the_metadata_stream_costs_nobody_anything(stage: Stage, until) -> None:
    producer, consumer = stage.pair(metadata={"a": 1})
    ctx = stage.context()
    voice = ctx.connection.publication(ctx.stream_ids.metadata)
    until(lambda: voice.is_connected)
    rng = random.Random(7)
    good = DataSourceMeta(
        stream_id=stage.stream_id,
        meta_version=9,
        timestamp_ns=0,
        attributes=(Attribute(key="k", format="text/plain", value=b"v"),),
    ).encode()

    def say(message: bytes) -> None:
        until(lambda: voice.offer(message) == "sent")

    for _ in range(500):
        say(rng.randbytes(rng.choice((0, 1, 7, 8, 12, 40, 3000))))
        say(good[: rng.randrange(12, len(good))])
        spoiled = bytearray(good)
        # Which stream it is about stays, so that it is not simply somebody else's.
        spoiled[rng.choice((0, 1, *range(24, len(good))))] ^= 1 << rng.randrange(8)
        say(bytes(spoiled))
    until(lambda: consumer.metadata_counters()["malformed"] >= 500)
    until(lambda: consumer.metadata_counters()["foreign"] >= 400)
    producer.set_metadata({"a": 2})
    producer.offer(ARRAY)
    assert consumer.receive(DEADLINE_S).meta == {"a": 2}
