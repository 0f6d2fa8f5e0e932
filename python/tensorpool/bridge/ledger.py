"""Both ends' counters joined: published = delivered + dropped by the sender, on the way, by the receiver.

A sender tells its part once a second on the control channel, as an event that other implementations ignore,
and with it the place in its stream up to which it is told. A receiver's account of it starts at the first
such place of which it knows what it had there itself, so that both begin with the same frame. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from .. import _native

LEDGER_KEY: Final = "ledger"
_INCOMPLETE: Final = frozenset(name for name, _, incomplete in _native.bridge_reasons() if incomplete)
_MAX_RUNS: Final = 16
_MAX_SESSIONS: Final = 16
_INT32: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class SenderLedger:
    """A sender's account of one stream, of the frames that it is done with."""

    run: str
    source_stream_id: int
    sent: int
    dropped: Mapping[str, int]
    sessions: tuple[int, ...]
    """Aeron's, of its publications in this run; the last is the present one."""
    position: int
    """How far that is: frames that were sent lie before it, all others behind."""

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
                "sessions": self.sessions,
                "position": self.position,
            }
        )

    @classmethod
    def decode(cls, text: object) -> SenderLedger | None:
        """None for what is no such account: it comes from outside."""
        if not isinstance(text, str) or len(text) > 1 << 16:
            return None
        try:
            found = json.loads(text)
            dropped = {str(name): _count(n) for name, n in dict(found["dropped"]).items()}
            run, stream_id = str(found["run"])[:64], _count(found["source_stream_id"])
            sessions = tuple(_session(one) for one in found["sessions"][-_MAX_SESSIONS:])
            if not sessions:
                return None
            return cls(run, stream_id, _count(found["sent"]), dropped, sessions, _count(found["position"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("not a count")
    return value


def _session(value: object) -> int:
    if type(value) is not int or not -_INT32 <= value < _INT32:
        raise ValueError("not a session")
    return value


@dataclass(frozen=True, slots=True)
class ReceiverLedger:
    """A receiver's account of one stream."""

    delivered: int
    turned_away: int
    lost: Mapping[str, int]

    @classmethod
    def of(cls, standing: Mapping[str, Any]) -> ReceiverLedger:
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

    def since(self, before: ReceiverLedger) -> ReceiverLedger:
        return self._with(before, -1)

    def and_also(self, more: ReceiverLedger) -> ReceiverLedger:
        return self._with(more, 1)

    def _with(self, other: ReceiverLedger, sign: int) -> ReceiverLedger:
        names = self.lost.keys() | other.lost.keys()
        lost = {name: self.lost.get(name, 0) + sign * other.lost.get(name, 0) for name in names}
        turned_away = self.turned_away + sign * other.turned_away
        return ReceiverLedger(self.delivered + sign * other.delivered, turned_away, lost)


NOTHING: Final = ReceiverLedger(0, 0, {})


class Arrivals(Protocol):
    """What a receiver has counted of one stream, by the session it came in."""

    def received(self, sessions: tuple[int, ...]) -> tuple[ReceiverLedger, bool]:
        """Of all these; false if it may have forgotten one."""
        ...

    def cut(self, session: int, position: int | None) -> ReceiverLedger | None:
        """What it had of a session at a place in it, or at its beginning. None: not known, or not yet."""
        ...


@dataclass(frozen=True, slots=True)
class JoinedLedger:
    """`published` = `delivered` + `sender` + `network` + `receiver`; the three are drops."""

    published: int
    delivered: int
    sender: int
    receiver: int
    exact: bool
    """False: the sender, or who pretends to be one, had more sessions than are remembered; frames that were
    delivered may stand among those lost on the way."""
    whole: bool
    """False: the receiver, or the sender, was started anew meanwhile; the account is of what came since."""

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
            "whole": self.whole,
        }


@dataclass
class MappingLedger:
    """What a receiver knows of one stream's sender."""

    latest: SenderLedger | None = None
    _first: SenderLedger | None = None
    """Where the account begins, and `_base` is what was here by then. None: that is not known yet."""
    _base: ReceiverLedger = NOTHING
    _then: ReceiverLedger = NOTHING
    """How the receiver stood when the sender spoke last."""
    _sessions: set[int] = field(default_factory=set)
    _exact: bool = True
    _runs: list[str] = field(default_factory=list)

    def hear(self, sent: SenderLedger, here: Arrivals) -> None:
        if self.latest is not None and sent.run != self.latest.run:
            if sent.run in self._runs:
                # A word of a run that is over, late on the way.
                return
            self.latest = None
        if self.latest is None:
            self._runs = [*self._runs[1 - _MAX_RUNS :], sent.run]
            self._first, self._sessions, self._exact = None, set(), True
        else:
            self.settle(here)
        self.latest = sent
        if self._first is None:
            self.settle(here)
            return
        self._exact &= self._sessions <= set(sent.sessions)
        self._sessions &= set(sent.sessions)
        self._begin(sent, here)
        self._then, _ = here.received(sent.sessions)

    def _begin(self, sent: SenderLedger, here: Arrivals) -> None:
        """All of these sessions is the sender's, from their first frame on."""
        for session in sent.sessions:
            if session not in self._sessions:
                here.cut(session, None)
                self._sessions.add(session)

    def settle(self, here: Arrivals) -> bool:
        """Whether it is known where the account begins. To be asked again soon: frames go on coming."""
        sent = self.latest
        if sent is None or self._first is not None:
            return True
        first = sent
        if sent.sent == 0:
            # It goes out before the first frame, and may be read after it: all that the sender ever counts.
            self._base, first = NOTHING, replace(sent, dropped={})
        else:
            *before, present = sent.sessions
            base = here.cut(present, sent.position)
            if base is None:
                return False
            self._sessions.add(present)
            earlier, _ = here.received(tuple(before))
            self._base = base.and_also(earlier)
        self._begin(sent, here)
        self._first, self._then = first, self._base
        return True

    def join(self, here: Arrivals) -> JoinedLedger | None:
        """None until it is known where the sender's account begins."""
        if not self.settle(here) or self.latest is None or self._first is None:
            return None
        dropped = sum(self.latest.dropped.values()) - sum(self._first.dropped.values())
        told = self.latest.published - self._first.published
        received, is_all = here.received(self.latest.sessions)
        now = received.since(self._base)
        if told < dropped + now.total:
            # Frames have come that the sender has not told of yet: its word is held against that time.
            now = self._then.since(self._base)
        return JoinedLedger(
            published=max(told, dropped + now.total),
            delivered=now.delivered,
            sender=dropped,
            receiver=sum(now.dropped.values()),
            exact=self._exact and is_all,
            whole=len(self._runs) == 1 and self._first.sent == 0,
        )
