"""The table of `tensorpool ledger`: reasons are not cut where there is room."""

from __future__ import annotations

import pytest

from tensorpool.cli.ledger import ledger_table
from tensorpool.cli.output import console
from tensorpool.monitor.ledger import LedgerRow

ROW = LedgerRow(20_000, "producer", "4294967294", 1_000_000, 999_428, {"not_connected": 572})


def printed(rows: list[LedgerRow], capsys: pytest.CaptureFixture[str], *, is_live: bool = False) -> list[str]:
    console().print(ledger_table(rows, is_live=is_live))
    return capsys.readouterr().out.splitlines()


def test_reasons_get_the_room_without_waiting_frames(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    head, row = printed([ROW], capsys)
    assert head.split()[-2:] == ["verdict", "dropped"]
    assert row.endswith("not_connected 572")
    assert len(row) <= 80


def test_waiting_frames_have_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = LedgerRow(20_000, "consumer", "7", 10, 8, waiting=2)
    head, _, row = printed([ROW, waiting], capsys)
    assert "waiting" in head
    assert row.split()[-2:] == ["2", "exact"]


def test_live_table_keeps_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    (head, _) = printed([ROW], capsys, is_live=True)
    assert "waiting" in head
