"""Reader of recorded metadata: the attributes of each metadata version of a stream (wire §10.3)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..attributes import Extension, Metadata, describe
from ..attributes.tags import from_wire
from ..errors import CodecError, CorruptRecording
from ..sbe import DataSourceAnnounce, DataSourceMeta, decode
from . import layout, metadata_index, table_index
from .arrow_format import MessageTableRow
from .metadata_index import IndexRecordKind, Records
from .tables import located_batches, read_batch, table_sessions

_COLUMNS: Final = ("receive_time_ns", "stream_id", "epoch", "kind", "message")
_MAX_VERSIONS: Final = 4096


class FrameMetadata(NamedTuple):
    """The attributes of a metadata version, and the element type that they define, if any."""

    attributes: Metadata
    extension: Extension | None


class _VersionKey(NamedTuple):
    stream_id: int
    epoch: int
    version: int


class _WrongIndex(Exception):
    """The index of a table names a row that the table does not have there."""

    def __init__(self, table: _MetadataTable) -> None:
        super().__init__()
        self.table = table


class MetadataReader:
    """Finds metadata by stream, epoch and version. Reads the tables at the first request, and again after
    `invalidate`: the metadata of most frames is never requested.
    """

    def __init__(self, root: Path, *, before_read: Callable[[], None] | None = None) -> None:
        """`before_read` is called before the tables are read: it fetches those of a remote recording."""
        self._root = root
        self._before_read = before_read
        self._directory = root / layout.TABLES_DIR / metadata_index.INDEXED
        self._tables: dict[str, _MetadataTable] = {}
        self._is_current = False
        self._cache: dict[_VersionKey, FrameMetadata | None] = {}

    def invalidate(self) -> None:
        """The next request also finds rows that were written meanwhile."""
        self._is_current = False

    def find(self, stream_id: int, epoch: int, version: int) -> FrameMetadata | None:
        """The metadata of a version; None if it was not recorded."""
        if not self._is_current:
            self._update()
            self._is_current = True
        key = _VersionKey(stream_id, epoch, version)
        if key not in self._cache:
            if len(self._cache) >= _MAX_VERSIONS:
                self._cache.clear()
            try:
                self._cache[key] = self._find(key)
            except _WrongIndex as error:
                error.table.read_without_index()
                self._cache.clear()
                self._cache[key] = self._find(key)
        return self._cache[key]

    def source_names(self) -> dict[int, str]:
        """The last recorded name of each stream that has one."""
        if not self._is_current:
            self._update()
            self._is_current = True
        names: dict[int, tuple[int, str]] = {}
        for table in list(self._tables.values()):
            for record in table.announces():
                time_ns, stream_id = int(record["receive_time_ns"]), int(record["stream_id"])
                # A producer without metadata announces its source without a name.
                if time_ns >= names.get(stream_id, (time_ns, ""))[0] and (name := table.read_name(record)):
                    names[stream_id] = time_ns, from_wire(name)
        return {stream_id: name for stream_id, (_, name) in sorted(names.items())}

    def _sessions(self) -> list[str]:
        return table_sessions(self._root, metadata_index.INDEXED)

    def _update(self) -> None:
        """Reads the rows that the tables gained since the last time."""
        if self._before_read is not None:
            self._before_read()
        # By the indexes too: a table that is missing must not pass for one that never was.
        paths = [self._directory / f"{session}{layout.SEALED}" for session in self._sessions()]
        self._tables = {path.name: self._tables.get(path.name) or _MetadataTable(path) for path in paths}
        for table in self._tables.values():
            if table.update():
                self._cache.clear()

    def _find(self, key: _VersionKey) -> FrameMetadata | None:
        candidates = [
            (table, record)
            for table in self._tables.values()
            for record in table.meta_records(key.stream_id, key.version)
        ]
        without_epoch: FrameMetadata | None = None
        # The latest message wins; of messages with the same time, the one further back in the table.
        for table, record in sorted(candidates, key=lambda pair: int(pair[1]["receive_time_ns"]))[::-1]:
            epoch = self._epoch_of(record)
            if epoch is None:
                without_epoch = without_epoch or table.read(record)
            elif epoch == key.epoch and (metadata := table.read(record)) is not None:
                return metadata
        return without_epoch

    def _epoch_of(self, record: Any) -> int | None:
        """The epoch of a message: its own, else the one that was announced last before it."""
        if record["has_epoch"]:
            return int(record["epoch"])
        stream_id, time_ns = int(record["stream_id"]), record["receive_time_ns"]
        announces = [
            announce
            for table in self._tables.values()
            for announce in table.last_announce(stream_id, time_ns)
        ]
        announces.sort(key=lambda announce: int(announce["receive_time_ns"]))
        return int(announces[-1]["epoch"]) if announces else None


class _MetadataTable:
    """One writer's metadata table. Keeps index records in memory and reads messages only on request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = -1
        self._index_at = self._read_to = 0
        self.records: Records = np.empty(0, metadata_index.RECORD)
        self._keys = np.empty(0, np.uint64)
        self._has_index = True

    def read_without_index(self) -> None:
        """Reads the whole table: its index is not of this table, or the table was replaced."""
        self._has_index = False
        self._size = -1
        self._read_to = 0
        self.records, self._keys = self.records[:0], self._keys[:0]
        self.update()

    def update(self) -> bool:
        """Reads new index records. Returns whether there were any."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            size = 0
        if size == self._size:
            return False
        self._size = size
        if self._has_index:
            indexed, self._index_at = metadata_index.read_index(self._path, self._index_at)
        else:
            indexed = self.records[:0]
        # Rows that were read from the table itself are known already.
        is_new = indexed["batch_start"] >= self._read_to
        is_reach = indexed["kind"] == IndexRecordKind.REACH
        parts = [metadata_index.select(indexed, is_new & ~is_reach)]
        reaches = indexed["batch_end"][is_reach]
        self._read_to = max(self._read_to, int(reaches.max(initial=0)))
        try:
            behind = located_batches(self._path, self._read_to)
        except CorruptRecording:
            if not self._has_index:
                raise
            # The index may be of another table: read the whole table instead.
            self.read_without_index()
            return True
        for batch, start, end in behind:
            parts.append(metadata_index.make_records(_version_rows(batch), start, end))
            self._read_to = end
        new = metadata_index.concatenate(parts)
        if not len(new):
            return False
        self.records = metadata_index.concatenate([self.records, new])
        # Stream and version in one number, for a fast search.
        self._keys = self.records["stream_id"].astype(np.uint64) << np.uint64(32)
        self._keys |= self.records["meta_version"]
        return True

    def meta_records(self, stream_id: int, version: int) -> Records:
        """Index records of the DataSourceMeta messages of a version."""
        records = metadata_index.select(self.records, self._keys == np.uint64(stream_id << 32 | version))
        return metadata_index.select(records, records["kind"] == IndexRecordKind.META)

    def last_announce(self, stream_id: int, until_ns: Any) -> Records:
        """Index record of the last announce of a stream up to a time; empty if there is none."""
        records = metadata_index.select(self.records, self._keys >> np.uint64(32) == stream_id)
        records = metadata_index.select(
            records, (records["kind"] == IndexRecordKind.ANNOUNCE) & (records["receive_time_ns"] <= until_ns)
        )
        # Not in order of time if the clock was set back.
        last: Records = records[np.argsort(records["receive_time_ns"], kind="stable")[-1:]]
        return last

    def announces(self) -> Records:
        """Index records of the announces, one per stream, epoch and version: the last."""
        records = metadata_index.select(self.records, self.records["kind"] == IndexRecordKind.ANNOUNCE)
        last = {(r["stream_id"], r["epoch"], r["meta_version"]): at for at, r in enumerate(records)}
        return records[sorted(last.values())]

    def read_name(self, record: Any) -> str:
        """The name in the announce at an index record, in wire form; empty if there is none."""
        batch = read_batch(self._path, int(record["batch_start"]), int(record["batch_end"]))
        row = int(record["row"])
        with contextlib.suppress(CodecError):
            if batch is not None and row < batch.num_rows:
                message = decode(batch.column("message")[row].as_py())
                if isinstance(message, DataSourceAnnounce) and message.stream_id == record["stream_id"]:
                    return message.name
        return ""

    def read(self, record: Any) -> FrameMetadata | None:
        """The metadata at an index record; None if the row is missing (after a crash) or another one."""
        batch = read_batch(self._path, int(record["batch_start"]), int(record["batch_end"]))
        row = int(record["row"])
        message = None
        with contextlib.suppress(CodecError):
            if batch is not None and row < batch.num_rows:
                message = decode(batch.column("message")[row].as_py())
        if not isinstance(message, DataSourceMeta) or message.meta_version != record["meta_version"]:
            if self._has_index:
                raise _WrongIndex(self)
            return None
        attributes = [(item.key, item.format, bytes(item.value)) for item in message.attributes]
        return FrameMetadata(*describe(attributes, message.meta_version, message.timestamp_ns))


def _version_rows(batch: pa.RecordBatch) -> list[tuple[int, MessageTableRow]]:
    """(row number, row) of the messages that name a version. The table also has blobs and trace links."""
    if not set(_COLUMNS) <= set(batch.schema.names):
        return []
    numbers = np.flatnonzero(pc.is_in(batch.column("kind"), pa.array(metadata_index.KINDS)).to_numpy(False))
    rows = batch.select(_COLUMNS).take(pa.array(numbers)).to_pylist()
    return list(zip(numbers.tolist(), rows, strict=True))


def index_fault(table: Path) -> str | None:
    """Why the index of a table's versions is wrong; None if it is right. Reads the whole table."""
    path = table.with_suffix(metadata_index.SUFFIX)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        expected = _expected_records(table)
        return "is missing" if len(expected) else None
    found, end = metadata_index.read_index(table, 0)
    if end < size:
        return f"was changed or torn at byte {end}"
    is_reach = found["kind"] == IndexRecordKind.REACH
    reach = int(found["batch_end"][is_reach].max(initial=0))
    rows = metadata_index.select(found, ~is_reach & (found["batch_end"] <= reach))
    expected = _expected_records(table)
    is_late = bool((expected["batch_end"] > reach).any())
    if is_late and _is_closed(table):
        return f"ends at byte {reach} of the table, and the table has later versions"
    # Rows behind its reach are read from the table.
    expected = metadata_index.select(expected, expected["batch_end"] <= reach)
    if not np.array_equal(metadata_index.without_checksum(rows), metadata_index.without_checksum(expected)):
        return "names other rows than the table has"
    return None


def _is_closed(table: Path) -> bool:
    """Whether the writer has ended the table: then its index is complete."""
    session = table_index.read_session(table.parents[2], table.stem)
    state = None if session is None else session.tables.get(metadata_index.INDEXED)
    return state is not None and state.is_closed


def write_index(table: Path) -> None:
    """Writes the index of a table's versions again, from the table."""
    end = located_batches(table, 0)[-1].end if located_batches(table, 0) else 0
    metadata_index.replace_index(table, _expected_records(table), end)


def _expected_records(table: Path) -> Records:
    parts = [
        metadata_index.make_records(_version_rows(batch), start, end)
        for batch, start, end in located_batches(table, 0)
    ]
    return metadata_index.concatenate([np.empty(0, metadata_index.RECORD), *parts])
