"""Index of a metadata table: the location of the messages of each metadata version.

With it the attributes of a frame are found without reading the whole table.
`_tables/metadata/<session>.versions` has records of 64 bytes. The records of a batch are followed by a REACH
record: the position up to which the index is complete. Rows behind it are read from the table itself. So an
index that is torn, late or missing costs time and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from .. import _native
from ..durable import replace_file, write_all
from ..errors import CodecError
from ..sbe import DataSourceAnnounce, DataSourceMeta, decode
from . import layout

if TYPE_CHECKING:
    from .arrow_format import MessageTableRow

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
# Distance in the table after which a REACH record follows even if no row named a version (trace links).
_REACH_BYTES: Final = 64 << 10
Records = npt.NDArray[Any]


class IndexRecordKind(IntEnum):
    """The `kind` of an index record."""

    REACH = 1
    """Every version in the table up to `batch_end` is in the index."""
    ANNOUNCE = 2
    META = 3


def make_records(rows: Iterable[tuple[int, MessageTableRow]], start: int, end: int) -> Records:
    """Index records of the rows of a batch that name a version. `rows` are (row number, row)."""
    records: list[tuple[Any, ...]] = []
    epoch: int | None
    for number, row in rows:
        try:
            message = decode(row["message"]) if row["kind"] in KINDS else None
        except CodecError:
            continue
        if isinstance(message, DataSourceAnnounce):
            kind, epoch = IndexRecordKind.ANNOUNCE, message.epoch
        elif isinstance(message, DataSourceMeta):
            # The message names no epoch; the row does if the recorder knew it.
            kind, epoch = (
                IndexRecordKind.META,
                None if row["epoch"] is None else layout.unsigned(row["epoch"]),
            )
        else:
            continue
        records.append((
            kind, epoch is not None, 0, row["stream_id"] % (1 << 32), epoch or 0, message.meta_version,
            number, row["receive_time_ns"], start, end, 0, 0,
        ))  # fmt: skip
    return np.array(records, RECORD)


def _reach_record(end: int) -> Records:
    record = np.zeros(1, RECORD)
    record["kind"], record["batch_start"], record["batch_end"] = IndexRecordKind.REACH, end, end
    return record


def concatenate(parts: list[Records]) -> Records:
    """All records in one array. As opaque bytes: numpy would copy large record arrays field by field."""
    return np.concatenate([part.view(_OPAQUE) for part in parts]).view(RECORD)


def select(records: Records, mask: npt.NDArray[np.bool_]) -> Records:
    """The records under a mask, copied as opaque bytes."""
    return records.view(_OPAQUE)[mask].view(RECORD)


def _checksums(content: bytes | memoryview) -> npt.NDArray[np.uint32]:
    count = len(content) // RECORD.itemsize
    starts = np.arange(count, dtype=np.uint64) * np.uint64(RECORD.itemsize)
    return _native.crc32c_each(content, starts, np.full(count, RECORD.itemsize - 4, np.uint64))


def without_checksum(records: Records) -> Records:
    """A copy of records whose checksums are zero, to compare what they say."""
    plain = records.copy()
    plain["crc32c"] = 0
    return plain


def replace_index(table: Path, records: Records, end: int) -> None:
    """Writes the whole index of a table that ends at `end`."""
    whole = concatenate([records, _reach_record(end)])
    whole["crc32c"] = _checksums(whole.tobytes())
    replace_file(table.with_suffix(SUFFIX), whole.tobytes())


class MetadataIndexWriter:
    """Appends to the index of one table file. Records that cannot be written wait for the next call."""

    def __init__(self, table: Path) -> None:
        self._path = table.with_suffix(SUFFIX)
        self._fd: int | None = None
        self._end = 0
        self._reach = 0
        self._waiting: list[Records] = []

    def add(self, rows: Iterable[MessageTableRow], start: int, end: int) -> None:
        """Indexes a batch that was written to the table between two positions."""
        records = make_records(enumerate(rows), start, end)
        if len(records) or end - self._reach >= _REACH_BYTES:
            self._waiting += [records, _reach_record(end)]
            self._reach = end
        self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        records = concatenate(self._waiting)
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
            # No rows are lost: they are in the table. One array keeps the order of the waiting records.
            self._waiting = [records]
            return
        self._waiting.clear()

    def close(self, end: int) -> None:
        """Completes the index; `end` is the final size of the table."""
        if end > self._reach:
            self._waiting.append(_reach_record(end))
            self._write()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read_index(table: Path, offset: int) -> tuple[Records, int]:
    """The intact records of a table's index from an offset on, and the offset behind them."""
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
