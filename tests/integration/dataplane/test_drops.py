"""Drop reasons: each has its own counter, and the ledger adds up after each.

A hostile producer publishes the valid frame 0, then something invalid, then a valid frame. The consumer
counts the invalid part by its drop reason and receives the next frame.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native, recording
from tensorpool.sbe import FrameDescriptor
from tensorpool.transport import StreamAddress
from tests import leaks
from tests.integration.dataplane.hostile import HostileProducer

DEADLINE_S = 60.0
REASONS = [reason.name for reason in _native.drop_reasons()]


@dataclass
class Case:
    """An action of the hostile producer after frame 0, and the counts that follow."""

    action: Callable[[HostileProducer], object]
    counts: dict[str, int]
    next_seq: int = 2
    """A sequence that the consumer must accept afterwards."""
    requirements: tuple[str, ...] = field(default=())


def poked(reason: str, *requirements: str, **pokes: Any) -> Case:
    """Frame 1 with some fields of its slot overwritten."""
    return Case(lambda hostile: hostile.publish(1, **pokes), {reason: 1}, requirements=requirements)


def strides(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def overwritten_by_a_later_frame(hostile: HostileProducer) -> None:
    hostile.write(9)
    hostile.describe(1)


def still_being_written(hostile: HostileProducer) -> None:
    hostile.write(1)
    hostile.write_word(1, 1 << 1)
    hostile.describe(1)


def written_again_while_a_later_frame_is_begun(hostile: HostileProducer) -> None:
    hostile.write(1)
    hostile.write_word(1, 9 << 1)
    hostile.describe(1)


def sequence_goes_backwards(hostile: HostileProducer) -> None:
    hostile.write(1)
    hostile.describe(9)


def too_large_for_its_pool(hostile: HostileProducer) -> None:
    hostile.publish(1, np.zeros(1025, np.uint8))


CASES = {
    "gap": Case(lambda h: h.publish(4), {"gap": 3}, next_seq=5, requirements=("wire-15.4-1",)),
    "late": Case(
        overwritten_by_a_later_frame,
        {"late": 1},
        next_seq=9,
        requirements=("wire-8.2-17", "wire-10.2.1-8", "wire-15.21-3", "wire-8.2-7"),
    ),
    "late, the writer back at work": Case(
        written_again_while_a_later_frame_is_begun,
        {"late": 1},
        next_seq=9,
        requirements=("wire-15.21-1", "wire-15.4-1"),
    ),
    "not_committed": Case(
        still_being_written, {"not_committed": 1}, requirements=("wire-15.21-1", "wire-15.21-4")
    ),
    "stale": Case(lambda h: h.describe(1), {"stale": 1}, requirements=("wire-10.2.1-8", "wire-8.2-16")),
    "stale, an earlier frame": Case(
        sequence_goes_backwards,
        {"gap": 8, "stale": 1},
        next_seq=10,
        requirements=("wire-15.3-1", "wire-10.2.1-8", "wire-10.2.1-1"),
    ),
    "resync": Case(lambda h: h.publish(300), {"resync": 299}, next_seq=301, requirements=("wire-15.4-2",)),
    "header_length": poked("header_length", "wire-8.3-1", "wire-15.18-1", "wire-8.2-5", length=191),
    "header_length, empty": poked("header_length", "wire-8.3-1", length=0),
    "header_length, block": poked("header_length", "wire-8.3-1", message__block_length=183),
    "header_message, template": poked(
        "header_message", "wire-8.3-1", "wire-15.18-1", "wire-15.21-2", message__template_id=51
    ),
    "header_message, schema": poked("header_message", "wire-8.3-2", "wire-15.21-2", message__schema_id=901),
    "header_message, version": poked("header_message", "wire-8.3-2", "wire-15.21-2", message__version=2),
    "dtype": poked("dtype", "wire-15.8-1", tensor__dtype=12),
    "dtype, unknown": poked("dtype", "wire-15.8-1", tensor__dtype=0),
    "major_order": poked("major_order", "wire-15.8-1", tensor__major_order=3),
    "ndims, none": poked("ndims", "wire-8.2-9", tensor__ndims=0),
    "ndims, nine": poked("ndims", "wire-8.2-9", tensor__ndims=9),
    "dims": poked("dims", tensor__dims=strides(-4, 6)),
    "dims, beyond 64 bits": poked("dims", tensor__ndims=8, tensor__dims=strides(*[2**31 - 1] * 8)),
    "strides, overlapping": poked("strides", "wire-8.2-12", tensor__strides=strides(10, 2)),
    "strides, negative": poked("strides", "wire-8.2-12", tensor__strides=strides(-12, 2)),
    "strides, other order": poked("strides", "wire-8.2-12", tensor__strides=strides(2, 8)),
    "progress, no stride": poked("progress", "wire-8.2-14", tensor__progress_unit=1),
    "progress, wrong stride": poked(
        "progress", "wire-8.2-14", "wire-8.2-6", tensor__progress_unit=1, tensor__progress_stride_bytes=2
    ),
    "progress, unknown unit": poked("progress", "wire-15.8-1", tensor__progress_unit=3),
    "extent": poked("extent", slot__values_len_bytes=47),
    "extent, nothing there": poked("extent", "wire-8.2-18", slot__values_len_bytes=0),
    "payload_offset": poked("payload_offset", "wire-8.2-10", slot__payload_offset=64),
    "payload_slot, another": poked("payload_slot", "wire-8.2-19", "wire-10.2.1-9", slot__payload_slot=2),
    "payload_slot, outside": poked("payload_slot", "wire-10.2.1-9", slot__payload_slot=8),
    "pool_id": poked("pool_id", slot__pool_id=3),
    "values_len": Case(too_large_for_its_pool, {"values_len": 1}, requirements=("wire-10.2.1-10",)),
    "epoch, lower": Case(
        lambda h: h.describe(1, epoch=h.epoch - 1),
        {"epoch": 1},
        next_seq=1,
        requirements=("wire-10.2.1-6", "wire-15.21-5"),
    ),
    "epoch, higher": Case(
        lambda h: h.describe(1, epoch=h.epoch + 1),
        {"epoch": 1},
        next_seq=1,
        requirements=("wire-10.2.1-6", "wire-15.21-5"),
    ),
    "duplicate": Case(lambda h: h.describe(0), {"duplicate": 1}, next_seq=1),
    "malformed, cut": Case(
        lambda h: h.send_descriptor(b"\x28\x00\x04\x00\x84"), {"malformed": 1}, next_seq=1
    ),
    "malformed, short block": Case(
        lambda h: h.send_descriptor(struct.pack("<HHHH39x", 39, 4, 900, 1)), {"malformed": 1}, next_seq=1
    ),
    "malformed, version 0": Case(
        lambda h: h.send_descriptor(struct.pack("<HHHH40x", 40, 4, 900, 0)), {"malformed": 1}, next_seq=1
    ),
    # The commit word has 63 bits for the sequence: without a check this would be frame 0.
    "malformed, 64 bits of sequence": Case(lambda h: h.describe(1 << 63), {"malformed": 1}, next_seq=1),
}

# Reasons with their own tests; listed here so that every reason has a test.
TESTED_ELSEWHERE = {
    "paused": "test_announces.py",
    "rested": "test_rested_readers.py",
    "skipped": "test_latest.py",
    "rate_limited": "tests/integration/hello",
    "unmapped": "below",
    "regressed": "below",
    "joining": "test_joining.py",
    "before_joining": "test_joining.py",
    "ended": "test_joining.py",
}


def test_every_drop_reason_has_a_test() -> None:
    covered = {name.partition(",")[0] for name in CASES} | TESTED_ELSEWHERE.keys()
    assert covered == set(REASONS)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.requirement(each) for each in case.requirements])
        for name, case in CASES.items()
    ],
)
def test_invalid_frame_is_counted_and_the_next_one_received(
    mapped: tuple[HostileProducer, tp.Consumer], case: Case, numbers: np.ndarray
) -> None:
    hostile, consumer = mapped
    hostile.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0

    case.action(hostile)
    received = process(consumer)
    drops = {name: n for name, n in consumer.counters().drops.items() if n}
    assert drops == case.counts
    assert consumer.ledger().balanced

    hostile.publish(case.next_seq)
    frame = consumer.receive(DEADLINE_S)
    assert frame.seq == case.next_seq
    np.testing.assert_array_equal(frame.array, numbers)
    assert consumer.ledger().balanced
    assert consumer.ledger().received == 2 + len(received)


def process(consumer: tp.Consumer) -> list[tp.Frame]:
    """Waits for descriptors, and polls until none is left; the received frames."""
    frames: list[tp.Frame] = []
    assert consumer.wait(DEADLINE_S)
    while consumer.wait(0.0):
        frames += consumer.poll(1)
    return frames


@pytest.mark.requirement("wire-15.21-8", "wire-15.21-7")
def test_frames_of_an_unmapped_stream_are_dropped(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.publish(0)
    producer.publish(1)
    assert process(consumer) == []
    ledger = consumer.ledger()
    assert (ledger.outside["unmapped"], ledger.span, ledger.balanced) == (2, 0, True)
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    producer.publish(2)
    assert consumer.receive(DEADLINE_S).seq == 2


@pytest.mark.requirement("wire-15.2-1")
def test_sequence_that_goes_backwards_unmaps_the_epoch(mapped, wait_until) -> None:
    hostile, consumer = mapped
    # Announces come in order: none that would map the epoch again is left behind one of an unknown layout.
    hostile.announce_until(lambda: consumer.counters().announces_ignored["layout"], layout_version=99)
    for seq in (11, 12):
        hostile.publish(seq)
        assert consumer.receive(DEADLINE_S).seq == seq
    hostile.publish(3)
    assert process(consumer) == []
    assert consumer.epoch is None
    hostile.publish(6)
    assert process(consumer) == []
    ledger = consumer.ledger()
    assert (ledger.outside["regressed"], ledger.outside["unmapped"], ledger.balanced) == (1, 1, True)
    assert (ledger.span, ledger.received) == (2, 2)

    hostile.announce_until(lambda: consumer.epoch == hostile.epoch)
    hostile.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    assert consumer.counters().mapped == 2
    assert (consumer.ledger().span, consumer.ledger().balanced) == (3, True)


@pytest.mark.requirement("wire-15.4-1")
@pytest.mark.parametrize("forged", [2, 17, 24])
def test_stray_descriptor_costs_no_more_than_it_names(mapped, forged: int) -> None:
    """Of an earlier frame, of one that the ring still holds, and of one to come: none unmaps the stream."""
    hostile, consumer = mapped
    for seq in range(20):
        hostile.publish(seq)
        assert consumer.receive(DEADLINE_S).seq == seq
    hostile.describe(forged)
    for seq in range(20, 40):
        hostile.publish(seq)
        process(consumer)
    ledger = consumer.ledger()
    assert (ledger.span, ledger.balanced, consumer.counters().mapped) == (40, True, 1)
    assert ledger.received >= 40 - max(forged + 1 - 20, 0)
    assert ledger.outside["unmapped"] == ledger.outside["regressed"] == 0


@pytest.mark.requirement("wire-15.4-2")
def test_resync_starts_at_the_configured_sequence_gap(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id, max_outstanding_seq_gap=3)
    producer = hostile()
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    for seq in (0, 4, 9):
        producer.publish(seq)
        assert consumer.receive(DEADLINE_S).seq == seq
    assert {name: n for name, n in consumer.ledger().dropped.items() if n} == {"gap": 3, "resync": 4}
    assert consumer.ledger().balanced


@pytest.mark.requirement("wire-15.4-2")
def test_consumer_behind_the_ring_skips_to_the_newest_frames(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id, max_outstanding_seq_gap=16)
    producer = hostile()
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    producer.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    # A consumer that did not poll: all descriptors have arrived, but the ring was overwritten three times.
    for seq in range(1, 33):
        producer.publish(seq)
    received = [frame.seq for frame in process(consumer)]
    dropped = {name: n for name, n in consumer.ledger().dropped.items() if n}
    assert received[-1] == 32
    assert dropped["late"] == 1
    assert dropped == {"late": 1, "resync": 31 - len(received)}
    assert consumer.ledger().balanced


def test_slow_consumer_gets_frames_however_few_it_polls(hostile, context, free_stream_id) -> None:
    """It reads old descriptors more slowly than new ones come: those without a frame do not count."""
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    seqs, next_seq = [], 0
    for _ in range(20):
        # Four times the ring for each poll of two frames.
        for seq in range(next_seq, next_seq + 4 * 8):
            producer.publish(seq)
        next_seq += 4 * 8
        polled = [frame.seq for frame in consumer.poll(2)]
        assert 1 <= len(polled) <= 2
        assert polled[0] >= next_seq - 8, "a frame of the ring as it is now"
        seqs += polled
    assert seqs == sorted(set(seqs))
    assert consumer.ledger().balanced


def test_poll_returns_no_more_frames_than_requested(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    # A second image with descriptors of the same stream.
    other = context.connection.publication(StreamAddress("aeron:ipc", context.stream_ids.descriptor))
    descriptor = FrameDescriptor(stream_id=free_stream_id, epoch=producer.epoch, seq=1).encode()
    producer.publish(0)
    producer.write(1)
    while other.offer(descriptor) != "sent":
        assert consumer.wait(DEADLINE_S)
    frames = consumer.poll(1)
    other.close()
    assert len(frames) == 1


@pytest.mark.requirement("wire-8.2-4", "wire-8.2-15", "wire-8.2-11")
def test_padding_and_unused_dimensions_are_ignored(mapped, numbers) -> None:
    hostile, consumer = mapped
    hostile.publish(
        0,
        slot__pad=b"\xaa" * 26,
        tensor__pad_align=0xBB,
        tensor__pad=b"\xcc" * 109,
        tensor__dims=strides(4, 6, -1, -1, -1, -1, -1, -1),
        tensor__strides=strides(0, 0, -7, -7, -7, -7, -7, -7),
    )
    np.testing.assert_array_equal(consumer.receive(DEADLINE_S).array, numbers)


@pytest.mark.requirement("wire-8.2-12")
def test_padded_rows_are_read_by_their_strides(mapped) -> None:
    hostile, consumer = mapped
    rows = np.arange(4 * 8, dtype=np.uint16).reshape(4, 8)
    hostile.publish(0, rows, tensor__dims=strides(4, 6), tensor__strides=strides(16, 2))
    np.testing.assert_array_equal(consumer.receive(DEADLINE_S).array, rows[:, :6])


@pytest.mark.requirement("wire-8.2-6")
def test_valid_progress_stride_is_accepted(mapped, numbers) -> None:
    hostile, consumer = mapped
    hostile.publish(0, tensor__progress_unit=1, tensor__progress_stride_bytes=12)
    hostile.publish(1, tensor__progress_unit=2, tensor__progress_stride_bytes=2)
    for _ in range(2):
        np.testing.assert_array_equal(consumer.receive(DEADLINE_S).array, numbers)


@pytest.mark.requirement("wire-8.2-18", "wire-8.2-19")
def test_empty_tensor_needs_no_payload(mapped) -> None:
    hostile, consumer = mapped
    hostile.publish(0, np.zeros((3, 0), np.uint16))
    frame = consumer.receive(DEADLINE_S)
    assert (frame.shape, frame.nbytes, frame.array.size) == ((3, 0), 0, 0)


def touched_pages(path: Path, offset: int, size: int) -> int:
    """Pages of a range of a file that this process has read through a mapping of the file."""
    page = os.sysconf("SC_PAGE_SIZE")
    touched = 0
    with open("/proc/self/pagemap", "rb") as pagemap:
        for line in Path("/proc/self/maps").read_text().splitlines():
            address, _, file_offset, _, _, *name = line.split(maxsplit=5)
            if name != [str(path)]:
                continue
            start, end = (int(part, 16) for part in address.split("-"))
            first = start + offset - int(file_offset, 16)
            for at in range(max(first, start) // page, min(first + size, end) // page):
                pagemap.seek(8 * at)
                touched += int.from_bytes(pagemap.read(8), "little") >> 63
    return touched


@pytest.mark.requirement("wire-8.2-18")
def test_payload_bytes_of_an_empty_tensor_are_not_read(hostile, context, free_stream_id) -> None:
    """A page that was read is present from then on. The slots are so far from each other, and from the
    superblock, that no page becomes present with its neighbour."""
    consumer, producer = context.consumer(free_stream_id), hostile()
    pool = producer.pool(2)
    # A consumer touches all pages of a file at once, but for files that have none yet.
    size = pool.stat().st_size
    os.truncate(pool, os.sysconf("SC_PAGE_SIZE"))
    os.truncate(pool, size)
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    producer.publish(3, np.zeros((3, 0), np.uint16), slot__pool_id=2)
    frame = consumer.receive(DEADLINE_S)
    assert (frame.array.size, frame.copy().size, frame.valid()) == (0, 0, True)
    assert touched_pages(pool, 64 + 3 * 65536, 65536) == 0
    # That this is a proof: the bytes of any other tensor are.
    producer.publish(6, np.zeros(30_000, np.uint8), slot__pool_id=2)
    assert consumer.receive(DEADLINE_S).copy().sum() == 0
    assert touched_pages(pool, 64 + 6 * 65536, 65536) > 0


@pytest.mark.requirement("wire-10.2.1-7")
def test_slot_index_is_the_sequence_modulo_the_ring_size(hostile, context, free_stream_id) -> None:
    consumer = context.consumer(free_stream_id)
    producer = hostile(nslots=4)
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    assert consumer.nslots == 4
    for seq in (0, 1, 6, 7, (1 << 40) + 2):
        payload = np.full(5, seq % 251, np.uint8)
        producer.publish(seq, payload)
        frame = consumer.receive(DEADLINE_S)
        np.testing.assert_array_equal(frame.array, payload)


def test_messages_of_other_types_and_streams_are_ignored(mapped, free_stream_ids) -> None:
    hostile, consumer = mapped
    hostile.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    hostile.describe(1, stream_id=free_stream_ids())
    hostile.describe(7, stream_id=free_stream_ids(), epoch=3)
    hostile.send_descriptor(struct.pack("<HHHH16x", 16, 9, 900, 1))
    hostile.send_descriptor(struct.pack("<HHHH16x", 16, 4, 901, 1))
    hostile.publish(1)
    assert consumer.receive(DEADLINE_S).seq == 1
    assert not any(consumer.counters().drops.values())
    assert (consumer.ledger().span, consumer.ledger().balanced) == (2, True)


def test_descriptor_of_a_later_revision_is_read(mapped) -> None:
    hostile, consumer = mapped
    hostile.write(0)
    block = struct.pack("<IQQQIQ5x", hostile.stream_id, hostile.epoch, 0, 11, 12, 13)
    hostile.send_descriptor(struct.pack("<HHHH", 45, 4, 900, 2) + block)
    frame = consumer.receive(DEADLINE_S)
    assert (frame.seq, frame.publish_timestamp_ns, frame.trace_id) == (0, 11, 13)


# --- stray writes and forged messages


def test_stray_write_to_a_commit_word_costs_at_most_a_ring(mapped) -> None:
    hostile, consumer = mapped
    hostile.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    hostile.write(1)
    # A huge sequence that fits the slot's index: 2^60 + 1 is congruent to 1.
    hostile.write_word(1, ((1 << 60) + 1) << 1 | 1)
    hostile.describe(1)
    received = 0
    for seq in range(2, 2_002):
        hostile.publish(seq)
        hostile.refresh_activity()
        received += len(consumer.poll())
    assert _poll_until(consumer, 2_002, received) >= 2_000 - hostile.nslots
    ledger = consumer.ledger()
    assert (ledger.span, ledger.balanced, ledger.dropped["late"]) == (2_002, True, 1)
    assert ledger.dropped["resync"] < hostile.nslots


def test_commit_word_of_another_slot_moves_nothing(mapped) -> None:
    hostile, consumer = mapped
    hostile.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    hostile.write(1)
    hostile.write_word(1, ((1 << 60) + 2) << 1 | 1)
    hostile.describe(1)
    hostile.publish(2)
    assert consumer.receive(DEADLINE_S).seq == 2
    assert _drops_of(consumer) == {"late": 1}


@pytest.mark.parametrize("seq", [9 * 10**18, 1 << 40, 10])
def test_forged_descriptor_beyond_the_ring_is_counted_only(mapped, seq) -> None:
    hostile, consumer = mapped
    hostile.publish(0)
    assert consumer.receive(DEADLINE_S).seq == 0
    hostile.describe(seq)
    hostile.publish(1)
    assert consumer.receive(DEADLINE_S).seq == 1
    assert _drops_of(consumer) == {"malformed": 1}
    assert (consumer.ledger().span, consumer.ledger().balanced) == (2, True)


def test_recorder_survives_stray_writes_and_forged_descriptors(
    hostile, context, free_stream_id, tmp_path, wait_until
) -> None:
    root = tmp_path / "recording"
    with context.record(root, streams=[free_stream_id], buffer="8MiB", keep_free=0) as recorder:
        producer = hostile()

        def is_mapped() -> bool:
            producer.announce()
            return any(event.kind == "mapped" for event in context.events(0.0))

        wait_until(is_mapped)
        producer.publish(0)
        wait_until(lambda: recorder.stats().rows == 1)
        producer.write(1)
        producer.write_word(1, ((1 << 60) + 1) << 1 | 1)
        producer.describe(1)
        for forged in (9 * 10**18, 1 << 40):
            producer.describe(forged)
        for seq in range(2, 202):
            producer.publish(seq)
            producer.refresh_activity()
            wait_until(lambda seq=seq: recorder.ledger()[0].last_seq >= seq)
    with recording.open(root) as opened:
        (ledger,) = opened.ledger(free_stream_id)
    assert (ledger.first_seq, ledger.last_seq, ledger.span) == (0, 201, 202)
    assert ledger.gaps.keys() <= {"late", "resync"}
    assert sum(ledger.gaps.values()) <= producer.nslots
    assert ledger.balanced


def _poll_until(consumer, span: int, received: int) -> int:
    """Polls until the ledger has that span; returns how many frames were received in all."""

    def has_reached() -> bool:
        nonlocal received
        received += len(consumer.poll())
        return bool(consumer.ledger().span >= span)

    assert leaks.wait_for(has_reached, timeout=DEADLINE_S)
    return received


def _drops_of(consumer) -> dict[str, int]:
    return {reason: count for reason, count in consumer.counters().drops.items() if count}
