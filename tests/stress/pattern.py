"""A payload pattern that shows torn frames: each element depends on the sequence and on its index. Pure."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

Uint64Array = npt.NDArray[np.uint64]

# Odd, so that two sequences never have the same element at the same index.
SEQ_STEP = np.uint64(0x9E37_79B9_7F4A_7C15)
INDEX_STEP = np.uint64(0x0000_0001_0000_0001)


class Pattern:
    """Fills and checks payloads of one size, without allocating per frame."""

    def __init__(self, payload_bytes: int) -> None:
        self.count = payload_bytes // 8
        self._indices: Uint64Array = np.arange(self.count, dtype=np.uint64) * INDEX_STEP
        self._expected: Uint64Array = np.empty(self.count, np.uint64)
        self._same = np.empty(self.count, np.bool_)

    def fill(self, target: Uint64Array, seq: int) -> None:
        """Writes the pattern of a sequence."""
        np.add(self._indices, np.uint64(seq * int(SEQ_STEP) & 0xFFFF_FFFF_FFFF_FFFF), out=target)

    def is_intact(self, payload: Uint64Array, seq: int, *, slowly: bool = False) -> bool:
        """Whether every element is that of `seq`. `slowly` yields the core between the two halves."""
        self.fill(self._expected, seq)
        half = self.count // 2 if slowly else self.count
        np.equal(payload[:half], self._expected[:half], out=self._same[:half])
        if slowly:
            os.sched_yield()
            np.equal(payload[half:], self._expected[half:], out=self._same[half:])
        return bool(self._same.all())
