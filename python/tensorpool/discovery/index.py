"""The index of streams: announces, metadata and the time go in, entries come out (discovery §6). Pure.

Soft state: what is no longer announced is no longer known. Age counts from the time of receipt, since another
host's clock means nothing here (decision 14). Owned by one thread.

What a provider knows of one stream. Plain values.

One stream of one driver, as its announces and its metadata have it so far. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeVar

from ..attributes.tags import MAX_NAME_BYTES, from_wire, read_attributes, wire_length
from ..sbe.discovery import DiscoveryResult, Tag
from ..sbe.wire import DataSourceAnnounce, DataSourceMeta, PayloadPool, ShmPoolAnnounce

MAX_DIMS = 8
HEADER_SLOT_BYTES = 256


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    """Who has the streams, and where attaches go (discovery §5.2, decision 27)."""

    instance_id: str
    control_channel: str
    control_stream_id: int
    tags: tuple[str, ...] = ()
    """What whoever knows of the driver says of all its streams, beside their own tags."""


@dataclass(frozen=True, slots=True)
class StreamLabels:
    """What is said of a stream, by its producer or by its driver. Text is as the wire has it."""

    name: str = ""
    tags: tuple[str, ...] = ()
    data_source_id: int | None = None

    def over(self, others: StreamLabels) -> StreamLabels:
        """These, and where they say nothing the others'."""
        return StreamLabels(
            self.name or others.name,
            self.tags or others.tags,
            others.data_source_id if self.data_source_id is None else self.data_source_id,
        )

    def and_tags(self, tags: tuple[str, ...]) -> StreamLabels:
        """With these tags too, each once."""
        return replace(self, tags=tuple(dict.fromkeys((*self.tags, *tags)))) if tags else self


@dataclass(frozen=True, slots=True)
class Entry:
    """A stream as it is answered for."""

    driver: DriverIdentity
    stream_id: int
    producer_id: int
    epoch: int
    layout_version: int
    nslots: int
    pools: tuple[PayloadPool, ...]
    header_uri: str
    words: StreamLabels

    @property
    def key(self) -> tuple[str, int]:
        return self.driver.instance_id, self.stream_id

    def result(self) -> DiscoveryResult:
        """As a response has it: all tags, the name byte for byte."""
        return DiscoveryResult(
            stream_id=self.stream_id,
            producer_id=self.producer_id,
            epoch=self.epoch,
            layout_version=self.layout_version,
            header_nslots=self.nslots,
            header_slot_bytes=HEADER_SLOT_BYTES,
            max_dims=MAX_DIMS,
            data_source_id=self.words.data_source_id,
            driver_control_stream_id=self.driver.control_stream_id,
            payload_pools=self.pools,
            tags=tuple(Tag(tag=tag) for tag in self.words.tags),
            header_region_uri=self.header_uri,
            data_source_name=self.words.name,
            driver_instance_id=self.driver.instance_id,
            driver_control_channel=self.driver.control_channel,
        )

    def __str__(self) -> str:
        return f"{self.driver.instance_id}/{self.stream_id} {from_wire(self.words.name)}".rstrip()


DRIVER_VERSION = 0
"""The metadata version of what a driver says of its streams; producers count from 1."""
_NOTHING = StreamLabels()


@dataclass(slots=True)
class LabelSource:
    """What a producer, or a driver, says of a stream, for as long as it goes on saying it."""

    epoch: int = 0
    version: int = DRIVER_VERSION
    name: str = ""
    said_version: int | None = None
    tags: tuple[str, ...] = ()
    data_source_id: int | None = None
    heard_ns: int = 0

    def on_source(self, said: DataSourceAnnounce, now_ns: int) -> None:
        if self.epoch not in (0, said.epoch):
            # Another producer, which may count its versions from the beginning.
            self.said_version = None
        self.epoch, self.version, self.heard_ns = said.epoch, said.meta_version, now_ns
        self.name = said.name if wire_length(said.name) <= MAX_NAME_BYTES else ""

    def on_meta(self, said: DataSourceMeta) -> None:
        self.said_version = said.meta_version
        self.tags, self.data_source_id = read_attributes(said.attributes)

    @property
    def words(self) -> StreamLabels:
        # Attributes of another version than the announced one are on their way out, or in.
        if self.said_version != self.version:
            return StreamLabels(self.name)
        return StreamLabels(self.name, self.tags, self.data_source_id)


@dataclass(slots=True)
class AnnouncedStream:
    """All that was heard of a stream. It is answered for once it was announced."""

    driver: DriverIdentity
    stream_id: int
    announce: ShmPoolAnnounce | None = None
    announced_ns: int = 0
    producer: LabelSource | None = None
    by_driver: LabelSource | None = None
    entry: Entry | None = None

    def voice(self, version: int, now_ns: int) -> LabelSource:
        """Whoever speaks with that metadata version."""
        if version == DRIVER_VERSION:
            self.by_driver = self.by_driver or LabelSource(heard_ns=now_ns)
            return self.by_driver
        self.producer = self.producer or LabelSource(heard_ns=now_ns)
        return self.producer

    def forget_silent(self, oldest_ns: int) -> None:
        """What was not heard since then is no longer so."""
        if self.announce is not None and self.announced_ns < oldest_ns:
            self.announce = None
        if self.producer is not None and self.producer.heard_ns < oldest_ns:
            self.producer = None
        if self.by_driver is not None and self.by_driver.heard_ns < oldest_ns:
            self.by_driver = None

    @property
    def is_empty(self) -> bool:
        return self.announce is None and self.producer is None and self.by_driver is None

    @property
    def oldest_ns(self) -> int:
        """When the part was heard that will be too old first."""
        times = [one.heard_ns for one in (self.producer, self.by_driver) if one is not None]
        if self.announce is not None:
            times.append(self.announced_ns)
        return min(times)

    def build(self) -> Entry | None:
        """What is answered. A producer's words hold for its own epoch, and come before the driver's."""
        said = self.announce
        if said is None:
            return None
        words = _NOTHING if self.by_driver is None else self.by_driver.words
        if self.producer is not None and self.producer.epoch == said.epoch:
            words = self.producer.words.over(words)
        return Entry(
            driver=self.driver,
            stream_id=self.stream_id,
            producer_id=said.producer_id,
            epoch=said.epoch,
            layout_version=said.layout_version,
            nslots=said.header_nslots,
            pools=said.payload_pools,
            header_uri=said.header_region_uri,
            words=words.and_tags(self.driver.tags),
        )


MAX_STREAMS: Final = 20_000
_MAX_POOLS: Final = 256
_NEVER_NS: Final = 1 << 63
_K = TypeVar("_K", str, int)


class IndexResult(StrEnum):
    """What became of a message."""

    NEW = "new"
    AGAIN = "again"
    CHANGED = "changed"
    REGRESSED = "regressed"
    INVALID = "invalid"
    FULL = "full"


@dataclass(slots=True)
class _Driver:
    identity: DriverIdentity
    window_ns: int
    """How long an announce holds: three announce periods."""
    records: dict[int, AnnouncedStream] = field(default_factory=dict)


class DiscoveryIndex:
    """Streams by (driver instance, stream id)."""

    def __init__(self, *, max_streams: int = MAX_STREAMS) -> None:
        self._max_streams = max_streams
        self._drivers: dict[str, _Driver] = {}
        self._by_name: dict[str, dict[tuple[str, int], Entry]] = {}
        self._by_stream: dict[int, dict[tuple[str, int], Entry]] = {}
        self._entries: dict[tuple[str, int], Entry] = {}
        self._due_ns = _NEVER_NS
        self.generation = 0
        """Counts changes: while it stands, every question has the same answer."""

    def __len__(self) -> int:
        """How many streams were announced and had not expired at the last look."""
        return len(self._entries)

    # --- drivers

    def set_driver(self, identity: DriverIdentity, *, announce_period_ns: int) -> None:
        """Makes a driver known. One whose endpoint has changed was restarted elsewhere: all that was known of
        its streams is forgotten, so that whatever epoch it has is taken (discovery §6.3)."""
        known = self._drivers.get(identity.instance_id)
        if known is not None and known.identity != identity:
            self.drop_driver(identity.instance_id)
            known = None
        if known is None:
            known = self._drivers[identity.instance_id] = _Driver(identity, 0)
        known.window_ns = 3 * announce_period_ns
        self._due_ns = 0

    def drop_driver(self, instance_id: str) -> None:
        driver = self._drivers.pop(instance_id, None)
        for record in list(driver.records.values()) if driver else ():
            self._show(record, None)

    @property
    def drivers(self) -> list[DriverIdentity]:
        return [one.identity for one in self._drivers.values()]

    def count_of(self, instance_id: str) -> int:
        """How many streams of a driver are known."""
        driver = self._drivers.get(instance_id)
        return sum(one.entry is not None for one in driver.records.values()) if driver else 0

    # --- what is heard

    def on_announce(self, instance_id: str, said: ShmPoolAnnounce, now_ns: int) -> IndexResult:
        """Where a stream's memory is. The newest epoch replaces what was; one that falls is passed over
        for as long as the newer one is alive (discovery §6.3)."""
        if not _is_sound(said):
            return IndexResult.INVALID
        self.expire(now_ns)
        driver = self._drivers[instance_id]
        record = self._take(driver, said.stream_id)
        if record is None:
            return IndexResult.FULL
        before = record.announce
        if before is not None and said.epoch < before.epoch:
            return IndexResult.REGRESSED
        record.announce, record.announced_ns = said, now_ns
        self._due_ns = min(self._due_ns, now_ns + driver.window_ns)
        if not self._rebuild(record):
            return IndexResult.AGAIN
        return IndexResult.NEW if before is None else IndexResult.CHANGED

    def on_same_announce(self, instance_id: str, stream_id: int, epoch: int, now_ns: int) -> bool:
        """The same announce once more, but for its time. False if there is none to be the same as."""
        self.expire(now_ns)
        record = self._drivers[instance_id].records.get(stream_id)
        if record is None or record.announce is None or record.announce.epoch != epoch:
            return False
        record.announced_ns = now_ns
        return True

    def on_source(self, instance_id: str, said: DataSourceAnnounce, now_ns: int) -> IndexResult:
        """What a stream is called, by its producer, or by its driver (metadata version 0)."""
        self.expire(now_ns)
        driver = self._drivers[instance_id]
        record = self._take(driver, said.stream_id)
        if record is None:
            return IndexResult.FULL
        known = record.by_driver if said.meta_version == DRIVER_VERSION else record.producer
        # A dying producer may speak once more after its successor did.
        if known is not None and said.epoch < known.epoch:
            return IndexResult.REGRESSED
        record.voice(said.meta_version, now_ns).on_source(said, now_ns)
        self._due_ns = min(self._due_ns, now_ns + driver.window_ns)
        return IndexResult.CHANGED if self._rebuild(record) else IndexResult.AGAIN

    def on_meta(self, instance_id: str, said: DataSourceMeta, now_ns: int) -> IndexResult:
        """Attributes; tags and the data source id are among them."""
        self.expire(now_ns)
        driver = self._drivers[instance_id]
        record = self._take(driver, said.stream_id)
        if record is None:
            return IndexResult.FULL
        record.voice(said.meta_version, now_ns).on_meta(said)
        self._due_ns = min(self._due_ns, now_ns + driver.window_ns)
        return IndexResult.CHANGED if self._rebuild(record) else IndexResult.AGAIN

    def on_same_words(
        self, instance_id: str, stream_id: int, now_ns: int, *, by_driver: bool, is_meta: bool
    ) -> bool:
        """The same words once more. False if there are none to be the same as."""
        self.expire(now_ns)
        record = self._drivers[instance_id].records.get(stream_id)
        voice = None if record is None else record.by_driver if by_driver else record.producer
        # An epoch of 0: only attributes were heard so far. No version: they were another producer's.
        if voice is None or (voice.said_version is None if is_meta else voice.epoch == 0):
            return False
        voice.heard_ns = now_ns
        return True

    def remove(self, instance_id: str, stream_id: int) -> None:
        """The driver itself says that the stream is gone."""
        record = self._drivers[instance_id].records.pop(stream_id, None)
        if record is not None:
            self._show(record, None)

    def expire(self, now_ns: int) -> None:
        """Forgets what was not heard for its window; cheap while nothing can be due."""
        if now_ns <= self._due_ns:
            return
        self._due_ns = _NEVER_NS
        for driver in self._drivers.values():
            for record in list(driver.records.values()):
                record.forget_silent(now_ns - driver.window_ns)
                self._rebuild(record)
                if record.is_empty:
                    del driver.records[record.stream_id]
                else:
                    self._due_ns = min(self._due_ns, record.oldest_ns + driver.window_ns)

    # --- what is there

    def entries(self, now_ns: int) -> Iterator[Entry]:
        """All that are alive."""
        self.expire(now_ns)
        return iter(self._entries.values())

    def candidates(self, now_ns: int, *, name: str, stream_id: int | None) -> Iterator[Entry]:
        """Those with that name and id, where they are given; others need not be looked at."""
        self.expire(now_ns)
        if stream_id is not None:
            return iter(self._by_stream.get(stream_id, {}).values())
        if name:
            return iter(self._by_name.get(name, {}).values())
        return iter(self._entries.values())

    # --- records

    def _take(self, driver: _Driver, stream_id: int) -> AnnouncedStream | None:
        record = driver.records.get(stream_id)
        if record is None:
            if len(driver.records) >= self._max_streams:
                return None
            record = driver.records[stream_id] = AnnouncedStream(driver.identity, stream_id)
        return record

    def _rebuild(self, record: AnnouncedStream) -> bool:
        """Whether it is another entry now."""
        entry = record.build()
        if entry == record.entry:
            return False
        self._show(record, entry)
        return True

    def _show(self, record: AnnouncedStream, entry: Entry | None) -> None:
        before, record.entry = record.entry, entry
        if before is not None:
            del self._entries[before.key]
            _take_away(self._by_name, before.words.name, before)
            _take_away(self._by_stream, before.stream_id, before)
        if entry is not None:
            self._entries[entry.key] = entry
            self._by_name.setdefault(entry.words.name, {})[entry.key] = entry
            self._by_stream.setdefault(entry.stream_id, {})[entry.key] = entry
        if before is not None or entry is not None:
            self.generation += 1


def _take_away(table: dict[_K, dict[tuple[str, int], Entry]], key: _K, entry: Entry) -> None:
    del table[key][entry.key]
    if not table[key]:
        del table[key]


def _is_sound(said: ShmPoolAnnounce) -> bool:
    """Whether it can be answered for: every pool has the ring's slot count (discovery §5.2)."""
    if (
        said.stream_id == 0
        or said.header_slot_bytes != HEADER_SLOT_BYTES
        or len(said.payload_pools) > _MAX_POOLS
    ):
        return False
    return all(pool.pool_nslots == said.header_nslots for pool in said.payload_pools)
