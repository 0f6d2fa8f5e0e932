"""One stream of one driver, as its announces and its metadata have it so far. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..attributes.tags import MAX_NAME_BYTES, read_attributes, wire_length
from ..sbe.wire import DataSourceAnnounce, DataSourceMeta, ShmPoolAnnounce
from .entries import DriverIdentity, Entry, Words

DRIVER_VERSION = 0
"""The metadata version of what a driver says of its streams; producers count from 1."""
_NOTHING = Words()


@dataclass(slots=True)
class Voice:
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
    def words(self) -> Words:
        # Attributes of another version than the announced one are on their way out, or in.
        if self.said_version != self.version:
            return Words(self.name)
        return Words(self.name, self.tags, self.data_source_id)


@dataclass(slots=True)
class Record:
    """All that was heard of a stream. It is answered for once it was announced."""

    driver: DriverIdentity
    stream_id: int
    announce: ShmPoolAnnounce | None = None
    announced_ns: int = 0
    producer: Voice | None = None
    by_driver: Voice | None = None
    entry: Entry | None = None

    def voice(self, version: int, now_ns: int) -> Voice:
        """Whoever speaks with that metadata version."""
        if version == DRIVER_VERSION:
            self.by_driver = self.by_driver or Voice(heard_ns=now_ns)
            return self.by_driver
        self.producer = self.producer or Voice(heard_ns=now_ns)
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
