"""Mappings with everything that the bridge's own settings supply: one route each."""

from __future__ import annotations

from dataclasses import dataclass

from .config import BridgeSettings, Direction, MappingSettings


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A stream on an Aeron channel."""

    channel: str
    stream_id: int

    def __str__(self) -> str:
        return f"{self.channel}, stream {self.stream_id}"


@dataclass(frozen=True, slots=True)
class Route:
    """One mapping of one instance."""

    key: str
    direction: Direction
    source_stream_id: int
    dest_stream_id: int
    payload: Endpoint
    control: Endpoint
    metadata: Endpoint | None
    mapping: MappingSettings

    @property
    def sends(self) -> bool:
        return self.direction == "send"

    def __str__(self) -> str:
        return f"{self.source_stream_id} → {self.dest_stream_id or 'any'}"


def routes_of(settings: BridgeSettings) -> tuple[Route, ...]:
    """In the order of the configuration."""
    return tuple(_route(settings, number, one) for number, one in enumerate(settings.mappings))


def _route(settings: BridgeSettings, number: int, one: MappingSettings) -> Route:
    metadata = None
    channel = one.metadata_channel or settings.metadata_channel
    if settings.forward_metadata and channel:
        metadata = Endpoint(channel, one.metadata_transport_stream_id or settings.metadata_stream_id)
    return Route(
        key=f"mappings[{number}]",
        direction=one.direction or settings.direction,
        source_stream_id=one.source_stream_id,
        dest_stream_id=one.dest_stream_id,
        payload=Endpoint(
            one.payload_channel or settings.payload_channel,
            one.payload_stream_id or settings.payload_stream_id,
        ),
        control=Endpoint(
            one.control_channel or settings.control_channel,
            one.control_stream_id or settings.control_stream_id,
        ),
        metadata=metadata,
        mapping=one,
    )
