"""What is in an array, in a line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .reals import reals

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """`minimum`, `maximum` and `mean` are None for an array without elements."""

    shape: tuple[int, ...]
    dtype: str
    minimum: float | int | bool | None
    maximum: float | int | bool | None
    mean: float | None
    values: tuple[Any, ...]
    """The first few, in the order of the memory."""
    not_finite: int
    """NaNs and infinities, which the other figures leave out."""

    def as_json(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "dtype": self.dtype,
            "min": _plain(self.minimum),
            "max": _plain(self.maximum),
            "mean": _plain(self.mean),
            "values": [_plain(one) for one in self.values],
            "not_finite": self.not_finite,
        }

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        if self.minimum is None:
            figures = "empty" if not self.not_finite else "nothing finite"
        else:
            figures = f"min {_figure(self.minimum)}  max {_figure(self.maximum)}  mean {_figure(self.mean)}"
        odd = f"  {self.not_finite} not finite" if self.not_finite and self.minimum is not None else ""
        dots = " …" if math.prod(self.shape) > len(self.values) else ""
        return (
            f"{shape} {self.dtype}  {figures}{odd}  [{' '.join(_figure(one) for one in self.values)}{dots}]"
        )


def summarize(array: npt.NDArray[Any], element_type: str | None = None) -> ArraySummary:
    """Looks at every element once. Of complex numbers the figures are those of their sizes."""
    # Flat views in memory order: a copy of each frame would cost more than all of the figures.
    flat = array.ravel(order="K")
    finite = numbers = reals(flat)
    not_finite = 0
    if numbers.dtype.kind == "f":
        whole = np.isfinite(numbers)
        not_finite = int(flat.size - np.count_nonzero(whole))
        finite = numbers[whole] if not_finite else numbers
    low = high = mean = None
    if finite.size:
        low, high = finite.min().item(), finite.max().item()
        mean = float(finite.mean(dtype=np.float64))
    return ArraySummary(
        shape=array.shape,
        dtype=element_type or str(array.dtype),
        minimum=low,
        maximum=high,
        mean=mean,
        values=tuple(_item(one) for one in flat[:_SHOWN]),
        not_finite=not_finite,
    )


def _item(value: Any) -> Any:
    """As Python knows it; what it has no number for, in words."""
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    return item if isinstance(item, bool | int | float | complex | bytes) else float(value)


def _plain(value: Any) -> Any:
    """As JSON can hold it: it has no NaN, no infinity, and no whole numbers beyond 53 bits everywhere."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 53:
        return str(value)
    return value


def _figure(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
