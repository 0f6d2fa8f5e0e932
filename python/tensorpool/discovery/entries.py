"""What a provider knows of one stream. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..attributes.tags import from_wire
from ..sbe.discovery import DiscoveryResult, Tag
from ..sbe.wire import PayloadPool

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
class Words:
    """What is said of a stream, by its producer or by its driver. Text is as the wire has it."""

    name: str = ""
    tags: tuple[str, ...] = ()
    data_source_id: int | None = None

    def over(self, others: Words) -> Words:
        """These, and where they say nothing the others'."""
        return Words(
            self.name or others.name,
            self.tags or others.tags,
            others.data_source_id if self.data_source_id is None else self.data_source_id,
        )

    def and_tags(self, tags: tuple[str, ...]) -> Words:
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
    words: Words

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
