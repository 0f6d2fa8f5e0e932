"""From a snapshot of the system to families of samples. Pure.

Whoever can reach the wire can make up streams, consumers and reasons, and each would be a series in
somebody's database: every set of labels has a limit, and what is over it is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ..monitor.snapshot import (
    BridgeView,
    ConsumerView,
    DriverView,
    ProducerView,
    RecorderView,
    Snapshot,
    StreamState,
    StreamView,
)
from . import catalogue as c
from .exposition import Family, Labels, Metric, label_texts

_One = TypeVar("_One")
_RECORDER_STATES: Final = ("recording", "armed", "stopped", "disk_full", "closed")
_MOST_REASONS: Final = 32
OTHER: Final = "other"
"""Stands for all names that are over the limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many of each get metrics of their own."""

    streams: int = 1024
    consumers: int = 4096
    mappings: int = 256
    others: int = 64
    """Drivers, recorders and names of services, each."""


DEFAULT_LIMITS: Final = Limits()


class _Page:
    """The families under way, in the catalogue's order."""

    def __init__(self, limits: Limits) -> None:
        self._families = {one.name: Family(one) for one in c.CATALOGUE}
        self.limits = limits

    def __getitem__(self, metric: Metric) -> Family:
        return self._families[metric.name]

    def first(self, what: str, limit: int, found: Sequence[_One]) -> Sequence[_One]:
        """The first ones, always the same; the rest is counted."""
        self[c.LEFT_OUT].add(max(0, len(found) - limit), what)
        return found[:limit]

    def reasons(self, metric: Metric, counts: Mapping[str, int], *labels: object) -> None:
        for reason, n in _few(counts, OTHER):
            self[metric].add(n, *labels, reason)

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())


def collect(snapshot: Snapshot, limits: Limits = DEFAULT_LIMITS, *, version: str = "") -> list[Family]:
    """All samples of a snapshot."""
    page = _Page(limits)
    page[c.BUILD].put(1, version)
    _system(page, snapshot)
    by_id = sorted(snapshot.streams, key=lambda one: one.stream_id)
    for stream in page.first("streams", limits.streams, by_id):
        _stream(page, stream)
    every = [one for stream in by_id for one in stream.consumers]
    for consumer in page.first("consumers", limits.consumers, every):
        _consumer(page, consumer)
    for driver in page.first("drivers", limits.others, snapshot.drivers):
        _driver(page, driver)
    _bridges(page, snapshot.bridges)
    for recorder in page.first("recorders", limits.others, snapshot.recorders):
        _recorder(page, recorder)
    return list(page)


def _system(page: _Page, snapshot: Snapshot) -> None:
    states = Counter(str(one.state) for one in snapshot.streams)
    for state in StreamState:
        page[c.STREAMS].put(states[str(state)], state)
    page[c.CONSUMERS].put(sum(len(one.consumers) for one in snapshot.streams))
    for (role, lease_state), n in _few(
        Counter((one.role, one.state) for one in snapshot.leases), rest=(OTHER, OTHER)
    ):
        page[c.LEASES].add(n, role, lease_state)
    for name, n in _few(Counter(one.name for one in snapshot.services), OTHER, page.limits.others):
        page[c.SERVICES].add(n, name)
    # A family that comes with its first trouble would have no "before" to compare with.
    collided = Counter(dict.fromkeys(("consumer", "producer", "stream"), 0))
    collided.update(one.kind for one in snapshot.collisions)
    for kind, n in _few(collided, OTHER):
        page[c.COLLISIONS].add(n, kind)
    page.reasons(c.UNHEARD, snapshot.unheard)
    if snapshot.ledger is not None:
        for verdict, n in snapshot.ledger.paths.items():
            page[c.LEDGER].put(n, verdict)


def _stream(page: _Page, one: StreamView) -> None:
    who = label_texts(one.stream_id)
    page[c.STREAM_INFO].put(1, one.stream_id, one.name)
    for state in StreamState:
        page[c.STREAM_STATE].put_at((*who, state.value), state is one.state)
    page[c.STREAM_EPOCHS].put_at(who, one.epochs)
    page[c.STREAM_MEMORY].put_at(who, one.nbytes)
    page[c.STREAM_SLOTS].put_at(who, one.nslots)
    page[c.STREAM_ANNOUNCED].put_at(who, one.announce_age_ns / 1e9)
    page[c.STREAM_ACTIVE].put_at(who, _seconds(one.activity_age_ns))
    page[c.STREAM_CONSUMERS].put_at(who, len(one.consumers))
    if one.producer is not None:
        _producer(page, who, one.producer)


def _producer(page: _Page, who: Labels, one: ProducerView) -> None:
    page[c.SEQUENCES].put_at(who, 0 if one.current_seq is None else one.current_seq + 1)
    page[c.COMMITTED].put_at(who, one.committed)
    page[c.PUBLISHED].put_at(who, one.published)
    page.reasons(c.UNPUBLISHED, one.unpublished, *who)
    page.reasons(c.REFUSED, one.dropped, *who)
    page[c.PRODUCED_BYTES].put_at(who, one.nbytes)
    page[c.PRODUCER_AGE].put_at(who, one.report_age_ns / 1e9)
    page[c.QUIET].put_at(who, one.quiet_ns / 1e9)


def _consumer(page: _Page, one: ConsumerView) -> None:
    who = label_texts(one.stream_id, one.consumer_id)
    page[c.CONSUMER_INFO].put(1, *who, one.pid or "")
    page[c.RECEIVED].put_at(who, one.received)
    page.reasons(c.DROPPED, one.dropped, *who)
    page[c.BACKLOG].put_at(who, one.backlog)
    if one.latency is not None:
        page[c.LATENCY_P50].put_at(who, one.latency.p50_ns / 1e9)
        page[c.LATENCY_P99].put_at(who, one.latency.p99_ns / 1e9)
        page[c.LATENCY_MAX].put_at(who, one.latency.max_ns / 1e9)
    page[c.LIMITED].put_at(who, one.mode == "rate_limited")
    page[c.CONSUMER_AGE].put_at(who, one.report_age_ns / 1e9)


def _driver(page: _Page, one: DriverView) -> None:
    who = (one.namespace, one.instance)
    page[c.DRIVER_STREAMS].put(one.streams, *who)
    page[c.DRIVER_LEASES].put(one.leases, *who)
    page[c.DRIVER_MEMORY].put(one.nbytes, *who)
    page[c.DRIVER_QUOTA].put(one.quota, *who)


def _bridges(page: _Page, bridges: Iterable[BridgeView]) -> None:
    every = [(bridge, mapping) for bridge in bridges for mapping in bridge.mappings]
    for bridge, one in page.first("mappings", page.limits.mappings, every):
        who = (bridge.instance, one.direction, one.source_stream_id, one.dest_stream_id)
        page[c.CONNECTED].put(one.connected, *who)
        page[c.CARRIED].put(one.frames, *who)
        page[c.CARRIED_BYTES].put(one.nbytes, *who)
        page.reasons(c.BRIDGE_DROPPED, one.dropped, *who)
        page[c.ON_THE_WAY].put(one.network, *who)


def _recorder(page: _Page, one: RecorderView) -> None:
    who = one.instance
    for state in (*_RECORDER_STATES, *(() if one.state in _RECORDER_STATES else (OTHER,))):
        page[c.RECORDER_STATE].put(state in (one.state, OTHER), who, state)
    page[c.ROWS].put(one.rows, who)
    page.reasons(c.GAPS, one.gaps, who)
    page[c.WRITTEN].put(one.bytes_per_s, who)
    page[c.BACKLOG_BYTES].put(one.backlog_bytes, who)
    page[c.DISK_FREE].put(one.disk_free_bytes, who)


def _few(counts: Mapping[_One, int], rest: _One, most: int = _MOST_REASONS) -> Iterator[tuple[_One, int]]:
    """As they are, or the first ones and all others under one name."""
    for place, (name, n) in enumerate(counts.items()):
        yield name if place < most else rest, n


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
