"""Mappings of a bridge (which stream crosses as which), their faults, and fallback URIs. Pure.

`settings_faults` checks `[bridge]` alone, each time it is loaded; `host_faults` checks it against the ids
that the host uses (bridge §2.3, §4, §7.1, §9, §10).

A fallback URI names the streams of a bridge from which a consumer reads frames instead of shared memory
(wire §5). `ctx.consumer(fallback_uri=…)` reads them from the start. A consumer of shared memory switches to
them when a ConsumerConfig has a `payload_fallback_uri`, and back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from .. import _native
from ..errors import ConfigError
from ..transport import StreamAddress
from .config import BUILTIN_PROFILES, BridgeSettings, Direction, MappingSettings


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


class Fault(NamedTuple):
    """A fault of the configuration, and the setting of `[bridge]` that it is about."""

    key: str
    reason: str


def settings_faults(settings: BridgeSettings) -> Iterator[Fault]:
    """Settings of `[bridge]` that do not fit together."""
    # A mapping that could not be read is None here, and is already reported.
    if not settings.mappings or any(mapping is None for mapping in settings.mappings):
        if not settings.mappings:
            yield Fault("mappings", "is empty; add a [[bridge.mappings]]")
        return
    mappings = resolve_mappings(settings)
    yield from _transport_faults(settings, mappings)
    yield from _duplicate_faults(mappings)
    yield from _loop_faults(mappings)
    yield from _destination_faults(settings, mappings)
    yield from _forwarding_faults(settings, mappings)
    profiles = {*BUILTIN_PROFILES, *(profile.name for profile in settings.profiles)}
    for mapping in mappings:
        if mapping.settings.profile not in profiles:
            names = ", ".join(sorted(profiles))
            yield Fault(
                "mappings",
                f"{mapping.key}.profile {mapping.settings.profile!r} is unknown; use one of {names}",
            )


def _transport_faults(settings: BridgeSettings, mappings: tuple[ResolvedMapping, ...]) -> Iterator[Fault]:
    if settings.forward_metadata and not settings.metadata_channel:
        for mapping in mappings:
            if not mapping.settings.metadata_channel:
                reason = f"{mapping.key} has no metadata channel: set it, or forward_metadata = false"
                yield Fault("metadata_channel", reason)
    for mapping in mappings:
        addresses = [("payload_stream_id", mapping.payload), ("control_stream_id", mapping.control)]
        if mapping.metadata is not None:
            addresses.append(("metadata_stream_id", mapping.metadata))
        for number, (key, address) in enumerate(addresses):
            for earlier_key, earlier in addresses[:number]:
                if address == earlier:
                    reason = f"is {address}, as {earlier_key} of {mapping.key}: use different ids"
                    yield Fault(key, reason)
    senders = {mapping.payload: mapping for mapping in mappings if mapping.is_sending}
    for mapping in mappings:
        if not mapping.is_sending and (sender := senders.get(mapping.payload)) is not None:
            reason = f"{mapping.key} receives on {mapping.payload}, where {sender.key} sends"
            yield Fault("payload_stream_id", f"{reason}: use another stream id")


def _duplicate_faults(mappings: tuple[ResolvedMapping, ...]) -> Iterator[Fault]:
    sources: dict[tuple[Direction, StreamAddress, int], ResolvedMapping] = {}
    destinations: dict[int, ResolvedMapping] = {}
    for mapping in mappings:
        source = (mapping.direction, mapping.payload, mapping.source_stream_id)
        if (other := sources.setdefault(source, mapping)) is not mapping:
            reason = f"{mapping.key}.source_stream_id {mapping.source_stream_id}: already used by {other.key}"
            yield Fault("mappings", reason)
        if mapping.is_sending or not mapping.dest_stream_id:
            continue
        if (other := destinations.setdefault(mapping.dest_stream_id, mapping)) is not mapping:
            reason = f"{mapping.key}.dest_stream_id {mapping.dest_stream_id}: already used by {other.key}"
            yield Fault("mappings", f"{reason}; a stream has one producer")


def _loop_faults(mappings: tuple[ResolvedMapping, ...]) -> Iterator[Fault]:
    """Streams that are sent from here and received back into the same stream."""
    for back in mappings:
        if back.is_sending or not back.dest_stream_id:
            continue
        for out in mappings:
            if out.is_sending and (out.source_stream_id, out.dest_stream_id) == (
                back.dest_stream_id,
                back.source_stream_id,
            ):
                reason = f"{back.key} ({back}) returns what {out.key} ({out}) sends: a loop"
                yield Fault("mappings", f"{reason}; use other stream ids for one of them")


def _destination_faults(settings: BridgeSettings, mappings: tuple[ResolvedMapping, ...]) -> Iterator[Fault]:
    dynamic = [mapping for mapping in mappings if not mapping.is_sending and not mapping.dest_stream_id]
    ids = settings.dest_stream_id_range
    if ids is None:
        for mapping in dynamic:
            yield Fault("dest_stream_id_range", f"is not set, and {mapping.key}.dest_stream_id is 0")
        return
    if ids.first == 0:
        yield Fault("dest_stream_id_range", "begins with 0, which is not a stream id")
    if len(ids) < len(dynamic):
        yield Fault("dest_stream_id_range", f"has {len(ids)} ids for {len(dynamic)} mappings")
    for name, number in _configured_ids(settings, mappings):
        if number in ids:
            yield Fault("dest_stream_id_range", f"contains {number}, which is {name}")


def _configured_ids(
    settings: BridgeSettings, mappings: tuple[ResolvedMapping, ...]
) -> Iterator[tuple[str, int]]:
    yield "payload_stream_id", settings.payload_stream_id
    yield "control_stream_id", settings.control_stream_id
    yield "metadata_stream_id", settings.metadata_stream_id
    for mapping in mappings:
        ids = mapping.settings
        if not mapping.is_sending:
            yield f"{mapping.key}.dest_stream_id", ids.dest_stream_id
        yield f"{mapping.key}.metadata_stream_id", ids.metadata_stream_id
        yield f"{mapping.key}.source_control_stream_id", ids.source_control_stream_id
        yield f"{mapping.key}.dest_control_stream_id", ids.dest_control_stream_id


def _forwarding_faults(settings: BridgeSettings, mappings: tuple[ResolvedMapping, ...]) -> Iterator[Fault]:
    for is_forwarded, key in (
        (settings.forward_progress, "forward_progress"),
        (settings.forward_qos, "forward_qos"),
    ):
        for mapping in mappings if is_forwarded else ():
            for name in ("source_control_stream_id", "dest_control_stream_id"):
                if not getattr(mapping.settings, name):
                    yield Fault(key, f"is true, and {mapping.key}.{name} is not set")


def host_faults(settings: BridgeSettings, in_use: Mapping[str, int]) -> Iterator[Fault]:
    """Destinations whose id the host uses for something else. `in_use`: stream ids by purpose."""
    ids = settings.dest_stream_id_range
    for name, number in in_use.items():
        if ids is not None and number in ids:
            yield Fault("dest_stream_id_range", f"contains {number}, which is {name}")
        for mapping in resolve_mappings(settings):
            if not mapping.is_sending and mapping.dest_stream_id == number:
                yield Fault("mappings", f"{mapping.key}.dest_stream_id {number}: that is {name}")


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
            instance_id, payload, control, stream_id = _native.parse_fallback_uri(text)
        except ValueError as error:
            raise ConfigError(f"fallback {text!r}: {error}") from None
        return cls(instance_id, StreamAddress(*payload), StreamAddress(*control), stream_id)

    @classmethod
    def from_mapping(cls, instance_id: str, mapping: ResolvedMapping) -> FallbackUri:
        """The URI of a mapping's frames, for consumers that can receive on its channels."""
        return cls(
            quote(instance_id, safe="") or "bridge",
            mapping.payload,
            mapping.control,
            mapping.source_stream_id,
        )

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
