"""Roles of child processes: a camera that offers patterns, and a recorder."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorpool as tp
from tensorpool.recorder.state import RecorderStatsReply
from tensorpool.recording import segment_writer
from tensorpool.recording.gaps import LedgerReply
from tests.remote_process import Background

_ODD = np.uint64(0x9E37_79B9_7F4A_7C15)


def pattern(seq: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """Bytes in which every word depends on the sequence, so that a torn copy is detected.

    The first word is the sequence itself.
    """
    blocks = np.arange(-(-nbytes // 8), dtype=np.uint64) * _ODD + np.uint64(seq)
    return blocks.view(np.uint8)[:nbytes]


class Camera:
    """A producer of patterns: frame n of an epoch is the pattern of n."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.context = tp.open(**options)
        self.offering: Background | None = None
        self.nbytes = 0

    def produce(self, stream_id: int, nbytes: int = 4000, **options: Any) -> int | None:
        defaults: dict[str, Any] = {"pools": ["64KiB"], "nslots": 64}
        self.nbytes = nbytes
        self.producer = self.context.producer(stream_id, **{**defaults, **options})
        return self.producer.epoch

    def _offer(self) -> None:
        self.producer.offer(pattern(self.producer.next_seq, self.nbytes))

    def offer(self, count: int, per_second: float = 0) -> dict[str, Any]:
        """Offers `count` frames; returns `written()`."""
        for _ in range(count):
            self._offer()
            if per_second:
                time.sleep(1 / per_second)
        return self.written()

    def offer_always(self, per_second: float = 300) -> None:
        def offer(stop: Any) -> None:
            while not stop.wait(1 / per_second if per_second else 0):
                self._offer()

        self.offering = Background(offer)

    def written(self) -> dict[str, Any]:
        ledger = self.producer.ledger()
        next_seq = self.producer.next_seq
        return {"epoch": self.producer.epoch, "next_seq": next_seq, "balanced": ledger.balanced}

    def stop(self) -> dict[str, Any]:
        if self.offering is not None:
            self.offering.stop()
            self.offering = None
        return self.written()

    def close(self) -> None:
        if self.offering is not None:
            self.offering.stop()
        self.context.close()


class RecorderProcess:
    """A recorder."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.context = tp.open(**options)

    def record(self, root: str, streams: list[int] | None, **options: Any) -> list[str]:
        """Starts the recorder; returns the segments that it recovered."""
        defaults: dict[str, Any] = {"buffer": "8MiB", "keep_free": 0}
        self.recorder: Any = self.context.record(root, streams=streams, **{**defaults, **options})
        return [str(segment) for segment in self.recorder.recovered]

    def slow_disk(self, bytes_per_s: float) -> None:
        """Limits the speed of writes to segments from now on."""
        write_parts = segment_writer.write_all  # type: ignore[attr-defined]

        def write_slowly(fd: int, parts: Any) -> int:
            written = write_parts(fd, parts)
            time.sleep(written / bytes_per_s)
            return written

        segment_writer.write_all = write_slowly  # type: ignore[attr-defined]

    def stats(self) -> RecorderStatsReply:
        stats: RecorderStatsReply = self.recorder.stats().to_json()
        return stats

    def ledger(self) -> list[LedgerReply]:
        return [ledger.to_json() for ledger in self.recorder.ledger()]

    def mark(self, label: str) -> None:
        self.recorder.mark(label)

    def is_mapped(self, stream_id: int) -> bool:
        return self.recorder.mapped()[stream_id] is not None

    def consumer_ledger(self, stream_id: int) -> dict[str, Any]:
        consumer = self.recorder._agent._streams._consumers[stream_id]
        return dataclasses.asdict(consumer.ledger())

    def fork(self) -> int:
        """Forks while recording; the child's status is 0 if every use of the recorder raised ForkedError."""
        pid = os.fork()
        if pid == 0:
            failures = 0
            for use in (
                self.recorder.stats, self.recorder.ledger, self.recorder.rotate, self.recorder.close,
                lambda: self.recorder.mark("x"),
            ):  # fmt: skip
                try:
                    use()
                    failures += 1
                except tp.ForkedError:
                    pass
            os._exit(failures)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> list[LedgerReply]:
        """Closes the recorder; returns the final ledgers."""
        self.recorder.close()
        return self.ledger()

    def leave(self) -> None:
        self.context.close()
