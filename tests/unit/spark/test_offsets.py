"""Offsets: their JSON, their order, the cursors before them; and the budget of a micro-batch."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.spark import offsets
from tensorpool.spark.offsets import START, Position
from tensorpool.spark.plan import Backlog, Budget, divide_budget

positions = st.builds(Position, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))


@given(st.dictionaries(st.integers(0, 2**32 - 1), positions))
def test_offsets_survive_the_checkpoint(found: offsets.Offsets) -> None:
    assert offsets.from_json(json.loads(json.dumps(offsets.to_json(found)))) == found


@given(positions, positions)
def test_cursor_before_a_position_agrees_with_its_order(position: Position, frame: Position) -> None:
    cursor = position.cursor_before(7)
    is_before = cursor is not None and (frame.epoch, frame.seq) <= (cursor.epoch, cursor.seq)
    assert is_before == (frame < position)


@pytest.mark.parametrize(
    "text",
    ['{"1": {"epoch": "1"}}', '{"1": 5}', '{"x": {"epoch": 1, "seq": 1}}', '{"1": {"epoch": -1, "seq": 0}}'],
)
def test_foreign_checkpoint_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="did not write"):
        offsets.from_json(json.loads(text))


def test_latest_of_and_limit_to_by_stream() -> None:
    one, other = {1: Position(1, 5)}, {1: Position(1, 3), 2: Position(2, 0)}
    assert offsets.latest_of(one, other) == {1: Position(1, 5), 2: Position(2, 0)}
    assert offsets.limit_to(other, {1: Position(1, 1)}) == {1: Position(1, 1)}
    assert Position(0, 0) == START


backlogs = st.dictionaries(
    st.integers(0, 50), st.builds(Backlog, st.integers(1, 10**6), st.integers(1, 10**12)), min_size=1
)


@given(backlogs, st.integers(1, 10**5), st.integers(0, 10**9))
def test_budget_divides_all_rows_and_serves_every_stream(
    streams: dict[int, Backlog], rows: int, rotation: int
) -> None:
    budgets = divide_budget(streams, max_rows=rows, max_bytes=None, rotation=rotation)
    assert sum(budget.rows for budget in budgets.values()) == rows
    assert all(budget.rows >= 1 for budget in budgets.values())
    assert len(budgets) == min(rows, len(streams))


@given(st.dictionaries(st.integers(0, 9), st.just(Backlog(1, 1)), min_size=2), st.integers(0, 100))
def test_budget_rotates_with_fewer_rows_than_streams(streams: dict[int, Backlog], rotation: int) -> None:
    first_streams: set[int] = set()
    for number in range(len(streams)):
        first_streams |= divide_budget(streams, max_rows=1, max_bytes=None, rotation=rotation + number).keys()
    assert first_streams == set(streams)


def test_budget_always_fits_the_first_frame() -> None:
    budget = Budget(rows=10, bytes=5)
    assert budget.fitting([100, 200]) == 1
    budget.take(1, 100)
    assert budget.fitting([1]) == 0
