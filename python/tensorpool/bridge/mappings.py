"""Mappings with everything that the bridge's own settings supply: one route each.

What is wrong with a bridge's configuration, each with the key that it is about (bridge §2.3, §4, §7.1,
§9, §10). Pure.

`own_faults` looks at `[bridge]` alone, and runs whenever that is read; `neighbour_faults` holds it against
the ids that the host has in use.

Where a consumer that does not use shared memory finds its frames: the streams of a bridge (wire §5).

`ctx.consumer(fallback_uri=…)` reads there from the start. A consumer of shared memory goes there by itself
when it is told to, by a `payload_fallback_uri`, and comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from .. import _native
from ..errors import ConfigError
from ..transport import StreamAddress
from .config import OWN_PROFILES, BridgeSettings, Direction, MappingSettings


@dataclass(frozen=True, slots=True)
class ResolvedMapping:
    """One mapping of one instance."""

    key: str
    direction: Direction
    source_stream_id: int
    dest_stream_id: int
    payload: StreamAddress
    control: StreamAddress
    metadata: StreamAddress | None
    mapping: MappingSettings

    @property
    def sends(self) -> bool:
        return self.direction == "send"

    def __str__(self) -> str:
        return f"{self.source_stream_id} → {self.dest_stream_id or 'any'}"


def resolve_mappings(settings: BridgeSettings) -> tuple[ResolvedMapping, ...]:
    """In the order of the configuration."""
    return tuple(_resolve(settings, number, one) for number, one in enumerate(settings.mappings))


def _resolve(settings: BridgeSettings, number: int, one: MappingSettings) -> ResolvedMapping:
    metadata = None
    channel = one.metadata_channel or settings.metadata_channel
    if settings.forward_metadata and channel:
        metadata = StreamAddress(channel, one.metadata_transport_stream_id or settings.metadata_stream_id)
    return ResolvedMapping(
        key=f"mappings[{number}]",
        direction=one.direction or settings.direction,
        source_stream_id=one.source_stream_id,
        dest_stream_id=one.dest_stream_id,
        payload=StreamAddress(
            one.payload_channel or settings.payload_channel,
            one.payload_stream_id or settings.payload_stream_id,
        ),
        control=StreamAddress(
            one.control_channel or settings.control_channel,
            one.control_stream_id or settings.control_stream_id,
        ),
        metadata=metadata,
        mapping=one,
    )


Fault = tuple[str, str]


def settings_faults(settings: BridgeSettings) -> Iterator[Fault]:
    """Values of `[bridge]` that do not fit together."""
    # A field that could not be read is None here, and was complained of already.
    if not settings.mappings or any(one is None for one in settings.mappings):
        if not settings.mappings:
            yield "mappings", "is empty: there is nothing to do; add a [[bridge.mappings]]"
        return
    routes = resolve_mappings(settings)
    yield from _transport_faults(settings, routes)
    yield from _twice(routes)
    yield from _loops(routes)
    yield from _destinations(settings, routes)
    yield from _forwarding(settings, routes)
    known = {*OWN_PROFILES, *(one.name for one in settings.profiles)}
    for route in routes:
        if route.mapping.profile not in known:
            names = ", ".join(sorted(known))
            yield "mappings", f"{route.key}.profile {route.mapping.profile!r}: none of {names}"


def _transport_faults(settings: BridgeSettings, routes: tuple[ResolvedMapping, ...]) -> Iterator[Fault]:
    if settings.forward_metadata and not settings.metadata_channel:
        for route in routes:
            if not route.mapping.metadata_channel:
                reason = f"{route.key} has no metadata channel: set it, or forward_metadata = false"
                yield "metadata_channel", reason
    for route in routes:
        ends = [("payload_stream_id", route.payload), ("control_stream_id", route.control)]
        if route.metadata is not None:
            ends.append(("metadata_stream_id", route.metadata))
        for at, (key, end) in enumerate(ends):
            for known, before in ends[:at]:
                if end == before:
                    yield key, f"is {end}, as {known} of {route.key}: give each its own"
    sent = {route.payload: route for route in routes if route.sends}
    for route in routes:
        if not route.sends and (other := sent.get(route.payload)) is not None:
            reason = (
                f"{route.key} receives on {route.payload}, where {other.key} sends: use another stream id"
            )
            yield "payload_stream_id", reason


def _twice(routes: tuple[ResolvedMapping, ...]) -> Iterator[Fault]:
    seen: dict[object, ResolvedMapping] = {}
    for route in routes:
        way = (route.direction, route.payload, route.source_stream_id)
        if (other := seen.setdefault(way, route)) is not route:
            yield (
                "mappings",
                f"{route.key}.source_stream_id {route.source_stream_id}: as in {other.key} already",
            )
        if not route.sends and route.dest_stream_id:
            made = ("destination", route.dest_stream_id)
            if (other := seen.setdefault(made, route)) is not route:
                reason = f"{route.key}.dest_stream_id {route.dest_stream_id}: as in {other.key} already"
                yield "mappings", f"{reason}; a stream has one producer"


def _loops(routes: tuple[ResolvedMapping, ...]) -> Iterator[Fault]:
    """What is sent from here and comes back into what it was sent from."""
    for back in routes:
        if back.sends or not back.dest_stream_id:
            continue
        for out in routes:
            if out.sends and (out.source_stream_id, out.dest_stream_id) == (
                back.dest_stream_id,
                back.source_stream_id,
            ):
                reason = f"{back.key} ({back}) brings back what {out.key} ({out}) sends: a loop"
                yield "mappings", f"{reason}; use other stream ids for one of them"


def _destinations(settings: BridgeSettings, routes: tuple[ResolvedMapping, ...]) -> Iterator[Fault]:
    dynamic = [route for route in routes if not route.sends and not route.dest_stream_id]
    ids = settings.dest_stream_id_range
    if ids is None:
        for route in dynamic:
            yield "dest_stream_id_range", f"is not set, and {route.key}.dest_stream_id is 0"
        return
    if ids.first == 0:
        yield "dest_stream_id_range", "begins with 0, which is no stream"
    if len(ids) < len(dynamic):
        yield "dest_stream_id_range", f"has {len(ids)} ids for {len(dynamic)} mappings"
    for name, number in _ids_in_use(settings, routes):
        if number in ids:
            yield "dest_stream_id_range", f"holds {number}, which is {name}"


def _ids_in_use(settings: BridgeSettings, routes: tuple[ResolvedMapping, ...]) -> Iterator[tuple[str, int]]:
    yield "payload_stream_id", settings.payload_stream_id
    yield "control_stream_id", settings.control_stream_id
    yield "metadata_stream_id", settings.metadata_stream_id
    for route in routes:
        one = route.mapping
        if not route.sends:
            yield f"{route.key}.dest_stream_id", one.dest_stream_id
        yield f"{route.key}.metadata_stream_id", one.metadata_stream_id
        yield f"{route.key}.source_control_stream_id", one.source_control_stream_id
        yield f"{route.key}.dest_control_stream_id", one.dest_control_stream_id


def _forwarding(settings: BridgeSettings, routes: tuple[ResolvedMapping, ...]) -> Iterator[Fault]:
    for wanted, key in (
        (settings.forward_progress, "forward_progress"),
        (settings.forward_qos, "forward_qos"),
    ):
        for route in routes if wanted else ():
            for name in ("source_control_stream_id", "dest_control_stream_id"):
                if not getattr(route.mapping, name):
                    yield key, f"is true, and {route.key}.{name} is not set"


def host_faults(settings: BridgeSettings, in_use: Mapping[str, int]) -> Iterator[Fault]:
    """Destinations and bridge streams that the host uses for something else. `in_use`: what, and its id."""
    ids = settings.dest_stream_id_range
    for name, number in in_use.items():
        if ids is not None and number in ids:
            yield "dest_stream_id_range", f"holds {number}, which is {name}"
        for route in resolve_mappings(settings):
            if not route.sends and route.dest_stream_id == number:
                yield "mappings", f"{route.key}.dest_stream_id {number}: that is {name}"


@dataclass(frozen=True, slots=True)
class FallbackUri:
    """`bridge://<id>?payload=…&payload_stream=…&control=…&control_stream=…&stream=…`, percent-encoded."""

    instance_id: str
    payload: StreamAddress
    control: StreamAddress
    stream_id: int

    @classmethod
    def parse(cls, text: str) -> FallbackUri:
        """Raises ConfigError with what is wrong: it comes from outside."""
        try:
            instance_id, payload, control, stream_id = _native.parse_fallback(text)
        except ValueError as error:
            raise ConfigError(f"fallback {text!r}: {error}") from None
        return cls(instance_id, StreamAddress(*payload), StreamAddress(*control), stream_id)

    @classmethod
    def of(cls, instance_id: str, route: ResolvedMapping) -> FallbackUri:
        """The way to the frames of a mapping, for whoever can receive on its channels."""
        return cls(
            quote(instance_id, safe="") or "bridge", route.payload, route.control, route.source_stream_id
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
