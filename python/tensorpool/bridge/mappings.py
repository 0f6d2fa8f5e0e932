"""Mappings of a bridge (which stream crosses as which), and fallback URIs (bridge §10). Pure.

A fallback URI names the streams of a bridge from which a consumer reads frames instead of shared memory
(wire §5). `ctx.consumer(fallback_uri=…)` reads them from the start. A consumer of shared memory switches to
them when a ConsumerConfig has a `payload_fallback_uri`, and back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from .. import _native
from ..driver.config import DEFAULT_BRIDGE_IDS
from ..errors import ConfigError
from ..transport import SHARED_CHANNEL, StreamAddress, StreamIds
from .config import BridgeSettings, Direction, MappingSettings

_MTU: Final = re.compile(r"[?|]mtu=(\d+)([kKmM]?)(?=\||$)")
_SHIFTS: Final = {"": 0, "k": 10, "m": 20}


@dataclass(frozen=True, slots=True)
class ResolvedMapping:
    """One mapping of an instance, with the bridge's settings where the mapping sets nothing."""

    key: str
    """Its setting in the configuration, as in `mappings[0]`."""
    direction: Direction
    source_stream_id: int
    dest_stream_id: int
    payload: StreamAddress
    control: StreamAddress
    metadata: StreamAddress | None
    settings: MappingSettings

    @property
    def is_sending(self) -> bool:
        """Whether this instance sends the stream."""
        return self.direction == "send"

    def __str__(self) -> str:
        return f"{self.source_stream_id} → {self.dest_stream_id or 'any'}"


def resolve_mappings(settings: BridgeSettings) -> tuple[ResolvedMapping, ...]:
    """The mappings of an instance, in the order of the configuration."""
    return tuple(_resolve(settings, number, mapping) for number, mapping in enumerate(settings.mappings))


def channel_mtu(channel: str) -> int | None:
    """The MTU that a channel names, as in `mtu=8192` or `mtu=8k`; None if it names none."""
    match = _MTU.search(channel)
    return None if match is None else int(match[1]) << _SHIFTS[match[2].lower()]


def dynamic_ids(settings: BridgeSettings) -> list[int]:
    """The stream ids for mappings that name no destination; empty if all of them name one."""
    mappings = resolve_mappings(settings)
    if all(mapping.is_sending or mapping.dest_stream_id for mapping in mappings):
        return []
    if settings.dest_stream_id_range is not None:
        return list(settings.dest_stream_id_range)
    named = {mapping.dest_stream_id for mapping in mappings if not mapping.is_sending}
    return [stream_id for stream_id in DEFAULT_BRIDGE_IDS if stream_id not in named]


def _resolve(settings: BridgeSettings, number: int, mapping: MappingSettings) -> ResolvedMapping:
    metadata = None
    channel = mapping.metadata_channel or settings.metadata_channel
    if settings.forward_metadata and channel:
        metadata = StreamAddress(channel, mapping.metadata_transport_stream_id or settings.metadata_stream_id)
    return ResolvedMapping(
        key=f"mappings[{number}]",
        direction=mapping.direction or settings.direction,
        source_stream_id=mapping.source_stream_id,
        dest_stream_id=mapping.dest_stream_id,
        payload=StreamAddress(
            mapping.payload_channel or settings.payload_channel,
            mapping.payload_stream_id or settings.payload_stream_id,
        ),
        control=StreamAddress(
            mapping.control_channel or settings.control_channel,
            mapping.control_stream_id or settings.control_stream_id,
        ),
        metadata=metadata,
        settings=mapping,
    )


@dataclass(frozen=True, slots=True)
class SourceStreams:
    """The Aeron streams of a host on which a sender receives the messages that it forwards.

    These are the shared ones, the dedicated ones of a mapped stream (`[[aeron.streams]]`), and those that
    its mapping names.
    """

    announce: StreamAddress
    control: tuple[StreamAddress, ...]
    """Streams of progress and QoS reports; empty if neither is forwarded."""
    traces: tuple[StreamAddress, ...]
    metadata: tuple[StreamAddress, ...]

    @classmethod
    def from_mappings(
        cls, settings: BridgeSettings, mappings: Sequence[ResolvedMapping], ids: StreamIds
    ) -> SourceStreams:
        """The streams that these mappings need."""
        dedicated = [ids.dedicated_streams(mapping.source_stream_id) for mapping in mappings]
        named = [mapping.settings.source_control_stream_id or None for mapping in mappings]
        controls = _known(*named, *(each.control for each in dedicated))
        # A mapping names one stream for progress and QoS reports.
        qos = _known(ids.qos, *named, *(each.qos for each in dedicated)) if settings.forward_qos else []
        control = [
            *(StreamAddress(ids.control_channel, each) for each in controls),
            *(StreamAddress(ids.qos_channel, each) for each in qos),
        ]
        traces = [StreamAddress(ids.control_channel, each) for each in _known(ids.control, *controls)]
        shared = settings.source_metadata_stream_id or ids.metadata
        metadata = [
            StreamAddress(ids.metadata_channel, each)
            for each in _known(shared, *(each.metadata for each in dedicated))
        ]
        is_forwarding = settings.forward_qos or settings.forward_progress
        has_metadata = any(mapping.metadata is not None for mapping in mappings)
        return cls(
            announce=StreamAddress(SHARED_CHANNEL, ids.announce),
            control=tuple(dict.fromkeys(control)) if is_forwarding else (),
            traces=tuple(traces) if settings.forward_traces else (),
            metadata=tuple(metadata) if has_metadata else (),
        )


def _known(*stream_ids: int | None) -> list[int]:
    """Each id once, without None."""
    return list(dict.fromkeys(each for each in stream_ids if each is not None))


@dataclass(frozen=True, slots=True)
class FallbackUri:
    """`bridge://<id>?payload=…&payload_stream=…&control=…&control_stream=…&stream=…`, percent-encoded."""

    instance_id: str
    payload: StreamAddress
    control: StreamAddress
    stream_id: int

    @classmethod
    def parse(cls, text: str) -> FallbackUri:
        """The parts of a URI. Raises ConfigError with what is wrong."""
        try:
            uri = _native.parse_fallback_uri(text)
        except ValueError as error:
            raise ConfigError(f"fallback {text!r}: {error}") from None
        return cls(
            uri.instance_id,
            StreamAddress(uri.payload_channel, uri.payload_stream_id),
            StreamAddress(uri.control_channel, uri.control_stream_id),
            uri.stream_id,
        )

    @classmethod
    def from_mapping(cls, instance_id: str, mapping: ResolvedMapping) -> FallbackUri:
        """The URI of a mapping's frames, for consumers that can receive on its channels."""
        return cls(
            quote(instance_id, safe="") or "bridge",
            mapping.payload,
            mapping.control,
            mapping.source_stream_id,
        )

    @classmethod
    def of_row(cls, settings: BridgeSettings, mapping: ResolvedMapping) -> str | None:
        """The URI of a mapping as text; None if its frames are sealed, which a fallback does not open."""
        return None if settings.key_file else str(cls.from_mapping(settings.instance_id, mapping))

    def __str__(self) -> str:
        values = {
            "payload": self.payload.channel,
            "payload_stream": self.payload.stream_id,
            "control": self.control.channel,
            "control_stream": self.control.stream_id,
            "stream": self.stream_id,
        }
        query = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in values.items())
        return f"bridge://{self.instance_id}?{query}"
