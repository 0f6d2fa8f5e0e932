"""From bytes on announce and metadata streams to the index (discovery §6.4). Pure.

A thousand streams say the same thing once a second. What differs from the last time in nothing but its time
stamp is not decoded again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from ..errors import CodecError
from ..sbe import decode
from ..sbe.layout import HEADER_BYTES, MessageLayout
from ..sbe.wire import DataSourceAnnounce, DataSourceMeta, ShmPoolAnnounce
from .index import DiscoveryIndex, IndexResult
from .state import DiscoveryCounters

_HEADER: Final = struct.Struct("<HHHH")
_STREAM: Final = struct.Struct("<I")
_EPOCH: Final = struct.Struct("<Q")
_MAX_BYTES: Final = 64 << 10
"""Larger ones are not read: the memory of an index is bounded by what it has heard."""
_MAX_KEPT_BYTES: Final = 16 << 20


class _Ids(NamedTuple):
    schema_id: int
    announce: int
    source: int
    meta: int
    epoch_at: int
    time_at: int
    version_at: dict[int, int]


@cache
def _ids() -> _Ids:
    """Read from the schema when first needed: every start of a command imports this module."""
    announce, source, meta = (kind.layout() for kind in (ShmPoolAnnounce, DataSourceAnnounce, DataSourceMeta))

    def at(layout: MessageLayout, name: str) -> int:
        return HEADER_BYTES + next(one.offset for one in layout.encoded_fields if one.name == name)

    return _Ids(
        announce.schema_id,
        announce.template_id,
        source.template_id,
        meta.template_id,
        at(announce, "epoch"),
        at(announce, "announceTimestampNs"),
        {layout.template_id: at(layout, "metaVersion") for layout in (source, meta)},
    )


def stream_of(message: bytes) -> int | None:
    """The stream that an announce or metadata is about; None for every other message."""
    if len(message) < 12:
        return None
    _, template_id, schema_id, _ = _HEADER.unpack_from(message)
    ids = _ids()
    if schema_id != ids.schema_id or template_id not in (ids.announce, ids.source, ids.meta):
        return None
    stream_id: int = _STREAM.unpack_from(message, 8)[0]
    return stream_id


def is_by_driver(message: bytes) -> bool:
    """Whether it is metadata of version 0: what drivers say of their streams."""
    template_id = _HEADER.unpack_from(message)[1]
    return template_id in _ids().version_at and _version(message, template_id) == 0


class AnnounceReader:
    """The ear for one driver. `takes` says whose streams are this driver's."""

    def __init__(
        self,
        index: DiscoveryIndex,
        instance_id: str,
        counters: DiscoveryCounters,
        takes: Callable[[int], bool] = lambda stream_id: True,
    ) -> None:
        self._index = index
        self._instance_id = instance_id
        self._counters = counters
        self._takes = takes
        self._last: dict[tuple[int, int, int], bytes] = {}
        self._kept_bytes = 0

    def hear(self, message: bytes, now_ns: int) -> bool:
        """Whether it was about one of this driver's streams. Never raises."""
        stream_id = stream_of(message)
        if stream_id is None or not self._takes(stream_id):
            return False
        if len(message) > _MAX_BYTES:
            self._counters.unheard["large"].add()
            return True
        if not self._is_same(message, stream_id, now_ns):
            self._read(message, stream_id, now_ns)
        return True

    def _is_same(self, message: bytes, stream_id: int, now_ns: int) -> bool:
        ids = _ids()
        template_id = _HEADER.unpack_from(message)[1]
        if template_id == ids.announce:
            key = (template_id, stream_id, 0)
            if self._last.get(key) != _without_time(message):
                return False
            epoch = _EPOCH.unpack_from(message, ids.epoch_at)[0]
            return self._index.on_same_announce(self._instance_id, stream_id, epoch, now_ns)
        version = _version(message, template_id)
        if self._last.get((template_id, stream_id, version)) != message:
            return False
        return self._index.on_same_words(
            self._instance_id, stream_id, now_ns, by_driver=version == 0, is_meta=template_id == ids.meta
        )

    def _read(self, message: bytes, stream_id: int, now_ns: int) -> None:
        try:
            found = decode(message)
        except CodecError:
            self._counters.unheard["malformed"].add()
            return
        key: tuple[int, int, int]
        match found:
            case ShmPoolAnnounce():
                outcome = self._index.on_announce(self._instance_id, found, now_ns)
                key, kept = (_ids().announce, stream_id, 0), _without_time(message)
            case DataSourceAnnounce():
                outcome = self._index.on_source(self._instance_id, found, now_ns)
                key, kept = (_ids().source, stream_id, min(found.meta_version, 1)), message
            case DataSourceMeta():
                outcome = self._index.on_meta(self._instance_id, found, now_ns)
                key, kept = (_ids().meta, stream_id, min(found.meta_version, 1)), message
            case _:
                return
        if outcome in (IndexResult.INVALID, IndexResult.FULL, IndexResult.REGRESSED):
            self._counters.unheard[str(outcome)].add()
            return
        self._remember(key, kept)

    def _remember(self, key: tuple[int, int, int], kept: bytes) -> None:
        """Streams come and go, and strangers say much: what is not remembered is decoded once more."""
        self._kept_bytes += len(kept) - len(self._last.get(key, b""))
        self._last[key] = kept
        if len(self._last) > 4 * max(len(self._index), 1024) or self._kept_bytes > _MAX_KEPT_BYTES:
            self._last.clear()
            self._kept_bytes = 0


def _without_time(message: bytes) -> bytes:
    at = _ids().time_at
    return message[:at] + message[at + 8 :]


def _version(message: bytes, template_id: int) -> int:
    """0 for a driver's words, 1 for a producer's: one of each is remembered for a stream."""
    at = _ids().version_at[template_id]
    return min(_STREAM.unpack_from(message, at)[0], 1) if len(message) >= at + 4 else 1
