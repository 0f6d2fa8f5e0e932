"""Progress that breaks a rule: what is said, what lies in the slot, and what a consumer makes of it."""

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
from tests.integration.hello.conftest import Wire

STARTED, PROGRESS, COMPLETE = (
    FrameProgressState.STARTED,
    FrameProgressState.PROGRESS,
    FrameProgressState.COMPLETE,
)
ROWS, COLUMNS = 1, 2


@dataclass
class Liar:
    """Writes slots that are not complete, and says what it likes of them."""

    producer: HostileProducer
    consumer: tp.Consumer
    control: Wire
    wait_until: Callable[..., Any]

    def write(self, seq: int, **pokes: Any) -> None:
        self.producer.write(seq, slot__seq_commit=seq << 1, **pokes)

    def commit(self, seq: int) -> None:
        self.producer.write_word(seq % self.producer.nslots, seq << 1 | 1)

    def say(self, seq: int, state: FrameProgressState, filled: int, **changes: Any) -> list[tp.Progress]:
        """What the consumer believes of it."""
        heard = self.consumer.counters()["progress"]["heard"]
        fields: dict[str, Any] = {
            "stream_id": self.producer.stream_id,
            "epoch": self.producer.epoch,
            "seq": seq,
            "payload_bytes_filled": filled,
            "state": state,
        }
        self.control.say(FrameProgress(**{**fields, **changes}))
        parts: list[tp.Progress] = []

        def taken() -> bool:
            parts.extend(self.consumer.poll_progress())
            return bool(self.consumer.counters()["progress"]["heard"] > heard)

        self.wait_until(taken)
        return parts

    def drops(self) -> dict[str, int]:
        return {reason: n for reason, n in self.consumer.counters()["drops"].items() if n}

    def count(self, what: str) -> int:
        return int(self.consumer.counters()["progress"][what])

    def frames(self, *seqs: int) -> list[int]:
        """The frames that come of these descriptors."""
        for seq in seqs:
            self.producer.describe(seq)
        span = self.consumer.ledger().span + len(seqs)
        found: list[int] = []

        def all_judged() -> bool:
            found.extend(frame.seq for frame in self.consumer.poll())
            return self.consumer.ledger().span >= span

        self.wait_until(all_judged)
        return found


@pytest.fixture
def liar(
    options: dict[str, Any],
    free_stream_id: int,
    shm_base: Path,
    wait_until: Callable[..., Any],
) -> Iterator[Liar]:
    # It gives one sign of life: announces that stay fresh for a minute outlast any test.
    with tp.open(**{**options, "announce_period": 20.0}) as context:
        consumer = context.consumer(free_stream_id, progress=True)
        control = Wire(context, context.stream_ids.control, wait_until)
        with HostileProducer(context, shm_base, free_stream_id) as producer:
            producer.announce_until(lambda: consumer.epoch == producer.epoch)
            yield Liar(producer, consumer, control, wait_until)
        control.close()


def test_a_flawless_stranger_is_believed(liar: Liar) -> None:
    array = np.arange(24, dtype=np.uint16).reshape(4, 6)
    liar.write(0, array=array, tensor__progress_unit=ROWS, tensor__progress_stride_bytes=12)
    assert [part.rows for part in liar.say(0, STARTED, 0)] == [0]
    (part,) = liar.say(0, PROGRESS, 30)
    np.testing.assert_array_equal(part.array, array[:2])
    liar.commit(0)
    assert [part.rows for part in liar.say(0, COMPLETE, 48)] == [4]
    assert liar.frames(0) == [0]


@pytest.mark.requirement("wire-10.2.2-6", "wire-10.2.2-7")
def test_complete_is_no_proof(liar: Liar) -> None:
    liar.write(0)
    (part,) = liar.say(0, COMPLETE, 48)
    assert (part.state, part.rows) == ("complete", 4)
    assert liar.consumer.poll() == [], "only a descriptor makes a frame"
    assert liar.frames(0) == []
    assert liar.drops() == {"not_committed": 1}


@pytest.mark.requirement("wire-10.2.2-5")
@pytest.mark.parametrize("words", [[(PROGRESS, 24), (PROGRESS, 12)], [(COMPLETE, 48), (PROGRESS, 48)]])
def test_progress_that_goes_backwards_costs_the_frame(
    liar: Liar, words: list[tuple[FrameProgressState, int]]
) -> None:
    liar.write(0)
    assert [len(liar.say(0, state, filled)) for state, filled in words] == [1, 0]
    assert liar.say(0, COMPLETE, 48) == []
    assert liar.count("backwards") == 1
    liar.commit(0)
    liar.producer.write(1)
    assert liar.frames(0, 1) == [1]
    assert liar.drops() == {"progress": 1}


@pytest.mark.requirement("wire-10.2.2-4")
def test_more_bytes_than_there_are_is_not_believed(liar: Liar) -> None:
    liar.write(0)
    assert liar.say(0, PROGRESS, 49) == []
    assert liar.say(0, COMPLETE, 1 << 40) == []
    assert liar.count("refused") == 1
    liar.commit(0)
    assert liar.frames(0) == [0], "what its header says is flawless"


@pytest.mark.requirement("wire-10.2.2-3", "wire-8.2-14")
@pytest.mark.parametrize(
    ("unit", "stride"), [(ROWS, 0), (ROWS, 2), (ROWS, 24), (COLUMNS, 12), (COLUMNS, 0), (3, 12)]
)
def test_a_unit_that_does_not_fit_the_layout_costs_the_frame(liar: Liar, unit: int, stride: int) -> None:
    liar.write(0, tensor__progress_unit=unit, tensor__progress_stride_bytes=stride)
    assert liar.say(0, PROGRESS, 24) == []
    assert liar.count("refused") == 1
    liar.commit(0)
    assert liar.frames(0) == []
    assert liar.drops() == {"progress": 1}


@pytest.mark.requirement("wire-10.2.2-3")
def test_rows_with_gaps_are_shown_only_where_a_unit_names_them(liar: Liar) -> None:
    array = np.zeros((4, 8), np.uint16)
    gaps = np.array([16, 2], "<i4").tobytes()
    pokes: dict[str, Any] = {"array": array, "tensor__dims": np.array([4, 6], "<i4").tobytes()}
    liar.write(0, tensor__strides=gaps, **pokes)
    (part,) = liar.say(0, PROGRESS, 40)
    assert (part.rows, part.bytes_filled, part.array.shape) == (None, 40, (0, 6))
    liar.write(1, tensor__strides=gaps, tensor__progress_unit=ROWS, tensor__progress_stride_bytes=16, **pokes)
    (part,) = liar.say(1, PROGRESS, 40)
    assert (part.rows, part.array.shape, part.array.strides) == (2, (2, 6), (16, 2))


@pytest.mark.requirement("wire-8.2-7", "wire-8.2-16", "wire-10.2.2-2")
def test_words_about_another_frame_than_the_slots_are_not_believed(liar: Liar) -> None:
    liar.write(8)
    assert liar.say(0, PROGRESS, 24) == [], "overwritten"
    assert liar.say(16, PROGRESS, 24) == [], "not begun"
    assert liar.say(8, PROGRESS, 24, epoch=liar.producer.epoch + 1) == []
    assert liar.count("late") == 3
    assert [part.seq for part in liar.say(8, PROGRESS, 24)] == [8]


def test_words_of_other_streams_are_not_ours(liar: Liar) -> None:
    liar.write(0)
    stranger = FrameProgress(
        stream_id=liar.producer.stream_id + 1,
        epoch=liar.producer.epoch,
        seq=0,
        payload_bytes_filled=48,
        state=PROGRESS,
    )
    liar.control.say(stranger)
    assert [part.bytes_filled for part in liar.say(0, PROGRESS, 12)] == [12]
    assert liar.count("heard") == 1


def test_a_header_that_changes_under_the_reader_is_not_believed(liar: Liar) -> None:
    liar.write(0)
    assert len(liar.say(0, STARTED, 0)) == 1
    liar.write(0, tensor__ndims=1)
    assert liar.say(0, PROGRESS, 12) == []
    assert liar.count("refused") == 1
