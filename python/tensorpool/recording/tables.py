"""Tables of a recording: gaps, clock anchors, marks, and messages about the streams.

Each writer has its own file per table, `_tables/<table>/<session>.arrows`, and only appends to it. Readers
leave out a torn end.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from ..durable import make_directories, sync_directory, write_all, write_errors
from ..errors import WriteFailed
from . import arrow_format, layout
from .arrow_format import TABLES, TableRow, with_version
from .gaps import Gap
from .metadata_index import INDEXED, MetadataIndexWriter

# More than the schema of any table needs.
_MAX_SCHEMA_BYTES: Final = 1 << 16
_GAP_COLUMNS: Final = ("stream_id", "epoch", "first_seq", "count", "reason")


class LocatedBatch(NamedTuple):
    """A batch of a table with its start and end in the file."""

    batch: pa.RecordBatch
    start: int
    end: int


class _OpenFile(NamedTuple):
    """Descriptor of a table's file, and its size up to the last complete batch."""

    fd: int
    end: int


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

    def flush(self) -> None:
        """Writes the waiting rows. After an error they are still waiting."""
        for table, rows in self._waiting.items():
            if not rows:
                continue
            batch = pa.RecordBatch.from_pylist(rows, schema=with_version(TABLES[table]))
            path = self.path(table)
            with write_errors(path):
                fd, end = self._file(table, path)
                try:
                    written = write_all(fd, [memoryview(arrow_format.batch_message(batch))])
                except OSError:
                    os.ftruncate(fd, end)
                    raise
            self._files[table] = _OpenFile(fd, end + written)
            self._dirty.add(table)
            if table == INDEXED:
                self._index = self._index or MetadataIndexWriter(path)
                self._index.add(rows, end, end + written)
            rows.clear()

    def path(self, table: str) -> Path:
        """This writer's file of a table."""
        return self._root / layout.TABLES_DIR / table / f"{self._session}{layout.SEALED}"

    def _file(self, table: str, path: Path) -> _OpenFile:
        if table not in self._files:
            self._directories_to_sync += [path.parent, *make_directories(path.parent, above=self._root)]
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                end = write_all(fd, [memoryview(arrow_format.schema_message(with_version(TABLES[table])))])
            except OSError:
                os.close(fd)
                path.unlink(missing_ok=True)
                raise
            self._files[table] = _OpenFile(fd, end)
        return self._files[table]

    def sync(self) -> None:
        """Makes flushed rows durable. May run in another thread: rows flushed meanwhile stay dirty."""
        for table in list(self._dirty):
            self._dirty.discard(table)
            try:
                with write_errors(self.path(table)):
                    os.fdatasync(self._files[table].fd)
            except WriteFailed:
                self._dirty.add(table)
                raise
        while self._directories_to_sync:
            # Taken out before the sync: `flush` may add a directory meanwhile, which then has to be synced.
            directory = self._directories_to_sync.pop()
            try:
                sync_directory(directory)
            except BaseException:
                self._directories_to_sync.append(directory)
                raise

    def close(self) -> None:
        """Writes the waiting rows and ends the files."""
        try:
            self.flush()
            for table, (fd, _) in self._files.items():
                with write_errors(self.path(table)):
                    write_all(fd, [memoryview(arrow_format.END_OF_STREAM)])
            self.sync()
        finally:
            if self._index is not None:
                self._index.close(self._files[INDEXED].end)
            for fd, _ in self._files.values():
                os.close(fd)
            self._files.clear()


def read_table(root: Path, table: str) -> pa.Table:
    """All rows of a table, from the oldest session to the newest."""
    if table not in TABLES:
        raise KeyError(f"there is no table {table!r}; the tables are {', '.join(TABLES)}")
    schema = TABLES[table]
    batches: list[pa.RecordBatch] = []
    directory = root / layout.TABLES_DIR / table
    for path in sorted(directory.glob(f"*{layout.SEALED}")) if directory.is_dir() else ():
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        for batch, _, _ in _read_located(content, content, 0):
            # The file of a newer writer may have more columns: read the known ones.
            if set(schema.names) <= set(batch.schema.names):
                batches.append(batch.select(schema.names).cast(schema))
    return pa.Table.from_batches(batches, schema=schema)


def read_gaps(root: Path, stream_id: int, epoch: int | None = None) -> list[Gap]:
    """The gaps of a stream that writers declared or noticed, in that order."""
    columns = read_table(root, "gaps").to_pydict()
    gaps = [
        Gap(gap_stream, layout.unsigned(of), layout.unsigned(first), layout.unsigned(count), reason)
        for gap_stream, of, first, count, reason in zip(
            *(columns[name] for name in _GAP_COLUMNS), strict=True
        )
        if gap_stream == stream_id
    ]
    return [gap for gap in gaps if gap.count > 0 and epoch in (None, gap.epoch)]


def read_batches(path: Path, offset: int) -> tuple[list[pa.RecordBatch], int]:
    """The complete batches of one writer's file from an offset on, and the offset behind them.

    `offset` is 0 or the result of an earlier call.
    """
    with path.open("rb") as file:
        schema = file.read(_MAX_SCHEMA_BYTES)
        file.seek(offset)
        located = list(_read_located(schema, file.read(), offset))
    return [batch for batch, _, _ in located], located[-1].end if located else offset


def located_batches(path: Path, offset: int, end: int = -1) -> list[LocatedBatch]:
    """The complete batches between two offsets with their positions; none if there is no file."""
    try:
        with path.open("rb") as file:
            schema = file.read(_MAX_SCHEMA_BYTES)
            file.seek(offset)
            return list(_read_located(schema, file.read(end if end < 0 else end - offset), offset))
    except FileNotFoundError:
        return []


def read_batch(path: Path, start: int, end: int) -> pa.RecordBatch | None:
    """The batch at exactly this position; None if there is none."""
    located = located_batches(path, start, end)
    if not located or (located[0].start, located[0].end) != (start, end):
        return None
    return located[0].batch


def _read_located(file_start: bytes, content: bytes, offset: int) -> Iterator[LocatedBatch]:
    """The complete batches in `content`, which begins at `offset`. `file_start` has the schema."""
    schema_end = arrow_format.PREFIX_BYTES + (arrow_format.read_prefix(memoryview(file_start), 0) or 0)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(memoryview(file_start)[:schema_end]))
    except (pa.ArrowException, OSError):
        return
    data = memoryview(content)
    at = 0 if offset else schema_end
    while size := arrow_format.read_prefix(data, at):
        body = at + arrow_format.PREFIX_BYTES + size
        metadata = data[at + arrow_format.PREFIX_BYTES : body]
        try:
            offsets = arrow_format.find_offsets(metadata)
            end = body + offsets.body_bytes
            if end > len(data):
                break
            arrow_format.verify_checksum(metadata, offsets.check_at, data[body:end])
            message = pa.ipc.read_message(pa.BufferReader(pa.py_buffer(data[at:end])))
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
        except (arrow_format.InvalidMessage, pa.ArrowException, OSError):
            break
        yield LocatedBatch(batch, offset + at, offset + end)
        at = end
