"""The writer and the readers of the stress tests, each in its own process."""

from __future__ import annotations

import itertools
import threading
from dataclasses import asdict
from typing import Any

import numpy as np

import tensorpool as tp
from tests.remote_process import Background

from .pattern import Pattern


class Writer:
    """A producer at full speed."""

    def __init__(
        self, aeron_dir: str, shm_base: str, stream_id: int, payload_bytes: int, nslots: int
    ) -> None:
        self.pattern = Pattern(payload_bytes)
        self.context = tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base, announce_period=0.2)
        self.producer = self.context.producer(stream_id, pools=[payload_bytes], nslots=nslots)

    def epoch(self) -> int | None:
        """Epoch of the producer."""
        return self.producer.epoch

    def write(self, frames: int) -> dict[str, Any]:
        """Commits `frames` frames; every hundredth is written in place, the others are offered."""
        buffer = np.empty(self.pattern.count, np.uint64)
        producer, fill = self.producer, self.pattern.fill
        first = producer.next_seq
        for seq in range(first, first + frames):
            if seq % 100:
                fill(buffer, seq)
                producer.offer(buffer)
            else:
                with producer.claim((self.pattern.count,), np.uint64) as slot:
                    fill(slot.array, seq)
        assert producer.next_seq == first + frames
        return self.ledger()

    def ledger(self) -> dict[str, Any]:
        """Ledger and next sequence of the producer."""
        ledger = self.producer.ledger()
        return {**asdict(ledger), "balanced": ledger.balanced, "next_seq": self.producer.next_seq}


class Reader:
    """A consumer that checks every element of its frames, on another thread until `finish`."""

    def __init__(self, aeron_dir: str, shm_base: str, stream_id: int, payload_bytes: int, way: str) -> None:
        self.pattern = Pattern(payload_bytes)
        self.context = tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base, announce_period=0.2)
        self.consumer = self.context.consumer(stream_id)
        self.newest_only, self.inspect = {
            "view": (False, self.inspect_view),
            "copy": (False, self.inspect_copy),
            "newest": (True, self.inspect_view),
            "unvalidated": (True, self.inspect_unvalidated),
        }[way]
        self.accepted = 0
        self.overwritten = 0
        self.torn_rejected = 0
        self.torn: list[int] = []
        self.torn_count = 0
        self.first: int | None = None
        self.last: int | None = None
        self.background = Background(self.loop)

    def mapped(self) -> int | None:
        """Epoch of the consumer once it is connected."""
        return self.consumer.epoch if self.consumer.is_connected else None

    def loop(self, stop: threading.Event) -> None:
        """Inspects frames until `stop`."""
        consumer, inspect = self.consumer, self.inspect
        for turn in itertools.count():
            if self.newest_only:
                newest = consumer.latest()
                frames = [] if newest is None else [newest]
            else:
                frames = consumer.poll(16)
            # Never sleep: otherwise the writer would rarely overwrite a frame during its inspection.
            if not frames and stop.is_set():
                return
            # Newest first on every other turn: the writer then overwrites the old frames during the
            # inspection.
            for frame in reversed(frames) if turn % 2 else frames:
                inspect(frame, slowly=turn % 4 == 0)

    def record_frame(self, frame: tp.Frame, is_intact: bool) -> None:
        """Counts a frame that was accepted as valid."""
        self.accepted += 1
        self.first = frame.seq if self.first is None else min(self.first, frame.seq)
        self.last = frame.seq if self.last is None else max(self.last, frame.seq)
        if not is_intact:
            self.torn_count += 1
            self.torn = [*self.torn[:4], frame.seq]

    def inspect_view(self, frame: tp.Frame, *, slowly: bool) -> None:
        """Checks the frame in place, then whether it is still valid."""
        is_intact = self.pattern.is_intact(frame.array, frame.seq, slowly=slowly)
        if frame.valid():
            self.record_frame(frame, is_intact)
        else:
            self.overwritten += 1
            self.torn_rejected += not is_intact

    def inspect_copy(self, frame: tp.Frame, *, slowly: bool) -> None:
        """Checks a copy of the frame."""
        try:
            copy = frame.copy()
        except tp.FrameOverwritten:
            self.overwritten += 1
        else:
            self.record_frame(frame, self.pattern.is_intact(copy, frame.seq, slowly=slowly))

    def inspect_unvalidated(self, frame: tp.Frame, *, slowly: bool) -> None:
        """Checks the frame in place without validating it afterwards: the test must detect this error."""
        self.record_frame(frame, self.pattern.is_intact(frame.array, frame.seq, slowly=slowly))

    def last_seq(self) -> int | None:
        """Last sequence of the consumer."""
        return self.consumer.last_seq

    def finish(self) -> dict[str, Any]:
        """Stops the inspection; returns ledger and counts."""
        self.background.stop()
        ledger = self.consumer.ledger()
        return {
            **asdict(ledger),
            "balanced": ledger.balanced,
            "last_seq": self.consumer.last_seq,
            "accepted": self.accepted,
            "overwritten": self.overwritten,
            "torn_rejected": self.torn_rejected,
            "torn": self.torn,
            "torn_count": self.torn_count,
            "first_accepted": self.first,
            "last_accepted": self.last,
        }


class Listener:
    """A consumer that maps the regions and receives no frames."""

    def __init__(self, options: dict[str, Any], stream_id: int) -> None:
        self.context = tp.open(**options)
        self.consumer = self.context.consumer(stream_id)
        self.seen: list[str] = []

    def epoch(self) -> int | None:
        """Mapped epoch."""
        return self.consumer.epoch

    def kinds(self) -> list[str]:
        """Kinds of all events so far."""
        self.context.on_event(lambda event: self.seen.append(event.kind))
        return self.seen
