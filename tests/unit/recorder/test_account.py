"""Pieces, and the account that is kept of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.recorder.arena import ROW, ArenaRows, TimedGap
from tensorpool.recorder.ledger import StreamLedger, rows_as_gaps
from tensorpool.recording import Gap
from tests.unit.recording.conftest import STREAM, frames

PIECE = Path(__file__).parents[3] / "crates" / "core" / "src" / "track" / "piece.rs"


def piece(first: int, count: int, *gaps: tuple[int, int, int], epoch: int = 1) -> ArenaRows:
    """Rows, and (first, count, before_row) of gaps between them; rows came a thousand ns apart."""
    batch = frames(first, count, epoch=epoch) if count else None
    timed = tuple(
        TimedGap(Gap(STREAM, epoch, start, n, "late"), before, start * 1_000) for start, n, before in gaps
    )
    return ArenaRows(STREAM, epoch, batch, timed)


def test_a_row_has_the_fields_that_the_native_side_writes() -> None:
    body = re.search(r"pub struct Row \{(.*?)\}", PIECE.read_text(), re.S)
    assert body is not None
    names = re.findall(r"pub (\w+):", body[1])
    assert list(ROW.names or ()) == names
    assert ROW.itemsize == 168


def test_the_account_adds_up_over_rows_gaps_and_epochs() -> None:
    account = StreamLedger(STREAM)
    one, other = piece(10, 4, (14, 2, 4)), piece(0, 3, epoch=2)
    account.add(one, [gap.gap for gap in one.gaps])
    account.add(other, [Gap(STREAM, 1, 16, 5, "epoch")])
    first, second = account.ledgers()
    assert (first.first_seq, first.last_seq, first.rows, first.gaps) == (10, 20, 4, {"late": 2, "epoch": 5})
    assert (second.span, second.rows) == (3, 3)
    assert first.balanced
    assert second.balanced
    assert (account.rows, dict(account.gaps)) == (7, {"late": 2, "epoch": 5})


def test_an_account_that_misses_something_says_so() -> None:
    account = StreamLedger(STREAM)
    account.add(piece(10, 4), [])
    account.add(piece(15, 4), [])
    assert not account.ledgers()[0].balanced


def test_what_was_left_out_on_purpose_is_known_by_its_neighbours() -> None:
    account = StreamLedger(STREAM, (1, 4))
    assert account.hole_before(piece(10, 1), "why") == Gap(STREAM, 1, 5, 5, "why")
    assert account.hole_before(piece(10, 1, epoch=2), "why") is None, "a span begins with what is there"
    account.add(piece(10, 2), [])
    assert account.hole_before(piece(12, 1), "why") is None
    assert account.hole_before(piece(13, 1), "why") == Gap(STREAM, 1, 12, 1, "why")
    assert account.hole_before(piece(20, 1, (15, 5, 0)), "why") == Gap(STREAM, 1, 12, 3, "why")
    assert account.hole_before(piece(0, 0, (30, 1, 0)), "why") == Gap(STREAM, 1, 12, 18, "why")


def test_rows_that_cannot_be_written_are_gaps_between_those_of_the_piece() -> None:
    rows = frames(10, 4)
    seqs = np.array([10, 11, 15, 16], np.uint64)
    whole = ArenaRows(
        STREAM,
        1,
        rows.__class__(**{**{f: getattr(rows, f) for f in rows.__slots__}, "seq": seqs}),
        (TimedGap(Gap(STREAM, 1, 12, 3, "late"), 2, 0), TimedGap(Gap(STREAM, 1, 17, 1, "late"), 4, 0)),
    )
    assert rows_as_gaps(whole, "lost") == [Gap(STREAM, 1, 10, 2, "lost"), Gap(STREAM, 1, 15, 2, "lost")]
    assert rows_as_gaps(piece(0, 0, (30, 1, 0)), "lost") == []


def test_a_piece_is_cut_by_time_with_its_gaps() -> None:
    whole = piece(10, 4, (5, 5, 0), (14, 1, 4))
    assert whole.newest_ns == 14_000
    late = whole.since(12_000)
    assert late is not None
    assert late.batch is not None
    assert late.batch.seq.tolist() == [12, 13]
    assert [(one.gap.first_seq, one.before_row) for one in late.gaps] == [(14, 2)]
    assert whole.since(0) is whole
    only = whole.since(14_000)
    assert only is not None
    assert (only.rows, len(only.gaps)) == (0, 1)
    assert whole.since(15_000) is None


def test_a_piece_is_cut_by_a_number_of_rows() -> None:
    whole = piece(10, 4, (5, 5, 0), (14, 1, 4))
    head = whole.up_to_row(2)
    assert head is not None
    assert head.rows == 2
    assert [one.gap.first_seq for one in head.gaps] == [5]
    assert whole.up_to_row(4) is whole
    assert whole.up_to_row(0) is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.integers(0, 60), st.integers(0, 100))
def test_wherever_it_is_cut_nothing_comes_twice(runs: list[int], cut: int, first: int) -> None:
    """Rows and gaps take turns; both halves together have every sequence, and the account of each adds up."""
    seqs: list[int] = []
    gaps: list[TimedGap] = []
    at = first
    for number, run in enumerate(runs):
        if number % 2:
            gaps.append(TimedGap(Gap(STREAM, 1, at, run, "late"), len(seqs), at))
        else:
            seqs += range(at, at + run)
        at += run
    rows = frames(0, len(seqs))
    columns = {f: getattr(rows, f) for f in rows.__slots__} | {"seq": np.array(seqs, np.uint64)}
    whole = ArenaRows(STREAM, 1, rows.__class__(**columns), tuple(gaps))
    halves = [half for half in (whole.up_to_row(cut), whole.from_row(cut)) if half is not None]
    if whole.up_to_row(cut) is whole or cut == 0:
        halves = [whole]
    account = StreamLedger(STREAM)
    for half in halves:
        account.add(half, [one.gap for one in half.gaps])
    (ledger,) = account.ledgers()
    assert ledger.rows == len(seqs)
