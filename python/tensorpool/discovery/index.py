"""The index of streams: announces, metadata and the time go in, entries come out (discovery §6).

Pure. The index is soft state: a stream that is not announced any more is dropped. Ages count from the time of
receipt, because the clock of another host cannot be compared with ours (decision 14). One thread owns it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from ..attributes.tags import from_wire
from ..errors import ConfigError
from ..monitor.reports import RepeatedAnnounce, RepeatedMetadata, is_undescribed
from ..monitor.streams import AnnouncedStream, StreamLabels
from ..sbe.discovery import DiscoveryResult, Tag
from ..sbe.wire import DataSourceAnnounce, DataSourceMeta, PayloadPool, ShmPoolAnnounce
from ..shm.epoch_files import HEADER_SLOT_BYTES
from ..units import INT64_LIMIT
from .client_query import MAX_DIMS
from .config import MAX_STREAMS

_MAX_POOLS: Final = 256
_NEVER_NS: Final = INT64_LIMIT
_K = TypeVar("_K", str, int)


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    """The driver of a set of streams, and the address for attaches (discovery §5.2, decision 27)."""

    instance_id: str
    control_channel: str
    control_stream_id: int
    tags: tuple[str, ...] = ()
    """Tags that the configuration adds to those of all its streams."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A stream as responses contain it."""

    driver: DriverIdentity
    stream_id: int
    producer_id: int
    epoch: int
    layout_version: int
    nslots: int
    pools: tuple[PayloadPool, ...]
    header_uri: str
    labels: StreamLabels

    @property
    def key(self) -> tuple[str, int]:
        """Driver instance and stream id."""
        return self.driver.instance_id, self.stream_id

    def to_result(self) -> DiscoveryResult:
        """The entry as a result of a response: all tags, and the bytes of the name unchanged."""
        return DiscoveryResult(
            stream_id=self.stream_id,
            producer_id=self.producer_id,
            epoch=self.epoch,
            layout_version=self.layout_version,
            header_nslots=self.nslots,
            header_slot_bytes=HEADER_SLOT_BYTES,
            max_dims=MAX_DIMS,
            data_source_id=self.labels.data_source_id,
            driver_control_stream_id=self.driver.control_stream_id,
            payload_pools=self.pools,
            tags=tuple(Tag(tag=tag) for tag in self.labels.tags),
            header_region_uri=self.header_uri,
            data_source_name=self.labels.name,
            driver_instance_id=self.driver.instance_id,
            driver_control_channel=self.driver.control_channel,
        )

    def __str__(self) -> str:
        return f"{self.driver.instance_id}/{self.stream_id} {from_wire(self.labels.name)}".rstrip()


class IndexResult(StrEnum):
    """The effect of a message on the index."""

    NEW = "new"
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    REGRESSED = "regressed"
    """Ignored: of an older epoch than the known one."""
    INVALID = "invalid"
    """Ignored: its layout cannot be a result."""
    FULL = "full"
    """Ignored: the driver has the maximum of streams."""

    @property
    def is_rejection(self) -> bool:
        """Whether the message was ignored."""
        return self in (IndexResult.REGRESSED, IndexResult.INVALID, IndexResult.FULL)


@dataclass(slots=True)
class _IndexedStream:
    driver: DriverIdentity
    announced: AnnouncedStream
    entry: Entry | None = None
    """None until the stream is announced."""

    def build(self) -> Entry | None:
        """The entry that follows from the announce and the labels that apply to its epoch."""
        announce = self.announced.announce
        if announce is None:
            return None
        return Entry(
            driver=self.driver,
            stream_id=announce.stream_id,
            producer_id=announce.producer_id,
            epoch=announce.epoch,
            layout_version=announce.layout_version,
            nslots=announce.header_nslots,
            pools=announce.payload_pools,
            header_uri=announce.header_region_uri,
            labels=self.announced.labels.and_tags(self.driver.tags),
        )


@dataclass(slots=True)
class _Driver:
    identity: DriverIdentity
    window_ns: int
    """How long an announce is valid: three announce periods."""
    streams: dict[int, _IndexedStream] = field(default_factory=dict)


class DiscoveryIndex:
    """Streams by driver instance and stream id."""

    def __init__(self, *, max_streams: int = MAX_STREAMS) -> None:
        """`max_streams`: maximum for each driver."""
        self._max_streams = max_streams
        self._drivers: dict[str, _Driver] = {}
        self._by_name: dict[str, dict[tuple[str, int], Entry]] = {}
        self._by_stream: dict[int, dict[tuple[str, int], Entry]] = {}
        self._entries: dict[tuple[str, int], Entry] = {}
        self._due_ns = _NEVER_NS
        """No part of the index expires before this time."""
        self.generation = 0
        """Number of changes: as long as it is the same, equal requests have equal responses."""

    def __len__(self) -> int:
        """The number of entries after the last expiry."""
        return len(self._entries)

    # --- drivers

    def set_driver(self, identity: DriverIdentity, *, announce_period_ns: int) -> None:
        """Adds a driver. A driver with another address was restarted: its streams are dropped, so that any
        epoch of it is accepted (discovery §6.3). Raises ConfigError for an address that no result may have
        (discovery §5.2)."""
        if not identity.control_channel or identity.control_stream_id == 0:
            raise ConfigError(
                f"driver {identity.instance_id!r}: control_channel is {identity.control_channel!r} and "
                f"control_stream_id {identity.control_stream_id}; set both, so that clients can attach"
            )
        driver = self._drivers.get(identity.instance_id)
        if driver is not None and driver.identity != identity:
            self.remove_driver(identity.instance_id)
            driver = None
        if driver is None:
            driver = self._drivers[identity.instance_id] = _Driver(identity, 0)
        driver.window_ns = 3 * announce_period_ns
        self._due_ns = 0

    def remove_driver(self, instance_id: str) -> None:
        """Drops a driver and its streams."""
        driver = self._drivers.pop(instance_id, None)
        for stream in list(driver.streams.values()) if driver else ():
            self._set_entry(stream, None)

    @property
    def drivers(self) -> list[DriverIdentity]:
        """All drivers."""
        return [driver.identity for driver in self._drivers.values()]

    def count_streams(self, instance_id: str) -> int:
        """The number of entries of a driver."""
        driver = self._drivers.get(instance_id)
        return sum(stream.entry is not None for stream in driver.streams.values()) if driver else 0

    # --- messages

    def observe(self, instance_id: str, event: object, now_ns: int) -> IndexResult:
        """Takes an event of `AnnounceReader`. A repeated message renews its stream; if the index has dropped
        that, the message counts as new."""
        match event:
            case RepeatedAnnounce(stream_id=stream_id, epoch=epoch, announce=announce):
                if self.on_repeated_announce(instance_id, stream_id, epoch, now_ns):
                    return IndexResult.UNCHANGED
                return self.on_announce(instance_id, announce, now_ns)
            case RepeatedMetadata():
                if self.on_repeated_metadata(instance_id, event, now_ns):
                    return IndexResult.UNCHANGED
                return self.observe(instance_id, event.decode(), now_ns)
            case ShmPoolAnnounce():
                return self.on_announce(instance_id, event, now_ns)
            case DataSourceAnnounce():
                return self.on_source(instance_id, event, now_ns)
            case DataSourceMeta():
                return self.on_meta(instance_id, event, now_ns)
            case _:
                return IndexResult.INVALID

    def on_announce(self, instance_id: str, announce: ShmPoolAnnounce, now_ns: int) -> IndexResult:
        """Takes an announce. The newest epoch replaces older ones; an older epoch is ignored as long as the
        newer one is fresh (discovery §6.3)."""
        if not _is_valid(announce):
            return IndexResult.INVALID
        self.expire(now_ns)
        driver = self._drivers[instance_id]
        stream = self._stream(driver, announce.stream_id)
        if stream is None:
            return IndexResult.FULL
        is_new = stream.announced.announce is None
        if not stream.announced.on_announce(announce, now_ns, driver.window_ns):
            return IndexResult.REGRESSED
        result = self._update(driver, stream, now_ns)
        return IndexResult.NEW if is_new and result is IndexResult.CHANGED else result

    def on_repeated_announce(self, instance_id: str, stream_id: int, epoch: int, now_ns: int) -> bool:
        """Renews a stream. False: the index has no announce of that epoch."""
        self.expire(now_ns)
        stream = self._drivers[instance_id].streams.get(stream_id)
        return stream is not None and stream.announced.on_repeated_announce(epoch, now_ns)

    def on_source(self, instance_id: str, source: DataSourceAnnounce, now_ns: int) -> IndexResult:
        """Takes a name, from the producer or, with metadata version 0, from the driver."""
        self.expire(now_ns)
        if is_undescribed(source):
            return IndexResult.UNCHANGED
        driver = self._drivers[instance_id]
        stream = self._stream(driver, source.stream_id)
        if stream is None:
            return IndexResult.FULL
        if not stream.announced.on_source(source, now_ns):
            return IndexResult.REGRESSED
        return self._update(driver, stream, now_ns)

    def on_meta(self, instance_id: str, meta: DataSourceMeta, now_ns: int) -> IndexResult:
        """Takes attributes, which may contain tags and the data source id."""
        self.expire(now_ns)
        driver = self._drivers[instance_id]
        stream = self._stream(driver, meta.stream_id)
        if stream is None:
            return IndexResult.FULL
        stream.announced.on_meta(meta, now_ns)
        return self._update(driver, stream, now_ns)

    def ignored_tags(self, instance_id: str, meta: DataSourceMeta) -> dict[str, int]:
        """How many tags of the attributes last taken are not in the index, by reason."""
        stream = self._drivers[instance_id].streams.get(meta.stream_id)
        return {} if stream is None else stream.announced.ignored_tags(meta.meta_version)

    def on_repeated_metadata(self, instance_id: str, repeated: RepeatedMetadata, now_ns: int) -> bool:
        """Renews metadata. False: the index does not have it."""
        self.expire(now_ns)
        stream = self._drivers[instance_id].streams.get(repeated.stream_id)
        if repeated.is_empty:
            return True
        return stream is not None and stream.announced.on_repeated_metadata(
            by_driver=repeated.by_driver, is_meta=repeated.is_meta, now_ns=now_ns
        )

    def remove(self, instance_id: str, stream_id: int) -> None:
        """Drops a stream that its driver has removed."""
        stream = self._drivers[instance_id].streams.pop(stream_id, None)
        if stream is not None:
            self._set_entry(stream, None)

    def expire(self, now_ns: int) -> None:
        """Drops announces and metadata that are older than their window; cheap while none can be."""
        if now_ns <= self._due_ns:
            return
        self._due_ns = _NEVER_NS
        for driver in self._drivers.values():
            for stream_id, stream in list(driver.streams.items()):
                stream.announced.expire(now_ns - driver.window_ns)
                self._rebuild(stream)
                if stream.announced.is_empty:
                    del driver.streams[stream_id]
                else:
                    self._due_ns = min(self._due_ns, stream.announced.oldest_ns + driver.window_ns)

    # --- entries

    def entries(self, now_ns: int) -> Iterator[Entry]:
        """All entries."""
        self.expire(now_ns)
        return iter(self._entries.values())

    def candidates(self, now_ns: int, *, name: str, stream_id: int | None) -> Iterator[Entry]:
        """The entries with that id or, without an id, with that name; without both, all entries."""
        self.expire(now_ns)
        if stream_id is not None:
            return iter(self._by_stream.get(stream_id, {}).values())
        if name:
            return iter(self._by_name.get(name, {}).values())
        return iter(self._entries.values())

    def _stream(self, driver: _Driver, stream_id: int) -> _IndexedStream | None:
        stream = driver.streams.get(stream_id)
        if stream is None:
            if len(driver.streams) >= self._max_streams:
                return None
            stream = _IndexedStream(driver.identity, AnnouncedStream(stream_id))
            driver.streams[stream_id] = stream
        return stream

    def _update(self, driver: _Driver, stream: _IndexedStream, now_ns: int) -> IndexResult:
        self._due_ns = min(self._due_ns, now_ns + driver.window_ns)
        return IndexResult.CHANGED if self._rebuild(stream) else IndexResult.UNCHANGED

    def _rebuild(self, stream: _IndexedStream) -> bool:
        """Builds the entry; False if it is equal to the present one."""
        entry = stream.build()
        if entry == stream.entry:
            return False
        self._set_entry(stream, entry)
        return True

    def _set_entry(self, stream: _IndexedStream, entry: Entry | None) -> None:
        before, stream.entry = stream.entry, entry
        if before is not None:
            del self._entries[before.key]
            _remove_from(self._by_name, before.labels.name, before)
            _remove_from(self._by_stream, before.stream_id, before)
        if entry is not None:
            self._entries[entry.key] = entry
            self._by_name.setdefault(entry.labels.name, {})[entry.key] = entry
            self._by_stream.setdefault(entry.stream_id, {})[entry.key] = entry
        if before is not None or entry is not None:
            self.generation += 1


def _remove_from(table: dict[_K, dict[tuple[str, int], Entry]], key: _K, entry: Entry) -> None:
    del table[key][entry.key]
    if not table[key]:
        del table[key]


def _is_valid(announce: ShmPoolAnnounce) -> bool:
    """Whether it can be a result: every pool has the slot count of the ring (discovery §5.2)."""
    if (
        announce.stream_id == 0
        or announce.header_slot_bytes != HEADER_SLOT_BYTES
        or len(announce.payload_pools) > _MAX_POOLS
    ):
        return False
    return all(pool.pool_nslots == announce.header_nslots for pool in announce.payload_pools)
