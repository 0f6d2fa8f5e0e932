"""The two sides of the stress test, each in a process of its own."""

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
    """Offers frames as fast as it can."""

    def __init__(
        self, aeron_dir: str, shm_base: str, stream_id: int, payload_bytes: int, nslots: int
    ) -> None:
        self.pattern = Pattern(payload_bytes)
        self.context = tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base, announce_period=0.2)
        self.producer = self.context.producer(stream_id, pools=[payload_bytes], nslots=nslots)

    def epoch(self) -> int | None:
        return self.producer.epoch

    def write(self, frames: int) -> dict[str, Any]:
        """`frames` committed frames; every hundredth is written in place, the others are copied in."""
        buffer = np.empty(self.pattern.words, np.uint64)
        producer, fill = self.producer, self.pattern.fill
        first = producer.next_seq
        for seq in range(first, first + frames):
            if seq % 100:
                fill(buffer, seq)
                producer.offer(buffer)
            else:
                with producer.claim((self.pattern.words,), np.uint64) as slot:
                    fill(slot.array, seq)
        assert producer.next_seq == first + frames
        return self.ledger()

    def ledger(self) -> dict[str, Any]:
        ledger = self.producer.ledger()
        return {**asdict(ledger), "balanced": ledger.balanced, "next_seq": self.producer.next_seq}


class Reader:
    """Takes what comes and checks every word of it, on a thread of its own until told to stop."""

    def __init__(self, aeron_dir: str, shm_base: str, stream_id: int, payload_bytes: int, way: str) -> None:
        self.pattern = Pattern(payload_bytes)
        self.context = tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base, announce_period=0.2)
        self.consumer = self.context.consumer(stream_id)
        self.newest_only, self.look = {
            "view": (False, self.look_at_view),
            "copy": (False, self.look_at_copy),
            "newest": (True, self.look_at_view),
            "careless": (True, self.look_carelessly),
        }[way]
        self.accepted = 0
        self.overwritten = 0
        self.torn_but_found_out = 0
        self.torn: list[int] = []
        self.torn_count = 0
        self.first: int | None = None
        self.last: int | None = None
        self.background = Background(self.loop)

    def mapped(self) -> int | None:
        return self.consumer.epoch if self.consumer.is_connected else None

    def loop(self, stop: threading.Event) -> None:
        consumer, look = self.consumer, self.look
        for turn in itertools.count():
            if self.newest_only:
                newest = consumer.latest()
                frames = [] if newest is None else [newest]
            else:
                frames = consumer.poll(16)
            # No waiting: a reader that sleeps meets only frames whose writer sleeps too.
            if not frames and stop.is_set():
                return
            # Newest first on every other turn: the old ones are then overwritten under our eyes.
            for frame in reversed(frames) if turn % 2 else frames:
                look(frame, dawdle=turn % 4 == 0)

    def judged(self, frame: tp.Frame, is_whole: bool) -> None:
        self.accepted += 1
        self.first = frame.seq if self.first is None else min(self.first, frame.seq)
        self.last = frame.seq if self.last is None else max(self.last, frame.seq)
        if not is_whole:
            self.torn_count += 1
            self.torn = [*self.torn[:4], frame.seq]

    def look_at_view(self, frame: tp.Frame, *, dawdle: bool) -> None:
        is_whole = self.pattern.is_whole(frame.array, frame.seq, dawdle=dawdle)
        if frame.valid():
            self.judged(frame, is_whole)
        else:
            self.overwritten += 1
            self.torn_but_found_out += not is_whole

    def look_at_copy(self, frame: tp.Frame, *, dawdle: bool) -> None:
        try:
            copy = frame.copy()
        except tp.FrameOverwritten:
            self.overwritten += 1
        else:
            self.judged(frame, self.pattern.is_whole(copy, frame.seq, dawdle=dawdle))

    def look_carelessly(self, frame: tp.Frame, *, dawdle: bool) -> None:
        """Believes what it read without the second look: what the whole test must be able to catch."""
        self.judged(frame, self.pattern.is_whole(frame.array, frame.seq, dawdle=dawdle))

    def last_seq(self) -> int | None:
        return self.consumer.last_seq

    def finish(self) -> dict[str, Any]:
        self.background.stop()
        ledger = self.consumer.ledger()
        return {
            **asdict(ledger),
            "balanced": ledger.balanced,
            "last_seq": self.consumer.last_seq,
            "accepted": self.accepted,
            "overwritten": self.overwritten,
            "torn_but_found_out": self.torn_but_found_out,
            "torn": self.torn,
            "torn_count": self.torn_count,
            "first_accepted": self.first,
            "last_accepted": self.last,
        }


class Listener:
    """Hears announces and keeps the regions mapped, without taking frames."""

    def __init__(self, options: dict[str, Any], stream_id: int) -> None:
        self.context = tp.open(**options)
        self.consumer = self.context.consumer(stream_id)
        self.seen: list[str] = []

    def epoch(self) -> int | None:
        return self.consumer.epoch

    def kinds(self) -> list[str]:
        self.context.on_event(lambda event: self.seen.append(event.kind))
        return self.seen
