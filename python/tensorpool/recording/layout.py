"""Directory layout of a recording: file names, format version, the root marker and the stream locks.

`docs/reference/recording-format.md` describes the format and what it promises to old readers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .. import _native
from ..durable import replace_file, write_errors
from ..errors import LockHeld, NotARecording

VERSION: Final = 1
"""Format version. It increases when an old reader would misread the files."""
MINOR: Final = 3
"""Minor version. It increases when columns, tables or keys are added that old readers can ignore."""

ALIGNMENT: Final = 64
"""Payloads, and all buffers of a batch, begin at a multiple of this in the file."""
MAX_PAYLOAD_BYTES: Final = 2**31 - 2 * ALIGNMENT
"""Limit of 32-bit offsets within a batch, which Spark requires."""

SEALED: Final = ".arrows"
PARTIAL: Final = ".arrows.partial"
INDEX: Final = ".index"
MARKER_FILE: Final = "recording.json"
MANIFEST_FILE: Final = "_manifest"
MANIFEST_LOCK: Final = "_manifest.lock"
MANIFEST_COUNT: Final = "_manifest.count"
TABLES_DIR: Final = "_tables"
LEASES_DIR: Final = "_leases"
DAMAGED_DIR: Final = "_damaged"
WRITER_LOCK: Final = "_writer.lock"

VERSION_KEY: Final = b"tensorpool.recording.version"
MINOR_KEY: Final = b"tensorpool.recording.minor"
STREAM_KEY: Final = b"tensorpool.recording.stream_id"
EPOCH_KEY: Final = b"tensorpool.recording.epoch"
SESSION_KEY: Final = b"tensorpool.recording.session"
CHECK_KEY: Final = b"tensorpool.check"

_STREAM = re.compile(r"stream=(\d+)", re.ASCII)
_EPOCH = re.compile(r"epoch=(\d+)", re.ASCII)
_SEGMENT = re.compile(r"(\d{20})\.arrows(\.partial)?", re.ASCII)
_FORMAT: Final = "tensorpool-recording"
_CHECKSUM: Final = "crc32c"
INDEXED_MINOR: Final = 3
"""The minor version that added the index of segments."""
_CHECKED_MINOR: Final = 2
"""The minor version that added the checksum of the marker."""
_OWN_NAMES: Final = ("stream=", "_manifest", "_tables", "_leases", "_damaged", "_archive", "recording.json")
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

    def index(self, root: Path) -> Path:
        """The index of the sealed segment."""
        return self._file(root, INDEX)

    def relative(self, suffix: str = SEALED) -> str:
        """The path of the sealed segment below any root, as in the keys of an object store."""
        return f"stream={self.stream_id}/epoch={self.epoch}/{self.first_seq:020}{suffix}"

    def _file(self, root: Path, suffix: str) -> Path:
        # Twenty digits hold any 64-bit number, and sort by name as they do by value.
        return root / self.relative(suffix)


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


def is_segment_file(name: str) -> bool:
    """Whether a file of this name is a segment."""
    return _SEGMENT.fullmatch(name) is not None


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


def encode_marker(created_ns: int) -> bytes:
    """The content of `recording.json`. The last key is the checksum of the others."""
    marker = {
        "format": _FORMAT, "version": VERSION, "minor": MINOR, "created_ns": created_ns,
    }  # fmt: skip
    return json.dumps(marker | {_CHECKSUM: _marker_checksum(marker)}).encode() + b"\n"


def _marker_checksum(marker: Mapping[str, object]) -> str:
    return f"{_native.crc32c(json.dumps(marker).encode()):08x}"


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
    write_marker(root, created_ns=created_ns)


def write_marker(root: Path, *, created_ns: int) -> None:
    """Replaces the marker of a recording."""
    path = root / MARKER_FILE
    with write_errors(path):
        replace_file(path, encode_marker(created_ns))


def marker_fault(root: Path) -> str | None:
    """Why the marker is damaged; None if it is intact, or of a version that had no checksum."""
    try:
        content = (root / MARKER_FILE).read_bytes()
    except FileNotFoundError:
        return "is missing"
    return _marker_fault(content)


def _marker_fault(content: bytes) -> str | None:
    try:
        marker: Any = json.loads(content)
    except ValueError:
        return "is damaged"
    if not isinstance(marker, dict):
        return "is not the marker of a recording"
    claimed = marker.pop(_CHECKSUM, None)
    if claimed is None:
        minor = marker.get("minor", 0)
        is_old = isinstance(minor, int) and minor < _CHECKED_MINOR and marker.get("format") == _FORMAT
        return None if is_old else "has no checksum"
    if claimed != _marker_checksum(marker):
        return "was changed: its checksum does not match"
    # Byte by byte: spaces and what follows the value are not in the checksum.
    if content != json.dumps(marker | {_CHECKSUM: claimed}).encode() + b"\n":
        return "was changed: bytes were added or removed"
    return None


def check_root(root: Path) -> None:
    """Raises NotARecording unless the directory has a recording that this version can read.

    The segments are enough: a user may have copied only them, and a damaged marker loses nothing.
    """
    path = root / MARKER_FILE
    try:
        content = path.read_bytes()
    except NotADirectoryError:
        raise NotARecording(
            f"{root} is a file, and a recording is a directory; name that directory",
            path=root,
        ) from None
    except FileNotFoundError:
        if stream_dirs(root):
            return
        raise NotARecording(
            f"{root} contains no recording; `tensorpool record` creates one", path=root
        ) from None
    if fault := _marker_fault(content):
        if stream_dirs(root):
            return
        raise NotARecording(f"{path} {fault}", path=root)
    marker = json.loads(content)
    version = marker.get("version")
    if not isinstance(version, int) or marker.get("format") != _FORMAT:
        raise NotARecording(f"{path} is not the marker of a recording", path=root)
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
