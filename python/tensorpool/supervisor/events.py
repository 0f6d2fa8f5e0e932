"""What the picture is told, beside the messages of the wire: those of other shapes, read and checked.

All of it comes from outside. `read_*` give None for what is not as it should be, and never raise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ..sbe.wire import ShmPoolAnnounce
from .views import LatencyView

_MOST_REASONS: Final = 64
_MOST_ROWS: Final = 4096
_LONGEST: Final = 256
_LIMIT: Final = 1 << 64
_DECODE: Final = json.JSONDecoder().raw_decode


class AnnouncedAgain(NamedTuple):
    """An announce that says what the last one said."""

    stream_id: int
    epoch: int
    announce: ShmPoolAnnounce
    """For whoever has forgotten it."""


class ProducerReport(NamedTuple):
    """`QosProducer`, as it is heard a thousand times a second."""

    stream_id: int
    producer_id: int
    epoch: int
    current_seq: int | None


class ConsumerReport(NamedTuple):
    """`QosConsumer`, likewise."""

    stream_id: int
    consumer_id: int
    epoch: int
    last_seq: int | None
    drops_gap: int
    drops_late: int
    is_limited: bool


class Activity(NamedTuple):
    """The sign of life in a stream's memory, on this machine's monotonic clock (wire §15.14)."""

    stream_id: int
    epoch: int
    activity_ns: int


class ProducerTold(NamedTuple):
    """A producer's account, as it tells on the status stream."""

    stream_id: int
    producer_id: int
    pid: int
    epoch: int
    next_seq: int
    committed: int
    published: int
    unpublished: Mapping[str, int]
    deferred: int
    dropped: Mapping[str, int]
    holes: int
    nbytes: int
    sources: tuple[int, ...]
    is_final: bool


class ConsumerTold(NamedTuple):
    """A consumer's account, as it tells on the status stream."""

    stream_id: int
    consumer_id: int
    pid: int
    epoch: int | None
    first_seq: int | None
    last_seq: int | None
    span: int
    received: int
    dropped: Mapping[str, int]
    outside: Mapping[str, int]
    looks: int
    is_final: bool


class LatencyTold(NamedTuple):
    """How long frames took to a consumer in the last period."""

    stream_id: int
    consumer_id: int
    frames: int
    p50_ns: int
    p99_ns: int
    max_ns: int
    since: str

    def view(self) -> LatencyView:
        return LatencyView(self.frames, self.p50_ns, self.p99_ns, self.max_ns, self.since)


@dataclass(frozen=True, slots=True)
class ServiceSeen:
    """Somebody answered a ping, or spoke."""

    tag: str
    name: str
    instance: str
    pid: int


@dataclass(frozen=True, slots=True)
class DriverTold:
    tag: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LeasesTold:
    """All leases of one driver."""

    tag: str
    leases: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class RecorderTold:
    tag: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WrittenTold:
    """A recorder's ledger, row by row."""

    tag: str
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class BridgeTold:
    tag: str
    pid: int
    mappings: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Slept:
    """Nobody listened for so long: what was said meanwhile is still to be read, and nobody is to blame."""

    for_ns: int


@dataclass(frozen=True, slots=True)
class Happened:
    """For the list of what happened."""

    kind: str
    stream_id: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Unheard:
    """A message that could not be used."""

    reason: str
    count: int = field(default=1)


# --- from JSON


def read_told(kind: str, value: object) -> ProducerTold | ConsumerTold | LatencyTold | None:
    """The value of an event of `service:producer:…` or `service:consumer:…`."""
    found = read_json(value)
    if not isinstance(found, dict):
        return None
    try:
        match kind:
            case "producer":
                return _producer(found)
            case "consumer":
                return _consumer(found)
            case _:
                return _latency(found)
    except (ValueError, KeyError, TypeError):
        return None


def read_json(value: object) -> Any:
    """None for what is no JSON."""
    if not isinstance(value, str):
        return None
    try:
        found, end = _DECODE(value)
        # Thousands of accounts a second are without spaces around them: others are read the longer way.
        return found if end == len(value) else json.loads(value)
    except (ValueError, RecursionError):
        return None


def _producer(found: dict[str, Any]) -> ProducerTold:
    return ProducerTold(
        whole(found["stream_id"]),
        whole(found["producer_id"]),
        whole(found["pid"]),
        whole(found["epoch"]),
        whole(found["next_seq"]),
        whole(found["committed"]),
        whole(found["published"]),
        counts(found["unpublished"]),
        whole(found["deferred"]),
        counts(found["dropped"]),
        whole(found["holes"]),
        whole(found["bytes"]),
        tuple(sorted({whole(one) for one in list(found["sources"])[:64]})),
        bool(found["final"]),
    )


def _consumer(found: dict[str, Any]) -> ConsumerTold:
    return ConsumerTold(
        whole(found["stream_id"]),
        whole(found["consumer_id"]),
        whole(found["pid"]),
        _maybe(found["epoch"]),
        _maybe(found["first_seq"]),
        _maybe(found["last_seq"]),
        whole(found["span"]),
        whole(found["received"]),
        counts(found["dropped"]),
        counts(found["outside"]),
        whole(found["looks"]),
        bool(found["final"]),
    )


def _latency(found: dict[str, Any]) -> LatencyTold:
    return LatencyTold(
        whole(found["stream_id"]),
        whole(found["consumer_id"]),
        whole(found["count"]),
        whole(found["p50_ns"]),
        whole(found["p99_ns"]),
        whole(found["max_ns"]),
        text(found.get("since", "")),
    )


def whole(value: object) -> int:
    """A count or an id; 64-bit ones may come as digits."""
    if type(value) is str and len(value) <= 20 and value.isascii() and value.isdecimal():
        value = int(value)
    if type(value) is int and 0 <= value < _LIMIT:
        return value
    raise ValueError("not a whole number")


def _maybe(value: object) -> int | None:
    return None if value is None else whole(value)


def counts(value: object) -> dict[str, int]:
    """Numbers by reason; no more reasons than anybody has."""
    if type(value) is not dict or len(value) > _MOST_REASONS:
        raise ValueError("not counts")
    return {text(name): whole(n) for name, n in value.items() if n} if value else {}


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value[:_LONGEST]


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        raise ValueError("not a number")
    return float(value)


def rows(value: object) -> tuple[dict[str, Any], ...] | None:
    """A list of objects, no longer than anybody needs."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return None
    return tuple(value[:_MOST_ROWS])
