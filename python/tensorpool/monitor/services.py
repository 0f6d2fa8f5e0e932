"""Services of a running system: `ServicePoller` asks for their status, `ServiceRecords` keeps the answers.

Pure: the listener sends the questions, and answers come as events. A ping finds all services; drivers,
recorders and bridges are then asked for more. Each answer replaces the one before it.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, TypeVar

from ..service import Event
from ..service.events import ALL_SERVICES, RESULT
from ..text import JsonMapping
from .rates import RateMeter
from .reports import (
    BridgeReport,
    DriverLeases,
    DriverReport,
    Notice,
    RecorderLedgerReport,
    RecorderReport,
    RejectedMessage,
    ServiceAlive,
    StatusEvent,
    parse_json,
    read_counts,
    read_ids,
    read_integer,
    read_number,
    read_object,
    read_rows,
    read_text,
    read_unsigned,
)
from .snapshot import BridgeView, DriverView, LeaseView, MappingView, RecordedView, RecorderView, ServiceView

MAX_SERVICES: Final = 1024
_MAX_OPEN: Final = 4096
_MAX_ROWS: Final = 50_000
_MAX_DECISION_TEXT: Final = 300
# Leases of a driver that are kept; its status has the number of all.
_MAX_LEASES: Final = 4096
_QUERIES: Final = {
    "driver": ("status()", "leases()"),
    "recorder": ("status()", "ledger()"),
    "bridge": ("status()",),
}
"""Commands for each kind of service; a ping is enough for all other services."""

_MappingKey: TypeAlias = tuple[str, int, int]
"""Direction, source stream and destination stream."""
_K = TypeVar("_K")
_V = TypeVar("_V")
Answer: TypeAlias = tuple[list[object], list[Event]]
"""Events for the model, and further questions."""


@dataclass(slots=True)
class _OpenQuery:
    """A question that was sent, and the rows of the parts that were received before it."""

    service: str
    key: str
    rows: list[JsonMapping] = field(default_factory=list)


class ServicePoller:
    """Questions to services, and the events that their answers become."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._due_ns = 0
        self._open: OrderedDict[int, _OpenQuery] = OrderedDict()
        # Random upper half: the answers to another poller do not match our questions.
        self._next_id = (secrets.randbits(31) | 1) << 32

    @property
    def unanswered(self) -> int:
        """The number of questions without an answer."""
        return len(self._open)

    def due(self, now_ns: int) -> Iterator[Event]:
        """The questions to send now: one of each kind a period."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + self._period_ns
        yield self._ask(ALL_SERVICES, "", "ping()")
        for service, keys in _QUERIES.items():
            for key in keys:
                yield self._ask(f"service:{service}", service, key)

    def on_status_event(self, event: StatusEvent) -> Answer:
        """The events that an answer becomes, and the questions for its next part."""
        query = self._open.get(event.correlation_id)
        if query is None or event.key != query.key + RESULT:
            return [], []
        try:
            return self._read(event.tag, query, parse_json(event.value))
        except (ValueError, KeyError, TypeError):
            return [RejectedMessage("service")], []

    def _read(self, tag: str, query: _OpenQuery, answer: Any) -> Answer:
        match query.service, query.key:
            case "", _:
                instance = answer["instance"]
                alive = ServiceAlive(
                    tag,
                    read_text(answer["name"]),
                    "" if instance is None else read_text(instance),
                    read_unsigned(answer["pid"]),
                )
                return [alive], []
            case "driver", "status()":
                return [DriverReport(read_driver(tag, answer))], []
            case "driver", _:
                return self._read_leases(tag, query, answer)
            case "recorder", "status()":
                return [RecorderReport(read_recorder(tag, answer))], []
            case "recorder", _:
                return [RecorderLedgerReport(tag, tuple(map(read_recorded, read_rows(answer))))], []
            case _:
                return self._read_bridge(tag, query, answer)

    def _read_leases(self, tag: str, query: _OpenQuery, answer: Any) -> Answer:
        part = read_rows(answer)
        # Several drivers may answer one question: each has its own next part, and its own rows.
        rows = [*query.rows, *part][:_MAX_LEASES]
        if part and len(rows) < _MAX_LEASES:
            first = read_unsigned(part[-1]["lease_id"]) + 1
            return [], [self._ask(tag, "driver", "leases()", f'{{"first": "{first}"}}', rows)]
        return [DriverLeases(tag, tuple(read_lease(tag, row) for row in rows))], []

    def _read_bridge(self, tag: str, query: _OpenQuery, answer: Any) -> Answer:
        part = read_rows(answer["mappings"])
        rows = [*query.rows, *part]
        if part and len(rows) < min(read_unsigned(answer["total"]), _MAX_ROWS):
            return [], [self._ask(tag, "bridge", "status()", f'{{"first": {len(rows)}}}', rows)]
        return [BridgeReport(tag, read_unsigned(answer["pid"]), tuple(map(read_mapping, rows)))], []

    def _ask(
        self,
        tag: str,
        service: str,
        key: str,
        value: str | None = None,
        rows: list[JsonMapping] | None = None,
    ) -> Event:
        self._next_id += 1
        self._open[self._next_id] = _OpenQuery(service, key, rows or [])
        if len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)
        return Event(tag, key, value if value is not None or key == "ping()" else "{}", self._next_id)


# --- answers as views; all raise ValueError, KeyError or TypeError for an invalid answer


def read_driver(tag: str, status: JsonMapping) -> DriverView:
    """The status of a driver."""
    quota = status["quota"]
    return DriverView(
        tag=tag,
        namespace=read_text(status["namespace"]),
        instance=read_text(status["instance"]),
        pid=read_unsigned(status["pid"]),
        user=read_text(status["user"]),
        streams=read_unsigned(status["streams"]),
        leases=read_unsigned(status["leases"]),
        nbytes=read_unsigned(status["bytes"]),
        quota=None if quota is None else read_unsigned(quota),
        report_age_ns=0,
    )


def read_lease(tag: str, row: JsonMapping) -> LeaseView:
    """A lease of the driver `tag`."""
    expires_in_s = row["expires_in_s"]
    return LeaseView(
        lease_id=read_unsigned(row["lease_id"]),
        stream_id=read_unsigned(row["stream_id"]),
        client_id=read_unsigned(row["client_id"]),
        role=read_text(row["role"]),
        state=read_text(row["state"]),
        age_s=read_number(row["age_s"]),
        expires_in_s=None if expires_in_s is None else read_number(expires_in_s),
        driver=tag,
    )


def read_recorder(tag: str, status: JsonMapping) -> RecorderView:
    """The status of a recorder, without its ledger."""
    return RecorderView(
        tag=tag,
        instance=_instance(tag),
        pid=read_unsigned(status["pid"]),
        state=read_text(status["state"]),
        problem=read_text(status["problem"] or ""),
        root=read_text(status["root"]),
        rows=read_unsigned(status["rows"]),
        gaps=read_counts(status["gaps"]),
        rows_per_s=read_number(status["rows_per_s"]),
        bytes_per_s=read_number(status["bytes_per_s"]),
        backlog_bytes=read_unsigned(status["backlog_bytes"]),
        disk_free_bytes=read_unsigned(status["disk_free_bytes"]),
        streams=read_ids(status["streams"]),
        written=(),
        report_age_ns=0,
    )


def read_recorded(row: JsonMapping) -> RecordedView:
    """A row of a recorder's ledger."""
    return RecordedView(
        stream_id=read_unsigned(row["stream_id"]),
        epoch=read_unsigned(row["epoch"]),
        first_seq=read_unsigned(row["first_seq"]),
        last_seq=read_unsigned(row["last_seq"]),
        span=read_unsigned(row["span"]),
        rows=read_unsigned(row["rows"]),
        gaps=read_counts(row["gaps"]),
    )


def read_mapping(row: JsonMapping) -> MappingView:
    """A mapping of a bridge, without its rate."""
    is_sender = row["direction"] == "send"
    epoch = row["epoch"]
    published = read_unsigned(row["published"]) if is_sender else None
    network, sender, exact = None, 0, is_sender
    frames = read_unsigned(row["sent"] if is_sender else row["delivered"])
    counts = read_counts(row["dropped"])
    if not is_sender and row["ledger"] is not None:
        joined = read_object(row["ledger"])
        dropped = read_object(joined["dropped"])
        network, sender = read_integer(dropped["network"]), read_unsigned(dropped["sender"])
        # The sender's count is up to a second old; frames that have arrived since were published too.
        counted = read_unsigned(joined["delivered"]) + read_unsigned(dropped["receiver"])
        published = read_unsigned(joined["published"]) + max(0, frames + sum(counts.values()) - counted)
        exact = bool(joined["exact"]) and bool(joined["whole"])
    return MappingView(
        direction=read_text(row["direction"]),
        source_stream_id=read_unsigned(row["source_stream_id"]),
        dest_stream_id=read_unsigned(row["dest_stream_id"] or 0),
        connected=bool(row["connected"]),
        epoch=None if epoch is None else read_unsigned(epoch),
        frames=frames,
        nbytes=read_unsigned(row["bytes"]),
        frames_per_s=None,
        dropped=counts,
        published=published,
        network=network,
        sender=sender,
        exact=exact,
        fault="" if is_sender else read_text(row["fault"] or ""),
        channel=read_text(row.get("payload") or ""),
    )


def read_decision(event: StatusEvent) -> Notice | None:
    """A decision of a supervisor as a notice; None for any other event, and for a malformed one."""
    if event.key != "decision" or not event.tag.startswith("service:supervisor"):
        return None
    try:
        decision = parse_json(event.value)
        stream_id, consumer_id = read_unsigned(decision["stream_id"]), decision["consumer_id"]
        target = "" if consumer_id is None else f" consumer {read_unsigned(consumer_id)}"
        action, by, reason = (read_text(decision[name]) for name in ("action", "by", "reason"))
    except (ValueError, KeyError, TypeError):
        return None
    return Notice("decision", stream_id, f"{action}{target} by {by}: {reason}"[:_MAX_DECISION_TEXT])


def _instance(tag: str) -> str:
    return tag.split(":", 2)[2] if tag.count(":") >= 2 else ""


# --- records


@dataclass(slots=True)
class _Bridge:
    view: BridgeView
    rates: dict[_MappingKey, RateMeter]


@dataclass(slots=True)
class ServiceRecords:
    """The newest answer of each service, with the time of its receipt. The system model owns it.

    `on_*` methods return False if there is no room for another service.
    """

    forget_ns: int
    _alive: dict[tuple[str, int], tuple[ServiceAlive, int]] = field(default_factory=dict)
    _drivers: dict[str, tuple[DriverView, int]] = field(default_factory=dict)
    _leases: dict[str, tuple[dict[int, LeaseView], int]] = field(default_factory=dict)
    _recorders: dict[str, tuple[RecorderView, int]] = field(default_factory=dict)
    _bridges: dict[str, tuple[_Bridge, int]] = field(default_factory=dict)

    def on_alive(self, alive: ServiceAlive, now_ns: int) -> bool:
        """A service answered a ping."""
        return _put(self._alive, (alive.tag, alive.pid), (alive, now_ns))

    def on_driver(self, status: DriverReport, now_ns: int) -> bool:
        """A driver's status."""
        return _put(self._drivers, status.driver.tag, (status.driver, now_ns))

    def on_leases(self, leases: DriverLeases, now_ns: int) -> bool:
        """A driver's leases."""
        by_id = {lease.lease_id: lease for lease in leases.leases}
        return _put(self._leases, leases.tag, (by_id, now_ns))

    def on_revoked(self, lease_id: int) -> None:
        """A driver revoked a lease."""
        for leases, _ in self._leases.values():
            if leases.pop(lease_id, None) is not None:
                return

    def on_recorder(self, status: RecorderReport, now_ns: int) -> bool:
        """A recorder's status; its ledger stays."""
        recorder, known = status.recorder, self._recorders.get(status.recorder.tag)
        if known is not None:
            recorder = replace(recorder, written=known[0].written)
        return _put(self._recorders, recorder.tag, (recorder, now_ns))

    def on_recorder_ledger(self, ledger: RecorderLedgerReport, now_ns: int) -> bool:
        """A recorder's ledger; without a status it is not kept."""
        known = self._recorders.get(ledger.tag)
        if known is not None:
            self._recorders[ledger.tag] = (replace(known[0], written=ledger.rows), now_ns)
        return True

    def on_bridge(self, status: BridgeReport, now_ns: int) -> bool:
        """The mappings of a bridge."""
        known = self._bridges.get(status.tag)
        before = {} if known is None else known[0].rates
        # Meters of removed mappings are dropped: a bridge could name new mappings without end.
        rates: dict[_MappingKey, RateMeter] = {}
        mappings = []
        for mapping in status.mappings:
            key = (mapping.direction, mapping.source_stream_id, mapping.dest_stream_id)
            rate = rates[key] = before.get(key) or RateMeter()
            rate.add(now_ns, mapping.frames)
            mappings.append(replace(mapping, frames_per_s=rate.per_s()))
        view = BridgeView(status.tag, _instance(status.tag), status.pid, tuple(mappings), 0)
        return _put(self._bridges, status.tag, (_Bridge(view, rates), now_ns))

    def expire(self, now_ns: int) -> None:
        """Drops services without answers for `forget_ns`."""
        oldest_ns = now_ns - self.forget_ns
        self._alive = _fresh(self._alive, oldest_ns)
        self._drivers = _fresh(self._drivers, oldest_ns)
        self._leases = _fresh(self._leases, oldest_ns)
        self._recorders = _fresh(self._recorders, oldest_ns)
        self._bridges = _fresh(self._bridges, oldest_ns)

    # --- views

    def services(self, now_ns: int) -> tuple[ServiceView, ...]:
        """All services, by tag and process."""
        return tuple(
            ServiceView(alive.tag, alive.name, alive.instance, alive.pid, now_ns - at_ns)
            for _, (alive, at_ns) in sorted(self._alive.items())
        )

    def drivers(self, now_ns: int) -> tuple[DriverView, ...]:
        """All drivers, by tag."""
        return tuple(
            replace(driver, report_age_ns=now_ns - at_ns)
            for _, (driver, at_ns) in sorted(self._drivers.items())
        )

    def leases(self) -> tuple[LeaseView, ...]:
        """All leases, by stream, producers first."""
        leases = (lease for leases, _ in self._leases.values() for lease in leases.values())
        return tuple(
            sorted(leases, key=lambda lease: (lease.stream_id, lease.role != "producer", lease.lease_id))
        )

    def recorders(self, now_ns: int) -> tuple[RecorderView, ...]:
        """All recorders, by tag."""
        return tuple(
            replace(recorder, report_age_ns=now_ns - at_ns)
            for _, (recorder, at_ns) in sorted(self._recorders.items())
        )

    def bridges(self, now_ns: int) -> tuple[BridgeView, ...]:
        """All ends of bridges, by tag."""
        return tuple(
            replace(bridge.view, report_age_ns=now_ns - at_ns)
            for _, (bridge, at_ns) in sorted(self._bridges.items())
        )


def _put(table: dict[_K, _V], key: _K, value: _V) -> bool:
    if key not in table and len(table) >= MAX_SERVICES:
        return False
    table[key] = value
    return True


def _fresh(table: dict[_K, tuple[_V, int]], oldest_ns: int) -> dict[_K, tuple[_V, int]]:
    return {key: (value, at_ns) for key, (value, at_ns) in table.items() if at_ns >= oldest_ns}
