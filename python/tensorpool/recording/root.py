"""The directory of a recording: what marks it as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ..durable import replace_file, write_errors
from ..errors import NotARecording
from . import layout

_FORMAT: Final = "tensorpool-recording"


def mark_root(root: Path, *, created_ns: int) -> None:
    """Makes the directory, and marks it as a recording if it is not one yet."""
    if (root / layout.MARKER_FILE).exists():
        check_root(root)
        return
    strange = next((path for path in root.iterdir() if not _is_ours(path)), None) if root.is_dir() else None
    if strange is not None:
        raise NotARecording(
            f"{root} is not empty and no recording (there is {strange.name}); name another directory",
            path=root,
        )
    with write_errors(root):
        # Private: who is to read it gets into this directory, by its mode or group, and so to all below.
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        marker = {
            "format": _FORMAT, "version": layout.VERSION, "minor": layout.MINOR, "created_ns": created_ns,
        }  # fmt: skip
        replace_file(root / layout.MARKER_FILE, json.dumps(marker).encode() + b"\n")


def _is_ours(path: Path) -> bool:
    return path.name.startswith(("stream=", "_manifest", "_tables", "_leases", "_damaged", "recording.json"))


def check_root(root: Path) -> None:
    """Raises NotARecording unless there is a recording that this version can read."""
    marker = root / layout.MARKER_FILE
    try:
        found: Any = json.loads(marker.read_bytes())
    except FileNotFoundError:
        # The files speak for themselves; someone may have copied only them.
        if layout.stream_dirs(root):
            return
        raise NotARecording(f"{root} holds no recording; `tensorpool record` makes one", path=root) from None
    except ValueError:
        if layout.stream_dirs(root):
            return
        raise NotARecording(f"{marker} is damaged", path=root) from None
    version = found.get("version") if isinstance(found, dict) else None
    if not isinstance(version, int) or found.get("format") != _FORMAT:
        raise NotARecording(f"{marker} is not that of a recording", path=root)
    if version > layout.VERSION:
        raise NotARecording(
            f"{root} has format version {version}, and this reader knows up to {layout.VERSION}; "
            "update the package",
            path=root,
        )
