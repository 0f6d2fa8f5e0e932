"""Files that a repair sets aside: they are moved to `_damaged`, never deleted."""

from __future__ import annotations

from pathlib import Path

from ..durable import make_directories, sync_directory
from . import layout


def quarantine(root: Path, path: Path, name: str) -> Path:
    """Moves a file to `_damaged`, under a name that no file has there. Returns its new path."""
    directory = root / layout.DAMAGED_DIR
    for parent in make_directories(directory, above=root):
        sync_directory(parent)
    aside, number = directory / name, 1
    while aside.exists():
        number += 1
        aside = directory / f"{name}.{number}"
    path.rename(aside)
    sync_directory(aside.parent)
    sync_directory(path.parent)
    return aside
