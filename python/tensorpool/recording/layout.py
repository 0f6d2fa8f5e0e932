"""Where everything of a recording lies, and which version of the format this is.

`docs/reference/recording-format.md` is the same in words, with what old readers are promised.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
