"""Which filesystem a path is on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the kernel's table of mounts."""

    point: Path
    kind: str
    options: frozenset[str]


def mounts(table: str = "/proc/self/mounts") -> list[Mount]:
    """All mounts; later ones lie over earlier ones."""
    try:
        lines = Path(table).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, point, kind, options, *_ = [*line.split(), "", "", "", ""]
        # Spaces and the like are written as \040.
        plain = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        found.append(Mount(Path(plain), kind, frozenset(options.split(","))))
    return found


def mount_of(path: Path, known: list[Mount] | None = None) -> Mount | None:
    """The mount that `path`, or the nearest directory above it that exists, is on."""
    real = Path(os.path.realpath(path))
    best = None
    for one in mounts() if known is None else known:
        if real.is_relative_to(one.point) and (best is None or len(one.point.parts) >= len(best.point.parts)):
            best = one
    return best


def is_hugetlbfs(path: Path) -> bool:
    found = mount_of(path)
    return found is not None and found.kind == "hugetlbfs"
