"""Asks services how they stand, without waiting: questions go out now and then, answers come as events. Pure.

Pings tell who is there; drivers, recorders and bridges are then asked for more.

What services tell of themselves: drivers and their leases, recorders, bridges. Pure; the picture owns it.

Each answer replaces the one before; who is silent for long is forgotten.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..service import Event
from ..service.events import ALL_SERVICES, RESULT
from .rates import RateMeter
from .reports import (
    BridgeStatus,
    DriverLeases,
    DriverStatus,
    RecorderLedger,
    RecorderStatus,
    RejectedMessage,
    ServiceAlive,
    StatusEvent,
    counts,
    number,
    read_json,
    rows,
    text,
    whole,
)
from .snapshot import BridgeView, DriverView, LeaseView, MappingView, RecordedView, RecorderView, ServiceView

_MOST_OPEN: Final = 4096
_MOST_ROWS: Final = 50_000
_QUESTIONS: Final = {
    "driver": ("status()", "leases()"),
    "recorder": ("status()", "ledger()"),
    "bridge": ("status()",),
}
"""What is asked of whom; of everybody else a ping is enough."""


@dataclass(slots=True)
class _OpenQuery:
    """A question that was asked, and what came so far where answers come in parts."""

    service: str
    key: str
    rows: list[dict[str, Any]] = field(default_factory=list)


class ServicePoller:
    """Questions out, facts in. Whoever asks the same of the same services does not get in its way."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._due_ns = 0
        self._open: OrderedDict[int, _OpenQuery] = OrderedDict()
        self._next_id = (secrets.randbits(31) | 1) << 32

    def due(self, now_ns: int) -> Iterator[Event]:
        """The questions that it is time for."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + self._period_ns
        yield self._ask(ALL_SERVICES, "", "ping()")
        for service, keys in _QUESTIONS.items():
            for key in keys:
                yield self._ask(f"service:{service}", service, key)

    def on_word(self, word: StatusEvent) -> tuple[list[object], list[Event]]:
        """What an answer tells, and what is to be asked on."""
        question = self._open.get(word.correlation_id)
        if question is None or word.key != question.key + RESULT:
            return [], []
        found = read_json(word.value)
        try:
            return self._read(word.tag, question, found)
        except (ValueError, KeyError, TypeError):
            return [RejectedMessage("service")], []

    def _read(self, tag: str, question: _OpenQuery, found: Any) -> tuple[list[object], list[Event]]:
        match question.service, question.key:
            case "", _:
                instance = found["instance"]
                return [
                    ServiceAlive(
                        tag,
                        text(found["name"]),
                        "" if instance is None else text(instance),
                        whole(found["pid"]),
                    )
                ], []
            case "driver", "status()":
                return [DriverStatus(tag, dict(found))], []
            case "driver", _:
                return self._leases(tag, question, found)
            case "recorder", "status()":
                return [RecorderStatus(tag, dict(found))], []
            case "recorder", _:
                return [RecorderLedger(tag, _checked(found))], []
            case _:
                return self._bridge(tag, question, found)

    def _leases(self, tag: str, question: _OpenQuery, found: Any) -> tuple[list[object], list[Event]]:
        part = _checked(found)
        # Several may answer the same question: what one has is not the other's.
        so_far = [*question.rows, *part]
        if part and len(so_far) < _MOST_ROWS:
            first = whole(part[-1]["lease_id"]) + 1
            return [], [self._ask(tag, "driver", "leases()", f'{{"first": "{first}"}}', so_far)]
        return [DriverLeases(tag, tuple(so_far))], []

    def _bridge(self, tag: str, question: _OpenQuery, found: Any) -> tuple[list[object], list[Event]]:
        part = _checked(found["mappings"])
        so_far = [*question.rows, *part]
        if part and len(so_far) < min(whole(found["total"]), _MOST_ROWS):
            first = f'{{"first": {len(so_far)}}}'
            return [], [self._ask(tag, "bridge", "status()", first, so_far)]
        return [BridgeStatus(tag, whole(found["pid"]), tuple(so_far))], []

    def _ask(
        self,
        tag: str,
        service: str,
        key: str,
        value: str | None = None,
        so_far: list[dict[str, Any]] | None = None,
    ) -> Event:
        self._next_id += 1
        self._open[self._next_id] = _OpenQuery(service, key, so_far or [])
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        return Event(tag, key, value if value is not None or key == "ping()" else "{}", self._next_id)


def _checked(found: Any) -> tuple[dict[str, Any], ...]:
    part = rows(found)
    if part is None:
        raise ValueError("not rows")
    return part


MOST_SERVICES: Final = 1024


@dataclass(slots=True)
class _Recorder:
    told: RecorderStatus
    heard_ns: int
    written: tuple[RecordedView, ...] = ()


@dataclass(slots=True)
class _Bridge:
    told: BridgeStatus
    heard_ns: int
    mappings: tuple[MappingView, ...]
    gauges: dict[tuple[str, int, int], RateMeter] = field(default_factory=dict)


@dataclass(slots=True)
class ServiceRecords:
    """By tag and process."""

    forget_ns: int
    _seen: dict[tuple[str, int], tuple[ServiceAlive, int]] = field(default_factory=dict)
    _drivers: dict[str, tuple[DriverView, int]] = field(default_factory=dict)
    _leases: dict[str, tuple[tuple[LeaseView, ...], int]] = field(default_factory=dict)
    _recorders: dict[str, _Recorder] = field(default_factory=dict)
    _bridges: dict[str, _Bridge] = field(default_factory=dict)

    def on_seen(self, seen: ServiceAlive, now_ns: int) -> bool:
        """False: no room."""
        return _put(self._seen, (seen.tag, seen.pid), (seen, now_ns))

    def on_driver(self, told: DriverStatus, now_ns: int) -> bool:
        try:
            view = _driver(told)
        except (ValueError, KeyError, TypeError):
            return False
        return _put(self._drivers, told.tag, (view, now_ns))

    def on_leases(self, told: DriverLeases, now_ns: int) -> bool:
        try:
            leases = tuple(_lease(told.tag, one) for one in told.leases)
        except (ValueError, KeyError, TypeError):
            return False
        return _put(self._leases, told.tag, (leases, now_ns))

    def on_revoked(self, lease_id: int) -> None:
        for tag, (leases, at_ns) in self._leases.items():
            if any(one.lease_id == lease_id for one in leases):
                self._leases[tag] = (tuple(one for one in leases if one.lease_id != lease_id), at_ns)
                return

    def on_recorder(self, told: RecorderStatus, now_ns: int) -> bool:
        key = told.tag
        try:
            _recorder(told, (), 0)
        except (ValueError, KeyError, TypeError):
            return False
        known = self._recorders.get(key)
        return _put(self._recorders, key, _Recorder(told, now_ns, () if known is None else known.written))

    def on_written(self, told: RecorderLedger, now_ns: int) -> bool:
        known = self._recorders.get(told.tag)
        try:
            written = tuple(read_recorded(one) for one in told.rows)
        except (ValueError, KeyError, TypeError):
            return False
        if known is not None:
            known.written, known.heard_ns = written, now_ns
        return True

    def on_bridge(self, told: BridgeStatus, now_ns: int) -> bool:
        key = told.tag
        known = self._bridges.get(key)
        before = {} if known is None else known.gauges
        gauges = dict(before)
        try:
            mappings = tuple(read_mapping(one, gauges, now_ns) for one in told.mappings)
        except (ValueError, KeyError, TypeError):
            return False
        # Of mappings that are gone nothing is kept: a bridge could make up others for ever.
        there = {(one.direction, one.source_stream_id, one.dest_stream_id) for one in mappings}
        gauges = {key: one for key, one in gauges.items() if key in there}
        return _put(self._bridges, key, _Bridge(told, now_ns, mappings, gauges))

    def expire(self, now_ns: int) -> None:
        oldest_ns = now_ns - self.forget_ns
        self._seen = {key: one for key, one in self._seen.items() if one[1] >= oldest_ns}
        self._drivers = {key: one for key, one in self._drivers.items() if one[1] >= oldest_ns}
        self._leases = {key: one for key, one in self._leases.items() if one[1] >= oldest_ns}
        self._recorders = {key: one for key, one in self._recorders.items() if one.heard_ns >= oldest_ns}
        self._bridges = {key: one for key, one in self._bridges.items() if one.heard_ns >= oldest_ns}

    # --- shown

    def services(self, now_ns: int) -> tuple[ServiceView, ...]:
        found = sorted(self._seen.values(), key=lambda one: (one[0].tag, one[0].pid))
        return tuple(
            ServiceView(one.tag, one.name, one.instance, one.pid, now_ns - at_ns) for one, at_ns in found
        )

    def drivers(self, now_ns: int) -> tuple[DriverView, ...]:
        return tuple(
            replace(view, heard_age_ns=now_ns - at_ns) for _, (view, at_ns) in sorted(self._drivers.items())
        )

    def leases(self) -> tuple[LeaseView, ...]:
        found = (one for leases, _ in self._leases.values() for one in leases)
        return tuple(sorted(found, key=lambda one: (one.stream_id, one.role != "producer", one.lease_id)))

    def recorders(self, now_ns: int) -> tuple[RecorderView, ...]:
        return tuple(
            _recorder(one.told, one.written, now_ns - one.heard_ns)
            for _, one in sorted(self._recorders.items())
        )

    def bridges(self, now_ns: int) -> tuple[BridgeView, ...]:
        return tuple(
            BridgeView(
                one.told.tag, _instance(one.told.tag), one.told.pid, one.mappings, now_ns - one.heard_ns
            )
            for _, one in sorted(self._bridges.items())
        )


def _put(table: dict[Any, Any], key: Any, value: Any) -> bool:
    if key not in table and len(table) >= MOST_SERVICES:
        return False
    table[key] = value
    return True


def _driver(told: DriverStatus) -> DriverView:
    status = told.status
    quota = status["quota"]
    return DriverView(
        tag=told.tag,
        namespace=text(status["namespace"]),
        instance=text(status["instance"]),
        pid=whole(status["pid"]),
        user=text(status["user"]),
        streams=whole(status["streams"]),
        leases=whole(status["leases"]),
        nbytes=whole(status["bytes"]),
        quota=None if quota is None else whole(quota),
        heard_age_ns=0,
    )


def _lease(tag: str, row: Mapping[str, Any]) -> LeaseView:
    expires = row["expires_in_s"]
    return LeaseView(
        lease_id=whole(row["lease_id"]),
        stream_id=whole(row["stream_id"]),
        client_id=whole(row["client_id"]),
        role=text(row["role"]),
        state=text(row["state"]),
        age_s=number(row["age_s"]),
        expires_in_s=None if expires is None else number(expires),
        driver=tag,
    )


def _recorder(told: RecorderStatus, written: tuple[RecordedView, ...], age_ns: int) -> RecorderView:
    status = told.status
    return RecorderView(
        tag=told.tag,
        instance=_instance(told.tag),
        pid=whole(status["pid"]),
        state=text(status["state"]),
        problem=text(status["problem"] or ""),
        root=text(status["root"]),
        rows=whole(status["rows"]),
        gaps=counts(status["gaps"]),
        rows_per_s=number(status["rows_per_s"]),
        bytes_per_s=number(status["bytes_per_s"]),
        backlog_bytes=whole(status["backlog_bytes"]),
        disk_free_bytes=whole(status["disk_free_bytes"]),
        streams=tuple(whole(one) for one in status["streams"]),
        written=written,
        heard_age_ns=age_ns,
    )


def read_recorded(row: Mapping[str, Any]) -> RecordedView:
    return RecordedView(
        stream_id=whole(row["stream_id"]),
        epoch=whole(row["epoch"]),
        first_seq=whole(row["first_seq"]),
        last_seq=whole(row["last_seq"]),
        span=whole(row["span"]),
        rows=whole(row["rows"]),
        gaps=counts(row["gaps"]),
    )


def read_mapping(
    row: Mapping[str, Any], gauges: dict[tuple[str, int, int], RateMeter], now_ns: int
) -> MappingView:
    is_sender = row["direction"] == "send"
    frames = whole(row["sent"] if is_sender else row["delivered"])
    source, dest = whole(row["source_stream_id"]), whole(row["dest_stream_id"] or 0)
    gauge = gauges.setdefault((text(row["direction"]), source, dest), RateMeter())
    gauge.add(now_ns, frames)
    epoch = row["epoch"]
    joined = None if is_sender else row["ledger"]
    published = whole(row["published"]) if is_sender else None
    network, sender = None, 0
    if joined is not None:
        published, network = whole(joined["published"]), int(joined["dropped"]["network"])
        sender = whole(joined["dropped"]["sender"])
    return MappingView(
        direction=text(row["direction"]),
        source_stream_id=source,
        dest_stream_id=dest,
        connected=bool(row["connected"]),
        epoch=None if epoch is None else whole(epoch),
        frames=frames,
        nbytes=whole(row["bytes"]),
        frames_per_s=gauge.per_s(),
        dropped=counts(row["dropped"]),
        published=published,
        network=network,
        sender=sender,
        exact=is_sender or (joined is not None and bool(joined["exact"]) and bool(joined["whole"])),
        fault="" if is_sender else text(row["fault"] or ""),
    )


def _instance(tag: str) -> str:
    return tag.split(":", 2)[2] if tag.count(":") >= 2 else ""
