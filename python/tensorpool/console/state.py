"""The document that a browser shows: rows of a snapshot, differences of two documents, departed endpoints.

Pure. A document has sections (`streams`, `consumers`, `ledger` …) of rows by key; a row has members. A
browser gets the whole document once, and then only the members that changed. Values are rounded: a rate
that changes in its fifth digit is not worth a message. Everything comes from snapshots of the system model;
the only thing that is kept here is what a snapshot forgets, the endpoints that have just left.
"""

from __future__ import annotations

import math
import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, TypedDict

from ..monitor.ledger import LedgerRow, Verdict
from ..monitor.snapshot import (
    BridgeView,
    ConsumerView,
    DriverView,
    MappingView,
    NoticeView,
    RecorderView,
    ServiceView,
    Snapshot,
    StreamState,
    StreamView,
    to_json,
    without_consumers,
)
from ..text import JsonMapping

Row: TypeAlias = Mapping[str, object]
"""A row of any section. Differences compare members by name; the classes below say what each section has."""
Section: TypeAlias = Mapping[str, Row]
"""Rows by key."""
Document: TypeAlias = Mapping[str, Section]
"""Sections by name."""

SECTIONS: Final = (
    "system",
    "streams",
    "consumers",
    "drivers",
    "recorders",
    "bridges",
    "services",
    "gone",
    "ledger",
    "notices",
)
GONE_S: Final = 60.0
"""How long an endpoint that has left is still shown."""
MAX_GONE: Final = 256
MAX_NOTICES: Final = 200
_MAX_DETAIL_CONSUMERS: Final = 200
_MAX_MAPPINGS: Final = 100
_MAX_COLLISIONS: Final = 20
_STALE_REPORT_NS: Final = 5_000_000_000
"""The driver's report is older than a few of its periods."""
MAX_LEDGER_ROWS: Final = 2_000
"""Rows of the ledger that a browser gets. Mismatches come first; the system row has the number of all."""

MEANINGS: Final = {
    Verdict.EXACT: "Every frame is accounted for.",
    Verdict.WAITING: "Some frames are published and not yet read.",
    Verdict.SETTLING: "The counts do not add up yet; reports are of different moments, so this may pass.",
    Verdict.MISMATCH: "Frames are missing without a reason: published is not delivered + dropped + waiting.",
    Verdict.GONE: "It ended without a final report: it was killed, or attached again with another id.",
}
_PATH_MEANINGS: Final = {
    "producer": "Committed frames that got no descriptor: look at the producer's process and its log.",
    "consumer": "Published frames that it neither received nor counted as dropped, although it polls.",
    "recorder": "Published frames that are neither rows nor gaps: run tensorpool recording verify.",
    "bridge send": "Frames of the source that the sender neither sent nor dropped.",
    "bridge receive": "Frames that the sender sent and the receiver neither delivered nor counted.",
}


_ROLES: Final = frozenset({"driver", "recorder", "bridge"})
"""Services that a snapshot also has in a section of their own."""
_CONSUMER: Final = re.compile(r"consumer (\d+) ")
_ENDPOINT: Final = re.compile(r"endpoint=(\[[0-9a-fA-F:.]+\]|[^:|]+)")


# --- differences


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes from one document to the next."""

    changed: Document = field(default_factory=dict)
    """Members that are new or changed, by section and key."""
    removed: dict[str, list[str]] = field(default_factory=dict)
    """Keys of rows that are gone, by section."""

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)


def difference(before: Document, after: Document) -> Difference:
    """What a holder of `before` needs to have `after`. A member that ends is sent as null."""
    changed: dict[str, Section] = {}
    removed: dict[str, list[str]] = {}
    for name in before.keys() | after.keys():
        old, new = before.get(name, {}), after.get(name, {})
        rows: dict[str, Row] = {}
        for key, row in new.items():
            known = old.get(key)
            if known is None:
                rows[key] = row
            elif known is not row and (members := _changed_members(known, row)):
                rows[key] = members
        if rows:
            changed[name] = rows
        if gone := [key for key in old if key not in new]:
            removed[name] = gone
    return Difference(changed, removed)


def _changed_members(before: Row, after: Row) -> Row:
    members = {name: value for name, value in after.items() if name not in before or before[name] != value}
    members.update((name, None) for name in before if name not in after)
    return members


def apply_difference(document: Document, change: Difference) -> Document:
    """The document after a change, as the browser computes it."""
    result: dict[str, dict[str, Row]] = {name: dict(rows) for name, rows in document.items()}
    for name, keys in change.removed.items():
        for key in keys:
            result.get(name, {}).pop(key, None)
    for name, rows in change.changed.items():
        section = result.setdefault(name, {})
        for key, members in rows.items():
            section[key] = {**section.get(key, {}), **members}
    return result


# --- numbers


def rounded(value: float | None, digits: int = 4) -> float | int | None:
    """A number with so many significant digits; None for what is not a number."""
    if value is None or not math.isfinite(value):
        return None
    if value == 0:
        return 0
    result = round(value, digits - 1 - math.floor(math.log10(abs(value))))
    return int(result) if result == int(result) else result


# --- rows


class ConsoleStreamRow(TypedDict):
    """A stream. Latencies are in microseconds, sizes in bytes."""

    name: str
    state: str
    health: str
    why: str
    rate: float | None
    bytes: float | None
    p50: float | None
    p99: float | None
    lost: int
    lost_s: float | None
    consumers: int
    memory: int
    epoch: str
    epochs: int
    producer: int | None
    pid: int | None
    sources: list[int]
    tags: list[str]


def stream_row(stream: StreamView) -> ConsoleStreamRow:
    """A stream in one row."""
    producer = stream.producer
    health, why = stream_health(stream)
    return {
        "name": stream.name,
        "state": str(stream.state),
        "health": health,
        "why": why,
        "rate": rounded(stream.rate_hz),
        "bytes": rounded(stream.bytes_per_s),
        "p50": None if stream.latency is None else rounded(stream.latency.p50_ns / 1e3, 3),
        "p99": None if stream.latency is None else rounded(stream.latency.p99_ns / 1e3, 3),
        "lost": sum(consumer.lost for consumer in stream.consumers),
        "lost_s": rounded(sum(consumer.dropped_per_s or 0.0 for consumer in stream.consumers), 3),
        "consumers": len(stream.consumers),
        "memory": stream.nbytes,
        "epoch": str(stream.epoch),
        "epochs": stream.epochs,
        "producer": None if producer is None else producer.producer_id,
        "pid": None if producer is None else producer.pid,
        "sources": list(stream.sources),
        "tags": list(stream.tags),
    }


def stream_health(stream: StreamView) -> tuple[str, str]:
    """`good`, `warn`, `bad` or `idle`, and the reason in one sentence."""
    match stream.state:
        case StreamState.STALE if not stream.is_announced:
            return "warn", "It was never announced here; only reports of its endpoints arrive."
        case StreamState.STALE:
            return "bad", "It is not announced any more, or its activity timestamp is stale."
        case StreamState.VACANT:
            return "idle", "It is announced and has no producer."
        case StreamState.QUIET:
            quiet_s = 0.0 if stream.producer is None else stream.producer.quiet_ns / 1e9
            return "warn", f"Its producer has published no frame for more than {_whole_seconds(quiet_s)} s."
        case StreamState.LIVE:
            losing = [consumer for consumer in stream.consumers if consumer.dropped_per_s]
            if losing:
                return "warn", f"{len(losing)} of {len(stream.consumers)} consumers lose frames."
    return "good", "Frames are published and received."


def _whole_seconds(seconds: float) -> int:
    """Steps that grow, so that the text of a long silence does not change every second."""
    return next((step for step in (3600, 600, 60, 30, 10, 5) if seconds >= step), int(seconds))


class ConsumerRow(TypedDict):
    """A consumer. Latencies are in microseconds."""

    stream: int
    id: int
    label: str
    mode: str
    forced: bool
    limit: int
    fallback: str
    health: str
    why: str
    rate: float | None
    p50: float | None
    p99: float | None
    lost: int
    lost_s: float | None
    behind: int | None
    pid: int | None


def consumer_row(consumer: ConsumerView) -> ConsumerRow:
    """A consumer in one row."""
    health, why = consumer_health(consumer)
    return {
        "stream": consumer.stream_id,
        "id": consumer.consumer_id,
        "label": consumer.label,
        "mode": consumer.mode,
        "forced": consumer.is_forced,
        "limit": consumer.max_rate_hz,
        "fallback": consumer.fallback_uri,
        "health": health,
        "why": why,
        "rate": rounded(consumer.rate_hz),
        "p50": None if consumer.latency is None else rounded(consumer.latency.p50_ns / 1e3, 3),
        "p99": None if consumer.latency is None else rounded(consumer.latency.p99_ns / 1e3, 3),
        "lost": consumer.lost,
        "lost_s": rounded(consumer.dropped_per_s, 3),
        "behind": consumer.backlog,
        "pid": consumer.pid,
    }


def consumer_health(consumer: ConsumerView) -> tuple[str, str]:
    """`good`, `warn` or `limited`, and the reason in one sentence."""
    if consumer.dropped_per_s:
        return "warn", "It loses frames: it reads too slowly, or its buffers are too small."
    if consumer.fallback_uri:
        return "limited", "It reads from a fallback instead of shared memory."
    if consumer.is_forced:
        return "limited", "The supervisor limits its rate."
    if consumer.mode == "rate_limited":
        return "limited", "It requested a limited rate."
    return "good", "It receives frames."


class PathRow(TypedDict):
    """A path of the ledger with its counts of frames, its verdict and what the verdict means."""

    stream: int
    path: str
    who: str
    label: str
    published: int
    delivered: int
    dropped: dict[str, int]
    waiting: int
    unaccounted: int
    ended: bool
    verdict: str
    problem: str
    meaning: str


def ledger_rows(rows: Iterable[LedgerRow]) -> Mapping[str, PathRow]:
    """The ledger by key, mismatches first, with what each verdict means."""
    order = {Verdict.MISMATCH: 0, Verdict.SETTLING: 1, Verdict.GONE: 2}
    chosen = sorted(rows, key=lambda row: order.get(row.verdict, 3))[:MAX_LEDGER_ROWS]
    return {
        f"{row.stream_id}|{row.path}|{row.who}": {
            "stream": row.stream_id,
            "path": row.path,
            "who": row.who,
            "label": row.label,
            "published": row.published,
            "delivered": row.delivered,
            "dropped": dict(sorted(row.dropped.items())),
            "waiting": row.waiting,
            "unaccounted": row.unaccounted,
            "ended": row.has_ended,
            "verdict": str(row.verdict),
            "problem": row.problem,
            "meaning": _meaning(row),
        }
        for row in chosen
    }


def _meaning(row: LedgerRow) -> str:
    meaning = MEANINGS[row.verdict]
    return f"{meaning} {_PATH_MEANINGS[row.path]}" if row.verdict is Verdict.MISMATCH else meaning


# --- endpoints that have left


@dataclass(frozen=True, slots=True)
class Departure:
    """An endpoint that a snapshot no longer has."""

    kind: str
    """`consumer`, `producer`, `stream`, `driver`, `recorder`, `bridge` or `service`."""
    key: str
    label: str
    stream_id: int | None
    reason: str
    at_ms: int
    left_ns: int


class GoneRow(TypedDict):
    """An endpoint that has left, with the time of day in milliseconds."""

    kind: str
    key: str
    label: str
    stream: int | None
    reason: str
    at: int


@dataclass(frozen=True, slots=True)
class _Presence:
    kind: str
    key: str
    label: str
    stream_id: int | None = None


def _present(snapshot: Snapshot) -> Iterator[_Presence]:
    for stream in snapshot.streams:
        stream_id = stream.stream_id
        yield _Presence("stream", str(stream_id), stream.name or str(stream_id), stream_id)
        if stream.producer is not None:
            number = stream.producer.producer_id
            yield _Presence("producer", f"{stream_id}/{number}", f"producer {number}", stream_id)
        for consumer in stream.consumers:
            label = consumer.label or f"consumer {consumer.consumer_id}"
            yield _Presence("consumer", f"{stream_id}/{consumer.consumer_id}", label, stream_id)
    for driver in snapshot.drivers:
        yield _Presence("driver", driver.tag, driver.namespace)
    for recorder in snapshot.recorders:
        yield _Presence("recorder", recorder.tag, recorder.tag.removeprefix("service:"))
    for bridge in snapshot.bridges:
        yield _Presence("bridge", bridge.tag, bridge.tag.removeprefix("service:"))
    for service in snapshot.services:
        name = service.tag.removeprefix("service:")
        if name.partition(":")[0] not in _ROLES:
            yield _Presence("service", service.tag, name)


class Departures:
    """Endpoints of earlier snapshots that the newest one lacks, with the reason, for `GONE_S` seconds."""

    def __init__(self) -> None:
        self._present: dict[tuple[str, str], _Presence] = {}
        self._gone: OrderedDict[tuple[str, str], Departure] = OrderedDict()

    def update(self, snapshot: Snapshot, now_ms: int, hidden_ids: Collection[int] = ()) -> None:
        """Compares a snapshot with the one before. Consumers with `hidden_ids` leave without a trace."""
        present = {(item.kind, item.key): item for item in _present(snapshot)}
        hidden = {str(number) for number in hidden_ids}
        for identity, item in self._present.items():
            if item.kind == "consumer" and item.key.rpartition("/")[2] in hidden:
                continue
            if identity not in present:
                reason = departure_reason(item.kind, item.key, item.stream_id, snapshot.notices)
                self._gone[identity] = Departure(
                    item.kind, item.key, item.label, item.stream_id, reason, now_ms, snapshot.now_ns
                )
        for identity in list(self._gone):
            # One that is back is not gone; old ones are forgotten.
            is_old = snapshot.now_ns - self._gone[identity].left_ns > GONE_S * 1e9
            if identity in present or is_old:
                del self._gone[identity]
        while len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)
        self._present = present

    def rows(self) -> Mapping[str, GoneRow]:
        """The endpoints that have left, by key."""
        return {
            f"{gone.kind} {gone.key}": {
                "kind": gone.kind,
                "key": gone.key,
                "label": gone.label,
                "stream": gone.stream_id,
                "reason": gone.reason,
                "at": gone.at_ms,
            }
            for gone in self._gone.values()
        }


def departure_reason(kind: str, key: str, stream_id: int | None, notices: Iterable[NoticeView]) -> str:
    """Why an endpoint left, from the newest notice about it."""
    number = key.rpartition("/")[2]
    of_stream = [notice for notice in notices if stream_id is not None and notice.stream_id == stream_id]
    for notice in reversed(of_stream):
        if kind in ("consumer", "producer") and notice.kind == "lease" and f" {number}:" in f" {notice.text}":
            return f"lease ended: {notice.text}"
        if kind == "consumer" and notice.kind == "consumer" and f"consumer {number} left" in notice.text:
            return notice.text.partition(": ")[2] or "it left"
        if kind == "producer" and notice.kind in ("producer", "epoch"):
            return f"replaced: {notice.text}"
    if kind == "driver":
        shutdowns = [notice for notice in notices if notice.kind == "shutdown"]
        if shutdowns:
            return shutdowns[-1].text
    return "no reports any more: it ended, or was killed"


# --- services


class DriverRow(TypedDict):
    """A driver."""

    namespace: str
    pid: int
    user: str
    streams: int
    leases: int
    memory: int
    quota: int | None
    health: str


def driver_row(driver: DriverView) -> DriverRow:
    """A driver in one row."""
    return {
        "namespace": driver.namespace,
        "pid": driver.pid,
        "user": driver.user,
        "streams": driver.streams,
        "leases": driver.leases,
        "memory": driver.nbytes,
        "quota": driver.quota,
        "health": "warn" if driver.report_age_ns > _STALE_REPORT_NS else "good",
    }


class RecorderRow(TypedDict):
    """A recorder."""

    pid: int
    state: str
    problem: str
    root: str
    rows: int
    gaps: dict[str, int]
    rate: float | None
    bytes: float | None
    backlog: int
    disk_free: float | None
    streams: list[int]
    health: str


def recorder_row(recorder: RecorderView) -> RecorderRow:
    """A recorder in one row."""
    return {
        "pid": recorder.pid,
        "state": recorder.state,
        "problem": recorder.problem,
        "root": recorder.root,
        "rows": recorder.rows,
        "gaps": dict(recorder.gaps),
        "rate": rounded(recorder.rows_per_s),
        "bytes": rounded(recorder.bytes_per_s),
        "backlog": recorder.backlog_bytes,
        "disk_free": rounded(recorder.disk_free_bytes, 3),
        "streams": list(recorder.streams),
        "health": "bad" if recorder.problem else "good" if recorder.state == "recording" else "idle",
    }


class MappingRow(TypedDict):
    """A stream that a bridge sends or receives."""

    direction: str
    source: int
    dest: int
    connected: bool
    frames: int
    rate: float | None
    dropped: dict[str, int]
    network: int | None
    fault: str
    peer: str


class BridgeRow(TypedDict):
    """A bridge with its mappings."""

    pid: int
    health: str
    mappings: list[MappingRow]


def bridge_row(bridge: BridgeView) -> BridgeRow:
    """A bridge in one row."""
    return {
        "pid": bridge.pid,
        "health": "good" if all(m.connected and not m.fault for m in bridge.mappings) else "bad",
        "mappings": [_mapping_row(mapping) for mapping in bridge.mappings[:_MAX_MAPPINGS]],
    }


def _mapping_row(mapping: MappingView) -> MappingRow:
    return {
        "direction": mapping.direction,
        "source": mapping.source_stream_id,
        "dest": mapping.dest_stream_id,
        "connected": mapping.connected,
        "frames": mapping.frames,
        "rate": rounded(mapping.frames_per_s),
        "dropped": dict(mapping.dropped),
        "network": mapping.network,
        "fault": mapping.fault,
        "peer": _peer(mapping),
    }


def _peer(mapping: MappingView) -> str:
    """The host at the other end of a mapping, as its sender addresses it. A receiver only knows itself."""
    match = _ENDPOINT.search(mapping.channel) if mapping.direction == "send" else None
    return "" if match is None else match[1].strip("[]")


class ServiceRow(TypedDict):
    """A service of any kind."""

    tag: str
    name: str
    pid: int


def service_row(service: ServiceView) -> ServiceRow:
    """A service in one row."""
    return {"tag": service.tag, "name": service.name, "pid": service.pid}


# --- the document


class NoticeRow(TypedDict):
    """An event, with the time of day in milliseconds."""

    at: int
    kind: str
    stream: int | None
    text: str


class CollisionRow(TypedDict):
    """An id that two endpoints have used."""

    kind: str
    stream: int
    id: int
    times: int


class SystemRow(TypedDict):
    """The console's own facts and the sums over all streams; the only row of its section."""

    host: str
    aeron_dir: str
    version: str
    pid: int
    at: int
    streams: int
    states: dict[str, int]
    consumers: int
    rate: float | None
    bytes: float | None
    memory: int
    lost_s: float | None
    p99: float | None
    paths: dict[str, int]
    collisions: list[CollisionRow]
    rejected: dict[str, int]


@dataclass(frozen=True, slots=True)
class ConsoleOrigin:
    """What the console knows about itself and its machine."""

    host: str
    aeron_dir: str
    version: str
    pid: int


class ConsoleState:
    """Turns snapshots into documents. `update` is called once a period, by one thread."""

    def __init__(self, origin: ConsoleOrigin) -> None:
        self._origin = origin
        self._departures = Departures()
        self._notices: OrderedDict[str, NoticeRow] = OrderedDict()
        self._notice_ns = -1
        self.document: Document = {name: {} for name in SECTIONS}
        self.version = 0

    def update(
        self,
        snapshot: Snapshot,
        ledger: Iterable[LedgerRow],
        now_ms: int,
        hidden_ids: Collection[int] = (),
    ) -> Difference:
        """Makes the document of a snapshot; returns the changes since the last one.

        Consumers with `hidden_ids` are left out: they are the console's own.
        """
        snapshot = without_consumers(snapshot, set(hidden_ids)) if hidden_ids else snapshot
        hidden = {str(number) for number in hidden_ids}
        self._departures.update(snapshot, now_ms, hidden_ids)
        self._add_notices(snapshot, now_ms)
        self._remove_notices(hidden)
        rows = [row for row in ledger if not (row.path == "consumer" and row.who in hidden)]
        document: Document = {
            "system": {"": self._system_row(snapshot, rows, now_ms)},
            "streams": {str(stream.stream_id): stream_row(stream) for stream in snapshot.streams},
            "consumers": {
                f"{consumer.stream_id}/{consumer.consumer_id}": consumer_row(consumer)
                for stream in snapshot.streams
                for consumer in stream.consumers
            },
            "gone": self._departures.rows(),
            "ledger": ledger_rows(rows),
            "notices": dict(self._notices),
            "drivers": {driver.tag: driver_row(driver) for driver in snapshot.drivers},
            "recorders": {recorder.tag: recorder_row(recorder) for recorder in snapshot.recorders},
            "bridges": {bridge.tag: bridge_row(bridge) for bridge in snapshot.bridges},
            "services": {
                f"{service.tag} {service.pid}": service_row(service) for service in snapshot.services
            },
        }
        change = difference(self.document, document)
        self.document = document
        self.version += 1
        return change

    def _add_notices(self, snapshot: Snapshot, now_ms: int) -> None:
        """Notices that are newer than the last one; their age becomes a time of day."""
        for number, notice in enumerate(snapshot.notices):
            at_ns = snapshot.now_ns - notice.age_ns
            if at_ns <= self._notice_ns:
                continue
            self._notices[f"{at_ns}.{number}"] = {
                "at": now_ms - notice.age_ns // 1_000_000,
                "kind": notice.kind,
                "stream": notice.stream_id,
                "text": notice.text,
            }
        if snapshot.notices:
            self._notice_ns = max(self._notice_ns, *(snapshot.now_ns - n.age_ns for n in snapshot.notices))
        while len(self._notices) > MAX_NOTICES:
            self._notices.popitem(last=False)

    def _remove_notices(self, hidden: Collection[str]) -> None:
        """A consumer of the console appears in a snapshot before its id is known to be the console's."""
        for key, notice in list(self._notices.items()):
            match = _CONSUMER.match(notice["text"]) if notice["kind"] == "consumer" else None
            if match is not None and match[1] in hidden:
                del self._notices[key]

    def _system_row(self, snapshot: Snapshot, rows: list[LedgerRow], now_ms: int) -> SystemRow:
        states = Counter(str(stream.state) for stream in snapshot.streams)
        totals = system_totals(snapshot)
        return {
            "host": self._origin.host,
            "aeron_dir": self._origin.aeron_dir,
            "version": self._origin.version,
            "pid": self._origin.pid,
            "at": now_ms,
            "streams": len(snapshot.streams),
            "states": dict(sorted(states.items())),
            "consumers": sum(len(stream.consumers) for stream in snapshot.streams),
            "rate": rounded(totals.rate_hz),
            "bytes": rounded(totals.bytes_per_s),
            "memory": totals.nbytes,
            "lost_s": rounded(totals.lost_per_s, 3),
            "p99": None if totals.p99_ns is None else rounded(totals.p99_ns / 1e3, 3),
            "paths": dict(sorted(Counter(str(row.verdict) for row in rows).items())),
            "collisions": [
                {"kind": item.kind, "stream": item.stream_id, "id": item.id, "times": item.times}
                for item in snapshot.collisions[:_MAX_COLLISIONS]
            ],
            "rejected": dict(snapshot.rejected),
        }


@dataclass(frozen=True, slots=True)
class SystemTotals:
    """Sums over all streams of a snapshot."""

    rate_hz: float
    bytes_per_s: float
    nbytes: int
    lost_per_s: float
    p50_ns: int | None
    p99_ns: int | None


def system_totals(snapshot: Snapshot) -> SystemTotals:
    """The sums of a snapshot; latency is the highest of all consumers."""
    latencies = [stream.latency for stream in snapshot.streams if stream.latency is not None]
    return SystemTotals(
        rate_hz=sum(stream.rate_hz or 0.0 for stream in snapshot.streams),
        bytes_per_s=sum(stream.bytes_per_s or 0.0 for stream in snapshot.streams),
        nbytes=sum(stream.nbytes for stream in snapshot.streams),
        lost_per_s=sum(
            consumer.dropped_per_s or 0.0 for stream in snapshot.streams for consumer in stream.consumers
        ),
        p50_ns=max((latency.p50_ns for latency in latencies), default=None),
        p99_ns=max((latency.p99_ns for latency in latencies), default=None),
    )


# --- details


def detail(snapshot: Snapshot, kind: str, key: str) -> JsonMapping | None:
    """Everything that a snapshot has about one thing."""
    match kind:
        case "stream":
            stream = snapshot.stream(int(key)) if key.isascii() and key.isdecimal() else None
            if stream is None:
                return None
            few = stream.consumers[:_MAX_DETAIL_CONSUMERS]
            leases = [to_json(lease) for lease in snapshot.leases if lease.stream_id == stream.stream_id]
            view = to_json(replace(stream, consumers=few))
            return {**view, "leases": leases[:_MAX_DETAIL_CONSUMERS]}
        case "consumer":
            stream_id, _, consumer_id = key.partition("/")
            if not (stream_id.isdecimal() and consumer_id.isdecimal()):
                return None
            consumer = snapshot.consumer(int(stream_id), int(consumer_id))
            return None if consumer is None else to_json(consumer)
        case "driver":
            return _tagged(snapshot.drivers, key)
        case "recorder":
            return _tagged(snapshot.recorders, key)
        case "bridge":
            return _tagged(snapshot.bridges, key)
        case "service":
            return _tagged(snapshot.services, key)
    return None


def _tagged(
    services: Iterable[DriverView | RecorderView | BridgeView | ServiceView], tag: str
) -> JsonMapping | None:
    """The service with a tag, as JSON."""
    return next((to_json(service) for service in services if service.tag == tag), None)
