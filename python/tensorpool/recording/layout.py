"""Where everything of a recording lies, and which version of the format this is.

`docs/reference/recording-format.md` is the same in words, with what old readers are promised.

The directory of a recording: what marks it as one.

The lock of a recorded stream: one writer at a time.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .. import _native
from ..durable import replace_file, write_errors
from ..errors import LockHeld, NotARecording

VERSION: Final = 1
"""What a reader has to know. It grows when an old reader would misread the files."""
MINOR: Final = 1
"""What was added since without harm to old readers: columns, tables, keys."""

ALIGNMENT: Final = 64
"""Payloads, and every buffer of a batch, begin at a multiple of this inside the file."""
MAX_PAYLOAD_BYTES: Final = 2**31 - 2 * ALIGNMENT
"""Offsets inside a batch are 32-bit, because that is what Spark reads."""

SEALED: Final = ".arrows"
PARTIAL: Final = ".arrows.partial"
MARKER_FILE: Final = "recording.json"
MANIFEST_FILE: Final = "_manifest"
MANIFEST_LOCK: Final = "_manifest.lock"
TABLES_DIR: Final = "_tables"
LEASES_DIR: Final = "_leases"
DAMAGED_DIR: Final = "_damaged"
WRITER_LOCK: Final = "_writer.lock"

VERSION_KEY: Final = b"tensorpool.recording.version"
MINOR_KEY: Final = b"tensorpool.recording.minor"
CHECK_KEY: Final = b"tensorpool.check"

_STREAM = re.compile(r"stream=(\d+)", re.ASCII)
_EPOCH = re.compile(r"epoch=(\d+)", re.ASCII)
_SEGMENT = re.compile(r"(\d{20})\.arrows(\.partial)?", re.ASCII)
_U64 = 1 << 64


def aligned(size: int) -> int:
    """The next multiple of 64."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """Which segment: the first sequence that was written to it names it within stream and epoch."""

    stream_id: int
    epoch: int
    first_seq: int

    def directory(self, root: Path) -> Path:
        return root / f"stream={self.stream_id}" / f"epoch={self.epoch}"

    def sealed(self, root: Path) -> Path:
        return self._file(root, SEALED)

    def partial(self, root: Path) -> Path:
        return self._file(root, PARTIAL)

    def _file(self, root: Path, suffix: str) -> Path:
        # Twenty digits hold any 64-bit number, and sort by name as they do by value.
        return root / f"stream={self.stream_id}/epoch={self.epoch}/{self.first_seq:020}{suffix}"


def stream_dirs(root: Path) -> dict[int, Path]:
    """The streams that have a directory."""
    return _numbered(root, _STREAM)


def epoch_dirs(stream_dir: Path) -> dict[int, Path]:
    return _numbered(stream_dir, _EPOCH)


def segments_in(epoch_dir: Path) -> dict[int, bool]:
    """First sequence → whether it is sealed. Other names are nobody's business here."""
    found: dict[int, bool] = {}
    for entry in epoch_dir.iterdir():
        if match := _SEGMENT.fullmatch(entry.name):
            first_seq = int(match[1])
            if first_seq < _U64:
                found[first_seq] = found.get(first_seq, False) or match[2] is None
    return dict(sorted(found.items()))


def _numbered(parent: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    found = {}
    try:
        entries = os.scandir(parent)
    except FileNotFoundError:
        return {}
    with entries:
        for entry in entries:
            match = pattern.fullmatch(entry.name)
            # `stream=007` and `stream=7` would be one stream with two directories: the plain form counts.
            if match and str(int(match[1])) == match[1] and int(match[1]) < _U64 and entry.is_dir():
                found[int(match[1])] = Path(entry.path)
    return dict(sorted(found.items()))


def signed(value: int) -> int:
    """An unsigned 64-bit number as the signed one with the same bits."""
    return value - _U64 if value >= _U64 >> 1 else value


def unsigned(value: int) -> int:
    return value % _U64


_FORMAT: Final = "tensorpool-recording"


def create_root(root: Path, *, created_ns: int) -> None:
    """Makes the directory, and marks it as a recording if it is not one yet."""
    if (root / MARKER_FILE).exists():
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
            "format": _FORMAT, "version": VERSION, "minor": MINOR, "created_ns": created_ns,
        }  # fmt: skip
        replace_file(root / MARKER_FILE, json.dumps(marker).encode() + b"\n")


def _is_ours(path: Path) -> bool:
    return path.name.startswith(("stream=", "_manifest", "_tables", "_leases", "_damaged", "recording.json"))


def check_root(root: Path) -> None:
    """Raises NotARecording unless there is a recording that this version can read."""
    marker = root / MARKER_FILE
    try:
        found: Any = json.loads(marker.read_bytes())
    except FileNotFoundError:
        # The files speak for themselves; someone may have copied only them.
        if stream_dirs(root):
            return
        raise NotARecording(f"{root} holds no recording; `tensorpool record` makes one", path=root) from None
    except ValueError:
        if stream_dirs(root):
            return
        raise NotARecording(f"{marker} is damaged", path=root) from None
    version = found.get("version") if isinstance(found, dict) else None
    if not isinstance(version, int) or found.get("format") != _FORMAT:
        raise NotARecording(f"{marker} is not that of a recording", path=root)
    if version > VERSION:
        raise NotARecording(
            f"{root} has format version {version}, and this reader knows up to {VERSION}; update the package",
            path=root,
        )


def lock_stream(directory: Path, who: str) -> _native.FileLock:
    """Takes the lock of the stream in `directory`, in the name of `who`; LockHeld says who has it."""
    try:
        return _native.FileLock(directory / WRITER_LOCK, f"process {os.getpid()} ({who})")
    except LockHeld as error:
        raise LockHeld(
            f"{directory} is being written by {error.holder}; stop that one first, or use another directory",
            holder=error.holder,
        ) from None
