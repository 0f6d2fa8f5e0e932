"""Names and wire numbers of element types and orders (wire §15.8), and tensors as views of bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedDtype
from ..sbe import Dtype, MajorOrder

MAX_DIMS: Final = 8

# BYTES and BIT have no numpy type of their own: their tensors are arrays of uint8.
_RAW: Final = {Dtype.BYTES: "bytes", Dtype.BIT: "bit"}
NAMES: Final[dict[int, str]] = {
    int(kind): _RAW.get(kind) or ("bool" if kind is Dtype.BOOLEAN else kind.name.lower())
    for kind in Dtype
    if kind is not Dtype.UNKNOWN
}
"""Wire number → name in a recording."""
NUMBERS: Final[dict[str, int]] = {name: number for number, name in NAMES.items()}
NUMPY: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype("uint8" if name in ("bytes", "bit") else name) for name in NUMBERS
}
ORDERS: Final[dict[int, str]] = {int(MajorOrder.ROW): "row", int(MajorOrder.COLUMN): "column"}
ORDER_NUMBERS: Final[dict[str, int]] = {name: number for number, name in ORDERS.items()}

ITEM_BYTES: Final = np.zeros(max(NAMES) + 1, np.int64)
"""Element size by wire number; 0 for unused numbers."""
for _number, _name in NAMES.items():
    ITEM_BYTES[_number] = NUMPY[_name].itemsize


def number_of(dtype: npt.DTypeLike | str) -> int:
    """Wire number of a numpy type or of a name in a recording. Raises UnsupportedDtype."""
    if isinstance(dtype, str) and dtype in NUMBERS:
        return NUMBERS[dtype]
    kind = np.dtype(dtype)
    number = NUMBERS.get(kind.name)
    if number is None or not kind.isnative:
        names = ", ".join(NUMBERS)
        raise UnsupportedDtype(
            f"element type {kind} cannot be recorded; supported are {names} (native byte order). "
            "Convert with array.astype(...), or record the raw memory with array.view('uint8')",
            dtype=str(kind),
        )
    return number


def as_array(
    data: memoryview | bytes,
    dtype: str,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    where: object,
) -> npt.NDArray[Any]:
    """A read-only view of a payload as a tensor. ValueError, with the row's label `where`, if the tensor
    would extend beyond the payload.
    """
    try:
        kind, steps = _checked_type(
            dtype, tuple(shape), None if strides is None else tuple(strides), len(data)
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    array = np.ndarray(tuple(shape), kind, data, 0, steps)
    array.flags.writeable = False
    return array


@lru_cache(maxsize=256)
def _checked_type(
    dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, size: int
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Element type and strides of a tensor, checked against its size. Cached: most frames are alike."""
    kind = NUMPY.get(dtype)
    if kind is None:
        raise ValueError(f"element type {dtype!r} is none of {', '.join(NUMPY)}")
    steps = strides if strides is not None else contiguous_strides(shape, kind.itemsize)
    if not 1 <= len(shape) <= MAX_DIMS or len(steps) != len(shape):
        raise ValueError(f"shape {list(shape)} and strides {list(steps)} do not match")
    filler = [0] * (MAX_DIMS - len(shape))
    fits = tensors_fit(
        np.array([[*shape, *filler]], np.int32),
        np.array([[*steps, *filler]], np.int64),
        np.array([len(shape)]),
        np.array([kind.itemsize], np.int64),
        np.int64(size),
    )
    if not fits[0]:
        raise ValueError(f"a tensor {dtype}{list(shape)} extends beyond its {size} bytes")
    return kind, steps


def contiguous_strides(shape: Sequence[int], itemsize: int, order: str = "row") -> tuple[int, ...]:
    """Strides of a contiguous tensor. Numpy's own are arbitrary where a dimension is 1 or 0."""
    steps, step = [], itemsize
    for size in reversed(shape) if order == "row" else shape:
        steps.append(step)
        step *= max(size, 1)
    return tuple(steps[::-1] if order == "row" else steps)


def tensors_fit(
    dims: npt.NDArray[np.int32],
    strides: npt.NDArray[np.int64],
    ndims: npt.NDArray[Any],
    item_bytes: npt.NDArray[np.int64],
    payload_bytes: npt.NDArray[np.int64] | np.int64,
) -> npt.NDArray[np.bool_]:
    """Which tensors stay inside their payload. A view of any other tensor would read foreign memory."""
    used = np.arange(MAX_DIMS) < ndims[:, None]
    sizes = np.where(used, dims, 1).astype(np.int64)
    steps = np.where(used, strides, 0)
    # The stride of a dimension of size one is never used, so its value is ignored.
    reach = np.where(sizes > 1, (sizes - 1) * steps, 0)
    # 2**31 elements times a stride may overflow 64 bits. Floats do not overflow, and large sums are rejected.
    far = np.where(sizes > 1, (sizes - 1).astype(np.float64) * steps, 0).sum(axis=1) < 2.0**62
    extent = np.where((sizes == 0).any(axis=1), 0, reach.sum(axis=1) + item_bytes)
    sane = (sizes >= 0).all(axis=1) & ((steps >= 0) | (sizes <= 1)).all(axis=1)
    fits: npt.NDArray[np.bool_] = far & sane & (extent <= payload_bytes)
    return fits
