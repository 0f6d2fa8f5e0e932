"""Invalid FrameProgress messages and slots, and how a consumer handles them (wire §10.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.sbe import FrameProgress, FrameProgressState
from tests.integration.dataplane.hostile import HostileProducer
from tests.integration.hello.conftest import RawMessages

STARTED, PROGRESS, COMPLETE = (
    FrameProgressState.STARTED,
    FrameProgressState.PROGRESS,
    FrameProgressState.COMPLETE,
)
ROWS, COLUMNS = 1, 2


@dataclass
class MalformedProducer:
    """Writes incomplete slots, and publishes any progress of them."""

    producer: HostileProducer
    consumer: tp.Consumer
    control: RawMessages
    wait_until: Callable[..., Any]

    def write(self, seq: int, **pokes: Any) -> None:
        self.producer.write(seq, slot__seq_commit=seq << 1, **pokes)

    def commit(self, seq: int) -> None:
        self.producer.write_word(seq % self.producer.nslots, seq << 1 | 1)

    def publish(self, seq: int, state: FrameProgressState, filled: int, **changes: Any) -> list[tp.Progress]:
        """Publishes progress; returns the partial frames that the consumer accepts."""
        count = self.consumer.counters().progress_received
        fields: dict[str, Any] = {
            "stream_id": self.producer.stream_id,
            "epoch": self.producer.epoch,
            "seq": seq,
            "payload_bytes_filled": filled,
            "state": state,
        }
        self.control.publish(FrameProgress(**{**fields, **changes}))
        parts: list[tp.Progress] = []

        def is_processed() -> bool:
            parts.extend(self.consumer.poll_progress())
            return bool(self.consumer.counters().progress_received > count)

        self.wait_until(is_processed)
        return parts

    def drops(self) -> dict[str, int]:
        return {reason: n for reason, n in self.consumer.counters().drops.items() if n}

    def count(self, name: str) -> int:
        return int(getattr(self.consumer.counters(), f"progress_{name}"))

    def frames(self, *seqs: int) -> list[int]:
        """The sequences of the frames that the consumer receives after these descriptors."""
        for seq in seqs:
            self.producer.describe(seq)
        span = self.consumer.ledger().span + len(seqs)
        received: list[int] = []

        def all_processed() -> bool:
            received.extend(frame.seq for frame in self.consumer.poll())
            return self.consumer.ledger().span >= span

        self.wait_until(all_processed)
        return received


@pytest.fixture
def malformed(
    options: dict[str, Any],
    free_stream_id: int,
    shm_base: Path,
    wait_until: Callable[..., Any],
) -> Iterator[MalformedProducer]:
    # It announces once: an announce that is fresh for a minute outlasts any test.
    with tp.open(**{**options, "announce_period": 20.0}) as context:
        consumer = context.consumer(free_stream_id, progress=True)
        control = RawMessages(context, context.stream_ids.control, wait_until)
        with HostileProducer(context, shm_base, free_stream_id) as producer:
            producer.announce_until(lambda: consumer.epoch == producer.epoch)
            yield MalformedProducer(producer, consumer, control, wait_until)
        control.close()


def test_valid_progress_of_a_foreign_producer_is_accepted(malformed: MalformedProducer) -> None:
    array = np.arange(24, dtype=np.uint16).reshape(4, 6)
    malformed.write(0, array=array, tensor__progress_unit=ROWS, tensor__progress_stride_bytes=12)
    assert [part.rows for part in malformed.publish(0, STARTED, 0)] == [0]
    (part,) = malformed.publish(0, PROGRESS, 30)
    np.testing.assert_array_equal(part.array, array[:2])
    malformed.commit(0)
    assert [part.rows for part in malformed.publish(0, COMPLETE, 48)] == [4]
    assert malformed.frames(0) == [0]


@pytest.mark.requirement("wire-10.2.2-6", "wire-10.2.2-7")
def test_complete_progress_without_a_commit_is_no_frame(malformed: MalformedProducer) -> None:
    malformed.write(0)
    (part,) = malformed.publish(0, COMPLETE, 48)
    assert (part.state, part.rows) == ("complete", 4)
    assert malformed.consumer.poll() == [], "only a descriptor makes a frame"
    assert malformed.frames(0) == []
    assert malformed.drops() == {"not_committed": 1}


@pytest.mark.requirement("wire-10.2.2-5")
@pytest.mark.parametrize("messages", [[(PROGRESS, 24), (PROGRESS, 12)], [(COMPLETE, 48), (PROGRESS, 48)]])
def test_progress_that_goes_backwards_drops_the_frame(
    malformed: MalformedProducer, messages: list[tuple[FrameProgressState, int]]
) -> None:
    malformed.write(0)
    assert [len(malformed.publish(0, state, filled)) for state, filled in messages] == [1, 0]
    assert malformed.publish(0, COMPLETE, 48) == []
    assert malformed.count("backwards") == 1
    malformed.commit(0)
    malformed.producer.write(1)
    assert malformed.frames(0, 1) == [1]
    assert malformed.drops() == {"progress": 1}


@pytest.mark.requirement("wire-10.2.2-4")
def test_progress_beyond_the_payload_is_refused(malformed: MalformedProducer) -> None:
    malformed.write(0)
    assert malformed.publish(0, PROGRESS, 49) == []
    assert malformed.publish(0, COMPLETE, 1 << 40) == []
    assert malformed.count("refused") == 1
    malformed.commit(0)
    assert malformed.frames(0) == [0], "its header is valid"


@pytest.mark.requirement("wire-10.2.2-3", "wire-8.2-14")
@pytest.mark.parametrize(
    ("unit", "stride"), [(ROWS, 0), (ROWS, 2), (ROWS, 24), (COLUMNS, 12), (COLUMNS, 0), (3, 12)]
)
def test_progress_unit_that_contradicts_the_layout_drops_the_frame(
    malformed: MalformedProducer, unit: int, stride: int
) -> None:
    malformed.write(0, tensor__progress_unit=unit, tensor__progress_stride_bytes=stride)
    assert malformed.publish(0, PROGRESS, 24) == []
    assert malformed.count("refused") == 1
    malformed.commit(0)
    assert malformed.frames(0) == []
    assert malformed.drops() == {"progress": 1}


@pytest.mark.requirement("wire-10.2.2-3")
def test_padded_rows_are_readable_only_with_a_progress_unit(malformed: MalformedProducer) -> None:
    array = np.zeros((4, 8), np.uint16)
    gaps = np.array([16, 2], "<i4").tobytes()
    pokes: dict[str, Any] = {"array": array, "tensor__dims": np.array([4, 6], "<i4").tobytes()}
    malformed.write(0, tensor__strides=gaps, **pokes)
    (part,) = malformed.publish(0, PROGRESS, 40)
    assert (part.rows, part.bytes_filled, part.array.shape) == (None, 40, (0, 6))
    malformed.write(
        1, tensor__strides=gaps, tensor__progress_unit=ROWS, tensor__progress_stride_bytes=16, **pokes
    )
    (part,) = malformed.publish(1, PROGRESS, 40)
    assert (part.rows, part.array.shape, part.array.strides) == (2, (2, 6), (16, 2))


@pytest.mark.requirement("wire-8.2-7", "wire-8.2-16", "wire-10.2.2-2")
def test_progress_of_another_frame_is_counted_as_late(malformed: MalformedProducer) -> None:
    malformed.write(8)
    assert malformed.publish(0, PROGRESS, 24) == [], "overwritten"
    assert malformed.publish(16, PROGRESS, 24) == [], "not written yet"
    assert malformed.publish(8, PROGRESS, 24, epoch=malformed.producer.epoch + 1) == []
    assert malformed.count("late") == 3
    assert [part.seq for part in malformed.publish(8, PROGRESS, 24)] == [8]


def test_progress_of_other_streams_is_ignored(malformed: MalformedProducer) -> None:
    malformed.write(0)
    other_stream = FrameProgress(
        stream_id=malformed.producer.stream_id + 1,
        epoch=malformed.producer.epoch,
        seq=0,
        payload_bytes_filled=48,
        state=PROGRESS,
    )
    malformed.control.publish(other_stream)
    assert [part.bytes_filled for part in malformed.publish(0, PROGRESS, 12)] == [12]
    assert malformed.count("received") == 1


def test_header_that_changes_during_progress_is_refused(malformed: MalformedProducer) -> None:
    malformed.write(0)
    assert len(malformed.publish(0, STARTED, 0)) == 1
    malformed.write(0, tensor__ndims=1)
    assert malformed.publish(0, PROGRESS, 12) == []
    assert malformed.count("refused") == 1
