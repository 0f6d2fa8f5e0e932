"""Streams as a client finds them: checked, put together, and taken for hints (discovery §5.2, §7). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..attributes.tags import fallback_uri_of, from_wire, needs_bridge
from ..sbe.discovery import DiscoveryResult
from .entries import HEADER_SLOT_BYTES, MAX_DIMS


@dataclass(frozen=True, slots=True)
class StreamFound:
    """A stream that somebody knows of: a snapshot, and no permission.

    `ctx.consumer(name=…)` goes all the way from here: it attaches through the stream's driver, the only one
    to say what the stream is and who may have it.
    """

    stream_id: int
    name: str
    tags: frozenset[str]
    data_source_id: int | None
    producer_id: int
    """0: nobody produces at the moment."""
    epoch: int
    layout_version: int
    nslots: int
    pools: tuple[int, ...]
    """Strides of the payload pools, in bytes."""
    driver_instance_id: str
    control_channel: str
    control_stream_id: int

    @property
    def has_producer(self) -> bool:
        return self.producer_id != 0

    @property
    def needs_bridge(self) -> bool:
        """Whether it is said of it that on other machines only a bridge reaches it."""
        return needs_bridge(self.tags)

    @property
    def fallback_uri(self) -> str | None:
        """Where its frames can be read off a bridge, if a tag `reach:bridge://…` says so."""
        return fallback_uri_of(self.tags)

    @property
    def key(self) -> tuple[str, int]:
        return self.driver_instance_id, self.stream_id

    def __str__(self) -> str:
        called = f" {self.name!r}" if self.name else ""
        return f"stream {self.stream_id}{called} of driver {self.driver_instance_id!r}"

    def as_json(self) -> dict[str, Any]:
        """As JSON holds it: 64-bit numbers are text."""
        return {
            "driver": self.driver_instance_id,
            "stream_id": self.stream_id,
            "name": self.name or None,
            "tags": sorted(self.tags),
            "data_source_id": None if self.data_source_id is None else str(self.data_source_id),
            "producer_id": self.producer_id or None,
            "epoch": str(self.epoch),
            "layout_version": self.layout_version,
            "nslots": self.nslots,
            "pools": list(self.pools),
            "control_channel": self.control_channel,
            "control_stream_id": self.control_stream_id,
        }


def read_result(result: DiscoveryResult) -> StreamFound | str:
    """The stream, or why the result is invalid (discovery §5.2)."""
    if not result.driver_control_channel:
        return "no_control_channel"
    if result.driver_control_stream_id == 0:
        return "no_control_stream"
    if any(pool.pool_nslots != result.header_nslots for pool in result.payload_pools):
        return "slot_count"
    if result.header_slot_bytes != HEADER_SLOT_BYTES or result.max_dims != MAX_DIMS:
        return "layout"
    return StreamFound(
        stream_id=result.stream_id,
        name=from_wire(result.data_source_name),
        tags=frozenset(from_wire(one.tag) for one in result.tags if one.tag),
        data_source_id=result.data_source_id,
        producer_id=result.producer_id,
        epoch=result.epoch,
        layout_version=result.layout_version,
        nslots=result.header_nslots,
        pools=tuple(pool.stride_bytes for pool in result.payload_pools),
        driver_instance_id=result.driver_instance_id,
        control_channel=result.driver_control_channel,
        control_stream_id=result.driver_control_stream_id,
    )


def put_together(answers: Iterable[Iterable[StreamFound]]) -> list[StreamFound]:
    """What several registries say: each stream once, in its newest epoch (discovery §7)."""
    newest: dict[tuple[str, int], StreamFound] = {}
    for answer in answers:
        for one in answer:
            known = newest.get(one.key)
            # Of the same epoch, the one with a name: a registry that has just started knows less.
            if known is None or (one.epoch, bool(one.name)) > (known.epoch, bool(known.name)):
                newest[one.key] = one
    return [newest[key] for key in sorted(newest)]
