"""What was said of the recorded streams: announces, attributes and blobs by version, and trace links.

Read once from a recording's tables. A version keeps its number when it is played, unless frames of another
recorded epoch already gave that number another meaning: then it gets the next free one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from .. import _native, sbe
from ..attributes.metadata import BLOBS_KEY, JSON
from ..errors import CodecError
from ..recording import Recording
from ..sbe.trace import TraceLinkSet

MAX_BLOB_BYTES: Final = 128 << 20
"""What a consumer would keep of one; what claims to be larger is left out."""
Key = tuple[int | None, int]
"""Recorded epoch (None: any) and version."""


@dataclass(slots=True)
class VersionMetadata:
    """What is known of one version."""

    announce: sbe.DataSourceAnnounce | None = None
    meta: sbe.DataSourceMeta | None = None

    @property
    def content(self) -> tuple[Any, ...]:
        """What makes two versions the same for readers."""
        name = (self.announce.name, self.announce.summary) if self.announce is not None else ()
        attributes = self.meta.attributes if self.meta is not None else ()
        return (name, tuple((one.key, one.format, bytes(one.value)) for one in attributes))


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """What to say before frames of a version go out."""

    version: int
    announce: bytes
    meta: bytes
    blobs: Mapping[int, tuple[int, bytes]] = field(default_factory=dict)
    """Type → the version at which it was set, and its bytes."""


class VersionNumbering:
    """Recorded epoch and version → the number that frames carry when they are played. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[tuple[int, int], int] = {}
        self._taken: dict[int, object] = {}

    def number(self, epoch: int, version: int, content: object) -> int:
        if version == 0:
            # No version at all.
            return 0
        with self._lock:
            known = self._given.get((epoch, version))
            if known is not None:
                return known
            number = version
            if self._taken.get(number, content) != content:
                same = [taken for taken, what in self._taken.items() if what == content]
                number = same[0] if same else max(self._taken) + 1
            self._taken[number] = content
            self._given[epoch, version] = number
            return number


class RecordedMetadata:
    """The words of one recorded stream."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._said: dict[Key, VersionMetadata] = {}
        self._blobs: dict[tuple[Key, int], bytes] = {}
        self.parents: dict[int, tuple[int, ...]] = {}
        """Trace id → the traces it was made from."""
        self.undecodable = 0
        self._numbers = VersionNumbering()
        self._epoch: int | None = None
        self._open: dict[Key, tuple[sbe.MetaBlobAnnounce, bytearray]] = {}
        for row in rows:
            try:
                self._take(sbe.decode(row["message"]), row["epoch"])
            except CodecError:
                self.undecodable += 1

    # --- reading

    def _take(self, message: sbe.Message, recorded_epoch: int | None) -> None:
        epoch = self._epoch if recorded_epoch is None else recorded_epoch % (1 << 64)
        match message:
            case sbe.DataSourceAnnounce():
                # Attributes name no epoch: they are of the one that was announced last.
                self._epoch = message.epoch
                self._of(message.epoch, message.meta_version).announce = message
            case sbe.DataSourceMeta():
                self._of(epoch, message.meta_version).meta = message
            case sbe.MetaBlobAnnounce() if message.total_len <= MAX_BLOB_BYTES:
                self._open[epoch, message.meta_version] = message, bytearray()
            case sbe.MetaBlobChunk():
                self._chunk((epoch, message.meta_version), message)
            case sbe.MetaBlobComplete():
                self._complete((epoch, message.meta_version))
            case TraceLinkSet():
                self.parents[message.trace_id] = tuple(one.trace_id for one in message.parents)
            case _:
                pass

    def _of(self, epoch: int | None, version: int) -> VersionMetadata:
        return self._said.setdefault((epoch, version), VersionMetadata())

    def _chunk(self, key: Key, chunk: sbe.MetaBlobChunk) -> None:
        begun = self._open.get(key)
        # Blobs are sent again and again: one that was joined in the middle comes from the start later.
        if begun is None or chunk.chunk_offset != len(begun[1]):
            return
        if len(begun[1]) + len(chunk.bytes) <= begun[0].total_len:
            begun[1].extend(chunk.bytes)

    def _complete(self, key: Key) -> None:
        announce, content = self._open.pop(key, (None, bytearray()))
        if announce is None or len(content) != announce.total_len:
            return
        if announce.checksum in (0, _native.crc32c(content)):
            self._blobs[key, announce.blob_type] = bytes(content)

    # --- asking

    def _known(self, epoch: int, version: int) -> VersionMetadata | None:
        return self._said.get((epoch, version)) or self._said.get((None, version))

    def number(self, epoch: int, version: int) -> int:
        said = self._known(epoch, version)
        return self._numbers.number(epoch, version, None if said is None else said.content)

    def numbers(self, epoch: int, versions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """The numbers that frames with these versions carry."""
        played = versions.astype(np.uint32)
        for version in np.unique(versions).tolist():
            number = self.number(epoch, version)
            if number != version:
                played[versions == version] = number
        return played

    def speech(self, epoch: int, version: int, stream_id: int) -> MetadataUpdate | None:
        """What to say for frames of a recorded version, as `stream_id`; None if nothing is known of it."""
        said = self._known(epoch, version)
        if said is None or (said.announce is None and said.meta is None):
            return None
        number = self.number(epoch, version)
        announce = said.announce or sbe.DataSourceAnnounce(
            stream_id=stream_id, producer_id=0, epoch=0, meta_version=number
        )
        meta = said.meta or sbe.DataSourceMeta(stream_id=stream_id, meta_version=number, timestamp_ns=0)
        blobs = self._blobs_of(epoch, version, meta)
        attributes = tuple(
            replace(one, value=_json({str(kind): at for kind, (at, _) in blobs.items()}))
            if one.key == BLOBS_KEY and blobs
            else one
            for one in meta.attributes
        )
        return MetadataUpdate(
            number,
            replace(announce, stream_id=stream_id, meta_version=number).encode(),
            replace(meta, stream_id=stream_id, meta_version=number, attributes=attributes).encode(),
            blobs,
        )

    def _blobs_of(self, epoch: int, version: int, meta: sbe.DataSourceMeta) -> dict[int, tuple[int, bytes]]:
        """Which blobs go with a version: those that it names, else the last of each type before it."""
        named = {one.key: one.value for one in meta.attributes if one.format == JSON}.get(BLOBS_KEY)
        if named is not None:
            try:
                wanted = {int(kind): int(at) for kind, at in json.loads(named).items()}
            except (ValueError, TypeError, AttributeError):
                wanted = {}
        else:
            wanted = {}
            for (of, at), kind in self._blobs:
                if of in (None, epoch) and wanted.get(kind, 0) <= at <= version:
                    wanted[kind] = at
        found = {}
        for kind, at in wanted.items():
            content = self._blobs.get(((epoch, at), kind), self._blobs.get(((None, at), kind)))
            if content is not None:
                found[kind] = self.number(epoch, at), content
        return found


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read_metadata(recording: Recording, stream_ids: Iterable[int]) -> dict[int, RecordedMetadata]:
    """The words of each stream, from the recording's table."""
    table = recording.table("metadata").select(["receive_time_ns", "stream_id", "epoch", "message"])
    table = table.sort_by("receive_time_ns")
    return {
        one: RecordedMetadata(table.filter(pc.field("stream_id") == one).to_pylist()) for one in stream_ids
    }
