"""The joined ledger of both ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.bridge.ledger import (
    EMPTY,
    JoinedLedger,
    MappingLedger,
    ReceiverLedger,
    SenderLedger,
    SessionCounts,
    SessionTotals,
)

COUNTS = st.integers(0, 1000)
SESSION = 7


def sent(
    count: int, run: str = "r", sessions: tuple[int, ...] = (SESSION,), position: int = 0, **dropped: int
) -> SenderLedger:
    return SenderLedger(run, 10_000, count, dropped, sessions, position)


def received(delivered: int, not_ready: int = 0, **lost: int) -> ReceiverLedger:
    return ReceiverLedger(delivered, not_ready, lost)


def test_frames_that_no_stream_was_to_send_are_not_offered():
    ledger = sent(5, overwritten=3, too_long=2, not_connected=4, unannounced=1)
    assert ledger.published == 15
    assert ledger.offered == 8


@dataclass
class StubCounts:
    """Counts of a receiver by session, and its counts at some positions."""

    by_session: dict[int, ReceiverLedger] = field(default_factory=dict)
    starts: dict[tuple[int, int], ReceiverLedger] = field(default_factory=dict)
    has_all: bool = True
    started: list[int] = field(default_factory=list)

    def received(self, sessions: tuple[int, ...]) -> SessionTotals:
        total = EMPTY
        for session in sessions:
            total = total + self.by_session.get(session, EMPTY)
        return SessionTotals(total, self.has_all)

    def ledger_start(self, session: int, position: int | None) -> ReceiverLedger | None:
        if position is None:
            self.started.append(session)
            return EMPTY
        return self.starts.get((session, position))


def stub(delivered: int, not_ready: int = 0, **lost: int) -> StubCounts:
    return StubCounts({SESSION: received(delivered, not_ready, **lost)})


def joined(ledger: MappingLedger, counts: SessionCounts) -> JoinedLedger:
    result = ledger.join(counts)
    assert result is not None
    return result


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
def test_published_is_delivered_plus_three_kinds_of_drops(
    delivered: int, overwritten: int, lost: int, no_pool: int, away: int
):
    ledger = MappingLedger()
    ledger.on_sender_ledger(sent(0), stub(0))
    ledger.on_sender_ledger(sent(delivered + lost + no_pool + away, overwritten=overwritten), stub(0))
    result = joined(ledger, stub(delivered, away, no_pool=no_pool, timeout=lost))
    assert result.exact
    assert (result.sender, result.network, result.receiver) == (overwritten, lost, no_pool + away)
    assert result.published == result.delivered + result.sender + result.network + result.receiver


def test_frame_given_up_by_the_sender_is_counted_once():
    ledger = MappingLedger()
    ledger.on_sender_ledger(sent(0), stub(0))
    ledger.on_sender_ledger(sent(9, overwritten=1), stub(9, timeout=1))
    result = joined(ledger, stub(9, timeout=1))
    assert (result.published, result.sender, result.network) == (10, 1, 0)


def test_first_ledger_may_arrive_after_the_first_frames():
    ledger = MappingLedger()
    ledger.on_sender_ledger(sent(0), stub(3))
    ledger.on_sender_ledger(sent(5), stub(5))
    result = joined(ledger, stub(5))
    assert (result.published, result.delivered, result.network, result.exact) == (5, 5, 0, True)
    assert result.whole


@given(COUNTS, COUNTS, st.integers(1, 1000))
def test_frames_newer_than_the_senders_ledger_change_no_loss(before: int, lost: int, since: int):
    ledger = MappingLedger()
    ledger.on_sender_ledger(sent(0), stub(0))
    ledger.on_sender_ledger(sent(before + lost), stub(before, timeout=lost))
    result = joined(ledger, stub(before + lost + since, timeout=lost))
    assert (result.delivered, result.network) == (before, lost), "the counts at the sender's last ledger"
    # Frames newer than the sender's ledger may be here when the ledger is read.
    ledger.on_sender_ledger(sent(before + lost), stub(before + lost + since))
    result = joined(ledger, stub(before + lost + since))
    assert result.network == 0
    assert result.published == result.delivered


def test_late_receiver_starts_at_a_common_position():
    ledger, counts = MappingLedger(), stub(5)
    ledger.on_sender_ledger(sent(100, position=640), counts)
    assert not ledger.find_start(counts)
    assert ledger.join(counts) is None, "frames sent before that position are still unread"
    counts.starts[SESSION, 640] = received(2)
    counts.by_session[SESSION] = received(8)
    assert ledger.find_start(counts)
    ledger.on_sender_ledger(sent(106, position=700), counts)
    result = joined(ledger, counts)
    assert (result.published, result.delivered, result.network, result.exact) == (6, 6, 0, True)
    assert not result.whole


def test_drops_before_the_first_ledger_are_counted():
    ledger = MappingLedger()
    ledger.on_sender_ledger(sent(0, overwritten=2), stub(0))
    ledger.on_sender_ledger(sent(3, overwritten=2), stub(3))
    result = joined(ledger, stub(3))
    assert (result.published, result.delivered, result.sender, result.whole) == (5, 3, 2, True)


def test_unknown_start_position_is_replaced_by_a_later_one():
    ledger, counts = MappingLedger(), stub(5)
    ledger.on_sender_ledger(sent(100, position=640), counts)
    counts.starts[SESSION, 700] = received(9)
    ledger.on_sender_ledger(sent(104, position=700), counts)
    counts.by_session[SESSION] = received(12)
    ledger.on_sender_ledger(sent(107, position=800), counts)
    result = joined(ledger, counts)
    assert (result.published, result.delivered, result.network) == (3, 3, 0)


def test_restarted_sender_replaces_the_earlier_run():
    ledger = MappingLedger()
    counts = StubCounts({1: received(50), 2: received(3)})
    ledger.on_sender_ledger(sent(0, "old", (1,)), counts)
    ledger.on_sender_ledger(sent(50, "old", (1,)), counts)
    # Its first frames arrive before its first ledger.
    ledger.on_sender_ledger(sent(0, "new", (2,)), counts)
    ledger.on_sender_ledger(sent(60, "old", (1,)), counts)
    counts.by_session[2] = received(7)
    ledger.on_sender_ledger(sent(7, "new", (2,)), counts)
    result = joined(ledger, counts)
    assert (result.published, result.delivered, result.network, result.exact) == (7, 7, 0, True)
    assert not result.whole


def test_run_may_have_several_sessions():
    ledger = MappingLedger()
    counts = StubCounts({1: received(5)})
    ledger.on_sender_ledger(sent(0, sessions=(1,)), counts)
    ledger.on_sender_ledger(sent(5, sessions=(1,)), counts)
    counts.by_session[2] = received(4)
    ledger.on_sender_ledger(sent(10, sessions=(1, 2)), counts)
    assert counts.started == [1, 2], "both sessions are counted from their beginning"
    result = joined(ledger, counts)
    assert (result.published, result.delivered, result.network, result.exact) == (10, 9, 1, True)
    ledger.on_sender_ledger(sent(12, sessions=(2, 3)), counts)
    assert not joined(ledger, counts).exact, "the sender no longer names the first session"
    for number in range(100):
        ledger.on_sender_ledger(sent(12, sessions=(number,)), counts)
    assert len(ledger.sessions) == 1, "only the sessions of the latest ledger are kept"


def test_earlier_sessions_precede_the_ledger_start():
    ledger = MappingLedger()
    counts = StubCounts({1: received(5), 2: received(3)}, {(2, 64): received(2)})
    ledger.on_sender_ledger(sent(20, sessions=(1, 2), position=64), counts)
    counts.by_session[2] = received(6)
    ledger.on_sender_ledger(sent(24, sessions=(1, 2), position=128), counts)
    result = joined(ledger, counts)
    assert (result.published, result.delivered, result.network) == (4, 4, 0)


def test_ledger_with_a_forgotten_session_is_not_exact():
    ledger, counts = MappingLedger(), stub(0)
    ledger.on_sender_ledger(sent(0), counts)
    counts.has_all = False
    assert not joined(ledger, counts).exact


def test_ledger_without_a_sender_is_none():
    assert MappingLedger().join(stub(5)) is None


Fate = Literal["delivered", "no_pool", "lost", "overwritten"]
EVENTS = st.lists(
    st.sampled_from(
        ["delivered", "delivered", "no_pool", "lost", "overwritten", "read", "ledger", "session", "run"]
    ),
    max_size=80,
)


@dataclass
class BridgeModel:
    """A model of a sender, the network, and a receiver that reads late."""

    run: int = 0
    sessions: list[int] = field(default_factory=lambda: [0])
    frames: list[tuple[int, Fate]] = field(default_factory=list)
    """All frames that the sender has finished: session and outcome."""
    runs: list[int] = field(default_factory=list)
    read: int = 0
    ledger: MappingLedger = field(default_factory=MappingLedger)

    def counted(self, session: int, upto: int) -> ReceiverLedger:
        fates = Counter(fate for frame_session, fate in self.frames[:upto] if frame_session == session)
        return received(fates["delivered"], no_pool=fates["no_pool"], timeout=fates["overwritten"])

    def received(self, sessions: tuple[int, ...]) -> SessionTotals:
        total = EMPTY
        for session in sessions:
            total = total + self.counted(session, self.read)
        return SessionTotals(total, True)

    def ledger_start(self, session: int, position: int | None) -> ReceiverLedger | None:
        if position is None:
            return EMPTY
        return None if self.read < position else self.counted(session, position)

    def sender_ledger(self) -> SenderLedger:
        fates = Counter(
            fate for (_, fate), run in zip(self.frames, self.runs, strict=True) if run == self.run
        )
        sent = fates["delivered"] + fates["no_pool"] + fates["lost"]
        sessions = tuple(self.sessions[-16:])
        return SenderLedger(
            f"{self.run}", 10_000, sent, {"overwritten": fates["overwritten"]}, sessions, len(self.frames)
        )

    def do(self, event: str) -> None:
        match event:
            case "ledger":
                self.ledger.on_sender_ledger(self.sender_ledger(), self)
            case "read":
                self.read = min(self.read + 3, len(self.frames))
                self.ledger.find_start(self)
            case "session":
                self.sessions.append(len(self.frames) * 1000 + len(self.sessions))
            case "run":
                self.run += 1
                self.sessions = [len(self.frames) * 1000 + 999 - self.run]
                # A sender publishes its first ledger before its first frame.
                self.ledger.on_sender_ledger(self.sender_ledger(), self)
            case "delivered" | "no_pool" | "lost" | "overwritten":
                self.frames.append((self.sessions[-1], event))
                self.runs.append(self.run)


@given(EVENTS, EVENTS)
def test_every_frame_is_counted_in_its_column(before: list[str], events: list[str]):
    model = BridgeModel()
    # Frames from before the receiver started: it never reads them.
    for event in before:
        if event not in ("read", "ledger"):
            model.do(event)
    model.ledger = MappingLedger()
    model.read = len(model.frames)
    for event in events:
        model.do(event)
        if event == "ledger":
            model.read = len(model.frames)
            model.ledger.on_sender_ledger(model.sender_ledger(), model)
            start = model.ledger.start
            assert start is not None, "all frames up to there are read"
            result = joined(model.ledger, model)
            first_frame = start.position if start.sent else 0
            fates = Counter(
                fate
                for (_, fate), run in list(zip(model.frames, model.runs, strict=True))[first_frame:]
                if run == model.run
            )
            columns = (result.delivered, result.sender, result.network, result.receiver)
            assert columns == (fates["delivered"], fates["overwritten"], fates["lost"], fates["no_pool"])
            assert result.exact


@given(COUNTS, st.dictionaries(st.sampled_from(["late", "overwritten"]), st.integers(1, 9)))
def test_sender_ledger_round_trips(count: int, dropped: dict[str, int]):
    ledger = SenderLedger("r", 10_000, count, dropped, (-5, 2**31 - 1), 640)
    assert SenderLedger.decode(ledger.encode()) == ledger


@given(st.text() | st.none() | st.integers())
def test_invalid_sender_ledger_is_none(text: object):
    assert SenderLedger.decode(text) is None


def test_sender_ledger_with_invalid_counts_is_none():
    assert SenderLedger.decode(sent(1).encode().replace('"sent": 1', '"sent": -1')) is None
    assert SenderLedger.decode(sent(1).encode().replace('"sent": 1', '"sent": 1e99')) is None


def test_sender_ledger_with_invalid_sessions_is_none():
    for sessions in ("[]", "[1.5]", "[4294967296]", '"7"', "[true]", "null"):
        assert SenderLedger.decode(sent(1).encode().replace("[7]", sessions)) is None, sessions
    assert SenderLedger.decode(sent(1).encode().replace('"position": 0', '"position": -1')) is None
    many = SenderLedger.decode(sent(1, sessions=tuple(range(99))).encode())
    assert many is not None
    assert many.sessions == tuple(range(83, 99))
