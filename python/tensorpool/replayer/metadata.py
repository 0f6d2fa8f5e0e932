"""Recorded metadata of streams: announces, attributes and blobs by version, and trace links (wire §10.3).

Read once from a recording's tables. A version keeps its number in the replay unless another recorded epoch
already uses that number for different metadata: then it gets the next free number.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from .. import _native, sbe
from ..attributes.metadata import BLOBS_KEY, JSON
from ..errors import CodecError
from ..recording import Recording
from ..recording.layout import unsigned
from ..sbe.trace import TraceLinkSet

if TYPE_CHECKING:
    from ..recording.arrow_format import MessageTableRow

MAX_BLOB_BYTES: Final = 128 << 20
"""The largest blob that a consumer keeps; larger ones are ignored."""


class VersionKey(NamedTuple):
    """A metadata version of a recorded epoch; epoch None stands for any epoch."""

    epoch: int | None
    version: int


class Blob(NamedTuple):
    """The version at which a blob was set, and its content."""

    version: int
    content: bytes


class _BlobAssembly(NamedTuple):
    """A blob that is being put together from chunks."""

    announce: sbe.MetaBlobAnnounce
    content: bytearray


@dataclass(slots=True)
class VersionMetadata:
    """The recorded messages of one version."""

    announce: sbe.DataSourceAnnounce | None = None
    meta: sbe.DataSourceMeta | None = None

    @property
    def content(self) -> tuple[Any, ...]:
        """The part that consumers see: two versions with the same content may share a number."""
        name = (self.announce.name, self.announce.summary) if self.announce is not None else ()
        attributes = self.meta.attributes if self.meta is not None else ()
        return (name, tuple((item.key, item.format, bytes(item.value)) for item in attributes))


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """The messages to publish before frames of a version."""

    version: int
    announce: bytes
    meta: bytes
    blobs: Mapping[int, Blob] = field(default_factory=dict)
    """By blob type."""


class VersionNumbering:
    """Maps recorded epochs and versions to the numbers that frames carry in the replay. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[VersionKey, int] = {}
        self._contents: dict[int, object] = {}

    def number(self, epoch: int, version: int, content: object) -> int:
        """The number of a version, the same for the same epoch and version every time."""
        if version == 0:
            # 0 means that a frame has no metadata.
            return 0
        key = VersionKey(epoch, version)
        with self._lock:
            known = self._numbers.get(key)
            if known is not None:
                return known
            number = version
            if self._contents.get(number, content) != content:
                equal = [other for other, used in self._contents.items() if used == content]
                number = equal[0] if equal else max(self._contents) + 1
            self._contents[number] = content
            self._numbers[key] = number
            return number


class RecordedMetadata:
    """The metadata of one recorded stream."""

    def __init__(self, rows: Iterable[MessageTableRow] = ()) -> None:
        """`rows`: `message` and `epoch` of the recording's table `metadata`, in order of receipt."""
        self._versions: dict[VersionKey, VersionMetadata] = {}
        self._blobs: dict[tuple[VersionKey, int], bytes] = {}
        self.parents: dict[int, tuple[int, ...]] = {}
        """Trace id → the trace ids of its parents."""
        self.undecodable = 0
        self._numbering = VersionNumbering()
        self._epoch: int | None = None
        self._assemblies: dict[VersionKey, _BlobAssembly] = {}
        for row in rows:
            try:
                self._add(sbe.decode(row["message"]), row["epoch"])
            except CodecError:
                self.undecodable += 1

    # --- reading

    def _add(self, message: sbe.Message, recorded_epoch: int | None) -> None:
        epoch = self._epoch if recorded_epoch is None else unsigned(recorded_epoch)
        match message:
            case sbe.DataSourceAnnounce():
                # DataSourceMeta has no epoch: it belongs to the epoch of the last announce.
                self._epoch = message.epoch
                self._version(message.epoch, message.meta_version).announce = message
            case sbe.DataSourceMeta():
                self._version(epoch, message.meta_version).meta = message
            case sbe.MetaBlobAnnounce() if message.total_len <= MAX_BLOB_BYTES:
                key = VersionKey(epoch, message.meta_version)
                self._assemblies[key] = _BlobAssembly(message, bytearray())
            case sbe.MetaBlobChunk():
                self._add_chunk(VersionKey(epoch, message.meta_version), message)
            case sbe.MetaBlobComplete():
                self._complete_blob(VersionKey(epoch, message.meta_version))
            case TraceLinkSet():
                self.parents[message.trace_id] = tuple(parent.trace_id for parent in message.parents)
            case _:
                pass

    def _version(self, epoch: int | None, version: int) -> VersionMetadata:
        return self._versions.setdefault(VersionKey(epoch, version), VersionMetadata())

    def _add_chunk(self, key: VersionKey, chunk: sbe.MetaBlobChunk) -> None:
        assembly = self._assemblies.get(key)
        # Blobs are sent repeatedly: a blob whose first chunks were missed is complete the next time.
        if assembly is None or chunk.chunk_offset != len(assembly.content):
            return
        if len(assembly.content) + len(chunk.bytes) <= assembly.announce.total_len:
            assembly.content.extend(chunk.bytes)

    def _complete_blob(self, key: VersionKey) -> None:
        assembly = self._assemblies.pop(key, None)
        if assembly is None or len(assembly.content) != assembly.announce.total_len:
            return
        if assembly.announce.checksum in (0, _native.crc32c(assembly.content)):
            self._blobs[key, assembly.announce.blob_type] = bytes(assembly.content)

    # --- lookup

    def _find(self, epoch: int, version: int) -> VersionMetadata | None:
        exact = self._versions.get(VersionKey(epoch, version))
        return exact or self._versions.get(VersionKey(None, version))

    def number(self, epoch: int, version: int) -> int:
        """The number that a recorded version has in the replay."""
        metadata = self._find(epoch, version)
        return self._numbering.number(epoch, version, None if metadata is None else metadata.content)

    def numbers(self, epoch: int, versions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """The numbers that frames with these recorded versions carry in the replay."""
        numbers = versions.astype(np.uint32)
        for version in np.unique(versions).tolist():
            number = self.number(epoch, version)
            if number != version:
                numbers[versions == version] = number
        return numbers

    def update_for(self, epoch: int, version: int, stream_id: int) -> MetadataUpdate | None:
        """The messages of a recorded version, addressed to `stream_id`; None if none were recorded."""
        metadata = self._find(epoch, version)
        if metadata is None or (metadata.announce is None and metadata.meta is None):
            return None
        number = self.number(epoch, version)
        announce = metadata.announce or sbe.DataSourceAnnounce(
            stream_id=stream_id, producer_id=0, epoch=0, meta_version=number
        )
        meta = metadata.meta or sbe.DataSourceMeta(stream_id=stream_id, meta_version=number, timestamp_ns=0)
        blobs = self._blobs_for(epoch, version, meta)
        attributes = tuple(
            replace(item, value=_json({str(blob_type): blob.version for blob_type, blob in blobs.items()}))
            if item.key == BLOBS_KEY and blobs
            else item
            for item in meta.attributes
        )
        return MetadataUpdate(
            number,
            replace(announce, stream_id=stream_id, meta_version=number).encode(),
            replace(meta, stream_id=stream_id, meta_version=number, attributes=attributes).encode(),
            blobs,
        )

    def _blobs_for(self, epoch: int, version: int, meta: sbe.DataSourceMeta) -> dict[int, Blob]:
        """The blobs of a version: those that its attributes name, else the latest of each type."""
        attribute = {item.key: item.value for item in meta.attributes if item.format == JSON}.get(BLOBS_KEY)
        wanted: dict[int, int] = {}
        if attribute is not None:
            try:
                wanted = {int(blob_type): int(set_at) for blob_type, set_at in json.loads(attribute).items()}
            except (ValueError, TypeError, AttributeError):
                wanted = {}
        else:
            for key, blob_type in self._blobs:
                if key.epoch in (None, epoch) and wanted.get(blob_type, 0) <= key.version <= version:
                    wanted[blob_type] = key.version
        blobs = {}
        for blob_type, set_at in wanted.items():
            content = self._blobs.get(
                (VersionKey(epoch, set_at), blob_type),
                self._blobs.get((VersionKey(None, set_at), blob_type)),
            )
            if content is not None:
                blobs[blob_type] = Blob(self.number(epoch, set_at), content)
        return blobs


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read_metadata(recording: Recording, stream_ids: Iterable[int]) -> dict[int, RecordedMetadata]:
    """The metadata of each stream, from the recording's table."""
    table = recording.table("metadata").select(["receive_time_ns", "stream_id", "epoch", "message"])
    table = table.sort_by("receive_time_ns")
    return {
        stream_id: RecordedMetadata(table.filter(pc.field("stream_id") == stream_id).to_pylist())
        for stream_id in stream_ids
    }
