"""Tables of a recording: gaps, clock anchors, marks, and messages about the streams.

Each writer has its own file per table, `_tables/<table>/<session>.arrows`, and only appends to it. Readers
leave out a torn end, and refuse a file that lost more than that: see `table_index`. Gaps are part of the
ledger, so every file of gaps has a second copy.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple, cast

import pyarrow as pa

from .. import _native
from ..durable import make_directories, sync_directory, write_all, write_errors
from ..errors import CorruptRecording, WriteFailed
from ..text import parse_number
from . import arrow_format, layout, table_index
from .arrow_format import TABLES, MessageTableRow, TableRow, with_version
from .gaps import Gap
from .metadata_index import INDEXED, MetadataIndexWriter
from .table_index import TableIndexWriter, TableState

# More than the schema of any table needs.
_MAX_SCHEMA_BYTES: Final = 1 << 16
_GAP_COLUMNS: Final = ("stream_id", "epoch", "first_seq", "count", "reason")
COPIED: Final = "gaps"
"""The table of which every file has a second copy."""
COPY_SUFFIX: Final = ".copy"


class LocatedBatch(NamedTuple):
    """A batch of a table with its start and end in the file."""

    batch: pa.RecordBatch
    start: int
    end: int


class _OpenFile(NamedTuple):
    """Descriptors of a table's file and of its copy, and what is in them up to the last complete batch."""

    fds: tuple[int, ...]
    state: TableState

    def write(self, content: bytes, rows: int = 0, *, is_closed: bool = False) -> _OpenFile:
        """Appends to every file, or to none."""
        try:
            for fd in self.fds:
                write_all(fd, [memoryview(content)])
        except OSError:
            for fd in self.fds:
                os.ftruncate(fd, self.state.size_bytes)
            raise
        size, known_rows, crc32c, _ = self.state
        state = TableState(size + len(content), known_rows + rows, _native.crc32c(content, crc32c), is_closed)
        return _OpenFile(self.fds, state)


class TableWriter:
    """Appends rows to tables. Rows wait in memory until `flush`. Not thread-safe, except for `sync`."""

    def __init__(self, root: Path, session: str) -> None:
        self._root = root
        self._session = session
        self._waiting: defaultdict[str, list[TableRow]] = defaultdict(list)
        self._files: dict[str, _OpenFile] = {}
        self._dirty: set[str] = set()
        self._directories_to_sync: list[Path] = []
        self._index: MetadataIndexWriter | None = None
        self._table_index = TableIndexWriter(root, session)

    def add(self, table: str, row: TableRow) -> None:
        """Adds a row to the waiting rows of a table."""
        self._waiting[table].append(row)

    def add_gap(self, gap: Gap, time_ns: int) -> None:
        """Adds a row to the table of gaps."""
        self.add(
            "gaps",
            {
                "time_ns": time_ns,
                "stream_id": gap.stream_id,
                "epoch": layout.signed(gap.epoch),
                "first_seq": layout.signed(gap.first_seq),
                "count": layout.signed(gap.count),
                "reason": gap.reason,
            },
        )

    def has_waiting(self, table: str) -> bool:
        """Whether rows of a table are not written yet."""
        return bool(self._waiting.get(table))

    def discard(self, tables: Collection[str]) -> int:
        """Forgets the waiting rows of tables; returns their number."""
        count = sum(len(self._waiting.get(table, ())) for table in tables)
        for table in tables:
            self._waiting.pop(table, None)
        return count

    def flush(self, *, skip: Collection[str] = ()) -> None:
        """Writes the waiting rows, except of the tables in `skip`. After an error they are still waiting."""
        for table, rows in self._waiting.items():
            if not rows or table in skip:
                continue
            batch = pa.RecordBatch.from_pylist(rows, schema=_schema(table, self._session))
            path = self.path(table)
            with write_errors(path):
                file = self._file(table, path)
                start = file.state.size_bytes
                file = file.write(arrow_format.batch_message(batch), len(rows))
            self._files[table] = file
            self._dirty.add(table)
            if table == INDEXED:
                self._index = self._index or MetadataIndexWriter(path)
                self._index.add(cast("list[MessageTableRow]", rows), start, file.state.size_bytes)
            rows.clear()

    def path(self, table: str) -> Path:
        """This writer's file of a table."""
        return table_path(self._root, table, self._session)

    def _file(self, table: str, path: Path) -> _OpenFile:
        if table not in self._files:
            self._directories_to_sync += [path.parent, *make_directories(path.parent, above=self._root)]
            self._table_index.open()
            paths = [path, path.with_suffix(COPY_SUFFIX)] if table == COPIED else [path]
            fds: list[int] = []
            try:
                for part in paths:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                    fds.append(os.open(part, flags, 0o644))
                empty = _OpenFile(tuple(fds), TableState(0, 0, 0))
                self._files[table] = empty.write(arrow_format.schema_message(_schema(table, self._session)))
            except OSError:
                for fd, part in zip(fds, paths, strict=False):
                    os.close(fd)
                    part.unlink(missing_ok=True)
                raise
        return self._files[table]

    def sync(self) -> None:
        """Makes flushed rows durable. May run in another thread: rows flushed meanwhile stay dirty."""
        synced = {}
        for table in list(self._dirty):
            self._dirty.discard(table)
            file = self._files[table]
            try:
                with write_errors(self.path(table)):
                    for fd in file.fds:
                        os.fdatasync(fd)
            except WriteFailed:
                self._dirty.add(table)
                raise
            synced[table] = file.state
        while self._directories_to_sync:
            # Taken out before the sync: `flush` may add a directory meanwhile, which then has to be synced.
            directory = self._directories_to_sync.pop()
            try:
                sync_directory(directory)
            except BaseException:
                self._directories_to_sync.append(directory)
                raise
        if not self._table_index.write(synced):
            # Tried again at the next sync.
            self._dirty.update(synced)

    def close(self) -> None:
        """Writes the waiting rows and ends the files."""
        try:
            self.flush()
            for table, file in self._files.items():
                with write_errors(self.path(table)):
                    self._files[table] = file.write(arrow_format.END_OF_STREAM, is_closed=True)
                    self._dirty.add(table)
            self.sync()
        finally:
            if self._index is not None:
                file = self._files[INDEXED]
                end = file.state.size_bytes
                self._index.close(end - len(arrow_format.END_OF_STREAM) if file.state.is_closed else end)
            for file in self._files.values():
                for fd in file.fds:
                    os.close(fd)
            self._files.clear()
            self._table_index.close()


def _schema(table: str, session: str) -> pa.Schema:
    return with_version(TABLES[table], session=session)


def table_path(root: Path, table: str, session: str) -> Path:
    """The file of a session's table."""
    return root / layout.TABLES_DIR / table / f"{session}{layout.SEALED}"


def table_head(table: str, session: str) -> bytes:
    """The bytes at the start of a table's file."""
    return arrow_format.schema_message(_schema(table, session))


def table_sessions(root: Path, table: str) -> list[str]:
    """The sessions that have a file of this table, by the files or by an index, oldest first."""
    directory = root / layout.TABLES_DIR / table
    names = {path.stem for path in directory.glob(f"*{layout.SEALED}")} if directory.is_dir() else set()
    for session in table_index.session_names(root):
        index = table_index.read_session(root, session)
        if index is not None and table in index.tables:
            names.add(session)
    return sorted(names)


def read_session_table(root: Path, table: str, session: str) -> TableScan | None:
    """The rows of one writer's table; None if the file is not of this session. Raises CorruptRecording.

    The copy is read if the file itself is damaged.
    """
    index = table_index.read_session(root, session)
    state = index.tables.get(table) if index is not None else None
    path = table_path(root, table, session)
    fault: str | None = "is missing"
    for candidate in (path, path.with_suffix(COPY_SUFFIX)) if table == COPIED else (path,):
        try:
            scan = scan_table(candidate.read_bytes())
        except FileNotFoundError:
            continue
        if scan.session not in (None, session):
            # A copy of another session's file: its rows are read there.
            if state is None:
                return None
            fault = f"belongs to session {scan.session}"
            continue
        fault = scan.fault(state)
        if fault is None:
            return scan
    if fault == "is missing" and state is None:
        return None
    raise CorruptRecording(
        f"{path} {fault}; `tensorpool recording repair` keeps the undamaged rows", path=path, offset=None
    )


def read_table(root: Path, table: str) -> pa.Table:
    """All rows of a table, from the oldest session to the newest. CorruptRecording if rows are lost."""
    if table not in TABLES:
        raise KeyError(f"there is no table {table!r}; the tables are {', '.join(TABLES)}")
    schema = TABLES[table]
    batches: list[pa.RecordBatch] = []
    for session in table_sessions(root, table):
        scan = read_session_table(root, table, session)
        for batch, _, _ in scan.located if scan is not None else ():
            # The file of a newer writer may have more columns: read the known ones.
            if set(schema.names) <= set(batch.schema.names):
                batches.append(batch.select(schema.names).cast(schema))
    return pa.Table.from_batches(batches, schema=schema)


def read_gaps(root: Path, stream_id: int, epoch: int | None = None) -> list[Gap]:
    """The gaps of a stream that writers declared or noticed, in that order."""
    return [gap for gap in read_all_gaps(root) if gap.stream_id == stream_id and epoch in (None, gap.epoch)]


def read_all_gaps(root: Path) -> list[Gap]:
    """The gaps of all streams that writers declared or noticed, in that order."""
    columns = read_table(root, "gaps").to_pydict()
    gaps = [
        Gap(stream_id, layout.unsigned(epoch), layout.unsigned(first), layout.unsigned(count), reason)
        for stream_id, epoch, first, count, reason in zip(
            *(columns[name] for name in _GAP_COLUMNS), strict=True
        )
    ]
    return [gap for gap in gaps if gap.count > 0]


def read_batches(path: Path, offset: int) -> tuple[list[pa.RecordBatch], int]:
    """The complete batches of one writer's file from an offset on, and the offset behind them.

    `offset` is 0 or the result of an earlier call. Raises CorruptRecording if batches were lost.
    """
    located = located_batches(path, offset)
    return [batch for batch, _, _ in located], located[-1].end if located else offset


def located_batches(path: Path, offset: int) -> list[LocatedBatch]:
    """The complete batches from an offset on with their positions; none if there is no file."""
    # Before the file: a table only grows, so an intact one has at least what its index contained before.
    root, session = path.parents[2], path.stem
    index = table_index.read_session(root, session)
    state = index.tables.get(path.parent.name) if index is not None else None
    try:
        with path.open("rb") as file:
            start = file.read(_MAX_SCHEMA_BYTES)
            file.seek(offset)
            scan = scan_table(file.read(), offset=offset, file_start=start)
    except FileNotFoundError:
        if state is None:
            return []
        scan = scan_table(b"")
    if scan.session not in (None, session):
        return []
    if scan.damage or (state is not None and scan.end < state.size_bytes):
        fault = scan.damage[0] if scan.damage else f"ends at byte {scan.end} of {state and state.size_bytes}"
        raise CorruptRecording(
            f"{path} {fault}; `tensorpool recording repair` keeps the undamaged rows", path=path, offset=None
        )
    return scan.located


def read_batch(path: Path, start: int, end: int) -> pa.RecordBatch | None:
    """The batch at exactly this position; None if there is none."""
    try:
        with path.open("rb") as file:
            head = file.read(_MAX_SCHEMA_BYTES)
            file.seek(start)
            located = scan_table(file.read(end - start), offset=start, file_start=head).located
    except FileNotFoundError:
        return None
    if not located or (located[0].start, located[0].end) != (start, end):
        return None
    return located[0].batch


class TableScan(NamedTuple):
    """The complete batches of a table's file, or of its end, and what is wrong with the rest."""

    located: list[LocatedBatch]
    damage: list[str]
    """Ranges that hold no batch although a batch or the end mark follows."""
    end: int
    """The position behind the last batch, or behind the end mark."""
    is_ended: bool
    """Whether the scan reached the end mark."""
    size_bytes: int
    session: str | None
    """The session in the schema; None for a file of an old version."""
    minor: int
    content: bytes

    @property
    def rows(self) -> int:
        """Rows of all complete batches."""
        return sum(located.batch.num_rows for located in self.located)

    def fault(self, state: TableState | None) -> str | None:
        """Why rows of the file are lost or changed; None if it is intact. For a scan of a whole file."""
        if state is not None:
            if self.size_bytes < state.size_bytes:
                return f"has {self.size_bytes} of {state.size_bytes} bytes"
            if _native.crc32c(self.content[: state.size_bytes]) != state.crc32c:
                return self.damage[0] if self.damage else "was changed: its checksum does not match"
        return self.damage[0] if self.damage else None


def scan_table(content: bytes, *, offset: int = 0, file_start: bytes | None = None) -> TableScan:
    """The batches in `content`, which begins at `offset` of a file that begins with `file_start`."""
    head = content if file_start is None else file_start
    schema_end = arrow_format.PREFIX_BYTES + (arrow_format.read_prefix(memoryview(head), 0) or 0)
    located: list[LocatedBatch] = []
    damage: list[str] = []
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(memoryview(head)[:schema_end]))
    except (pa.ArrowException, OSError, ValueError):
        # The writer may not have written it yet: then nothing follows.
        found = ["has a damaged schema"] if len(head) > schema_end else []
        return TableScan([], found, 0, False, offset + len(content), None, 0, content)
    data = memoryview(content)
    at = 0 if offset else schema_end
    is_ended = False
    while at < len(data):
        batch = _batch_at(data, at, schema)
        if batch is not None:
            located.append(LocatedBatch(batch.batch, offset + at, offset + batch.end))
            at = batch.end
        elif data[at : at + len(arrow_format.END_OF_STREAM)] == arrow_format.END_OF_STREAM:
            at += len(arrow_format.END_OF_STREAM)
            is_ended = True
            if at < len(data):
                damage.append(f"has {len(data) - at} bytes behind its end")
            break
        else:
            following = _find_batch(data, at, schema)
            if following is None:
                # A torn end. The index shows whether a crash left it.
                break
            damage.append(f"was changed between bytes {offset + at} and {offset + following}")
            at = following
    metadata = schema.metadata or {}
    minor = metadata.get(layout.MINOR_KEY, b"0")
    session = metadata.get(layout.SESSION_KEY)
    return TableScan(
        located, damage, offset + at, is_ended, offset + len(content),
        None if session is None else session.decode(errors="replace"),
        parse_number(minor) or 0, content,
    )  # fmt: skip


class _ReadBatch(NamedTuple):
    batch: pa.RecordBatch
    end: int


def _batch_at(data: memoryview, at: int, schema: pa.Schema) -> _ReadBatch | None:
    size = arrow_format.read_prefix(data, at)
    if not size:
        return None
    body = at + arrow_format.PREFIX_BYTES + size
    metadata = data[at + arrow_format.PREFIX_BYTES : body]
    try:
        offsets = arrow_format.find_offsets(metadata)
        end = body + offsets.body_bytes
        if end > len(data):
            return None
        arrow_format.verify_checksum(metadata, offsets.check_at, data[body:end])
        message = pa.ipc.read_message(pa.BufferReader(pa.py_buffer(data[at:end])))
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (arrow_format.InvalidMessage, pa.ArrowException, OSError):
        return None
    return _ReadBatch(batch, end)


def _find_batch(data: memoryview, at: int, schema: pa.Schema) -> int | None:
    """Position of the next intact batch, or of an end mark at the very end; None if there is none."""
    start = at
    content = data.obj if isinstance(data.obj, bytes) else bytes(data)
    while (start := content.find(arrow_format.CONTINUATION, start + 1)) >= 0:
        is_end_mark = content[start:] == arrow_format.END_OF_STREAM
        if is_end_mark or _batch_at(data, start, schema) is not None:
            return start
    return None
