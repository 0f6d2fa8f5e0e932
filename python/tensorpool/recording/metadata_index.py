"""Where a table of messages says what of which metadata version: an index beside it, so that a frame's
attributes are found without reading all that was ever said.

`_tables/metadata/<session>.versions` has records of 64 bytes. Those of a batch are followed by one that says
how far the index reaches: what lies behind in the table is read from the table itself. So an index that is
torn, late or missing costs time and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .. import _native
from ..durable import write_all
from ..errors import CodecError
from ..sbe import DataSourceAnnounce, DataSourceMeta, decode
from . import layout

INDEXED: Final = "metadata"
"""The table that has an index."""
SUFFIX: Final = ".versions"
KINDS: Final = ("DataSourceAnnounce", "DataSourceMeta")
RECORD: Final = np.dtype(
    [
        ("kind", "u1"),
        ("has_epoch", "u1"),
        ("reserved1", "u1", (2,)),
        ("stream_id", "<u4"),
        ("epoch", "<u8"),
        ("meta_version", "<u4"),
        ("row", "<u4"),
        ("receive_time_ns", "<i8"),
        ("batch_start", "<u8"),
        ("batch_end", "<u8"),
        ("reserved2", "u1", (12,)),
        ("crc32c", "<u4"),
    ]
)
assert RECORD.itemsize == 64
_OPAQUE: Final = np.dtype(f"V{RECORD.itemsize}")
# Between two records of how far it reaches there may be so much that names no version: links of traces.
_REACH_BYTES: Final = 64 << 10
Records = npt.NDArray[Any]
Row = Mapping[str, Any]


class Kind(IntEnum):
    REACH = 1
    """Every version in the table up to `batch_end` is in the index."""
    ANNOUNCE = 2
    META = 3


def records_of(rows: Iterable[tuple[int, Row]], start: int, end: int) -> Records:
    """Records of a batch's rows, each with its number, that say something of a version."""
    found: list[tuple[Any, ...]] = []
    epoch: int | None
    for number, row in rows:
        try:
            message = decode(row["message"]) if row["kind"] in KINDS else None
        except CodecError:
            continue
        if isinstance(message, DataSourceAnnounce):
            kind, epoch = Kind.ANNOUNCE, message.epoch
        elif isinstance(message, DataSourceMeta):
            # It names no epoch: only the recorder may have known.
            kind, epoch = Kind.META, None if row["epoch"] is None else layout.unsigned(row["epoch"])
        else:
            continue
        found.append((
            kind, epoch is not None, 0, row["stream_id"] % (1 << 32), epoch or 0, message.meta_version,
            number, row["receive_time_ns"], start, end, 0, 0,
        ))  # fmt: skip
    return np.array(found, RECORD)


def _reach(end: int) -> Records:
    made = np.zeros(1, RECORD)
    made["kind"], made["batch_start"], made["batch_end"] = Kind.REACH, end, end
    return made


def joined(parts: list[Records]) -> Records:
    """As one array. NumPy would go through records field by field, and these are many."""
    return np.concatenate([part.view(_OPAQUE) for part in parts]).view(RECORD)


def chosen(records: Records, which: npt.NDArray[np.bool_]) -> Records:
    """Some of them, without a look at their fields."""
    return records.view(_OPAQUE)[which].view(RECORD)


def _checksums(content: bytes | memoryview) -> npt.NDArray[np.uint32]:
    count = len(content) // RECORD.itemsize
    starts = np.arange(count, dtype=np.uint64) * np.uint64(RECORD.itemsize)
    return _native.crc32c_each(content, starts, np.full(count, RECORD.itemsize - 4, np.uint64))


class MetadataIndexWriter:
    """Appends to the index of one table file. What cannot be written now waits for the next time."""

    def __init__(self, table: Path) -> None:
        self._path = table.with_suffix(SUFFIX)
        self._fd: int | None = None
        self._end = 0
        self._reach = 0
        self._waiting: list[Records] = []

    def add(self, rows: Iterable[Row], start: int, end: int) -> None:
        """A batch with these rows was written to the table."""
        records = records_of(enumerate(rows), start, end)
        if len(records) or end - self._reach >= _REACH_BYTES:
            self._waiting += [records, _reach(end)]
            self._reach = end
        self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        records = joined(self._waiting)
        records["crc32c"] = _checksums(records.tobytes())
        try:
            if self._fd is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._fd = os.open(self._path, flags, 0o644)
            try:
                self._end += write_all(self._fd, [memoryview(records.tobytes())])
            except OSError:
                os.ftruncate(self._fd, self._end)
                raise
        except OSError:
            # The rows are in the table all the same. Joined, so that what waits does not fall apart.
            self._waiting = [records]
            return
        self._waiting.clear()

    def close(self, end: int) -> None:
        """The table ends there."""
        if end > self._reach:
            self._waiting.append(_reach(end))
            self._write()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read_index(table: Path, offset: int) -> tuple[Records, int]:
    """The sound records of a table's index from a place on, and the place behind them."""
    try:
        with table.with_suffix(SUFFIX).open("rb", buffering=0) as file:
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return np.empty(0, RECORD), offset
    records = np.frombuffer(content, RECORD, len(content) // RECORD.itemsize)
    wrong = np.flatnonzero(_checksums(content) != records["crc32c"])
    if len(wrong):
        records = records[: wrong[0]]
    return records, offset + len(records) * RECORD.itemsize
