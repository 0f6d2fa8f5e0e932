"""The tables beside the frames: gaps, clock anchors, marks, and messages about the streams.

Each writer has a file of its own per table, `_tables/<table>/<session>.arrows`, and only ever appends. A
torn end is left out when read.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ..durable import make_directories, sync_directory, write_all, write_errors
from ..errors import WriteFailed
from . import arrow_format, layout
from .arrow_format import TABLES, versioned
from .gaps import Gap
from .metadata_index import INDEXED, MetadataIndexWriter

_HEAD_BYTES: Final = 1 << 16
"""More than a table's schema takes."""


class TableWriter:
    """Appends rows to tables. Rows wait in memory until `flush`. One thread at a time."""

    def __init__(self, root: Path, session: str) -> None:
        self._root = root
        self._session = session
        self._waiting: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self._files: dict[str, tuple[int, int]] = {}
        self._dirty: set[str] = set()
        self._names_to_sync: list[Path] = []
        self._index: MetadataIndexWriter | None = None

    def add(self, table: str, row: dict[str, Any]) -> None:
        self._waiting[table].append(row)

    def waits(self, table: str) -> bool:
        """Whether rows of that table are not written yet."""
        return bool(self._waiting.get(table))

    def flush(self) -> None:
        """Writes what waits; on an error it goes on waiting."""
        for table, rows in self._waiting.items():
            if not rows:
                continue
            batch = pa.RecordBatch.from_pylist(rows, schema=versioned(TABLES[table]))
            path = self.path(table)
            with write_errors(path):
                fd, end = self._file(table, path)
                try:
                    written = write_all(fd, [memoryview(arrow_format.whole_message(batch))])
                except OSError:
                    os.ftruncate(fd, end)
                    raise
            self._files[table] = fd, end + written
            self._dirty.add(table)
            if table == INDEXED:
                self._index = self._index or MetadataIndexWriter(path)
                self._index.add(rows, end, end + written)
            rows.clear()

    def path(self, table: str) -> Path:
        return self._root / layout.TABLES_DIR / table / f"{self._session}{layout.SEALED}"

    def _file(self, table: str, path: Path) -> tuple[int, int]:
        if table not in self._files:
            self._names_to_sync += [path.parent, *make_directories(path.parent, above=self._root)]
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                end = write_all(fd, [memoryview(arrow_format.schema_message(versioned(TABLES[table])))])
            except OSError:
                os.close(fd)
                path.unlink(missing_ok=True)
                raise
            self._files[table] = fd, end
        return self._files[table]

    def sync(self) -> None:
        """Makes durable what was flushed. May run beside `flush`: what is written meanwhile stays dirty."""
        for table in list(self._dirty):
            self._dirty.discard(table)
            try:
                with write_errors(self.path(table)):
                    os.fdatasync(self._files[table][0])
            except WriteFailed:
                self._dirty.add(table)
                raise
        while self._names_to_sync:
            # Taken out first: `flush` may add one meanwhile, and that one is still to be synced.
            name = self._names_to_sync.pop()
            try:
                sync_directory(name)
            except BaseException:
                self._names_to_sync.append(name)
                raise

    def close(self) -> None:
        """Writes what waits and ends the files."""
        try:
            self.flush()
            for table, (fd, _) in self._files.items():
                with write_errors(self.path(table)):
                    write_all(fd, [memoryview(arrow_format.END_OF_STREAM)])
            self.sync()
        finally:
            if self._index is not None:
                self._index.close(self._files[INDEXED][1])
            for fd, _ in self._files.values():
                os.close(fd)
            self._files.clear()


def read_table(root: Path, table: str) -> pa.Table:
    """All rows of a table, those of the oldest session first."""
    if table not in TABLES:
        raise KeyError(f"no table {table!r}; there are {', '.join(TABLES)}")
    schema = TABLES[table]
    batches: list[pa.RecordBatch] = []
    directory = root / layout.TABLES_DIR / table
    for path in sorted(directory.glob(f"*{layout.SEALED}")) if directory.is_dir() else ():
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        for batch in _complete_batches(content):
            # A newer writer may have more columns, which is no reason not to read the ones we know.
            if set(schema.names) <= set(batch.schema.names):
                batches.append(batch.select(schema.names).cast(schema))
    return pa.Table.from_batches(batches, schema=schema)


def read_gaps(root: Path, stream_id: int, epoch: int | None = None) -> list[Gap]:
    """The gaps that writers declared or noticed, in the order in which they did."""
    columns = read_table(root, "gaps").to_pydict()
    found = [
        Gap(stream, layout.unsigned(of), layout.unsigned(first), layout.unsigned(count), reason)
        for stream, of, first, count, reason in zip(
            *(columns[name] for name in ("stream_id", "epoch", "first_seq", "count", "reason")), strict=True
        )
        if stream == stream_id
    ]
    return [gap for gap in found if gap.count > 0 and epoch in (None, gap.epoch)]


def read_more(path: Path, offset: int) -> tuple[list[pa.RecordBatch], int]:
    """The complete batches of one writer's file from a place on, and the place behind them: 0, or what an
    earlier call gave."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        file.seek(offset)
        return _batches_from(head, file.read(), offset)


def placed_batches(path: Path, offset: int, end: int = -1) -> list[tuple[pa.RecordBatch, int, int]]:
    """The same with where each begins and ends, up to a place or to the end of the file."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            file.seek(offset)
            return list(_placed(head, file.read(end if end < 0 else end - offset), offset))
    except FileNotFoundError:
        return []


def read_batch(path: Path, start: int, end: int) -> pa.RecordBatch | None:
    """The batch that lies just there; None if there is none."""
    found = placed_batches(path, start, end)
    return found[0][0] if found and found[0][1:] == (start, end) else None


def _complete_batches(content: bytes) -> list[pa.RecordBatch]:
    return _batches_from(content, content, 0)[0]


def _batches_from(head: bytes, content: bytes, offset: int) -> tuple[list[pa.RecordBatch], int]:
    found = list(_placed(head, content, offset))
    return [batch for batch, _, _ in found], found[-1][2] if found else offset


def _placed(head: bytes, content: bytes, offset: int) -> Iterator[tuple[pa.RecordBatch, int, int]]:
    """`head` has the schema; `content` is what lies at `offset` and behind."""
    begin = arrow_format.PREFIX_BYTES + (arrow_format.read_prefix(memoryview(head), 0) or 0)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(memoryview(head)[:begin]))
    except (pa.ArrowException, OSError):
        return
    data = memoryview(content)
    at = 0 if offset else begin
    while size := arrow_format.read_prefix(data, at):
        body = at + arrow_format.PREFIX_BYTES + size
        metadata = data[at + arrow_format.PREFIX_BYTES : body]
        try:
            places = arrow_format.find_offsets(metadata)
            end = body + places.body_bytes
            if end > len(data):
                break
            arrow_format.check(metadata, places.check_at, data[body:end])
            read = pa.ipc.read_message(pa.BufferReader(pa.py_buffer(data[at:end])))
            batch = pa.ipc.read_record_batch(read, schema)
            batch.validate(full=True)
        except (arrow_format.BadMessage, pa.ArrowException, OSError):
            break
        yield batch, offset + at, offset + end
        at = end
