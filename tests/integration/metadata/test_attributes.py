"""Attributes of a producer at its consumers, by the metadata version of each frame (wire §10.3)."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.sbe import Attribute, DataSourceAnnounce, DataSourceMeta, FrameDescriptor, decode

from .conftest import DEADLINE_S, MetadataHarness

ARRAY = np.zeros(4, np.uint8)


def test_each_frame_has_the_attributes_of_its_version(harness: MetadataHarness) -> None:
    producer, consumer = harness.pair(name="Kamera Süd", tags=["lab"], metadata={"number": 0})
    for number in range(1, 200):
        # Metadata is published before the frame: a consumer never receives the frame first.
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


def test_frames_read_late_keep_the_attributes_of_their_version(harness: MetadataHarness) -> None:
    producer, consumer = harness.pair(metadata={"gain": 1}, nslots=8)
    producer.offer(ARRAY)
    with producer.claim((4,), "u1") as slot:
        # A slot keeps the version at the time of its claim.
        producer.set_metadata({"gain": 2})
        slot.array[:] = 0
    producer.offer(ARRAY)
    producer.offer(ARRAY, meta_version=1)
    frames = [consumer.receive(DEADLINE_S) for _ in range(4)]
    assert [frame.meta["gain"] for frame in frames if frame.meta] == [1, 1, 2, 1]


def test_unchanged_attributes_keep_the_metadata_version(harness: MetadataHarness) -> None:
    producer, _ = harness.pair()
    assert producer.meta_version == 0
    assert producer.set_metadata({"a": [1, 2]}) == 1
    assert producer.set_metadata({"a": [1, 2]}) == 1
    assert producer.set_metadata({"a": [1, 2]}, name="other") == 2
    assert producer.set_metadata({}) == 3


def test_frame_without_metadata_has_no_attributes(harness: MetadataHarness) -> None:
    producer, consumer = harness.pair()
    producer.offer(ARRAY)
    producer.offer(ARRAY, meta_version=77)
    plain, unknown = (consumer.receive(DEADLINE_S) for _ in range(2))
    assert (plain.meta_version, plain.meta, unknown.meta_version, unknown.meta) == (0, None, 77, None)
    assert (consumer.metadata, consumer.source_name, consumer.wait_for_metadata(0)) == (None, None, None)


def test_slot_and_descriptor_carry_the_metadata_version(harness: MetadataHarness, until) -> None:
    producer, consumer = harness.pair(metadata={"a": 1})
    ctx = harness.context()
    subscription = ctx.connection.subscription(ctx.stream_ids.descriptor, tethered=True)
    until(lambda: subscription.is_connected)
    producer.offer(ARRAY)
    (descriptor,) = until(lambda: [decode(message) for message in subscription.poll()])
    assert isinstance(descriptor, FrameDescriptor)
    assert descriptor.meta_version == consumer.receive(DEADLINE_S).meta_version == 1


def test_late_consumer_receives_the_metadata(harness: MetadataHarness, until) -> None:
    producer, _ = harness.pair(name="camera", metadata={"serial": "A1"})
    late = harness.context().consumer(harness.stream_id, timeout=DEADLINE_S)
    assert late.wait_for_producer(DEADLINE_S)
    assert late.wait_for_metadata(DEADLINE_S) == {"serial": "A1"}
    assert late.source_name == "camera"
    until(lambda: producer.offer(ARRAY))
    assert late.receive(DEADLINE_S).meta == {"serial": "A1"}


def test_metadata_messages_are_repeated_with_their_timestamp(harness: MetadataHarness, until) -> None:
    before_ns = time.monotonic_ns()
    producer, _ = harness.pair(name="camera", metadata={"serial": "A1"})
    ctx = harness.context()
    subscription = ctx.connection.subscription(ctx.stream_ids.metadata, tethered=True)
    messages: list[object] = []

    def has_repeats() -> bool:
        messages.extend(map(decode, subscription.poll()))
        return len(messages) >= 8

    until(has_repeats)
    announces = [message for message in messages if isinstance(message, DataSourceAnnounce)]
    metas = [message for message in messages if isinstance(message, DataSourceMeta)]
    assert len(announces) >= 3
    assert {(a.stream_id, a.epoch, a.meta_version, a.name) for a in announces} == {
        (harness.stream_id, producer.epoch, 1, "camera")
    }
    assert 0 not in {a.producer_id for a in announces}
    assert all(meta == metas[0] for meta in metas)
    assert before_ns <= metas[0].timestamp_ns <= time.monotonic_ns()


def test_producer_without_metadata_is_announced_as_a_source(harness: MetadataHarness, until) -> None:
    ctx = harness.context()
    subscription = ctx.connection.subscription(ctx.stream_ids.metadata, tethered=True)
    producer, consumer = harness.pair()
    messages: list[Any] = []

    def repeated(version: int) -> bool:
        messages.extend(map(decode, subscription.poll()))
        return sum(isinstance(m, DataSourceAnnounce) and m.meta_version == version for m in messages) >= 3

    until(lambda: repeated(0))
    expected = (harness.stream_id, producer.epoch, 0, "", "")
    assert {(m.stream_id, m.epoch, m.meta_version, m.name, m.summary) for m in messages} == {expected}
    assert 0 not in {message.producer_id for message in messages}
    assert (consumer.metadata, producer.meta_version) == (None, 0)
    assert producer.set_metadata({"a": 1}, name="camera") == 1
    messages.clear()
    until(lambda: repeated(1))
    assert consumer.wait_for_metadata(DEADLINE_S) == {"a": 1}


def test_first_producer_repeats_metadata_at_the_period_of_the_driver(harness: MetadataHarness, until) -> None:
    # The context would repeat once an hour; the driver announces five times a second.
    harness.context(mode="embedded", announce_period=0.2)
    ctx = harness.context(mode="driver", announce_period=3600.0)
    subscription = ctx.connection.subscription(ctx.stream_ids.metadata, tethered=True)
    producer = ctx.producer(harness.stream_id, name="camera", nslots=4, pools=["1MiB"])
    announces: list[DataSourceAnnounce] = []

    def is_repeated() -> bool:
        found = map(decode, subscription.poll())
        announces.extend(m for m in found if isinstance(m, DataSourceAnnounce) and m.name == "camera")
        return len(announces) >= 4

    until(is_repeated)
    producer.close()


def test_producer_may_use_another_metadata_stream(harness: MetadataHarness, until) -> None:
    _, default_consumer = harness.pair(metadata={"a": 1}, metadata_stream_id=1399)
    consumer = harness.context().consumer(harness.stream_id, timeout=DEADLINE_S, metadata_stream_id=1399)
    assert consumer.wait_for_metadata(DEADLINE_S) == {"a": 1}
    assert default_consumer.metadata is None


def test_metadata_that_is_too_long_is_refused(harness: MetadataHarness) -> None:
    producer, consumer = harness.pair(metadata={"a": 1})
    with pytest.raises(ValueError, match="set_blob"):
        producer.set_metadata({"table": bytes(600_000)})
    assert (producer.metadata, producer.meta_version) == ({"a": 1}, 1)
    producer.set_metadata({"table": bytes(400_000)})
    producer.offer(ARRAY)
    frame = consumer.receive(DEADLINE_S)
    assert frame.meta is not None
    assert len(frame.meta["table"]) == 400_000
    with pytest.raises(ValueError, match="ASCII"):
        harness.context().producer(harness.stream_id + 500, pools=[64], metadata={"größe": 1})


def test_closed_producer_refuses_metadata(harness: MetadataHarness) -> None:
    producer, _ = harness.pair(metadata={"a": 1})
    producer.close()
    with pytest.raises(tp.ClosedError):
        producer.set_metadata({"a": 2})
    with pytest.raises(tp.ClosedError):
        producer.set_blob(1, b"")


def test_malformed_metadata_messages_are_counted_and_ignored(harness: MetadataHarness, until) -> None:
    producer, consumer = harness.pair(metadata={"a": 1})
    ctx = harness.context()
    publication = ctx.connection.publication(ctx.stream_ids.metadata)
    until(lambda: publication.is_connected)
    rng = random.Random(7)
    valid = DataSourceMeta(
        stream_id=harness.stream_id,
        meta_version=9,
        timestamp_ns=0,
        attributes=(Attribute(key="k", format="text/plain", value=b"v"),),
    ).encode()

    def publish(message: bytes) -> None:
        until(lambda: publication.offer(message) == "sent")

    for _ in range(500):
        publish(rng.randbytes(rng.choice((0, 1, 7, 8, 12, 40, 3000))))
        publish(valid[: rng.randrange(12, len(valid))])
        corrupted = bytearray(valid)
        # The stream id stays: a message of another stream would be ignored and not counted.
        corrupted[rng.choice((0, 1, *range(24, len(valid))))] ^= 1 << rng.randrange(8)
        publish(bytes(corrupted))

    def counts(name: str) -> int:
        return int(getattr(consumer.metadata_counters(), name))

    until(lambda: counts("malformed") >= 500)
    until(lambda: counts("foreign") >= 400)
    producer.set_metadata({"a": 2})
    producer.offer(ARRAY)
    assert consumer.receive(DEADLINE_S).meta == {"a": 2}
