"""The system ledger: reports of different moments join exactly, and only lasting problems are mismatches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor.ledger import LedgerRow, SystemLedger, Verdict
from tensorpool.monitor.reports import (
    BridgeReport,
    ConsumerQos,
    ConsumerReport,
    ProducerReport,
    RecorderLedgerReport,
    RecorderReport,
)
from tensorpool.monitor.services import read_mapping, read_recorded, read_recorder

S = 1_000_000_000


def producer(seqs: int, *, unpublished: int = 0, final: bool = False, **more: Any) -> ProducerReport:
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
    return ProducerReport(**{**fields, **more})


def consumer(first: int, last: int, *, polls: int = 0, final: bool = False, **dropped: int) -> ConsumerReport:
    span = last - first + 1
    received = span - sum(dropped.values())
    return ConsumerReport(5, 7, 2, 1, first, last, span, received, dropped, {}, polls, final)


def row(ledger: SystemLedger, now_ns: int, path: str = "consumer") -> LedgerRow:
    [only] = [found for found in ledger.rows(now_ns) if found.path == path]
    return only


def recorder_status(tag: str) -> RecorderReport:
    status: dict[str, Any] = {
        "state": "recording", "problem": None, "root": "/r", "pid": 3, "rows": 5, "gaps": {},
        "rows_per_s": 1.0, "bytes_per_s": 2, "backlog_bytes": 0, "disk_free_bytes": 9, "streams": [5],
    }  # fmt: skip
    return RecorderReport(read_recorder(tag, status))


def test_frames_between_two_reports_are_waiting() -> None:
    ledger = SystemLedger()
    ledger.observe(consumer(10, 79, late=3), S)
    ledger.observe(producer(100), S)
    found = row(ledger, S)
    assert (found.published, found.delivered, dict(found.dropped), found.waiting) == (90, 67, {"late": 3}, 20)
    assert found.verdict is Verdict.WAITING
    ledger.observe(consumer(10, 99, late=3), 2 * S)
    assert row(ledger, 2 * S).verdict is Verdict.EXACT
    assert row(ledger, 2 * S, "producer").verdict is Verdict.EXACT


def test_counts_that_do_not_add_up_become_a_mismatch_later() -> None:
    ledger = SystemLedger()
    wrong = ConsumerReport(5, 7, 2, 1, 0, 9, 10, 8, {"late": 1}, {}, 0, False)
    for second in range(3):
        ledger.observe(wrong, second * S)
        assert row(ledger, second * S).verdict is Verdict.SETTLING
    ledger.observe(wrong, 3 * S)
    found = row(ledger, 3 * S)
    assert (found.verdict, found.unaccounted, found.problem) == ("mismatch", 1, "1 frames unaccounted for")
    # After an exact report the time starts again.
    ledger.observe(consumer(0, 9), 4 * S)
    assert row(ledger, 4 * S).verdict is Verdict.EXACT
    ledger.observe(wrong, 5 * S)
    assert row(ledger, 5 * S).verdict is Verdict.SETTLING


def test_last_frames_that_a_polling_consumer_never_reads_are_a_mismatch() -> None:
    ledger = SystemLedger()
    verdicts = []
    for second in range(8):
        ledger.observe(producer(100), second * S)
        ledger.observe(consumer(0, 97, polls=second), second * S)
        verdicts.append(row(ledger, second * S).verdict)
    assert verdicts[0] is Verdict.WAITING
    assert verdicts[-1] is Verdict.MISMATCH
    # A consumer that does not poll may still read them.
    idle = SystemLedger()
    for second in range(8):
        idle.observe(producer(100), second * S)
        idle.observe(consumer(0, 97, polls=4), second * S)
    assert row(idle, 7 * S).verdict is Verdict.WAITING


def test_last_frames_that_were_unpublished_or_rate_limited_are_drops() -> None:
    unpublished, limited = SystemLedger(), SystemLedger()
    for second in range(8):
        unpublished.observe(producer(100, unpublished=2), second * S)
        unpublished.observe(consumer(0, 97, polls=second), second * S)
        limited.observe(producer(100), second * S)
        limited.observe(consumer(0, 97, polls=second), second * S)
        limited.observe(ConsumerQos(5, 7, 1, 97, 0, 0, True), second * S)
    found = row(unpublished, 7 * S)
    assert (found.verdict, dict(found.dropped), found.waiting) == ("exact", {"unpublished": 2}, 0)
    found = row(limited, 7 * S)
    assert (found.verdict, dict(found.dropped), found.waiting) == ("exact", {"rate_limited": 2}, 0)


def test_more_frames_than_were_published_are_a_mismatch() -> None:
    ledger = SystemLedger()
    for second in range(10):
        ledger.observe(producer(50), second * S)
        ledger.observe(consumer(0, 59), second * S)
        found = row(ledger, second * S)
    assert found.verdict is Verdict.MISMATCH
    assert "10 frames more" in found.problem


def test_reader_that_reports_after_its_producer_may_be_ahead() -> None:
    """The phase between the two reports is the same in every period."""
    ledger = SystemLedger()
    for second in range(20):
        ledger.observe(producer(100 * second + 10), second * S)
        ledger.observe(consumer(0, 100 * second + 60), second * S + S // 2)
        assert row(ledger, second * S + S // 2).verdict is Verdict.EXACT


def test_final_reports_stay_exact_and_missing_ones_mean_gone() -> None:
    ledger = SystemLedger()
    ledger.observe(producer(100, final=True), 0)
    ledger.observe(consumer(0, 59, final=True), 0)
    for path in ("producer", "consumer"):
        assert row(ledger, 60 * S, path).verdict is Verdict.EXACT
        assert row(ledger, 60 * S, path).has_ended
    killed = SystemLedger()
    killed.observe(consumer(0, 59), 0)
    assert row(killed, 60 * S).verdict is Verdict.GONE


def test_recorders_and_bridges_are_paths_of_the_ledger() -> None:
    ledger = SystemLedger()
    recorded: dict[str, Any] = {
        "stream_id": 5, "epoch": "1", "first_seq": "0", "last_seq": "9", "span": 10, "rows": 8,
        "gaps": {"late": 2},
    }  # fmt: skip
    ledger.observe(producer(12), 0)
    ledger.observe(recorder_status("service:recorder"), 0)
    ledger.observe(RecorderLedgerReport("service:recorder", (read_recorded(recorded),)), 0)
    found = row(ledger, 0, "recorder")
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
    ledger.observe(BridgeReport("service:bridge:b", 4, (read_mapping(mapping),)), 0)
    found = row(ledger, 0, "bridge receive")
    assert (found.published, found.delivered, found.unaccounted) == (12, 7, 0)
    assert dict(found.dropped) == {"sender": 1, "network": 3, "conflict": 1}
    assert found.verdict is Verdict.EXACT
    # The count of the sender is up to a second old: frames have arrived since.
    ledger.observe(BridgeReport("service:bridge:b", 4, (read_mapping(mapping | {"delivered": 20}),)), 0)
    found = row(ledger, 60 * S, "bridge receive")
    assert (found.published, found.delivered, found.unaccounted) == (25, 20, 0)
    # The sender's ledger starts later than the receiver's: only the receiver counts the frames before it.
    later = mapping | {"delivered": 9, "ledger": mapping["ledger"] | {"whole": False}}
    ledger.observe(BridgeReport("service:bridge:b", 4, (read_mapping(later),)), 0)
    found = row(ledger, 0, "bridge receive")
    assert (found.published, found.delivered, found.unaccounted) == (14, 9, 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60))
def test_consistent_reports_at_any_times_never_mismatch(steps: list[tuple[bool, int]]) -> None:
    """A producer publishes and a consumer reads; each reports at any time, and both are right."""
    ledger, sent, seen, now_ns = SystemLedger(), 0, -1, 0
    for is_producer_report, more in steps:
        now_ns += S // 4
        sent += more
        if is_producer_report:
            ledger.observe(producer(sent), now_ns)
        elif sent:
            seen = max(seen, sent - 1 - more // 2)
            ledger.observe(consumer(0, seen, polls=now_ns), now_ns)
        assert all(found.unaccounted == 0 for found in ledger.rows(now_ns) if not found.problem)
    ledger.observe(producer(sent), now_ns + S)
    if sent:
        ledger.observe(consumer(0, sent - 1), now_ns + S)
    assert all(found.verdict is Verdict.EXACT for found in ledger.rows(now_ns + S))


def test_invented_endpoints_do_not_fill_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorpool.monitor.ledger._MAX_ENDPOINTS", 50)
    ledger = SystemLedger()
    for number in range(1, 200):
        ledger.observe(producer(10, stream_id=number), S)
        ledger.observe(ConsumerReport(number, 7, 2, 1, 0, 9, 10, 10, {}, {}, 0, False), S)
        ledger.observe(recorder_status(f"service:recorder:{number}"), S)
        ledger.observe(RecorderLedgerReport(f"service:recorder:x{number}", ()), S)
        ledger.observe(BridgeReport(f"service:bridge:{number}", 1, ()), S)
    assert len(ledger) == 4 * 50


def test_forget_drops_endpoints_with_old_reports() -> None:
    ledger = SystemLedger()
    ledger.observe(producer(100), S)
    ledger.observe(consumer(0, 99), 5 * S)
    ledger.forget(3 * S)
    assert [found.path for found in ledger.rows(5 * S)] == ["consumer"]
    assert len(ledger) == 1
    ledger.forget(6 * S)
    assert ledger.rows(6 * S) == []
