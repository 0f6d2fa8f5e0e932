"""Element types and orders as the wire numbers them (wire §15.8), as a recording spells them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedDtype
from ..sbe import Dtype, MajorOrder

MAX_DIMS: Final = 8

# BYTES and BIT have no numpy type of their own and are handed out raw.
_RAW: Final = {Dtype.BYTES: "bytes", Dtype.BIT: "bit"}
NAMES: Final[dict[int, str]] = {
    int(kind): _RAW.get(kind) or ("bool" if kind is Dtype.BOOLEAN else kind.name.lower())
    for kind in Dtype
    if kind is not Dtype.UNKNOWN
}
"""The wire's number → the name in a recording."""
NUMBERS: Final[dict[str, int]] = {name: number for number, name in NAMES.items()}
NUMPY: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype("uint8" if name in ("bytes", "bit") else name) for name in NUMBERS
}
ORDERS: Final[dict[int, str]] = {int(MajorOrder.ROW): "row", int(MajorOrder.COLUMN): "column"}
ORDER_NUMBERS: Final[dict[str, int]] = {name: number for number, name in ORDERS.items()}

ITEM_BYTES: Final = np.zeros(max(NAMES) + 1, np.int64)
"""Bytes of one element by the wire's number; 0 where there is no such type."""
for _number, _name in NAMES.items():
    ITEM_BYTES[_number] = NUMPY[_name].itemsize


def number_of(dtype: npt.DTypeLike | str) -> int:
    """The wire's number for a numpy type, or for one of the names of a recording."""
    if isinstance(dtype, str) and dtype in NUMBERS:
        return NUMBERS[dtype]
    kind = np.dtype(dtype)
    number = NUMBERS.get(kind.name)
    if number is None or not kind.isnative:
        names = ", ".join(NUMBERS)
        raise UnsupportedDtype(
            f"element type {kind} has no place in a recording; supported are {names} (native byte order). "
            "Convert with array.astype(...), or record the raw memory with array.view('uint8')",
            dtype=str(kind),
        )
    return number
