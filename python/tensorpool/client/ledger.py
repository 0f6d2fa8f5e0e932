"""Ledgers and latency of producers and consumers, outcomes of an offer, phases of a consumer. Pure.

A ledger accounts for every frame: its counts add up (wire §15.4). Phases are those of wire §15.12.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias, cast

from .. import _native
from ..text import JsonMapping, html_table

TimeOrigin: TypeAlias = Literal["publish", "capture", "mixed"]

_UNPUBLISHED: Final = ("back_pressured", "not_connected", "closed")
_WITHOUT_SEQUENCE: Final = ("no_pool", "slot_claimed", "detached", "abandoned", "after_close")
_IN_SPAN: Final = frozenset(reason.name for reason in _native.drop_reasons() if reason.is_in_span)

DROP_REASONS: Final[dict[str, str]] = {reason.name: reason.meaning for reason in _native.drop_reasons()}
"""Drop reasons of a consumer: the name of each counter, and what it counts."""


class Outcome(StrEnum):
    """The result of an offered or committed frame."""

    PUBLISHED = "published"
    """In the ring, and its descriptor is published."""
    DEFERRED = "deferred"
    """In the ring; its descriptor follows when the older claim before it is committed or abandoned."""
    BACK_PRESSURED = "back_pressured"
    """In the ring, but the descriptor stream is full until consumers catch up or are rested."""
    NOT_CONNECTED = "not_connected"
    """In the ring, but no consumer subscribes at the moment."""
    CLOSED = "closed"
    """The media driver is not connected (the conductor reconnects), or the producer is closed."""
    NO_POOL = "no_pool"
    """Dropped: no pool of the stream is large enough."""
    SLOT_CLAIMED = "slot_claimed"
    """Dropped: the next slot is still claimed. Commit or abandon the claim."""
    DETACHED = "detached"
    """Dropped: the producer has no lease at the moment; the conductor requests a new one."""


def _without_zeros(counts: dict[str, int], prefix: str = "") -> dict[str, int]:
    return {f"{prefix}{name}": count for name, count in counts.items() if count}


def _by_reason(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in counts.items() if count) or "0"


@dataclass(frozen=True, slots=True, repr=False)
class ProducerLedger:
    """`committed` = `published` + `unpublished` by reason + `deferred`."""

    committed: int
    """Frames that were written into the ring."""
    published: int
    """Frames whose descriptor was sent."""
    unpublished: dict[str, int]
    """Frames in the ring without a descriptor, by reason: no consumer received them."""
    deferred: int
    """Frames whose descriptor waits for room on its stream, and is sent later."""
    dropped: dict[str, int]
    """Frames without a sequence, by reason: no_pool, slot_claimed, detached, abandoned, after_close."""
    holes: int
    """Sequences without a frame: their claim was abandoned after newer frames were committed."""
    bytes: int
    """Bytes of all published payloads."""

    @classmethod
    def from_counters(cls, counters: _native.ProducerCounters) -> ProducerLedger:
        """The ledger from the counters of a native producer."""
        unpublished: dict[str, int] = {name: getattr(counters, name) for name in _UNPUBLISHED}
        deferred = counters.committed - counters.published - sum(unpublished.values())
        return cls(
            committed=counters.committed,
            published=counters.published,
            unpublished=unpublished,
            deferred=deferred,
            dropped={name: getattr(counters, name) for name in _WITHOUT_SEQUENCE},
            holes=counters.holes,
            bytes=counters.bytes,
        )

    def __str__(self) -> str:
        """One line, without the zeros."""
        unpublished = (
            f" + unpublished ({_by_reason(self.unpublished)})" if any(self.unpublished.values()) else ""
        )
        deferred = f" + deferred {self.deferred}" if self.deferred else ""
        dropped = f"; dropped: {_by_reason(self.dropped)}" if any(self.dropped.values()) else ""
        return f"committed {self.committed} = published {self.published}{unpublished}{deferred}{dropped}"

    def __repr__(self) -> str:
        return f"<ProducerLedger {self}>"

    def _repr_html_(self) -> str:
        more = {"deferred": self.deferred, "holes": self.holes, "bytes": self.bytes}
        rows = {"committed": self.committed, "published": self.published, **_without_zeros(more)}
        unpublished = _without_zeros(self.unpublished, "unpublished: ")
        return html_table({**rows, **unpublished, **_without_zeros(self.dropped, "dropped: ")})

    @property
    def balanced(self) -> bool:
        """Whether no frame is deferred, as is the case when no claim is open."""
        return self.deferred == 0


@dataclass(frozen=True, slots=True, repr=False)
class ConsumerLedger:
    """`span` (first to last sequence, over all epochs) = `received` + `dropped` by reason."""

    span: int
    """Sequences from the first to the last known one, summed over all epochs."""
    received: int
    """Frames that this consumer got."""
    dropped: dict[str, int]
    """Sequences of the span that were not delivered, by reason; see DROP_REASONS."""
    outside: dict[str, int]
    """Descriptors of no mapped epoch, by reason: they are in no span."""

    @classmethod
    def from_counters(cls, counters: _native.ConsumerCounters) -> ConsumerLedger:
        """The ledger from the counters of a native consumer."""
        drops = counters.drops
        return cls(
            span=counters.span,
            received=counters.received,
            dropped={name: n for name, n in drops.items() if name in _IN_SPAN},
            outside={name: n for name, n in drops.items() if name not in _IN_SPAN},
        )

    def __str__(self) -> str:
        """One line, without the zeros."""
        dropped = f" + dropped ({_by_reason(self.dropped)})" if any(self.dropped.values()) else ""
        outside = f"; outside any span: {_by_reason(self.outside)}" if any(self.outside.values()) else ""
        return f"span {self.span} = received {self.received}{dropped}{outside}"

    def __repr__(self) -> str:
        return f"<ConsumerLedger {self}>"

    def _repr_html_(self) -> str:
        rows = {"span": self.span, "received": self.received, **_without_zeros(self.dropped, "dropped: ")}
        return html_table({**rows, **_without_zeros(self.outside, "outside any span: ")})

    @property
    def balanced(self) -> bool:
        """Whether every sequence of the span was received or dropped."""
        return self.span == self.received + sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Latency of `count` frames in nanoseconds, exact to one part in 64. All 0 without frames."""

    count: int
    p50_ns: int
    p99_ns: int
    max_ns: int

    @classmethod
    def from_native(cls, summary: _native.LatencySummary) -> LatencySummary:
        """The summary that a native consumer returned."""
        return cls(summary.count, summary.p50_ns, summary.p99_ns, summary.max_ns)

    def __str__(self) -> str:
        if not self.count:
            return "no frames"
        percentiles = (("p50", self.p50_ns), ("p99", self.p99_ns), ("max", self.max_ns))
        text = ", ".join(f"{name} {ns / 1e3:,.1f} µs" for name, ns in percentiles)
        return f"{text} of {self.count}"

    def to_json(self) -> dict[str, int]:
        """The figures by name."""
        return {"count": self.count, "p50_ns": self.p50_ns, "p99_ns": self.p99_ns, "max_ns": self.max_ns}


@dataclass(frozen=True, slots=True)
class Latency:
    """Time from the publication of a frame until the consumer received it."""

    since: TimeOrigin | None
    """Measured from the descriptors' publish timestamps, or where these are missing from the frames' own
    timestamps; None before the first frame."""
    last: LatencySummary
    """Of the last whole interval (`[context] hello_period`, 1 s)."""
    total: LatencySummary
    """Since the consumer was opened."""
    excluded: int
    """Frames whose timestamps are not of this host's clock: in the future, or more than a minute old."""

    @classmethod
    def from_report(cls, report: _native.LatencyReport) -> Latency:
        """The latency as a native consumer reports it."""
        return cls(
            since=cast("TimeOrigin | None", report.since),
            last=LatencySummary.from_native(report.last),
            total=LatencySummary.from_native(report.total),
            excluded=report.excluded,
        )

    def to_json(self) -> JsonMapping:
        """The figures with the keys of the status stream."""
        return {
            "since": self.since,
            "last": self.last.to_json(),
            "total": self.total.to_json(),
            "excluded": self.excluded,
        }


class Phase(StrEnum):
    """The source of a consumer's frames at the moment (wire §15.12)."""

    UNMAPPED = "unmapped"
    """None: no announce was received, or the regions are gone or were rejected."""
    MAPPED = "mapped"
    """Shared memory of the announced epoch."""
    FALLBACK = "fallback"
    """The bridge of `consumer.fallback_uri`, by order or because shared memory cannot be used."""
