"""What is wrong with a bridge's configuration, each with the key that it is about (bridge §2.3, §4, §7.1,
§9, §10). Pure.

`own_faults` looks at `[bridge]` alone, and runs whenever that is read; `neighbour_faults` holds it against
the ids that the host has in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .config import OWN_PROFILES, BridgeSettings
from .routes import Route, routes_of

Fault = tuple[str, str]


def own_faults(settings: BridgeSettings) -> Iterator[Fault]:
    """Values of `[bridge]` that do not fit together."""
    # A field that could not be read is None here, and was complained of already.
    if not settings.mappings or any(one is None for one in settings.mappings):
        if not settings.mappings:
            yield "mappings", "is empty: there is nothing to do; add a [[bridge.mappings]]"
        return
    routes = routes_of(settings)
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


def _transport_faults(settings: BridgeSettings, routes: tuple[Route, ...]) -> Iterator[Fault]:
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


def _twice(routes: tuple[Route, ...]) -> Iterator[Fault]:
    seen: dict[object, Route] = {}
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


def _loops(routes: tuple[Route, ...]) -> Iterator[Fault]:
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


def _destinations(settings: BridgeSettings, routes: tuple[Route, ...]) -> Iterator[Fault]:
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


def _ids_in_use(settings: BridgeSettings, routes: tuple[Route, ...]) -> Iterator[tuple[str, int]]:
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


def _forwarding(settings: BridgeSettings, routes: tuple[Route, ...]) -> Iterator[Fault]:
    for wanted, key in (
        (settings.forward_progress, "forward_progress"),
        (settings.forward_qos, "forward_qos"),
    ):
        for route in routes if wanted else ():
            for name in ("source_control_stream_id", "dest_control_stream_id"):
                if not getattr(route.mapping, name):
                    yield key, f"is true, and {route.key}.{name} is not set"


def neighbour_faults(settings: BridgeSettings, in_use: Mapping[str, int]) -> Iterator[Fault]:
    """Destinations and bridge streams that the host uses for something else. `in_use`: what, and its id."""
    ids = settings.dest_stream_id_range
    for name, number in in_use.items():
        if ids is not None and number in ids:
            yield "dest_stream_id_range", f"holds {number}, which is {name}"
        for route in routes_of(settings):
            if not route.sends and route.dest_stream_id == number:
                yield "mappings", f"{route.key}.dest_stream_id {number}: that is {name}"
