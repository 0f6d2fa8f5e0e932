"""Reader of recorded metadata: the attributes of each metadata version of a stream (wire §10.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..attributes import Extension, Metadata, describe
from ..errors import CodecError
from ..sbe import DataSourceMeta, decode
from . import layout, metadata_index
from .arrow_format import TableRow
from .metadata_index import IndexRecordKind, Records
from .tables import located_batches, read_batch

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


class MetadataReader:
    """Finds metadata by stream, epoch and version. Reads the tables at the first request, and again after
    `invalidate`: the metadata of most frames is never requested.
    """

    def __init__(self, root: Path) -> None:
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
            self._cache[key] = self._find(key)
        return self._cache[key]

    def _update(self) -> None:
        """Reads the rows that the tables gained since the last time."""
        paths = sorted(self._directory.glob(f"*{layout.SEALED}")) if self._directory.is_dir() else []
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
        self._size = self._index_at = self._read_to = 0
        self.records: Records = np.empty(0, metadata_index.RECORD)
        self._keys = np.empty(0, np.uint64)

    def update(self) -> bool:
        """Reads new index records. Returns whether there were any."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return False
        if size == self._size:
            return False
        self._size = size
        indexed, self._index_at = metadata_index.read_index(self._path, self._index_at)
        # Rows that were read from the table itself are known already.
        is_new = indexed["batch_start"] >= self._read_to
        is_reach = indexed["kind"] == IndexRecordKind.REACH
        parts = [metadata_index.select(indexed, is_new & ~is_reach)]
        reaches = indexed["batch_end"][is_reach]
        self._read_to = max(self._read_to, int(reaches.max(initial=0)))
        for batch, start, end in located_batches(self._path, self._read_to):
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

    def read(self, record: Any) -> FrameMetadata | None:
        """The metadata at an index record; None if the row is missing (after a crash) or another one."""
        batch = read_batch(self._path, int(record["batch_start"]), int(record["batch_end"]))
        row = int(record["row"])
        if batch is None or row >= batch.num_rows:
            return None
        try:
            message = decode(batch.column("message")[row].as_py())
        except CodecError:
            return None
        if not isinstance(message, DataSourceMeta) or message.meta_version != record["meta_version"]:
            return None
        attributes = [(item.key, item.format, bytes(item.value)) for item in message.attributes]
        return FrameMetadata(*describe(attributes, message.meta_version, message.timestamp_ns))


def _version_rows(batch: pa.RecordBatch) -> list[tuple[int, TableRow]]:
    """(row number, row) of the messages that name a version. The table also has blobs and trace links."""
    if not set(_COLUMNS) <= set(batch.schema.names):
        return []
    numbers = np.flatnonzero(pc.is_in(batch.column("kind"), pa.array(metadata_index.KINDS)).to_numpy(False))
    rows = batch.select(_COLUMNS).take(pa.array(numbers)).to_pylist()
    return list(zip(numbers.tolist(), rows, strict=True))
