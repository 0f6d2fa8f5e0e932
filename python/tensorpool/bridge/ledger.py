"""Both ends' counters joined: published = delivered + dropped by the sender, on the way, by the receiver.

A sender tells its part once a second on the control channel, as an event that other implementations ignore.
What a receiver has of it starts with the first one it heard of that run of the sender. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .. import _native

LEDGER_KEY: Final = "ledger"
_INCOMPLETE: Final = frozenset(name for name, _, incomplete in _native.bridge_reasons() if incomplete)
_MAX_RUNS: Final = 16


@dataclass(frozen=True, slots=True)
class Sent:
    """A sender's account of one stream, of the frames that it is done with."""

    run: str
    source_stream_id: int
    sent: int
    dropped: Mapping[str, int]

    @property
    def published(self) -> int:
        return self.sent + sum(self.dropped.values())

    def encode(self) -> str:
        return json.dumps(
            {
                "run": self.run,
                "source_stream_id": self.source_stream_id,
                "sent": self.sent,
                "dropped": {name: n for name, n in self.dropped.items() if n},
            }
        )

    @classmethod
    def decode(cls, text: object) -> Sent | None:
        """None for what is no such account: it comes from outside."""
        if not isinstance(text, str) or len(text) > 1 << 16:
            return None
        try:
            found = json.loads(text)
            dropped = {str(name): _count(n) for name, n in dict(found["dropped"]).items()}
            run, stream_id = str(found["run"])[:64], _count(found["source_stream_id"])
            return cls(run, stream_id, _count(found["sent"]), dropped)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("not a count")
    return value


@dataclass(frozen=True, slots=True)
class Received:
    """A receiver's account of one stream."""

    delivered: int
    turned_away: int
    lost: Mapping[str, int]

    @classmethod
    def of(cls, standing: Mapping[str, Any]) -> Received:
        return cls(standing["delivered"], standing["turned_away"], dict(standing["lost"]))

    @property
    def dropped(self) -> dict[str, int]:
        """What the receiver itself threw away, by reason. What never came whole is not among it."""
        own = {name: n for name, n in self.lost.items() if n and name not in _INCOMPLETE}
        return own | ({"turned_away": self.turned_away} if self.turned_away else {})

    @property
    def incomplete(self) -> dict[str, int]:
        """Frames of which a chunk never came: lost on the way, or given up by the sender."""
        return {name: n for name, n in self.lost.items() if n and name in _INCOMPLETE}

    @property
    def total(self) -> int:
        """All that is accounted for here."""
        return self.delivered + sum(self.dropped.values())

    def since(self, before: Received) -> Received:
        lost = {name: n - before.lost.get(name, 0) for name, n in self.lost.items()}
        return Received(self.delivered - before.delivered, self.turned_away - before.turned_away, lost)


@dataclass(frozen=True, slots=True)
class Joined:
    """`published` = `delivered` + `sender` + `network` + `receiver`; the three are drops."""

    published: int
    delivered: int
    sender: int
    receiver: int
    exact: bool
    """False: the sender was heard of first when it had been sending already, or was started anew: frames that
    were on the way at that moment may be missing in one column."""

    @property
    def network(self) -> int:
        """Lost on the way, or still on it."""
        return self.published - self.delivered - self.sender - self.receiver

    def as_dict(self) -> dict[str, Any]:
        return {
            "published": self.published,
            "delivered": self.delivered,
            "dropped": {"sender": self.sender, "network": self.network, "receiver": self.receiver},
            "exact": self.exact,
        }


@dataclass
class Book:
    """What a receiver knows of one stream's sender."""

    latest: Sent | None = None
    _first: Sent | None = None
    _base: Received | None = None
    _then: Received | None = None
    """How the receiver stood when the sender spoke last."""
    _exact: bool = False
    _runs: list[str] = field(default_factory=list)

    def hear(self, sent: Sent, received: Received) -> None:
        if self.latest is not None and sent.run != self.latest.run and sent.run in self._runs:
            # A word of a run that is over, late on the way.
            return
        if self.latest is None or sent.run != self.latest.run:
            # The very first word of a sender goes out before its first frame, and is read here after it.
            self._exact = self.latest is None and sent.published == 0
            self._first, self._base = sent, Received(0, 0, {}) if self._exact else received
            self._runs = [*self._runs[1 - _MAX_RUNS :], sent.run]
        self.latest, self._then = sent, received

    def join(self, received: Received) -> Joined | None:
        """None while nothing was heard of the sender."""
        if self.latest is None or self._first is None or self._base is None or self._then is None:
            return None
        dropped = sum(self.latest.dropped.values()) - sum(self._first.dropped.values())
        told = self.latest.published - self._first.published
        now = received.since(self._base)
        if told < dropped + now.total:
            # Frames have come that the sender has not told of yet: its word is held against that time.
            now = self._then.since(self._base)
        return Joined(
            published=max(told, dropped + now.total),
            delivered=now.delivered,
            sender=dropped,
            receiver=sum(now.dropped.values()),
            exact=self._exact,
        )
