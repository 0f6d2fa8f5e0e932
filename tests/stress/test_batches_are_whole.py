"""A producer of batches at full speed over a small ring: no taken frame is torn, and the ledgers agree.

Each element of a frame depends on its sequence and on its index. A producer is killed in the middle of a
batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests.remote_process import Background, RemoteProcess

from .pattern import INDEX_STEP, SEQ_STEP

WaitUntil = Callable[..., Any]
# 4 KiB: long enough to be overwritten during a copy.
ELEMENTS = 512
BATCH = 64


def pattern(seqs: np.ndarray) -> np.ndarray:
    """The frames of these sequences."""
    indices = np.arange(ELEMENTS, dtype=np.uint64) * INDEX_STEP
    result: np.ndarray = (seqs.astype(np.uint64) * SEQ_STEP)[:, None] + indices
    return result


class BatchWriter:
    """Offers batches at full speed."""

    def __init__(self, aeron_dir: str, shm_base: str, stream_id: int, nslots: int) -> None:
        self.context = tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base, announce_period=0.2)
        self.producer = self.context.producer(stream_id, pools=[ELEMENTS * 8], nslots=nslots)

    def epoch(self) -> int | None:
        """Epoch of the producer."""
        return self.producer.epoch

    def write(self, frames: int) -> dict[str, Any]:
        """Offers `frames` frames; the second of every ten batches item by item."""
        producer = self.producer
        first = producer.next_seq
        counted: dict[str, int] = {}
        for begin in range(first, first + frames, BATCH):
            block = pattern(np.arange(begin, begin + BATCH))
            if begin // BATCH % 10 == 1:
                for item in block:
                    outcome = producer.offer(item).outcome
                    counted[outcome] = counted.get(outcome, 0) + 1
                continue
            result = producer.offer_many(block)
            assert (result.first_seq, result.last_seq) == (begin, begin + BATCH - 1)
            for outcome, count in result.outcomes.items():
                counted[outcome] = counted.get(outcome, 0) + count
        ledger = producer.ledger()
        return {**asdict(ledger), "balanced": ledger.balanced, "counted": counted}

    def write_until_killed(self) -> None:
        """Offers large batches without end."""
        while True:
            begin = self.producer.next_seq
            self.producer.offer_many(pattern(np.arange(begin, begin + 5_000)))


class BatchReader:
    """Takes batches, and checks every element of every frame, until `finish`."""

    def __init__(self, aeron_dir: str, shm_base: str, stream_id: int, n: int, reuses: bool) -> None:
        self.context = tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base, announce_period=0.2)
        self.consumer = self.context.consumer(stream_id)
        self.n = n
        self.out = np.zeros((n, ELEMENTS), np.uint64) if reuses else None
        self.taken = self.torn = self.batches = 0
        self.last = -1
        self.last_of: dict[int, int] = {}
        self.background = Background(self.loop)

    def mapped(self) -> int | None:
        """Epoch of the consumer once it is connected."""
        return self.consumer.epoch if self.consumer.is_connected else None

    def last_seq(self) -> int:
        """Last sequence that the consumer knows of."""
        return -1 if self.consumer.last_seq is None else self.consumer.last_seq

    def loop(self, stop: threading.Event) -> None:
        """Takes batches until `stop`, and then what is left."""
        while True:
            is_last = stop.is_set()
            batch = self.consumer.poll_batch(self.n, self.out)
            if batch is None:
                if is_last:
                    return
                continue
            assert 0 < len(batch) <= self.n
            seqs = batch.seqs
            assert int(seqs[0]) > self.last_of.get(batch.epoch, -1), "sequences ascend"
            assert (np.diff(seqs.astype(np.int64)) > 0).all()
            self.last_of[batch.epoch] = int(seqs[-1])
            self.taken += len(batch)
            self.batches += 1
            self.torn += int((batch.array != pattern(seqs)).any(axis=1).sum())

    def finish(self) -> dict[str, Any]:
        """Ends the loop; returns the counts and the ledger."""
        self.background.stop()
        ledger = self.consumer.ledger()
        counts = {"taken": self.taken, "torn": self.torn, "batches": self.batches}
        return {**counts, **asdict(ledger), "balanced": ledger.balanced, "epochs": len(self.last_of)}


@pytest.fixture
def arguments(aeron_dir: Path, shm_base: Path, free_stream_id: int) -> tuple[str, str, int]:
    return str(aeron_dir), str(shm_base), free_stream_id


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(BATCH * 1_500, id="short"),
        pytest.param(BATCH * 20_000, id="million", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_batches_are_whole_under_overwrite(
    arguments: tuple[str, str, int], wait_until: WaitUntil, frames: int
) -> None:
    with (
        tp.MediaDriver(arguments[0]),
        RemoteProcess(BatchWriter, *arguments, BATCH) as writer,
        RemoteProcess(BatchReader, *arguments, 1024, True) as reusing,
        RemoteProcess(BatchReader, *arguments, 7, False) as small,
    ):
        readers = [reusing, small]
        epoch = writer.call("epoch")
        wait_until(lambda: all(reader.call("mapped") == epoch for reader in readers))
        written = writer.call("write", frames=frames, reply_timeout=3000)
        # A rested reader needs a few more frames to reconnect.
        end = frames

        def all_read() -> bool:
            nonlocal end, written
            written = writer.call("write", frames=BATCH)
            end += BATCH
            return all(reader.call("last_seq") >= end - 2 * BATCH for reader in readers)

        wait_until(all_read, timeout=60)
        read = [reader.call("finish") for reader in readers]
    assert written["balanced"]
    assert written["committed"] == end
    for reader in read:
        print(reader)
        assert reader["torn"] == 0
        assert reader["balanced"]
        assert reader["received"] == reader["taken"] > frames / 10_000
        assert sum(reader["outside"].values()) == 0
        assert sum(reader["dropped"].values()) == reader["span"] - reader["taken"]


@pytest.mark.leaves_files("a producer is killed")
def test_batches_are_whole_when_the_producer_is_killed(
    arguments: tuple[str, str, int], wait_until: WaitUntil
) -> None:
    with tp.MediaDriver(arguments[0]), RemoteProcess(BatchReader, *arguments, 512, True) as reader:
        for _ in range(3):
            with RemoteProcess(BatchWriter, *arguments, 64) as writer:
                epoch = writer.call("epoch")
                wait_until(lambda epoch=epoch: reader.call("mapped") == epoch)
                before = reader.call("last_seq")
                writer.send("write_until_killed")
                wait_until(lambda before=before: reader.call("last_seq") > before + 10_000)
                writer.kill()
        read = reader.call("finish")
    print(read)
    assert (read["torn"], read["balanced"], read["epochs"]) == (0, True, 3)
    assert read["received"] == read["taken"]
