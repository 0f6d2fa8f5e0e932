"""Arena rows, and the ledger of a stream."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.recorder.arena_rows import ROW, ArenaRows, TimedGap
from tensorpool.recorder.ledger import EpochLedgers, ResumePosition, rows_as_gaps
from tensorpool.recording import Gap
from tests.unit.recording.conftest import STREAM, frames

ROWS_RS = Path(__file__).parents[3] / "crates" / "core" / "src" / "recording" / "rows.rs"


def arena_rows(first: int, count: int, *gaps: tuple[int, int, int], epoch: int = 1) -> ArenaRows:
    """Rows with gaps (first, count, before_row) between them; received a thousand ns apart."""
    batch = frames(first, count, epoch=epoch) if count else None
    timed = tuple(
        TimedGap(Gap(STREAM, epoch, start, n, "late"), before, start * 1_000) for start, n, before in gaps
    )
    return ArenaRows(STREAM, epoch, batch, timed)


def test_row_dtype_matches_the_native_struct() -> None:
    body = re.search(r"pub struct Row \{(.*?)\}", ROWS_RS.read_text(), re.S)
    assert body is not None
    names = re.findall(r"pub (\w+):", body[1])
    assert list(ROW.names or ()) == names
    assert ROW.itemsize == 168


def test_ledger_balances_over_rows_gaps_and_epochs() -> None:
    ledger = EpochLedgers(STREAM)
    past, current = arena_rows(10, 4, (14, 2, 4)), arena_rows(0, 3, epoch=2)
    ledger.add(past, [timed.gap for timed in past.gaps])
    ledger.add(current, [Gap(STREAM, 1, 16, 5, "epoch")])
    first, second = ledger.ledgers()
    assert (first.first_seq, first.last_seq, first.rows, first.gaps) == (10, 20, 4, {"late": 2, "epoch": 5})
    assert (second.span, second.rows) == (3, 3)
    assert first.balanced
    assert second.balanced
    assert (ledger.rows, dict(ledger.gaps)) == (7, {"late": 2, "epoch": 5})


def test_ledger_with_missing_sequences_is_not_balanced() -> None:
    ledger = EpochLedgers(STREAM)
    ledger.add(arena_rows(10, 4), [])
    ledger.add(arena_rows(15, 4), [])
    assert not ledger.ledgers()[0].balanced


def test_gap_before_spans_the_sequences_since_the_last_rows() -> None:
    ledger = EpochLedgers(STREAM, ResumePosition(1, 4))
    assert ledger.gap_before(arena_rows(10, 1), "why") == Gap(STREAM, 1, 5, 5, "why")
    assert ledger.gap_before(arena_rows(10, 1, epoch=2), "why") is None, (
        "the span of an epoch begins with its first row"
    )
    ledger.add(arena_rows(10, 2), [])
    assert ledger.gap_before(arena_rows(12, 1), "why") is None
    assert ledger.gap_before(arena_rows(13, 1), "why") == Gap(STREAM, 1, 12, 1, "why")
    assert ledger.gap_before(arena_rows(20, 1, (15, 5, 0)), "why") == Gap(STREAM, 1, 12, 3, "why")
    assert ledger.gap_before(arena_rows(0, 0, (30, 1, 0)), "why") == Gap(STREAM, 1, 12, 18, "why")


def test_rows_as_gaps_fill_the_space_between_gaps() -> None:
    rows = frames(10, 4)
    seqs = np.array([10, 11, 15, 16], np.uint64)
    whole = ArenaRows(
        STREAM,
        1,
        rows.__class__(**{**{f: getattr(rows, f) for f in rows.__slots__}, "seq": seqs}),
        (TimedGap(Gap(STREAM, 1, 12, 3, "late"), 2, 0), TimedGap(Gap(STREAM, 1, 17, 1, "late"), 4, 0)),
    )
    assert rows_as_gaps(whole, "lost") == [Gap(STREAM, 1, 10, 2, "lost"), Gap(STREAM, 1, 15, 2, "lost")]
    assert rows_as_gaps(arena_rows(0, 0, (30, 1, 0)), "lost") == []


def test_arena_rows_since_keeps_recent_rows_and_gaps() -> None:
    whole = arena_rows(10, 4, (5, 5, 0), (14, 1, 4))
    assert whole.newest_ns == 14_000
    late = whole.since(12_000)
    assert late is not None
    assert late.batch is not None
    assert late.batch.seq.tolist() == [12, 13]
    assert [(timed.gap.first_seq, timed.before_row) for timed in late.gaps] == [(14, 2)]
    assert whole.since(0) is whole
    gap_only = whole.since(14_000)
    assert gap_only is not None
    assert (gap_only.row_count, len(gap_only.gaps)) == (0, 1)
    assert whole.since(15_000) is None


def test_arena_rows_up_to_row_keeps_gaps_before_it() -> None:
    whole = arena_rows(10, 4, (5, 5, 0), (14, 1, 4))
    head = whole.up_to_row(2)
    assert head is not None
    assert head.row_count == 2
    assert [timed.gap.first_seq for timed in head.gaps] == [5]
    assert whole.up_to_row(4) is whole
    assert whole.up_to_row(0) is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.integers(0, 60), st.integers(0, 100))
def test_arena_rows_halves_contain_every_sequence_once(runs: list[int], cut: int, first: int) -> None:
    """Rows and gaps alternate; both halves together contain every sequence, and their ledger balances."""
    seqs: list[int] = []
    gaps: list[TimedGap] = []
    seq = first
    for number, run in enumerate(runs):
        if number % 2:
            gaps.append(TimedGap(Gap(STREAM, 1, seq, run, "late"), len(seqs), seq))
        else:
            seqs += range(seq, seq + run)
        seq += run
    rows = frames(0, len(seqs))
    columns = {f: getattr(rows, f) for f in rows.__slots__} | {"seq": np.array(seqs, np.uint64)}
    whole = ArenaRows(STREAM, 1, rows.__class__(**columns), tuple(gaps))
    halves = [half for half in (whole.up_to_row(cut), whole.from_row(cut)) if half is not None]
    if whole.up_to_row(cut) is whole or cut == 0:
        halves = [whole]
    ledger = EpochLedgers(STREAM)
    for half in halves:
        ledger.add(half, [timed.gap for timed in half.gaps])
    (epoch,) = ledger.ledgers()
    assert epoch.rows == len(seqs)
