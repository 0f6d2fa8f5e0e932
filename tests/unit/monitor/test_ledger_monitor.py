"""The ledger of a model: its summary, how often it is joined, and when endpoints are forgotten."""

from __future__ import annotations

import pytest

from tensorpool.monitor.ledger import LedgerMonitor, LedgerRow, SystemLedger
from tensorpool.monitor.model import SystemModel
from tensorpool.monitor.reports import ConsumerReport
from tensorpool.monitor.snapshot import LedgerView, MismatchView
from tensorpool.monitor.streams import ModelLimits
from tests.unit.monitor.test_ledger import consumer, producer

S = 1_000_000_000
WRONG = ConsumerReport(5, 7, 2, 1, 0, 99, 100, 98, {"late": 1}, {}, 0, False)


def test_snapshot_counts_paths_by_verdict_and_lists_mismatches() -> None:
    model = SystemModel(ModelLimits())
    ledgers: list[LedgerView] = []
    for second in range(12):
        model.observe(producer(100), second * S)
        model.observe(WRONG, second * S)
        found = model.snapshot(second * S).ledger
        assert found is not None
        ledgers.append(found)
    assert ledgers[0].paths == {"exact": 1, "waiting": 0, "settling": 1, "mismatch": 0, "gone": 0}
    assert ledgers[0].mismatches == ()
    assert ledgers[-1].paths == {"exact": 1, "waiting": 0, "settling": 0, "mismatch": 1, "gone": 0}
    assert ledgers[-1].mismatches == (MismatchView(5, "consumer", "7", "1 frames unaccounted for"),)
    # It is a mismatch as soon as it has lasted.
    assert [ledger.paths["mismatch"] for ledger in ledgers[:5]] == [0, 0, 0, 1, 1]


def test_two_problems_with_an_exact_report_between_are_no_mismatch() -> None:
    monitor = LedgerMonitor(ModelLimits())
    for second in range(60):
        monitor.ledger.observe(producer(100), second * S)
        # Wrong once in five periods: at the times at which a summary of exact rows is joined.
        monitor.ledger.observe(WRONG if second % 5 == 0 else consumer(0, 99), second * S)
        assert monitor.view(second * S).paths["mismatch"] == 0


def test_summary_is_joined_once_in_five_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    joined_ns: list[int] = []
    rows = SystemLedger.rows

    def counted_rows(self: SystemLedger, now_ns: int) -> list[LedgerRow]:
        joined_ns.append(now_ns)
        return rows(self, now_ns)

    monkeypatch.setattr(SystemLedger, "rows", counted_rows)
    monitor = LedgerMonitor(ModelLimits())
    for tenth in range(200):
        monitor.ledger.observe(producer(100), tenth * S // 10)
        monitor.view(tenth * S // 10)
    assert joined_ns == [0, 5 * S, 10 * S, 15 * S]


def test_endpoints_without_reports_for_long_are_forgotten() -> None:
    monitor = LedgerMonitor(ModelLimits())
    monitor.ledger.observe(producer(100, final=True), 0)
    monitor.ledger.observe(consumer(0, 99, final=True), 0)
    assert sum(monitor.view(200 * S).paths.values()) == 2
    assert sum(monitor.view(400 * S).paths.values()) == 0
