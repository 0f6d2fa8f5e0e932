"""Every frame accounted for: the counters of producers and consumers, and that they add up.

How long frames take from their publication to the consumer that has them.

Where a consumer's frames come from (wire §15.12).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from .. import _native

_IN_SPAN = frozenset(name for name, _, in_span in _native.drop_reasons() if in_span)

DROP_REASONS: dict[str, str] = {name: meaning for name, meaning, _ in _native.drop_reasons()}
"""Why a consumer drops: the name of each counter and what it counts."""


class Outcome(StrEnum):
    """What became of an offered frame."""

    PUBLISHED = "published"
    """In the ring, and its descriptor is on the way to whoever subscribes."""
    DEFERRED = "deferred"
    """In the ring; its descriptor follows when the older claim before it is settled."""
    BACK_PRESSURED = "back_pressured"
    """In the ring, but the descriptor stream is full. Passes as soon as readers catch up or are rested."""
    NOT_CONNECTED = "not_connected"
    """In the ring, but nobody subscribes at the moment. Subscribers come and go."""
    CLOSED = "closed"
    """The media driver is gone (it is being reconnected), or the producer was closed."""
    NO_POOL = "no_pool"
    """Dropped: no pool of the stream is large enough."""
    SLOT_CLAIMED = "slot_claimed"
    """Dropped: the next slot is still claimed. Commit or abandon the claim."""
    DETACHED = "detached"
    """Dropped: there is no lease at the moment (the driver went away, or took it back); one is asked for."""


def _by_reason(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in counts.items() if count) or "0"


@dataclass(frozen=True, slots=True)
class ProducerLedger:
    """`committed` = `published` + what was not published, by reason + `deferred`."""

    committed: int
    published: int
    unpublished: dict[str, int]
    deferred: int
    dropped: dict[str, int]
    """Never got a sequence: no_pool, slot_claimed, detached, abandoned, after_close."""
    holes: int
    """Sequences lost because an older claim was abandoned after newer frames had been taken."""
    bytes: int

    @classmethod
    def of(cls, counters: dict[str, int]) -> ProducerLedger:
        unpublished = {name: counters[name] for name in ("back_pressured", "not_connected", "closed")}
        deferred = counters["committed"] - counters["published"] - sum(unpublished.values())
        never = ("no_pool", "slot_claimed", "detached", "abandoned", "after_close")
        dropped = {name: counters[name] for name in never}
        return cls(
            committed=counters["committed"],
            published=counters["published"],
            unpublished=unpublished,
            deferred=deferred,
            dropped=dropped,
            holes=counters["holes"],
            bytes=counters["bytes"],
        )

    def __str__(self) -> str:
        """One line, without the zeros."""
        unpublished = (
            f" + unpublished ({_by_reason(self.unpublished)})" if any(self.unpublished.values()) else ""
        )
        deferred = f" + deferred {self.deferred}" if self.deferred else ""
        dropped = f"; dropped: {_by_reason(self.dropped)}" if any(self.dropped.values()) else ""
        return f"committed {self.committed} = published {self.published}{unpublished}{deferred}{dropped}"

    @property
    def balanced(self) -> bool:
        """With no claim open, every committed frame is published or not, and nothing is left over."""
        return self.deferred == 0


@dataclass(frozen=True, slots=True)
class ConsumerLedger:
    """`span` (first to last sequence, over all epochs) = `received` + `dropped` by reason."""

    span: int
    received: int
    dropped: dict[str, int]
    """Sequences of the span that were not handed out, by reason; see DROP_REASONS."""
    outside: dict[str, int]
    """Descriptors that belong to no mapped epoch, by reason: not part of any span."""

    @classmethod
    def of(cls, counters: dict[str, Any]) -> ConsumerLedger:
        drops: dict[str, int] = counters["drops"]
        return cls(
            span=counters["span"],
            received=counters["received"],
            dropped={name: n for name, n in drops.items() if name in _IN_SPAN},
            outside={name: n for name, n in drops.items() if name not in _IN_SPAN},
        )

    def __str__(self) -> str:
        """One line, without the zeros."""
        dropped = f" + dropped ({_by_reason(self.dropped)})" if any(self.dropped.values()) else ""
        outside = f"; outside any span: {_by_reason(self.outside)}" if any(self.outside.values()) else ""
        return f"span {self.span} = received {self.received}{dropped}{outside}"

    @property
    def balanced(self) -> bool:
        return self.span == self.received + sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Nanoseconds of so many frames, each figure true to one part in 64. All 0 without frames."""

    count: int
    p50_ns: int
    p99_ns: int
    max_ns: int

    def __str__(self) -> str:
        if not self.count:
            return "no frames"
        figures = (f"{name} {ns / 1e3:,.1f} µs" for name, ns in self._named())
        return f"{', '.join(figures)} of {self.count}"

    def _named(self) -> list[tuple[str, int]]:
        return [("p50", self.p50_ns), ("p99", self.p99_ns), ("max", self.max_ns)]

    def as_json(self) -> dict[str, int]:
        return {"count": self.count, "p50_ns": self.p50_ns, "p99_ns": self.p99_ns, "max_ns": self.max_ns}


@dataclass(frozen=True, slots=True)
class Latency:
    """From publication until the consumer had the frame in its hands."""

    since: Literal["publish", "capture", "mixed"] | None
    """From the descriptors' publish times, or from the frames' own where there are none; None so far."""
    last: LatencySummary
    """The last whole interval (`[context] hello_period`, 1 s)."""
    life: LatencySummary
    """Since the consumer was made."""
    left_out: int
    """Frames whose times are not of this machine's clock: in the future, or more than a minute old."""

    @classmethod
    def of(cls, figures: dict[str, Any]) -> Latency:
        return cls(
            since=figures["since"],
            last=LatencySummary(*figures["last"]),
            life=LatencySummary(*figures["life"]),
            left_out=figures["left_out"],
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "since": self.since,
            "last": self.last.as_json(),
            "life": self.life.as_json(),
            "left_out": self.left_out,
        }


class Phase(StrEnum):
    """Where a consumer's frames come from at the moment."""

    UNMAPPED = "unmapped"
    """From nowhere yet: no producer was heard, or its regions are gone or were refused."""
    MAPPED = "mapped"
    """From shared memory, whose epoch is the announced one."""
    FALLBACK = "fallback"
    """Another way was named (`consumer.fallback_uri`), by order or because shared memory cannot be used."""
