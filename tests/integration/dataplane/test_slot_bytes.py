"""Bytes of slots and descriptors that a producer writes (wire §8, §9, §10.2.1, §15.18)."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.sbe import Dtype, FrameDescriptor, MajorOrder, ProgressUnit, SlotHeader, TensorHeader
from tests import leaks
from tests.integration.dataplane.region_files import regions_of

DEADLINE_S = 60.0
NULL_U32, NULL_U64 = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF


@pytest.fixture
def producer(context, free_stream_id) -> tp.Producer:
    return context.producer(free_stream_id, pools=[64, "4KiB", "64KiB"])


@pytest.fixture
def descriptors(context):
    """A subscription to the descriptor stream."""
    subscription = context.connection.subscription(context.stream_ids.descriptor, tethered=True)
    assert leaks.wait_for(lambda: subscription.is_ready, timeout=DEADLINE_S)
    yield subscription
    subscription.close()


def next_messages(subscription: _native.Subscription, count: int) -> list[bytes]:
    messages: list[bytes] = []

    def has_enough() -> bool:
        messages.extend(subscription.poll())
        return len(messages) >= count

    assert leaks.wait_for(has_enough, timeout=DEADLINE_S)
    return messages


# --- slots


@pytest.mark.requirement(
    "wire-8.2-2", "wire-8.2-3", "wire-8.2-5", "wire-8.2-10", "wire-8.2-11", "wire-8.2-19"
)
def test_row_major_slot_has_the_specified_bytes(producer) -> None:
    before = time.monotonic_ns()
    sent = np.arange(12, dtype=np.int16).reshape(3, 4)
    producer.offer(sent)
    after = time.monotonic_ns()
    regions = regions_of(producer)
    slot = regions.slot(0)
    assert slot == SlotHeader(
        seq_commit=1,
        values_len_bytes=24,
        payload_slot=0,
        pool_id=1,
        payload_offset=0,
        timestamp_ns=slot.timestamp_ns,
        meta_version=0,
        header_bytes=slot.header_bytes,
    )
    assert before <= slot.timestamp_ns <= after
    assert len(slot.header_bytes) == 192
    assert regions.tensor(0) == TensorHeader(
        dtype=Dtype.INT16,
        major_order=MajorOrder.ROW,
        ndims=2,
        progress_unit=ProgressUnit.NONE,
        progress_stride_bytes=0,
        dims=(3, 4, 0, 0, 0, 0, 0, 0),
        strides=(0,) * 8,
    )
    assert regions.payload(0) == sent.tobytes()


def test_column_major_slot_keeps_its_order(producer) -> None:
    sent = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    producer.offer(sent)
    regions = regions_of(producer)
    tensor = regions.tensor(0)
    assert (tensor.major_order, tensor.dims[:2], tensor.strides) == (MajorOrder.COLUMN, (3, 4), (0,) * 8)
    assert regions.payload(0) == sent.tobytes(order="F")


@pytest.mark.requirement("wire-8.2-11", "wire-8.2-15")
def test_reused_slot_is_completely_overwritten(context, free_stream_id) -> None:
    producer = context.producer(free_stream_id, nslots=1, pools=["4KiB"])
    producer.offer(np.ones((1, 2, 1, 2, 1, 2, 1, 2)), meta_version=7, timestamp_ns=NULL_U64 - 1)
    producer.offer(np.ones(1, np.uint8), timestamp_ns=3)
    slot, tensor = regions_of(producer).slot(0), regions_of(producer).tensor(0)
    assert (slot.meta_version, slot.timestamp_ns, slot.values_len_bytes) == (0, 3, 1)
    assert (tensor.ndims, tensor.dims, tensor.strides) == (1, (1, *(0,) * 7), (0,) * 8)
    assert slot.pad == bytes(26)
    assert tensor.pad == bytes(109)


@pytest.mark.requirement("wire-8.2-19", "wire-10.2.1-7", "wire-15.18-1")
def test_slots_and_payloads_are_reused_in_ring_order(context, free_stream_id) -> None:
    producer = context.producer(free_stream_id, nslots=4, pools=["4KiB"])
    for seq in range(11):
        assert producer.offer(np.full(3, seq, np.uint8)).seq == seq
    regions = regions_of(producer)
    for index, seq in ((0, 8), (1, 9), (2, 10), (3, 7)):
        assert regions.slot(index).seq_commit == seq << 1 | 1
        assert regions.slot(index).payload_slot == index
        assert regions.payload(index) == bytes([seq] * 3)


@pytest.mark.requirement("wire-8.2-8", "wire-8.2-2")
def test_every_commit_word_starts_a_cache_line(producer) -> None:
    for _ in range(8):
        producer.offer(np.zeros(1))
    raw = regions_of(producer).header.read_bytes()
    assert [int.from_bytes(raw[64 + 256 * i :][:8], "little") for i in range(8)] == [
        i << 1 | 1 for i in range(8)
    ]
    assert all((64 + 256 * i) % 64 == 0 for i in range(8))


@pytest.mark.requirement("wire-8.2-1")
def test_max_dims_field_takes_no_bytes(producer) -> None:
    producer.offer(np.zeros((1,) * 8))
    assert TensorHeader.max_dims == 8
    assert "max_dims" not in {field.python_name for field in TensorHeader.layout().encoded_fields}
    assert len(regions_of(producer).tensor(0).encode()) == 192
    assert regions_of(producer).tensor(0).ndims == 8


@pytest.mark.requirement("wire-8.2-18", "wire-8.2-19")
def test_empty_tensor_is_committed(producer) -> None:
    producer.offer(np.zeros(1))
    assert producer.offer(np.zeros((2, 0, 3))).seq == 1
    slot = regions_of(producer).slot(1)
    assert (slot.seq_commit, slot.values_len_bytes, slot.payload_slot, slot.pool_id) == (3, 0, 1, 1)
    assert regions_of(producer).tensor(1).dims == (2, 0, 3, 0, 0, 0, 0, 0)


@pytest.mark.requirement("wire-10.2.1-2")
def test_slot_carries_the_capture_time_by_default(producer) -> None:
    times = [time.monotonic_ns()]
    producer.offer(np.zeros(1))
    times += [regions_of(producer).slot(0).timestamp_ns, time.monotonic_ns()]
    with producer.claim((1,), "u1"):
        pass
    times += [regions_of(producer).slot(1).timestamp_ns, time.monotonic_ns()]
    assert times == sorted(times)
    assert 0 not in times
    # The producer may set another one.
    producer.offer(np.zeros(1), timestamp_ns=123, meta_version=9)
    slot = regions_of(producer).slot(2)
    assert (slot.timestamp_ns, slot.meta_version) == (123, 9)


# --- pools


@pytest.mark.requirement("wire-9-1")
@pytest.mark.parametrize(
    ("nbytes", "pool_id"), [(0, 1), (1, 1), (64, 1), (65, 2), (4096, 2), (4097, 3), (65536, 3)]
)
def test_smallest_fitting_pool_is_used(producer, nbytes, pool_id) -> None:
    sent = np.arange(nbytes, dtype=np.uint64).astype(np.uint8)
    producer.offer(sent)
    assert regions_of(producer).slot(0).pool_id == pool_id
    assert regions_of(producer).payload(0) == sent.tobytes()


@pytest.mark.requirement("wire-9-1")
def test_array_that_fits_no_pool_is_dropped_without_a_sequence(producer) -> None:
    assert producer.offer(np.zeros(3)).seq == 0
    with pytest.warns(tp.OfferWarning, match=r'pools=\["128KiB"\]'):
        offered = producer.offer(np.zeros(65537, np.uint8))
    assert (offered.outcome, offered.seq, bool(offered)) == ("no_pool", None, False)
    assert producer.offer(np.broadcast_to(np.uint8(1), (1 << 20, 1 << 20))).outcome == "no_pool"
    assert producer.offer(np.zeros(3)).seq == 1
    ledger = producer.ledger()
    assert (ledger.committed, ledger.dropped["no_pool"]) == (2, 2)
    assert ledger.balanced
    assert [regions_of(producer).commit_word(i) for i in range(3)] == [1, 3, 0]


# --- descriptors


@pytest.mark.requirement("wire-10.2.1-1", "wire-10.2.1-3")
def test_descriptor_identifies_the_frame_and_optional_fields_are_null(
    producer, descriptors, free_stream_id
) -> None:
    assert producer.wait_for_consumer(DEADLINE_S)
    for _ in range(3):
        assert producer.offer(np.zeros(4)).outcome == "published"
    messages = next_messages(descriptors, 3)
    assert [FrameDescriptor.decode(message) for message in messages] == [
        FrameDescriptor(stream_id=free_stream_id, epoch=producer.epoch or 0, seq=seq) for seq in range(3)
    ]
    assert [len(message) for message in messages] == [48] * 3
    assert messages[0][28:40] == b"\xff" * 12
    assert messages[0][40:48] == bytes(8)
    assert [regions_of(producer).commit_word(seq) >> 1 for seq in range(3)] == [0, 1, 2]


@pytest.mark.requirement("wire-10.2.1-4")
def test_descriptor_has_capture_and_publish_timestamps(context, descriptors, free_stream_id) -> None:
    producer = context.producer(free_stream_id, pools=[64], publish_timestamps=True)
    assert producer.wait_for_consumer(DEADLINE_S)
    before = time.monotonic_ns()
    producer.offer(np.zeros(1), timestamp_ns=5, meta_version=8, trace_id=1 << 63)
    after = time.monotonic_ns()
    descriptor = FrameDescriptor.decode(next_messages(descriptors, 1)[0])
    assert descriptor.timestamp_ns is not None
    assert before <= descriptor.timestamp_ns <= after
    assert (descriptor.meta_version, descriptor.trace_id) == (8, 1 << 63)
    assert regions_of(producer).slot(0).timestamp_ns == 5


@pytest.mark.requirement("wire-10.2.1-4")
@pytest.mark.parametrize("publish_timestamps", [False, True])
def test_frame_carries_both_timestamps_trace_and_version(connect, publish_timestamps) -> None:
    stream = connect(publish_timestamps=publish_timestamps)
    before = time.monotonic_ns()
    frame = stream.send(np.zeros(1), timestamp_ns=5, meta_version=8, trace_id=77)
    assert (frame.timestamp_ns, frame.meta_version, frame.trace_id) == (5, 8, 77)
    if publish_timestamps:
        assert before <= frame.publish_timestamp_ns <= time.monotonic_ns()
    else:
        assert frame.publish_timestamp_ns is None
    plain = stream.send(np.zeros(1))
    assert before <= plain.timestamp_ns <= time.monotonic_ns()
    assert (plain.meta_version, plain.trace_id) == (0, None)


@pytest.mark.requirement("wire-10.2.1-5", "wire-8.3-3")
def test_descriptor_is_published_after_the_commit(producer, descriptors) -> None:
    assert producer.wait_for_consumer(DEADLINE_S)
    regions = regions_of(producer)
    with producer.claim((4,), "float64") as slot:
        slot.array[:] = 1.0
        assert regions.commit_word(0) == 0 << 1
        assert descriptors.poll() == []
        slot.array[:] = 2.0
    assert regions.commit_word(0) == 0 << 1 | 1
    assert FrameDescriptor.decode(next_messages(descriptors, 1)[0]).seq == 0
    assert np.frombuffer(regions.payload(0)).tolist() == [2.0] * 4


@pytest.mark.requirement("wire-10.2.1-5", "wire-8.3-3")
def test_slot_is_committed_when_its_descriptor_arrives(producer, descriptors) -> None:
    assert producer.wait_for_consumer(DEADLINE_S)
    regions, count = regions_of(producer), 2_000
    wrong: list[tuple[int, int]] = []
    checked = 0

    def check_slots() -> None:
        nonlocal checked
        deadline = time.monotonic() + DEADLINE_S
        # Unbuffered: a buffer would contain older slots.
        with regions.header.open("rb", buffering=0) as ring:
            while checked < count and time.monotonic() < deadline:
                for message in descriptors.poll():
                    seq = FrameDescriptor.decode(message).seq
                    word = int.from_bytes(os.pread(ring.fileno(), 8, 64 + 256 * (seq % 8)), "little")
                    checked += 1
                    # Committed for this frame, or already reused for a later frame.
                    if word != seq << 1 | 1 and word >> 1 <= seq:
                        wrong.append((seq, word))

    checker = threading.Thread(target=check_slots)
    checker.start()
    for value in range(count):
        assert producer.offer(np.full(100, value)).outcome == "published"
    checker.join()
    assert (wrong, checked) == ([], count)


# --- sequences, epochs, outcomes


@pytest.mark.requirement("wire-15.2-1")
def test_sequences_start_at_zero_in_every_epoch(context, free_stream_id) -> None:
    epochs = []
    for _ in range(3):
        with context.producer(free_stream_id, pools=[64]) as producer:
            assert (producer.next_seq, producer.offer(np.zeros(1)).seq, producer.next_seq) == (0, 0, 1)
            epochs.append(producer.epoch)
    assert epochs == sorted(set(epochs))


@pytest.mark.requirement("wire-15.2-1", "wire-15.21-6")
def test_consumer_follows_its_producer_into_the_next_epoch(open_context, context, free_stream_id) -> None:
    announcing = open_context(announce_period=0.1)
    consumer = context.consumer(free_stream_id)
    for round_ in range(3):
        with announcing.producer(free_stream_id, pools=[64]) as producer:
            assert leaks.wait_for(
                lambda: consumer.epoch == producer.epoch and producer.is_connected, timeout=60
            )
            producer.offer(np.full(2, round_))
            frame = consumer.receive(DEADLINE_S)
            assert (frame.epoch, frame.seq, frame.array[0]) == (producer.epoch, 0, round_)
            del frame
    assert (consumer.ledger().received, consumer.ledger().balanced) == (3, True)


def test_frame_without_a_consumer_counts_as_not_connected(producer) -> None:
    offered = producer.offer(np.zeros(4))
    assert (offered.outcome, offered.seq, bool(offered)) == ("not_connected", 0, False)
    assert regions_of(producer).commit_word(0) == 1
    ledger = producer.ledger()
    assert (ledger.committed, ledger.published, ledger.unpublished["not_connected"]) == (1, 0, 1)
    assert ledger.balanced


def test_closed_producer_refuses_offers_and_claims(producer) -> None:
    producer.close()
    with pytest.warns(tp.OfferWarning, match="closed"):
        offered = producer.offer(np.zeros(4))
    assert (offered.outcome, offered.seq) == ("closed", None)
    with pytest.raises(tp.ClaimRefused, match="closed") as refused:
        producer.claim((1,), "uint8")
    assert refused.value.outcome == "closed"
    assert producer.ledger().balanced


def test_producer_counts_the_bytes_of_all_frames(producer) -> None:
    producer.offer(np.zeros(10, np.uint8))
    producer.offer(np.zeros(3, np.float64))
    producer.offer(np.zeros(0))
    assert producer.ledger().bytes == 34


def test_several_threads_may_offer_at_once(connect) -> None:
    stream = connect(nslots=1024)

    def offer(value: int) -> None:
        for _ in range(100):
            stream.producer.offer(np.full(50, value, np.uint8))

    threads = [threading.Thread(target=offer, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    frames = [stream.consumer.receive(DEADLINE_S) for _ in range(400)]
    for thread in threads:
        thread.join()
    assert [frame.seq for frame in frames] == list(range(400))
    values = [set(frame.array.tolist()) for frame in frames]
    assert all(len(each) == 1 for each in values)
    assert sorted(each.pop() for each in values) == sorted([0, 1, 2, 3] * 100)
    assert stream.producer.ledger().published == 400
