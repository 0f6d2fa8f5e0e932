"""Faults of a bridge's configuration, by itself and beside other users of stream ids. Pure.

`settings_faults` checks `[bridge]` alone, each time it is loaded; `host_faults` checks it against the Aeron
streams of the host, `driver_faults` against a running driver, `neighbour_faults` against other bridges
(bridge §2.3, §4, §7.1, §9, §10).

A bridge asks the driver and other bridges for their ids before it takes its own. Their services' names come
from the counters of the media driver, so a bridge does not wait for a program that does not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ..context.context import Context
from ..driver.client import SERVICE, DriverStatus, drivers_on, stream_rows
from ..driver.config import DEFAULT_BRIDGE_IDS
from ..errors import ConfigError, MediaDriverError, ServiceError
from ..runtime.config import IdRange
from ..runtime.counters import read_aeron_counters
from ..transport import StreamAddress
from .config import BUILTIN_PROFILES, BridgeSettings, Direction
from .mappings import ResolvedMapping, dynamic_ids, resolve_mappings

if TYPE_CHECKING:
    from .service import BridgeStatus


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
    uses: dict[_Endpoint, _StreamUse] = {}
    for mapping in mappings:
        addresses = {"payload": mapping.payload, "control": mapping.control, "metadata": mapping.metadata}
        for purpose, address in addresses.items():
            if address is None:
                continue
            use = _StreamUse(purpose, mapping)
            other = uses.setdefault(_Endpoint.from_address(address), use)
            if other.purpose != purpose:
                reason = (
                    f"{mapping.key}: {address} has the {other.purpose} messages of {other.mapping.key} too"
                )
                yield Fault(f"{purpose}_stream_id", f"{reason}; use another stream id")
            elif other.mapping.is_sending != mapping.is_sending:
                sender, receiver = sorted((other.mapping, mapping), key=lambda each: not each.is_sending)
                reason = f"{receiver.key} receives on {address}, where {sender.key} sends"
                yield Fault(f"{purpose}_stream_id", f"{reason}: use another stream id")


class _Endpoint(NamedTuple):
    """Where messages of a stream meet: the addresses of its channel without its other parameters."""

    addresses: frozenset[str]
    stream_id: int

    @classmethod
    def from_address(cls, address: StreamAddress) -> _Endpoint:
        parameters = address.channel.partition("?")[2].split("|")
        names = ("endpoint=", "control=")
        return cls(frozenset(text for text in parameters if text.startswith(names)), address.stream_id)


class _StreamUse(NamedTuple):
    """Which mapping uses a stream, and what for."""

    purpose: str
    mapping: ResolvedMapping


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
    unnamed = [mapping for mapping in mappings if not mapping.is_sending and not mapping.dest_stream_id]
    ids = settings.dest_stream_id_range
    if ids is None:
        return
    if ids.first == 0:
        yield Fault("dest_stream_id_range", "begins with 0, which is not a stream id")
    if len(ids) < len(unnamed):
        yield Fault("dest_stream_id_range", f"has {len(ids)} ids for {len(unnamed)} mappings")
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
    """Streams of the bridge whose id the host uses for something else. `in_use`: stream ids by purpose."""
    ids = settings.dest_stream_id_range
    bridge_ids = {
        "payload_stream_id": settings.payload_stream_id,
        "control_stream_id": settings.control_stream_id,
        "metadata_stream_id": settings.metadata_stream_id,
    }
    for name, number in in_use.items():
        for key, bridge_id in bridge_ids.items():
            if bridge_id == number:
                yield Fault(
                    key, f"is {number}, which is {name}; the streams of a bridge have ids of their own"
                )
        if ids is not None and number in ids:
            yield Fault("dest_stream_id_range", f"contains {number}, which is {name}")
        for mapping in resolve_mappings(settings):
            if not mapping.is_sending and mapping.dest_stream_id == number:
                yield Fault("mappings", f"{mapping.key}.dest_stream_id {number}: that is {name}")


@dataclass(frozen=True, slots=True)
class DriverIds:
    """The stream ids that a running driver uses or grants."""

    static: frozenset[int]
    dynamic: IdRange
    """Ids of streams that any client may create."""
    bridges: IdRange
    """Further ids, for bridges."""
    any_stream: bool
    """Whether clients may create streams with any id."""


@dataclass(frozen=True, slots=True)
class BridgeIds:
    """The destinations of another bridge on this host."""

    instance_id: str
    range: IdRange | None
    """Ids from which it takes destinations. None: it has none to take."""
    named: frozenset[int]
    """Destinations that its mappings name."""


def destination_range(settings: BridgeSettings) -> IdRange | None:
    """The range from which this bridge takes ids of destinations; None if all mappings name one."""
    return (settings.dest_stream_id_range or DEFAULT_BRIDGE_IDS) if dynamic_ids(settings) else None


def driver_faults(settings: BridgeSettings, driver: DriverIds) -> Iterator[Fault]:
    """Why destinations cannot be taken from the range, beside the streams of a running driver (bridge §4)."""
    ids, key = destination_range(settings), "dest_stream_id_range"
    if ids is None:
        return
    for number in sorted(number for number in driver.static if number in ids):
        yield Fault(key, f"{ids} contains {number}, a static stream of the driver; use a range without it")
    if driver.any_stream:
        return
    if ids.overlaps(driver.dynamic):
        reason = f"{ids} overlaps the driver's dynamic_ids, {driver.dynamic}, where clients create streams"
        yield Fault(key, f"{reason}; use ids of its bridge_ids ({driver.bridges})")
    elif not (driver.bridges.first <= ids.first and ids.last <= driver.bridges.last):
        reason = f"{ids} is not within the driver's bridge_ids ({driver.bridges})"
        yield Fault(key, f"{reason}, so the driver would refuse them; change one of the two")


def neighbour_faults(settings: BridgeSettings, others: Iterable[BridgeIds]) -> Iterator[Fault]:
    """Destinations that another bridge of this host uses or may take."""
    ids = destination_range(settings)
    for other in others:
        name = f"bridge {other.instance_id}"
        if ids is not None and other.range is not None and ids.overlaps(other.range):
            yield Fault(
                "dest_stream_id_range",
                f"{ids} overlaps {other.range} of {name}; give each bridge its own range",
            )
        for number in sorted(number for number in other.named if ids is not None and number in ids):
            yield Fault("dest_stream_id_range", f"{ids} contains {number}, a destination of {name}")
        for mapping in resolve_mappings(settings):
            if mapping.is_sending or not mapping.dest_stream_id:
                continue
            setting = f"{mapping.key}.dest_stream_id {mapping.dest_stream_id}"
            if mapping.dest_stream_id in other.named:
                yield Fault("mappings", f"{setting}: already used by {name}; a stream has one producer")
            elif other.range is not None and mapping.dest_stream_id in other.range:
                yield Fault(
                    "mappings", f"{setting}: in {other.range} of {name}, which may take it; use an id outside"
                )


_TIMEOUT_S: Final = 5.0
_BRIDGE_LABEL: Final = re.compile(r"^tensorpool: bridge/(.+) sent \(")


def check_destinations(context: Context, settings: BridgeSettings) -> bool:
    """Whether the driver could be asked. Raises ConfigError if destinations overlap other uses of ids."""
    others = [ids for name in _other_bridges(context, settings) if (ids := _bridge_ids(context, name))]
    faults = list(neighbour_faults(settings, others))
    driver = _driver_ids(context) if destination_range(settings) is not None else None
    if driver is not None:
        faults += driver_faults(settings, driver)
    if faults:
        raise ConfigError("; ".join(f"bridge.{key}: {reason}" for key, reason in faults))
    return driver is not None or destination_range(settings) is None


def _driver_ids(context: Context) -> DriverIds | None:
    """The ids of the running driver; None if there is none that answers."""
    if not drivers_on(context.aeron_dir):
        return None
    try:
        with context.service(SERVICE, timeout=_TIMEOUT_S) as client:
            status: DriverStatus = client.call("status")
            rows = stream_rows(client)
    except ServiceError:
        return None
    try:
        return DriverIds(
            static=frozenset(row["stream_id"] for row in rows if row["kind"] == "static"),
            dynamic=IdRange.parse(status["dynamic_ids"]),
            bridges=IdRange.parse(status["bridge_ids"]),
            any_stream=status["any_stream"],
        )
    except KeyError:
        # Another implementation, or an older version: its answers to attach requests decide.
        return None


def _other_bridges(context: Context, settings: BridgeSettings) -> set[str]:
    try:
        labels = [counter.label for counter in read_aeron_counters(context.aeron_dir)]
    except MediaDriverError:
        return set()
    names = {match[1] for label in labels if (match := _BRIDGE_LABEL.match(label))}
    return names - {settings.instance_id}


def _bridge_ids(context: Context, instance_id: str) -> BridgeIds | None:
    try:
        with context.service("bridge", instance=instance_id, timeout=_TIMEOUT_S) as client:
            status: BridgeStatus = client.call("status")
        ids = status["dest_stream_id_range"]
        return BridgeIds(
            instance_id,
            None if ids is None else IdRange.parse(ids),
            frozenset(map(int, status["dest_stream_ids"])),
        )
    except (ServiceError, KeyError, TypeError, ValueError, ConfigError):
        # It ended meanwhile, or does not say: what it uses is noticed when a destination is attached.
        return None
