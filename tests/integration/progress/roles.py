"""Processes of the progress tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorpool as tp


class Camera:
    """A producer that fills its slots step by step. Row and column n contain n plus a shift."""

    def __init__(self, options: dict[str, Any], stream_id: int, producer: dict[str, Any]) -> None:
        self.context = tp.open(**options)
        defaults: dict[str, Any] = {"pools": ["64KiB"], "nslots": 8}
        self.producer = self.context.producer(stream_id, **{**defaults, **producer})
        self.slots: dict[int, tp.Slot] = {}

    def ready(self) -> bool:
        return self.producer.attached

    def has_progress_consumers(self) -> bool:
        return self.producer.has_progress_consumers

    def counters(self) -> dict[str, int]:
        return self.producer.counters().to_json()

    def claim(self, shape: list[int], dtype: str = "uint16", **options: Any) -> int:
        slot = self.producer.claim(shape, dtype, **options)
        self.slots[slot.seq] = slot
        return slot.seq

    def fill(self, seq: int, first: int, last: int, shift: int = 0) -> None:
        """Fills the rows from `first` up to `last`."""
        slot = self.slots[seq]
        for row in range(first, last):
            slot.array[row] = row + shift
            slot.advance()

    def fill_columns(self, seq: int, first: int, last: int) -> None:
        slot = self.slots[seq]
        for column in range(first, last):
            slot.array[:, column] = column
            slot.advance()

    def fill_bytes(self, seq: int, total: int) -> None:
        slot = self.slots[seq]
        slot.array.reshape(-1).view("u1")[:total] = 7
        slot.advance_to(total)

    def commit(self, seq: int) -> str:
        return self.slots.pop(seq).commit().outcome

    def abandon(self, seq: int) -> None:
        self.slots.pop(seq).abandon()

    def offer(self) -> str:
        return self.producer.offer(np.zeros(4, "u1")).outcome

    def fill_until_lost(self) -> dict[str, int]:
        """Writes frames row by row until a progress message is lost."""
        outcomes: dict[str, int] = {}
        while self.producer.counters().progress_lost == 0:
            with self.producer.claim((256, 16), "uint16", progress="rows") as slot:
                for row in range(256):
                    slot.array[row] = row
                    slot.advance()
            assert slot.result is not None
            outcomes[slot.result.outcome] = outcomes.get(slot.result.outcome, 0) + 1
        return outcomes


class ReaderProcess:
    """A consumer that requests progress and never polls."""

    def __init__(self, options: dict[str, Any], stream_id: int, request: dict[str, Any]) -> None:
        self.context = tp.open(**options)
        self.consumer = self.context.consumer(stream_id, **request)

    def state(self) -> dict[str, Any]:
        return self.consumer.state().to_json()
