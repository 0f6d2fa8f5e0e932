"""The scale of a chart's axis. Pure."""

from __future__ import annotations

import math
from typing import Final

_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


def ticks(top: float, most: int = 4) -> list[float]:
    """Round numbers from 0 to the first one that is not below `top`: at most `most` steps."""
    if not math.isfinite(top) or top <= 0:
        return [0.0, 1.0]
    rough = top / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in _STEPS if step * power >= rough * (1 - 1e-9)) * power
    count = max(math.ceil(top / step - 1e-9), 1)
    return [number * step for number in range(count + 1)]
