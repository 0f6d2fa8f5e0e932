"""Both ends' counters add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.bridge.ledger import (
    NOTHING,
    Arrivals,
    JoinedLedger,
    MappingLedger,
    ReceiverLedger,
    SenderLedger,
)

COUNTS = st.integers(0, 1000)
SESSION = 7


def sent(
    count: int, run: str = "r", sessions: tuple[int, ...] = (SESSION,), at: int = 0, **dropped: int
) -> SenderLedger:
    return SenderLedger(run, 10_000, count, dropped, sessions, at)


def received(delivered: int, turned_away: int = 0, **lost: int) -> ReceiverLedger:
    return ReceiverLedger(delivered, turned_away, lost)


@dataclass
class Here:
    """A receiver that has so much of each session, and knows what it had where."""

    by_session: dict[int, ReceiverLedger] = field(default_factory=dict)
    cuts: dict[tuple[int, int], ReceiverLedger] = field(default_factory=dict)
    has_all: bool = True
    begun: list[int] = field(default_factory=list)

    def received(self, sessions: tuple[int, ...]) -> tuple[ReceiverLedger, bool]:
        total = NOTHING
        for session in sessions:
            total = total.and_also(self.by_session.get(session, NOTHING))
        return total, self.has_all

    def cut(self, session: int, position: int | None) -> ReceiverLedger | None:
        if position is None:
            self.begun.append(session)
            return NOTHING
        return self.cuts.get((session, position))


def has(delivered: int, turned_away: int = 0, **lost: int) -> Here:
    return Here({SESSION: received(delivered, turned_away, **lost)})


def joined(book: MappingLedger, here: Arrivals) -> JoinedLedger:
    found = book.join(here)
    assert found is not None
    return found


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
def test_published_is_delivered_and_the_three_kinds_of_drops(
    delivered: int, overwritten: int, lost: int, no_pool: int, away: int
):
    book = MappingLedger()
    book.hear(sent(0), has(0))
    book.hear(sent(delivered + lost + no_pool + away, overwritten=overwritten), has(0))
    found = joined(book, has(delivered, away, no_pool=no_pool, timeout=lost))
    assert found.exact
    assert (found.sender, found.network, found.receiver) == (overwritten, lost, no_pool + away)
    assert found.published == found.delivered + found.sender + found.network + found.receiver


def test_a_frame_that_the_sender_gave_up_is_counted_once():
    book = MappingLedger()
    book.hear(sent(0), has(0))
    book.hear(sent(9, overwritten=1), has(9, timeout=1))
    found = joined(book, has(9, timeout=1))
    assert (found.published, found.sender, found.network) == (10, 1, 0)


def test_the_first_word_may_be_read_after_the_first_frames():
    book = MappingLedger()
    book.hear(sent(0), has(3))
    book.hear(sent(5), has(5))
    found = joined(book, has(5))
    assert (found.published, found.delivered, found.network, found.exact) == (5, 5, 0, True)
    assert found.whole


@given(COUNTS, COUNTS, st.integers(1, 1000))
def test_frames_that_came_since_the_senders_last_word_hide_no_loss_and_make_none(
    before: int, lost: int, since: int
):
    book = MappingLedger()
    book.hear(sent(0), has(0))
    book.hear(sent(before + lost), has(before, timeout=lost))
    found = joined(book, has(before + lost + since, timeout=lost))
    assert (found.delivered, found.network) == (before, lost), "as it was when the sender spoke"
    # One more frame than the sender knows of may be here by the time its word is read.
    book.hear(sent(before + lost), has(before + lost + since))
    found = joined(book, has(before + lost + since))
    assert found.network == 0
    assert found.published == found.delivered


def test_who_comes_late_counts_from_the_place_that_both_know():
    book, here = MappingLedger(), has(5)
    book.hear(sent(100, at=640), here)
    assert not book.settle(here)
    assert book.join(here) is None, "not all of what was sent before has been read"
    here.cuts[SESSION, 640] = received(2)
    here.by_session[SESSION] = received(8)
    assert book.settle(here)
    book.hear(sent(106, at=700), here)
    found = joined(book, here)
    assert (found.published, found.delivered, found.network, found.exact) == (6, 6, 0, True)
    assert not found.whole


def test_what_a_sender_dropped_before_its_first_word_is_in_its_account():
    book = MappingLedger()
    book.hear(sent(0, overwritten=2), has(0))
    book.hear(sent(3, overwritten=2), has(3))
    found = joined(book, has(3))
    assert (found.published, found.delivered, found.sender, found.whole) == (5, 3, 2, True)


def test_a_place_that_is_not_known_gives_way_to_a_later_one():
    book, here = MappingLedger(), has(5)
    book.hear(sent(100, at=640), here)
    here.cuts[SESSION, 700] = received(9)
    book.hear(sent(104, at=700), here)
    here.by_session[SESSION] = received(12)
    book.hear(sent(107, at=800), here)
    found = joined(book, here)
    assert (found.published, found.delivered, found.network) == (3, 3, 0)


def test_a_sender_that_was_started_anew_is_another_and_the_old_one_is_over():
    book = MappingLedger()
    here = Here({1: received(50), 2: received(3)})
    book.hear(sent(0, "old", (1,)), here)
    book.hear(sent(50, "old", (1,)), here)
    # Its first frames are here before its first word.
    book.hear(sent(0, "new", (2,)), here)
    book.hear(sent(60, "old", (1,)), here)
    here.by_session[2] = received(7)
    book.hear(sent(7, "new", (2,)), here)
    found = joined(book, here)
    assert (found.published, found.delivered, found.network, found.exact) == (7, 7, 0, True)
    assert not found.whole


def test_a_run_may_have_several_sessions_and_all_are_its_own():
    book = MappingLedger()
    here = Here({1: received(5)})
    book.hear(sent(0, sessions=(1,)), here)
    book.hear(sent(5, sessions=(1,)), here)
    here.by_session[2] = received(4)
    book.hear(sent(10, sessions=(1, 2)), here)
    assert here.begun == [1, 2], "nothing has to be noted of it any more"
    found = joined(book, here)
    assert (found.published, found.delivered, found.network, found.exact) == (10, 9, 1, True)
    book.hear(sent(12, sessions=(2, 3)), here)
    assert not joined(book, here).exact, "what came in the first one is no longer told of"
    for number in range(100):
        book.hear(sent(12, sessions=(number,)), here)
    assert len(book._sessions) == 1, "no more is kept than a word names"


def test_earlier_sessions_of_a_run_are_before_its_account():
    book = MappingLedger()
    here = Here({1: received(5), 2: received(3)}, {(2, 64): received(2)})
    book.hear(sent(20, sessions=(1, 2), at=64), here)
    here.by_session[2] = received(6)
    book.hear(sent(24, sessions=(1, 2), at=128), here)
    found = joined(book, here)
    assert (found.published, found.delivered, found.network) == (4, 4, 0)


def test_a_receiver_that_has_forgotten_a_session_says_so():
    book, here = MappingLedger(), has(0)
    book.hear(sent(0), here)
    here.has_all = False
    assert not joined(book, here).exact


def test_nothing_heard_is_nothing_joined():
    assert MappingLedger().join(has(5)) is None


Fate = Literal["delivered", "no_pool", "lost", "overwritten"]
EVENTS = st.lists(
    st.sampled_from(
        ["delivered", "delivered", "no_pool", "lost", "overwritten", "read", "word", "session", "run"]
    ),
    max_size=80,
)


@dataclass
class World:
    """A sender, the way, and a receiver that reads when it likes and came late."""

    run: int = 0
    sessions: list[int] = field(default_factory=lambda: [0])
    frames: list[tuple[int, Fate]] = field(default_factory=list)
    """All that the sender is done with: session and fate."""
    runs: list[int] = field(default_factory=list)
    read: int = 0
    book: MappingLedger = field(default_factory=MappingLedger)
    heard_at: dict[int, int] = field(default_factory=dict)

    def counted(self, session: int, upto: int) -> ReceiverLedger:
        fates = Counter(fate for of, fate in self.frames[:upto] if of == session)
        return received(fates["delivered"], no_pool=fates["no_pool"], timeout=fates["overwritten"])

    def received(self, sessions: tuple[int, ...]) -> tuple[ReceiverLedger, bool]:
        total = NOTHING
        for session in sessions:
            total = total.and_also(self.counted(session, self.read))
        return total, True

    def cut(self, session: int, position: int | None) -> ReceiverLedger | None:
        if position is None:
            return NOTHING
        return None if self.read < position else self.counted(session, position)

    def word(self) -> SenderLedger:
        mine = Counter(fate for (_, fate), run in zip(self.frames, self.runs, strict=True) if run == self.run)
        done = mine["delivered"] + mine["no_pool"] + mine["lost"]
        sessions = tuple(self.sessions[-16:])
        return SenderLedger(
            f"{self.run}", 10_000, done, {"overwritten": mine["overwritten"]}, sessions, len(self.frames)
        )

    def do(self, event: str) -> None:
        match event:
            case "word":
                self.book.hear(self.word(), self)
            case "read":
                self.read = min(self.read + 3, len(self.frames))
                self.book.settle(self)
            case "session":
                self.sessions.append(len(self.frames) * 1000 + len(self.sessions))
            case "run":
                self.run += 1
                self.sessions = [len(self.frames) * 1000 + 999 - self.run]
                # Its first word goes out before its first frame.
                self.book.hear(self.word(), self)
            case "delivered" | "no_pool" | "lost" | "overwritten":
                self.frames.append((self.sessions[-1], event))
                self.runs.append(self.run)


@given(EVENTS, EVENTS)
def test_at_every_settled_moment_each_frame_is_in_its_column(before: list[str], events: list[str]):
    world = World()
    # What the receiver was not there for: it has read nothing of it, and never will.
    for event in before:
        if event not in ("read", "word"):
            world.do(event)
    world.book = MappingLedger()
    world.read = len(world.frames)
    for event in events:
        world.do(event)
        if event == "word":
            world.read = len(world.frames)
            world.book.hear(world.word(), world)
            first = world.book._first
            assert first is not None, "all has been read up to there"
            found = joined(world.book, world)
            told = first.position if first.sent else 0
            mine = Counter(
                fate
                for (_, fate), run in list(zip(world.frames, world.runs, strict=True))[told:]
                if run == world.run
            )
            columns = (found.delivered, found.sender, found.network, found.receiver)
            assert columns == (mine["delivered"], mine["overwritten"], mine["lost"], mine["no_pool"])
            assert found.exact


@given(COUNTS, st.dictionaries(st.sampled_from(["late", "overwritten"]), st.integers(1, 9)))
def test_an_account_survives_the_way(count: int, dropped: dict[str, int]):
    account = SenderLedger("r", 10_000, count, dropped, (-5, 2**31 - 1), 640)
    assert SenderLedger.decode(account.encode()) == account


@given(st.text() | st.none() | st.integers())
def test_what_is_no_account_is_none(text: object):
    assert SenderLedger.decode(text) is None


def test_counts_from_outside_are_counts():
    assert SenderLedger.decode(sent(1).encode().replace('"sent": 1', '"sent": -1')) is None
    assert SenderLedger.decode(sent(1).encode().replace('"sent": 1', '"sent": 1e99')) is None


def test_sessions_and_places_from_outside_are_some():
    for sessions in ("[]", "[1.5]", "[4294967296]", '"7"', "[true]", "null"):
        assert SenderLedger.decode(sent(1).encode().replace("[7]", sessions)) is None, sessions
    assert SenderLedger.decode(sent(1).encode().replace('"position": 0', '"position": -1')) is None
    many = SenderLedger.decode(sent(1, sessions=tuple(range(99))).encode())
    assert many is not None
    assert many.sessions == tuple(range(83, 99))
