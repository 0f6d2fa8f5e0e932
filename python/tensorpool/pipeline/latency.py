"""How long frames were on their way: anchors tie the recorder's time of day to the clock that producers stamp
with."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ..recording.layout import SEALED, TABLES_DIR
from ..recording.tables import read_batches

_MAX_NS: Final = 3_600_000_000_000
"""More is no latency, but the clock of another host."""


class AnchorReader:
    """A recording's anchors, as of the last `refresh`."""

    def __init__(self, recording: Path) -> None:
        self._directory = recording / TABLES_DIR / "anchors"
        self._places: dict[Path, int] = {}
        self._wall = np.empty(0, np.int64)
        self._offset = np.empty(0, np.int64)

    def refresh(self) -> None:
        """Reads what is new."""
        wall, offset = [self._wall], [self._offset]
        for path in sorted(self._directory.glob(f"*{SEALED}")) if self._directory.is_dir() else ():
            batches, self._places[path] = read_batches(path, self._places.get(path, 0))
            for batch in batches:
                wall.append(batch["wall_ns"].to_numpy())
                offset.append(wall[-1] - batch["monotonic_ns"].to_numpy())
        if len(wall) > 1:
            joined = np.concatenate(wall)
            order = np.argsort(joined, kind="stable")
            self._wall, self._offset = joined[order], np.concatenate(offset)[order]

    def between(self, first_ns: int, last_ns: int) -> list[list[int]]:
        """(time of day, time of day minus monotonic) of the anchors for receive times in between."""
        low = max(int(np.searchsorted(self._wall, first_ns, "right")) - 1, 0)
        high = max(int(np.searchsorted(self._wall, last_ns, "right")), low + 1)
        return [
            [int(at), int(by)] for at, by in zip(self._wall[low:high], self._offset[low:high], strict=True)
        ]


def latencies(
    sent_ns: npt.NDArray[np.int64], received_ns: npt.NDArray[np.int64], anchors: list[list[int]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Nanoseconds from sending (monotonic) to receipt (time of day), and which of them are known."""
    if not anchors:
        return np.zeros(len(sent_ns), np.int64), np.zeros(len(sent_ns), np.bool_)
    wall = np.array([at for at, _ in anchors], np.int64)
    offset = np.array([by for _, by in anchors], np.int64)
    at = np.maximum(np.searchsorted(wall, received_ns, "right") - 1, 0)
    found = received_ns - offset[at] - sent_ns
    return found, (found >= 0) & (found <= _MAX_NS) & (sent_ns > 0)
