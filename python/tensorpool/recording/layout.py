"""Directory layout of a recording: file names, format version, the root marker and the stream locks.

`docs/reference/recording-format.md` describes the format and what it promises to old readers.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .. import _native
from ..durable import JsonState, write_errors
from ..errors import LockHeld, NotARecording

VERSION: Final = 1
"""Format version. It increases when an old reader would misread the files."""
MINOR: Final = 1
"""Minor version. It increases when columns, tables or keys are added that old readers can ignore."""

ALIGNMENT: Final = 64
"""Payloads, and all buffers of a batch, begin at a multiple of this in the file."""
MAX_PAYLOAD_BYTES: Final = 2**31 - 2 * ALIGNMENT
"""Limit of 32-bit offsets within a batch, which Spark requires."""

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
_FORMAT: Final = "tensorpool-recording"
_OWN_NAMES: Final = ("stream=", "_manifest", "_tables", "_leases", "_damaged", "recording.json")
_U64 = 1 << 64


def aligned(size: int) -> int:
    """A size rounded up to a multiple of 64."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """Identity of a segment: stream, epoch and the first sequence that was written to it."""

    stream_id: int
    epoch: int
    first_seq: int

    def directory(self, root: Path) -> Path:
        """The directory of the segment's epoch."""
        return root / f"stream={self.stream_id}" / f"epoch={self.epoch}"

    def sealed(self, root: Path) -> Path:
        """The file of the sealed segment."""
        return self._file(root, SEALED)

    def partial(self, root: Path) -> Path:
        """The file of the open segment."""
        return self._file(root, PARTIAL)

    def _file(self, root: Path, suffix: str) -> Path:
        # Twenty digits hold any 64-bit number, and sort by name as they do by value.
        return root / f"stream={self.stream_id}/epoch={self.epoch}/{self.first_seq:020}{suffix}"


def stream_dirs(root: Path) -> dict[int, Path]:
    """Stream id → its directory."""
    return _numbered_dirs(root, _STREAM)


def epoch_dirs(stream_dir: Path) -> dict[int, Path]:
    """Epoch → its directory."""
    return _numbered_dirs(stream_dir, _EPOCH)


def segments_in(epoch_dir: Path) -> dict[int, bool]:
    """First sequence → whether the segment is sealed. Other files are ignored."""
    segments: dict[int, bool] = {}
    for entry in epoch_dir.iterdir():
        if match := _SEGMENT.fullmatch(entry.name):
            first_seq = int(match[1])
            if first_seq < _U64:
                segments[first_seq] = segments.get(first_seq, False) or match[2] is None
    return dict(sorted(segments.items()))


def all_segments(root: Path) -> dict[SegmentName, bool]:
    """Every segment on disk → whether it is sealed."""
    return {
        SegmentName(stream_id, epoch, first_seq): is_sealed
        for stream_id, stream_dir in stream_dirs(root).items()
        for epoch, epoch_dir in epoch_dirs(stream_dir).items()
        for first_seq, is_sealed in segments_in(epoch_dir).items()
    }


def _numbered_dirs(parent: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    directories = {}
    try:
        entries = os.scandir(parent)
    except FileNotFoundError:
        return {}
    with entries:
        for entry in entries:
            match = pattern.fullmatch(entry.name)
            # `stream=007` and `stream=7` would be one stream with two directories: only the plain form is
            # accepted.
            if match and str(int(match[1])) == match[1] and int(match[1]) < _U64 and entry.is_dir():
                directories[int(match[1])] = Path(entry.path)
    return dict(sorted(directories.items()))


def signed(value: int) -> int:
    """An unsigned 64-bit number as the signed number with the same bits."""
    return value - _U64 if value >= _U64 >> 1 else value


def unsigned(value: int) -> int:
    """A signed 64-bit number as the unsigned number with the same bits."""
    return value % _U64


def create_root(root: Path, *, created_ns: int) -> None:
    """Creates the directory of a recording with its marker, unless it is one already."""
    if (root / MARKER_FILE).exists():
        check_root(root)
        return
    foreign = None
    if root.is_dir():
        foreign = next((path for path in root.iterdir() if not path.name.startswith(_OWN_NAMES)), None)
    if foreign is not None:
        raise NotARecording(
            f"{root} is neither empty nor a recording (it contains {foreign.name}); choose another directory",
            path=root,
        )
    with write_errors(root):
        # Private: the owner grants access by the mode or the group of this directory, for all files below.
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    JsonState(root / MARKER_FILE).save(
        {"format": _FORMAT, "version": VERSION, "minor": MINOR, "created_ns": created_ns}
    )


def check_root(root: Path) -> None:
    """Raises NotARecording unless the directory has a recording that this version can read."""
    state = JsonState(root / MARKER_FILE)
    try:
        marker: Any = state.load()
    except ValueError:
        if stream_dirs(root):
            return
        raise NotARecording(f"{state.path} is damaged", path=root) from None
    if marker is None and not state.path.exists():
        # The segments suffice: someone may have copied only them.
        if stream_dirs(root):
            return
        raise NotARecording(f"{root} contains no recording; `tensorpool record` creates one", path=root)
    version = marker.get("version") if isinstance(marker, dict) else None
    if not isinstance(version, int) or marker.get("format") != _FORMAT:
        raise NotARecording(f"{state.path} is not the marker of a recording", path=root)
    if version > VERSION:
        raise NotARecording(
            f"{root} has format version {version}, but this version reads up to {VERSION}; "
            "update the package",
            path=root,
        )


def lock_stream(directory: Path, holder: str) -> _native.FileLock:
    """Takes the writer lock of a stream's directory. LockHeld names the present holder."""
    try:
        return _native.FileLock(directory / WRITER_LOCK, f"process {os.getpid()} ({holder})")
    except LockHeld as error:
        raise LockHeld(
            f"{directory} is being written by {error.holder}; stop that process, or use another directory",
            holder=error.holder,
        ) from None
