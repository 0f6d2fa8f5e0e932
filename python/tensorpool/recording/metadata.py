"""What the sources said of their frames while they were recorded: the attributes of each metadata version."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..attributes import Extension, Metadata, describe
from ..errors import CodecError
from ..sbe import DataSourceMeta, decode
from . import layout, metadata_index
from .metadata_index import Kind, Records
from .tables import placed_batches, read_batch

_COLUMNS: Final = ("receive_time_ns", "stream_id", "epoch", "kind", "message")
_MOST_KEPT: Final = 4096
Key = tuple[int, int, int]
"""Stream, epoch and version."""
Version = tuple[Metadata, Extension | None] | None


class MetadataReader:
    """Read when a frame first asks, since most are never asked; then as they were until `forget`."""

    def __init__(self, root: Path) -> None:
        self._directory = root / layout.TABLES_DIR / metadata_index.INDEXED
        self._files: dict[str, _File] = {}
        self._is_read = False
        self._known: dict[Key, Version] = {}

    def forget(self) -> None:
        """What was said since counts from now on."""
        self._is_read = False

    def of(self, stream_id: int, epoch: int, version: int) -> Version:
        """The attributes, and how elements are carried, if they are; None for a version nobody described."""
        if not self._is_read:
            self._read()
            self._is_read = True
        key = stream_id, epoch, version
        if key not in self._known:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = self._find(*key)
        return self._known[key]

    def _read(self) -> None:
        """Takes note of what the tables have more than at the last look."""
        found = sorted(self._directory.glob(f"*{layout.SEALED}")) if self._directory.is_dir() else []
        self._files = {path.name: self._files.get(path.name) or _File(path) for path in found}
        for file in self._files.values():
            if file.read_on():
                self._known.clear()

    def _find(self, stream_id: int, epoch: int, version: int) -> Version:
        found = [(file, one) for file in self._files.values() for one in file.of_version(stream_id, version)]
        unsure: Version = None
        # The last word counts; of those that were said in the same moment, the one that stands behind.
        for file, one in sorted(found, key=lambda told: int(told[1]["receive_time_ns"]))[::-1]:
            of = int(one["epoch"]) if one["has_epoch"] else self._announced(stream_id, one["receive_time_ns"])
            if of is None:
                unsure = unsure or file.tell(one)
            elif of == epoch and (told := file.tell(one)) is not None:
                return told
        return unsure

    def _announced(self, stream_id: int, time_ns: Any) -> int | None:
        """The epoch that was announced last before a moment: what names none is of that one."""
        found = [one for file in self._files.values() for one in file.announced(stream_id, time_ns)]
        found.sort(key=lambda one: int(one["receive_time_ns"]))
        return int(found[-1]["epoch"]) if found else None


class _File:
    """What one writer's file says of versions: where, and read only when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = self._index_at = self._read_to = 0
        self.records: Records = np.empty(0, metadata_index.RECORD)
        self._keys = np.empty(0, np.uint64)

    def read_on(self) -> bool:
        """Whether there is more than before."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return False
        if size == self._size:
            return False
        self._size = size
        indexed, self._index_at = metadata_index.read_index(self._path, self._index_at)
        # What was read from the table itself is known.
        is_new = indexed["batch_start"] >= self._read_to
        is_reach = indexed["kind"] == Kind.REACH
        new = [metadata_index.chosen(indexed, is_new & ~is_reach)]
        reaches = indexed["batch_end"][is_reach]
        self._read_to = max(self._read_to, int(reaches.max(initial=0)))
        for batch, start, end in placed_batches(self._path, self._read_to):
            new.append(metadata_index.records_of(_rows(batch), start, end))
            self._read_to = end
        more = metadata_index.joined(new)
        if not len(more):
            return False
        self.records = metadata_index.joined([self.records, more])
        # Stream and version in one number.
        self._keys = self.records["stream_id"].astype(np.uint64) << np.uint64(32)
        self._keys |= self.records["meta_version"]
        return True

    def of_version(self, stream_id: int, version: int) -> Records:
        """Where it says something of a version."""
        found = metadata_index.chosen(self.records, self._keys == np.uint64(stream_id << 32 | version))
        return metadata_index.chosen(found, found["kind"] == Kind.META)

    def announced(self, stream_id: int, until_ns: Any) -> Records:
        """The last announce of a stream up to a moment, if there is one."""
        found = metadata_index.chosen(self.records, self._keys >> np.uint64(32) == stream_id)
        found = metadata_index.chosen(
            found, (found["kind"] == Kind.ANNOUNCE) & (found["receive_time_ns"] <= until_ns)
        )
        # Times may go back where the clock was set.
        last: Records = found[np.argsort(found["receive_time_ns"], kind="stable")[-1:]]
        return last

    def tell(self, one: Any) -> Version:
        """What a record leads to; None if there is something else, or nothing: a crash may have taken it."""
        batch = read_batch(self._path, int(one["batch_start"]), int(one["batch_end"]))
        row = int(one["row"])
        if batch is None or row >= batch.num_rows:
            return None
        try:
            message = decode(batch.column("message")[row].as_py())
        except CodecError:
            return None
        if not isinstance(message, DataSourceMeta) or message.meta_version != one["meta_version"]:
            return None
        attributes = [(each.key, each.format, bytes(each.value)) for each in message.attributes]
        return describe(attributes, message.meta_version, message.timestamp_ns)


def _rows(batch: pa.RecordBatch) -> list[tuple[int, dict[str, Any]]]:
    """Rows that say something of a version, with their numbers. Blobs and links of traces are there too."""
    if not set(_COLUMNS) <= set(batch.schema.names):
        return []
    chosen = np.flatnonzero(pc.is_in(batch.column("kind"), pa.array(metadata_index.KINDS)).to_numpy(False))
    rows = batch.select(_COLUMNS).take(pa.array(chosen)).to_pylist()
    return list(zip(chosen.tolist(), rows, strict=True))
