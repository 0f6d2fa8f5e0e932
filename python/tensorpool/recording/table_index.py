"""Index of one writer's tables: how long each file is, and the checksum of its bytes.

A batch of a table has its own checksum. The index proves what the batches cannot: that none is missing at the
end, that no file is missing, and that the schema at the start was not changed. `_tables/<session>.tables` has
records of 64 bytes: one for the session, then two for each table, which are written in turns, so one of them
is intact at any time. They are written after a sync, so the index never claims bytes that are not on disk: a
table may be longer than its records say, never shorter.
"""

from __future__ import annotations

import os
import struct
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from .. import _native
from ..durable import replace_file
from . import layout

SUFFIX: Final = ".tables"
_FIELDS: Final = struct.Struct("<BB2xI16sQQ20x")
_CHECKSUM: Final = struct.Struct("<I")
RECORD_BYTES: Final = _FIELDS.size + _CHECKSUM.size
assert RECORD_BYTES == 64


class TableRecordKind(IntEnum):
    """The `kind` of an index record."""

    SESSION = 1
    """The first record. `content_crc32c` is the checksum of the session's name: a copy does not match."""
    TABLE = 2


class TableState(NamedTuple):
    """What the index says about a table's file: its first `size_bytes` bytes have this checksum."""

    size_bytes: int
    rows: int
    crc32c: int
    is_closed: bool = False
    """Whether the writer has ended the table: then the file has no further bytes."""


class SessionIndex(NamedTuple):
    """The index of a session as it was read."""

    tables: dict[str, TableState]
    fault: str | None
    """Why a part of the index is unreadable; None if it is intact."""


def index_path(root: Path, session: str) -> Path:
    """The index of a session."""
    return root / layout.TABLES_DIR / f"{session}{SUFFIX}"


def session_names(root: Path) -> list[str]:
    """The sessions that have an index, oldest first."""
    directory = root / layout.TABLES_DIR
    paths = directory.glob(f"*{SUFFIX}") if directory.is_dir() else ()
    return sorted(path.name.removesuffix(SUFFIX) for path in paths)


def _encode(kind: TableRecordKind, table: str, state: TableState) -> bytes:
    fields = _FIELDS.pack(
        kind, state.is_closed, state.crc32c, table.encode(), state.size_bytes, state.rows
    )  # fmt: skip
    return fields + _CHECKSUM.pack(_native.crc32c(fields))


def _session_record(session: str) -> bytes:
    return _encode(TableRecordKind.SESSION, "", TableState(0, 0, _native.crc32c(session.encode())))


def encode_index(session: str, tables: dict[str, TableState]) -> bytes:
    """The content of an index that was written at once, as a repair does."""
    records = [_encode(TableRecordKind.TABLE, table, state) * 2 for table, state in tables.items()]
    return b"".join([_session_record(session), *records])


def write_index(root: Path, session: str, tables: dict[str, TableState]) -> None:
    """Replaces the index of a session."""
    replace_file(index_path(root, session), encode_index(session, tables))


def _write_at(fd: int, content: bytes, offset: int) -> None:
    """Writes all bytes. A disk that is nearly full takes a part of them, and refuses the rest."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written


class TableIndexWriter:
    """Writes the index of one session. A failed write is repeated by the next call, with newer values."""

    def __init__(self, root: Path, session: str) -> None:
        self._session = session
        self._path = index_path(root, session)
        self._fd: int | None = None
        self._turns: dict[str, int] = {}
        """How often each table was written. Its order is the order of the records."""

    def open(self) -> None:
        """Creates the file, before the first table of the session: a table without an index lost it."""
        if self._fd is not None:
            return
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _write_at(self._fd, _session_record(self._session), 0)
        except OSError:
            os.close(self._fd)
            self._fd = None
            self._path.unlink(missing_ok=True)
            raise

    def write(self, tables: dict[str, TableState]) -> bool:
        """Writes what tables have now. False if that failed: the index is then behind, which is no damage."""
        if self._fd is None:
            return not tables
        for table, state in tables.items():
            turn = self._turns.setdefault(table, 0)
            content = _encode(TableRecordKind.TABLE, table, state)
            first = (1 + 2 * list(self._turns).index(table)) * RECORD_BYTES
            try:
                if turn == 0:
                    _write_at(self._fd, content * 2, first)
                else:
                    _write_at(self._fd, content, first + turn % 2 * RECORD_BYTES)
            except OSError:
                return False
            self._turns[table] = turn + 1
        return True

    def close(self) -> None:
        """Closes the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read_session(root: Path, session: str) -> SessionIndex | None:
    """The index of a session; None if it has no file."""
    try:
        content = index_path(root, session).read_bytes()
    except FileNotFoundError:
        return None
    fault = "ends with a part of a record" if len(content) % RECORD_BYTES else None
    count = len(content) // RECORD_BYTES
    if not count:
        return SessionIndex({}, "is empty")
    tables: dict[str, TableState] = {}
    for number in range(count):
        at = number * RECORD_BYTES
        kind, is_closed, crc32c, name, size, rows = _FIELDS.unpack_from(content, at)
        (checksum,) = _CHECKSUM.unpack_from(content, at + _FIELDS.size)
        if _native.crc32c(content[at : at + _FIELDS.size]) != checksum:
            fault = f"was changed in record {number}"
        elif number == 0:
            if crc32c != _native.crc32c(session.encode()):
                return SessionIndex({}, "belongs to another session")
        elif kind == TableRecordKind.TABLE:
            state = TableState(size, rows, crc32c, bool(is_closed))
            table = name.rstrip(b"\0").decode("ascii", "replace")
            tables[table] = max(state, tables.get(table, state))
    if count != 1 + 2 * len(tables):
        fault = fault or "has lost records"
    return SessionIndex(tables, fault)
