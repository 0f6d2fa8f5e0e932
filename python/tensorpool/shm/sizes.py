"""Sizes as people write them, and the payload pools they describe."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import ConfigError

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"\s*(\d+)\s*([A-Za-z]*)\s*")
_MIN_STRIDE = 64
_MAX_STRIDE = 1 << 31

DEFAULT_POOLS: tuple[str, ...] = ("64KiB", "1MiB", "4MiB")


def parse_size(text: str | int) -> int:
    """Bytes of `"4MiB"`, `"64KiB"`, `"512"` or an int."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    if not match or match[2] not in _UNITS:
        raise ConfigError(f"size {text!r}: write a number and B, KiB, MiB or GiB, as in '4MiB'")
    return int(match[1]) * _UNITS[match[2]]


def parse_pools(sizes: Sequence[str | int] | str | int | None) -> list[tuple[int, int]]:
    """(pool id, stride) for each size class: ids count from 1 by stride, smallest first."""
    if isinstance(sizes, str | int):
        sizes = [sizes]
    strides = sorted({_parse_stride(size) for size in (sizes if sizes is not None else DEFAULT_POOLS)})
    if not strides:
        raise ConfigError("pools is empty; a stream needs at least one, as in pools=['1MiB']")
    return list(enumerate(strides, start=1))


def _parse_stride(size: str | int) -> int:
    stride = parse_size(size)
    if _MIN_STRIDE <= stride <= _MAX_STRIDE and stride & (stride - 1) == 0:
        return stride
    fit = min(_MAX_STRIDE, max(_MIN_STRIDE, 1 << max(0, stride - 1).bit_length()))
    raise ConfigError(
        f"pool size {size!r} must be a power of two from 64 bytes on; the next that fits is {fit}"
    )
