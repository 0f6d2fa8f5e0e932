"""A ledger that is kept by the way: what it tells, how often it looks, and what it forgets."""

from __future__ import annotations

import pytest

from tensorpool.monitor import LedgerMonitor, LedgerRow, SystemLedger
from tensorpool.monitor.model import SystemModel
from tensorpool.monitor.reports import ConsumerStatus
from tensorpool.monitor.snapshot import LedgerView, MismatchView
from tensorpool.monitor.streams import ModelLimits
from tests.unit.ledger.test_book import consumer, producer

S = 1_000_000_000
WRONG = ConsumerStatus(5, 7, 2, 1, 0, 99, 100, 98, {"late": 1}, {}, 0, False)


def test_a_picture_with_an_audit_says_how_every_path_stands_and_what_is_missing() -> None:
    picture = SystemModel(ModelLimits(), LedgerMonitor(ModelLimits()))
    ledgers: list[LedgerView] = []
    for second in range(12):
        picture.observe(producer(100), second * S)
        picture.observe(WRONG, second * S)
        found = picture.snapshot(second * S).ledger
        assert found is not None
        ledgers.append(found)
    assert ledgers[0].paths == {"exact": 1, "waiting": 0, "settling": 1, "mismatch": 0, "gone": 0}
    assert ledgers[0].mismatches == ()
    assert ledgers[-1].paths == {"exact": 1, "waiting": 0, "settling": 0, "mismatch": 1, "gone": 0}
    assert ledgers[-1].mismatches == (MismatchView(5, "consumer", "7", "1 frames unaccounted for"),)
    # It is told as soon as it has lasted.
    assert [one.paths["mismatch"] for one in ledgers[:5]] == [0, 0, 0, 1, 1]
    assert SystemModel(ModelLimits()).snapshot(0).ledger is None


def test_two_moments_that_do_not_fit_are_no_mismatch_if_it_was_good_in_between() -> None:
    audit = LedgerMonitor(ModelLimits())
    for second in range(60):
        audit.book.observe(producer(100), second * S)
        # Wrong once in five periods: just when a lazy auditor would look.
        audit.book.observe(WRONG if second % 5 == 0 else consumer(0, 99), second * S)
        assert audit.look(second * S).paths["mismatch"] == 0


def test_the_whole_ledger_is_read_now_and_then_not_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    rows = SystemLedger.rows

    def counted(self: SystemLedger, now_ns: int) -> list[LedgerRow]:
        read.append(now_ns)
        return rows(self, now_ns)

    monkeypatch.setattr(SystemLedger, "rows", counted)
    audit = LedgerMonitor(ModelLimits())
    for tenth in range(200):
        audit.book.observe(producer(100), tenth * S // 10)
        audit.look(tenth * S // 10)
    assert read == [0, 5 * S, 10 * S, 15 * S]


def test_who_is_long_gone_is_forgotten() -> None:
    audit = LedgerMonitor(ModelLimits())
    audit.book.observe(producer(100, final=True), 0)
    audit.book.observe(consumer(0, 99, final=True), 0)
    assert sum(audit.look(200 * S).paths.values()) == 2
    assert sum(audit.look(400 * S).paths.values()) == 0
