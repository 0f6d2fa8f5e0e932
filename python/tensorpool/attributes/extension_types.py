"""Extension element types: types that the wire does not define, transported as a carrier type that it does.

The attribute `tensorpool.dtype` of a frame's metadata names the element type. The frame's header names the
carrier, which has the same size. `complex128` is larger than any carrier: it is float64 with a last axis
of 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

DTYPE_KEY: Final = "tensorpool.dtype"

Extension: TypeAlias = tuple[str, "np.dtype[Any]", bool]
"""The carrier's name, the element type, and whether each element is a pair of carrier elements."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """The carrier of an extension type."""

    name: str
    pair: bool = False


CARRIERS: Final[dict[str, Carrier]] = {
    "float16": Carrier("uint16"),
    "bfloat16": Carrier("uint16"),
    "float8_e4m3fn": Carrier("uint8"),
    "float8_e5m2": Carrier("uint8"),
    "complex64": Carrier("uint64"),
    "complex128": Carrier("float64", pair=True),
    "datetime64[ns]": Carrier("int64"),
    "timedelta64[ns]": Carrier("int64"),
}
"""All extension types. Metadata of other processes may name any type; only these are accepted."""


@cache
def extension(name: str) -> Extension | None:
    """The extension type with this name; None for an unknown name, or if it needs a missing `ml_dtypes`."""
    carrier = CARRIERS.get(name)
    if carrier is None:
        return None
    dtype = _dtype(name)
    return None if dtype is None else (carrier.name, dtype, carrier.pair)


def name_of(dtype: npt.DTypeLike) -> str:
    """The name of an element type in the attribute."""
    if isinstance(dtype, str) and dtype in CARRIERS:
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
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype
