"""Element types that the wire has no number for, carried by one that it has.

The attribute `tensorpool.dtype` of a frame's metadata says what the elements are; the frame's header names
the carrier, of the same size. `complex128` is too large for any: it goes as float64 with a last axis of 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

DTYPE_KEY: Final = "tensorpool.dtype"

Extension: TypeAlias = tuple[str, "np.dtype[Any]", bool]
"""The carrier's name, the type, and whether each element is a pair of the carrier's."""


@dataclass(frozen=True, slots=True)
class Carried:
    """How a type travels."""

    carrier: str
    pair: bool = False


CARRIED: Final[dict[str, Carried]] = {
    "float16": Carried("uint16"),
    "bfloat16": Carried("uint16"),
    "float8_e4m3fn": Carried("uint8"),
    "float8_e5m2": Carried("uint8"),
    "complex64": Carried("uint64"),
    "complex128": Carried("float64", pair=True),
    "datetime64[ns]": Carried("int64"),
    "timedelta64[ns]": Carried("int64"),
}
"""Only these: a type that is named by somebody else is never looked up anywhere else."""


@cache
def extension(name: str) -> Extension | None:
    """How the type of that name is carried; None if it is not, or needs `ml_dtypes`, which is not there."""
    carried = CARRIED.get(name)
    if carried is None:
        return None
    dtype = _dtype(name)
    return None if dtype is None else (carried.carrier, dtype, carried.pair)


def name_of(dtype: npt.DTypeLike) -> str:
    """The name by which the attribute calls it."""
    if isinstance(dtype, str) and dtype in CARRIED:
        return dtype
    try:
        return np.dtype(dtype).name
    except TypeError:
        return str(dtype)


def _dtype(name: str) -> np.dtype[Any] | None:
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        return None
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found
