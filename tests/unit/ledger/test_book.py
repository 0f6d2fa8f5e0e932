"""The book: accounts of different moments join exactly, and what does not fit is told once it has lasted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor import LedgerRow, SystemLedger, Verdict
from tensorpool.monitor.reports import (
    BridgeStatus,
    ConsumerQos,
    ConsumerStatus,
    ProducerStatus,
    RecorderLedger,
    RecorderStatus,
)

S = 1_000_000_000


def producer(seqs: int, *, unpublished: int = 0, final: bool = False, **more: Any) -> ProducerStatus:
    fields: dict[str, Any] = {
        "stream_id": 5,
        "producer_id": 9,
        "pid": 1,
        "epoch": 1,
        "next_seq": seqs,
        "committed": seqs,
        "published": seqs - unpublished,
        "unpublished": {"not_connected": unpublished} if unpublished else {},
        "deferred": 0,
        "dropped": {},
        "holes": 0,
        "nbytes": 0,
        "sources": (),
        "is_final": final,
    }
    return ProducerStatus(**{**fields, **more})


def consumer(first: int, last: int, *, looks: int = 0, final: bool = False, **dropped: int) -> ConsumerStatus:
    span = last - first + 1
    received = span - sum(dropped.values())
    return ConsumerStatus(5, 7, 2, 1, first, last, span, received, dropped, {}, looks, final)


def row(book: SystemLedger, now_ns: int, path: str = "consumer") -> LedgerRow:
    [found] = [one for one in book.rows(now_ns) if one.path == path]
    return found


def test_what_lies_between_two_moments_is_on_its_way() -> None:
    book = SystemLedger()
    book.observe(consumer(10, 79, late=3), S)
    book.observe(producer(100), S)
    found = row(book, S)
    assert (found.published, found.delivered, dict(found.dropped), found.waiting) == (90, 67, {"late": 3}, 20)
    assert found.verdict is Verdict.WAITING
    book.observe(consumer(10, 99, late=3), 2 * S)
    assert row(book, 2 * S).verdict is Verdict.EXACT
    assert row(book, 2 * S, "producer").verdict is Verdict.EXACT


def test_an_account_that_does_not_add_up_is_a_mismatch_if_it_lasts() -> None:
    book = SystemLedger()
    wrong = ConsumerStatus(5, 7, 2, 1, 0, 9, 10, 8, {"late": 1}, {}, 0, False)
    for second in range(3):
        book.observe(wrong, second * S)
        assert row(book, second * S).verdict is Verdict.SETTLING
    book.observe(wrong, 3 * S)
    found = row(book, 3 * S)
    assert (found.verdict, found.unaccounted, found.problem) == ("mismatch", 1, "1 frames unaccounted for")
    # Mended in between, the time begins anew.
    book.observe(consumer(0, 9), 4 * S)
    assert row(book, 4 * S).verdict is Verdict.EXACT
    book.observe(wrong, 5 * S)
    assert row(book, 5 * S).verdict is Verdict.SETTLING


def test_frames_that_were_published_last_and_never_came_are_a_mismatch() -> None:
    book = SystemLedger()
    verdicts = []
    for second in range(8):
        book.observe(producer(100), second * S)
        book.observe(consumer(0, 97, looks=second), second * S)
        verdicts.append(row(book, second * S).verdict)
    assert verdicts[0] is Verdict.WAITING
    assert verdicts[-1] is Verdict.MISMATCH
    # Who does not look has them before it still.
    idle = SystemLedger()
    for second in range(8):
        idle.observe(producer(100), second * S)
        idle.observe(consumer(0, 97, looks=4), second * S)
    assert row(idle, 7 * S).verdict is Verdict.WAITING


def test_what_the_producer_kept_or_held_back_explains_a_tail() -> None:
    kept, limited = SystemLedger(), SystemLedger()
    for second in range(8):
        kept.observe(producer(100, unpublished=2), second * S)
        kept.observe(consumer(0, 97, looks=second), second * S)
        limited.observe(producer(100), second * S)
        limited.observe(consumer(0, 97, looks=second), second * S)
        limited.observe(ConsumerQos(5, 7, 1, 97, 0, 0, True), second * S)
    found = row(kept, 7 * S)
    assert (found.verdict, dict(found.dropped), found.waiting) == ("exact", {"unpublished": 2}, 0)
    found = row(limited, 7 * S)
    assert (found.verdict, dict(found.dropped), found.waiting) == ("exact", {"rate_limited": 2}, 0)


def test_more_than_was_published_is_a_mismatch() -> None:
    book = SystemLedger()
    for second in range(10):
        book.observe(producer(50), second * S)
        book.observe(consumer(0, 59), second * S)
        found = row(book, second * S)
    assert found.verdict is Verdict.MISMATCH
    assert "10 frames more" in found.problem


def test_a_reader_that_spoke_after_its_producer_may_have_more() -> None:
    """Whoever looks at the same moment of each second sees the same picture each time."""
    book = SystemLedger()
    for second in range(20):
        book.observe(producer(100 * second + 10), second * S)
        book.observe(consumer(0, 100 * second + 60), second * S + S // 2)
        assert row(book, second * S + S // 2).verdict is Verdict.EXACT


def test_last_words_stay_and_who_leaves_without_one_is_gone() -> None:
    book = SystemLedger()
    book.observe(producer(100, final=True), 0)
    book.observe(consumer(0, 59, final=True), 0)
    for path in ("producer", "consumer"):
        assert row(book, 60 * S, path).verdict is Verdict.EXACT
        assert row(book, 60 * S, path).has_ended
    killed = SystemLedger()
    killed.observe(consumer(0, 59), 0)
    assert row(killed, 60 * S).verdict is Verdict.GONE


def test_recorders_and_bridges_are_joined_too() -> None:
    book = SystemLedger()
    tape = {"stream_id": 5, "epoch": "1", "first_seq": "0", "last_seq": "9", "span": 10, "rows": 8}
    book.observe(producer(12), 0)
    book.observe(RecorderStatus("service:recorder", {"state": "recording"}), 0)
    book.observe(RecorderLedger("service:recorder", ({**tape, "gaps": {"late": 2}},)), 0)
    found = row(book, 0, "recorder")
    assert (found.published, found.delivered, found.waiting, found.verdict) == (12, 8, 2, "waiting")
    mapping: dict[str, Any] = {
        "direction": "receive",
        "source_stream_id": 5,
        "dest_stream_id": 50,
        "connected": True,
        "epoch": "1",
        "delivered": 7,
        "bytes": 0,
        "dropped": {"conflict": 1},
        "fault": None,
        "ledger": {
            "published": 12,
            "delivered": 7,
            "dropped": {"sender": 1, "network": 3, "receiver": 1},
            "exact": True,
            "whole": True,
        },
    }
    book.observe(BridgeStatus("service:bridge:b", 4, (mapping,)), 0)
    found = row(book, 0, "bridge receive")
    assert (found.published, found.delivered, found.unaccounted) == (12, 7, 0)
    assert dict(found.dropped) == {"sender": 1, "network": 3, "conflict": 1}
    assert found.verdict is Verdict.EXACT
    # An account that began later than the receiver: what came before it is known to the receiver alone.
    later = mapping | {"delivered": 9, "ledger": mapping["ledger"] | {"whole": False}}
    book.observe(BridgeStatus("service:bridge:b", 4, (later,)), 0)
    found = row(book, 0, "bridge receive")
    assert (found.published, found.delivered, found.unaccounted) == (14, 9, 0)


@pytest.mark.parametrize("rows", [({},), ({"stream_id": -1},), ({"direction": "send"},)])
def test_what_cannot_be_read_changes_nothing(rows: tuple[dict[str, Any], ...]) -> None:
    book = SystemLedger()
    book.observe(RecorderLedger("service:recorder", rows), 0)
    book.observe(BridgeStatus("service:bridge", 1, rows), 0)
    assert book.rows(0) == []


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60))
def test_sound_accounts_told_at_any_moments_never_mismatch(steps: list[tuple[bool, int]]) -> None:
    """A producer goes on, a consumer follows; each tells when it likes. Both looks are honest."""
    book, sent, seen, now_ns = SystemLedger(), 0, -1, 0
    for tells_producer, more in steps:
        now_ns += S // 4
        sent += more
        if tells_producer:
            book.observe(producer(sent), now_ns)
        elif sent:
            seen = max(seen, sent - 1 - more // 2)
            book.observe(consumer(0, seen, looks=now_ns), now_ns)
        assert all(one.unaccounted == 0 for one in book.rows(now_ns) if not one.problem)
    book.observe(producer(sent), now_ns + S)
    if sent:
        book.observe(consumer(0, sent - 1), now_ns + S)
    assert all(one.verdict is Verdict.EXACT for one in book.rows(now_ns + S))


def test_strangers_cannot_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorpool.monitor.ledger._MOST", 50)
    book = SystemLedger()
    for number in range(1, 200):
        book.observe(producer(10, stream_id=number), S)
        book.observe(ConsumerStatus(number, 7, 2, 1, 0, 9, 10, 10, {}, {}, 0, False), S)
        book.observe(RecorderStatus(f"service:recorder:{number}", {"state": "recording"}), S)
        book.observe(RecorderLedger(f"service:recorder:x{number}", ()), S)
        book.observe(BridgeStatus(f"service:bridge:{number}", 1, ()), S)
    tables = (book._producers, book._newest, book._consumers, book._recorders, book._bridges)
    assert [len(one) for one in tables] == [50] * 5


def test_what_was_not_heard_since_is_forgotten_with_its_producers() -> None:
    book = SystemLedger()
    book.observe(producer(100), S)
    book.observe(consumer(0, 99), 5 * S)
    book.forget(3 * S)
    assert [one.path for one in book.rows(5 * S)] == ["consumer"]
    assert book._newest == {}
    book.forget(6 * S)
    assert book.rows(6 * S) == []
