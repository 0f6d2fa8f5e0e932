"""A payload that betrays every mixture: each word depends on the frame's sequence and on its place."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

# Odd, so that sequences never share a word at the same place.
STEP = np.uint64(0x9E37_79B9_7F4A_7C15)
PLACE = np.uint64(0x0000_0001_0000_0001)


class Pattern:
    """Fills and checks payloads of one size, without allocating per frame."""

    def __init__(self, payload_bytes: int) -> None:
        self.words = payload_bytes // 8
        self._places: Words = np.arange(self.words, dtype=np.uint64) * PLACE
        self._expected: Words = np.empty(self.words, np.uint64)
        self._same = np.empty(self.words, np.bool_)

    def fill(self, target: Words, seq: int) -> None:
        np.add(self._places, np.uint64(seq * int(STEP) & 0xFFFF_FFFF_FFFF_FFFF), out=target)

    def is_whole(self, payload: Words, seq: int, *, dawdle: bool = False) -> bool:
        """Whether every word is that of `seq`. Dawdling lets others run between the two halves."""
        self.fill(self._expected, seq)
        half = self.words // 2 if dawdle else self.words
        np.equal(payload[:half], self._expected[:half], out=self._same[:half])
        if dawdle:
            os.sched_yield()
            np.equal(payload[half:], self._expected[half:], out=self._same[half:])
        return bool(self._same.all())
