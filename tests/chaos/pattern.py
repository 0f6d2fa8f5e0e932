"""Payloads in which every word proves its frame: it depends on its writer, the sequence and its place."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

ELEMENTS = 512
_MASK = (1 << 64) - 1
_WRITER_STEP = 0xD1B5_4A32_D192_ED03
_SEQ_STEP = 0x9E37_79B9_7F4A_7C15
_PLACES: npt.NDArray[np.uint64] = np.arange(ELEMENTS, dtype=np.uint64) * np.uint64(0x0000_0001_0000_0001)


def new_writer() -> int:
    """A number for one life of a producer. It is the first word of its frames."""
    return secrets.randbits(64)


def write_frame(out: npt.NDArray[np.uint64], writer: int, seq: int) -> None:
    """Writes the payload of a frame."""
    np.add(_PLACES, np.uint64((writer * _WRITER_STEP + seq * _SEQ_STEP) & _MASK), out=out)
    out[0] = writer


def is_frame(payload: npt.NDArray[Any], seq: int) -> bool:
    """Whether every word is that of the frame with this sequence, and all are of one writer."""
    if payload.shape != (ELEMENTS,):
        return False
    expected = np.empty(ELEMENTS, np.uint64)
    write_frame(expected, int(payload[0]), seq)
    return bool((payload == expected).all())
