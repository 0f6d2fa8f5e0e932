"""The joined ledger of both ends: published = delivered + dropped by sender, network and receiver. Pure.

A sender publishes its ledger once a second on the control channel, as an event that other implementations
ignore, together with the position of its payload stream. A receiver's ledger of this sender starts at the
first position for which the receiver knows its own counts, so that both ends start with the same frame.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from .. import _native
from ..units import INT64_LIMIT
from .service import JoinedLedgerReply

LEDGER_KEY: Final = "ledger"
_INCOMPLETE: Final = frozenset(reason.name for reason in _native.bridge_reasons() if reason.is_incomplete)
# Frames that a sender drops whatever its streams do.
_NEVER_OFFERED: Final = ("unannounced", "not_connected", "closed", "too_many_chunks", "too_long")
_MAX_RUNS: Final = 16
_MAX_RUN_CHARS: Final = 64
_MAX_SESSIONS: Final = 16
_MAX_TEXT_CHARS: Final = 1 << 16
_INT32: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class SenderLedger:
    """A sender's counts of one stream, of all frames that it has finished."""

    run: str
    """Identifies one life of the sender."""
    source_stream_id: int
    sent: int
    dropped: Mapping[str, int]
    sessions: tuple[int, ...]
    """Aeron session ids of its publications in this run; the last id is current."""
    position: int
    """Position of the current session: all sent frames lie before it, all others behind it."""

    @property
    def published(self) -> int:
        """Frames sent or dropped."""
        return self.sent + sum(self.dropped.values())

    @property
    def offered(self) -> int:
        """Frames sent, or dropped because they could not be sent in time."""
        return self.published - sum(self.dropped.get(name, 0) for name in _NEVER_OFFERED)

    def encode(self) -> str:
        """The ledger as JSON text."""
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
        """The ledger of a received text; None if it is invalid."""
        if not isinstance(text, str) or len(text) > _MAX_TEXT_CHARS:
            return None
        try:
            fields = json.loads(text)
            dropped = {str(name): _count(n) for name, n in dict(fields["dropped"]).items()}
            run, stream_id = str(fields["run"])[:_MAX_RUN_CHARS], _count(fields["source_stream_id"])
            sessions = tuple(_session(session) for session in fields["sessions"][-_MAX_SESSIONS:])
            if not sessions:
                return None
            return cls(run, stream_id, _count(fields["sent"]), dropped, sessions, _count(fields["position"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < INT64_LIMIT:
        raise ValueError("not a count")
    return value


def _session(value: object) -> int:
    if type(value) is not int or not -_INT32 <= value < _INT32:
        raise ValueError("not a session id")
    return value


@dataclass(frozen=True, slots=True)
class ReceiverLedger:
    """A receiver's counts of one stream."""

    delivered: int
    not_ready: int
    """Frames received while there was no destination."""
    lost: Mapping[str, int]
    """Frames not delivered, by reason."""

    @classmethod
    def from_state(cls, state: _native.BridgeReceiverState) -> ReceiverLedger:
        """The ledger in the state of a native receiver."""
        return cls(state.delivered, state.not_ready, dict(state.lost))

    @property
    def dropped(self) -> dict[str, int]:
        """Frames that the receiver dropped, by reason. Incomplete frames are not among them."""
        dropped = {name: n for name, n in self.lost.items() if n and name not in _INCOMPLETE}
        return dropped | ({"not_ready": self.not_ready} if self.not_ready else {})

    @property
    def incomplete(self) -> dict[str, int]:
        """Frames with missing chunks, by reason: lost by the network, or given up by the sender."""
        return {name: n for name, n in self.lost.items() if n and name in _INCOMPLETE}

    @property
    def total(self) -> int:
        """Frames delivered or dropped here."""
        return self.delivered + sum(self.dropped.values())

    def __add__(self, other: ReceiverLedger) -> ReceiverLedger:
        return self._combine(other, 1)

    def __sub__(self, other: ReceiverLedger) -> ReceiverLedger:
        return self._combine(other, -1)

    def _combine(self, other: ReceiverLedger, sign: int) -> ReceiverLedger:
        names = self.lost.keys() | other.lost.keys()
        lost = {name: self.lost.get(name, 0) + sign * other.lost.get(name, 0) for name in names}
        not_ready = self.not_ready + sign * other.not_ready
        return ReceiverLedger(self.delivered + sign * other.delivered, not_ready, lost)


EMPTY: Final = ReceiverLedger(0, 0, {})


class SessionTotals(NamedTuple):
    """The sum of a receiver's counts over some sessions."""

    ledger: ReceiverLedger
    is_complete: bool
    """False if the receiver may have forgotten one of the sessions."""


class SessionCounts(Protocol):
    """A receiver's counts of one stream, by Aeron session."""

    def received(self, sessions: tuple[int, ...]) -> SessionTotals:
        """The counts of these sessions."""
        ...

    def ledger_start(self, session: int, position: int | None) -> ReceiverLedger | None:
        """The counts of a session at a position, or at its beginning; None if unknown or not reached yet."""
        ...


@dataclass(frozen=True, slots=True)
class JoinedLedger:
    """`published` = `delivered` + `sender` + `network` + `receiver`; the last three are dropped frames."""

    published: int
    delivered: int
    sender: int
    receiver: int
    exact: bool
    """False if a sender had more sessions than the receiver remembers: delivered frames may then be counted
    as dropped by the network."""
    whole: bool
    """False if the receiver or the sender was restarted: the ledger starts after that."""

    @property
    def network(self) -> int:
        """Frames lost by the network or still on their way."""
        return self.published - self.delivered - self.sender - self.receiver

    def to_json(self) -> JoinedLedgerReply:
        """The ledger as JSON."""
        return {
            "published": self.published,
            "delivered": self.delivered,
            "dropped": {"sender": self.sender, "network": self.network, "receiver": self.receiver},
            "exact": self.exact,
            "whole": self.whole,
        }


@dataclass
class MappingLedger:
    """Joins the ledgers of one stream's sender with a receiver's counts."""

    latest: SenderLedger | None = None
    """The last ledger of the sender."""
    _start: SenderLedger | None = None
    """The sender's ledger at the start of the joined ledger; None until that start is known."""
    _start_received: ReceiverLedger = EMPTY
    _latest_received: ReceiverLedger = EMPTY
    """The receiver's counts when `latest` was received."""
    _sessions: set[int] = field(default_factory=set)
    _is_exact: bool = True
    _runs: list[str] = field(default_factory=list)

    @property
    def start(self) -> SenderLedger | None:
        """The sender's ledger at the start of the joined ledger; None until that start is known."""
        return self._start

    @property
    def sessions(self) -> frozenset[int]:
        """The sessions of the sender's latest ledger that are part of the joined ledger."""
        return frozenset(self._sessions)

    def on_sender_ledger(self, sent: SenderLedger, counts: SessionCounts) -> None:
        """Update the ledger with a ledger received from the sender."""
        if self.latest is not None and sent.run != self.latest.run:
            if sent.run in self._runs:
                # A delayed message of an earlier run.
                return
            self.latest = None
        if self.latest is None:
            self._runs = [*self._runs[1 - _MAX_RUNS :], sent.run]
            self._start, self._sessions, self._is_exact = None, set(), True
        else:
            self.find_start(counts)
        self.latest = sent
        if self._start is None:
            self.find_start(counts)
            return
        self._is_exact &= self._sessions <= set(sent.sessions)
        self._sessions &= set(sent.sessions)
        self._add_sessions(sent, counts)
        self._latest_received = counts.received(sent.sessions).ledger

    def _add_sessions(self, sent: SenderLedger, counts: SessionCounts) -> None:
        """Count these sessions from their first frame on: all of them belong to the sender."""
        for session in sent.sessions:
            if session not in self._sessions:
                counts.ledger_start(session, None)
                self._sessions.add(session)

    def find_start(self, counts: SessionCounts) -> bool:
        """Whether the start of the joined ledger is known. If not, call it again soon: more frames arrive."""
        sent = self.latest
        if sent is None or self._start is not None:
            return True
        start = sent
        if sent.sent == 0:
            # Published before the sender's first frame, though it may be received after it: count everything.
            self._start_received, start = EMPTY, replace(sent, dropped={})
        else:
            *earlier, current = sent.sessions
            received = counts.ledger_start(current, sent.position)
            if received is None:
                return False
            self._sessions.add(current)
            self._start_received = received + counts.received(tuple(earlier)).ledger
        self._add_sessions(sent, counts)
        self._start, self._latest_received = start, self._start_received
        return True

    def join(self, counts: SessionCounts) -> JoinedLedger | None:
        """The joined ledger; None until its start is known."""
        if not self.find_start(counts) or self.latest is None or self._start is None:
            return None
        dropped = sum(self.latest.dropped.values()) - sum(self._start.dropped.values())
        published = self.latest.published - self._start.published
        totals = counts.received(self.latest.sessions)
        received = totals.ledger - self._start_received
        if published < dropped + received.total:
            # Newer frames than the sender has reported are here: compare with the counts at its last ledger.
            received = self._latest_received - self._start_received
        return JoinedLedger(
            published=max(published, dropped + received.total),
            delivered=received.delivered,
            sender=dropped,
            receiver=sum(received.dropped.values()),
            exact=self._is_exact and totals.is_complete,
            whole=len(self._runs) == 1 and self._start.sent == 0,
        )
