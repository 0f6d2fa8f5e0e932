"""Anchors: what the time of day and the monotonic clock showed at one moment."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Final

from ..clock import Clock

_EVERY_NS: Final = 10_000_000_000
# A clock that was set, or is being slewed hard: worth an anchor of its own.
_DRIFT_NS: Final = 1_000_000


class Anchors:
    """Says when one is due."""

    def __init__(self) -> None:
        self._offset_ns: int | None = None
        self._last_ns = 0

    def due(self, clock: Clock) -> dict[str, Any] | None:
        """The row of an anchor, if it is time for one."""
        wall, monotonic = clock.wall_ns(), clock.monotonic_ns()
        offset = wall - monotonic
        is_due = (
            self._offset_ns is None
            or monotonic - self._last_ns >= _EVERY_NS
            or abs(offset - self._offset_ns) >= _DRIFT_NS
        )
        if not is_due:
            return None
        self._offset_ns, self._last_ns = offset, monotonic
        return {
            "wall_ns": wall, "monotonic_ns": monotonic, "host": socket.gethostname(), "boot_id": _boot_id(),
        }  # fmt: skip


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
