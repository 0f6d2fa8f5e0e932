"""The index of streams: announces, metadata and the time go in, entries come out (discovery §6). Pure.

Soft state: what is no longer announced is no longer known. Age counts from the time of receipt, since another
host's clock means nothing here (decision 14). Owned by one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from ..sbe.wire import DataSourceAnnounce, DataSourceMeta, ShmPoolAnnounce
from .entries import HEADER_SLOT_BYTES, DriverIdentity, Entry
from .records import DRIVER_VERSION, Record

MAX_STREAMS: Final = 20_000
_MAX_POOLS: Final = 256
_NEVER_NS: Final = 1 << 63
_K = TypeVar("_K", str, int)


class Heard(StrEnum):
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
    records: dict[int, Record] = field(default_factory=dict)


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

    def on_announce(self, instance_id: str, said: ShmPoolAnnounce, now_ns: int) -> Heard:
        """Where a stream's memory is. The newest epoch replaces what was; one that falls is passed over
        for as long as the newer one is alive (discovery §6.3)."""
        if not _is_sound(said):
            return Heard.INVALID
        self.expire(now_ns)
        driver = self._drivers[instance_id]
        record = self._take(driver, said.stream_id)
        if record is None:
            return Heard.FULL
        before = record.announce
        if before is not None and said.epoch < before.epoch:
            return Heard.REGRESSED
        record.announce, record.announced_ns = said, now_ns
        self._due_ns = min(self._due_ns, now_ns + driver.window_ns)
        if not self._rebuild(record):
            return Heard.AGAIN
        return Heard.NEW if before is None else Heard.CHANGED

    def on_same_announce(self, instance_id: str, stream_id: int, epoch: int, now_ns: int) -> bool:
        """The same announce once more, but for its time. False if there is none to be the same as."""
        self.expire(now_ns)
        record = self._drivers[instance_id].records.get(stream_id)
        if record is None or record.announce is None or record.announce.epoch != epoch:
            return False
        record.announced_ns = now_ns
        return True

    def on_source(self, instance_id: str, said: DataSourceAnnounce, now_ns: int) -> Heard:
        """What a stream is called, by its producer, or by its driver (metadata version 0)."""
        self.expire(now_ns)
        driver = self._drivers[instance_id]
        record = self._take(driver, said.stream_id)
        if record is None:
            return Heard.FULL
        known = record.by_driver if said.meta_version == DRIVER_VERSION else record.producer
        # A dying producer may speak once more after its successor did.
        if known is not None and said.epoch < known.epoch:
            return Heard.REGRESSED
        record.voice(said.meta_version, now_ns).on_source(said, now_ns)
        self._due_ns = min(self._due_ns, now_ns + driver.window_ns)
        return Heard.CHANGED if self._rebuild(record) else Heard.AGAIN

    def on_meta(self, instance_id: str, said: DataSourceMeta, now_ns: int) -> Heard:
        """Attributes; tags and the data source id are among them."""
        self.expire(now_ns)
        driver = self._drivers[instance_id]
        record = self._take(driver, said.stream_id)
        if record is None:
            return Heard.FULL
        record.voice(said.meta_version, now_ns).on_meta(said)
        self._due_ns = min(self._due_ns, now_ns + driver.window_ns)
        return Heard.CHANGED if self._rebuild(record) else Heard.AGAIN

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

    def _take(self, driver: _Driver, stream_id: int) -> Record | None:
        record = driver.records.get(stream_id)
        if record is None:
            if len(driver.records) >= self._max_streams:
                return None
            record = driver.records[stream_id] = Record(driver.identity, stream_id)
        return record

    def _rebuild(self, record: Record) -> bool:
        """Whether it is another entry now."""
        entry = record.build()
        if entry == record.entry:
            return False
        self._show(record, entry)
        return True

    def _show(self, record: Record, entry: Entry | None) -> None:
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
