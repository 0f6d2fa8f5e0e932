"""Places in streams: their JSON, their order, and how the recording's cursors fit them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.spark import offsets
from tensorpool.spark.offsets import START, Position
from tensorpool.spark.plan import Budget, shares

places = st.builds(Position, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))


@given(st.dictionaries(st.integers(0, 2**32 - 1), places))
def test_offsets_survive_the_checkpoint(found: offsets.Offsets) -> None:
    assert offsets.from_json(json.loads(json.dumps(offsets.to_json(found)))) == found


@given(places, places)
def test_a_frame_is_before_a_place_if_and_only_if_its_cursor_is(place: Position, frame: Position) -> None:
    cursor = place.cursor_before(7)
    is_before = cursor is not None and (frame.epoch, frame.seq) <= (cursor.epoch, cursor.seq)
    assert is_before == (frame < place)


@pytest.mark.parametrize(
    "text",
    ['{"1": {"epoch": "1"}}', '{"1": 5}', '{"x": {"epoch": 1, "seq": 1}}', '{"1": {"epoch": -1, "seq": 0}}'],
)
def test_a_checkpoint_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="did not write"):
        offsets.from_json(json.loads(text))


def test_streams_never_go_back_and_unknown_ones_begin_at_the_start() -> None:
    one, other = {1: Position(1, 5)}, {1: Position(1, 3), 2: Position(2, 0)}
    assert offsets.latest_of(one, other) == {1: Position(1, 5), 2: Position(2, 0)}
    assert offsets.limit_to(other, {1: Position(1, 1)}) == {1: Position(1, 1)}
    assert Position(0, 0) == START


waiting = st.dictionaries(
    st.integers(0, 50), st.tuples(st.integers(1, 10**6), st.integers(1, 10**12)), min_size=1
)


@given(waiting, st.integers(1, 10**5), st.integers(0, 10**9))
def test_rows_are_shared_out_to_the_last_one_and_everybody_gets_some(
    streams: dict[int, tuple[int, int]], rows: int, turn: int
) -> None:
    budgets = shares(streams, max_rows=rows, max_bytes=None, turn=turn)
    assert sum(budget.rows for budget in budgets.values()) == rows
    assert all(budget.rows >= 1 for budget in budgets.values())
    assert len(budgets) == min(rows, len(streams))


@given(st.dictionaries(st.integers(0, 9), st.just((1, 1)), min_size=2), st.integers(0, 100))
def test_with_fewer_rows_than_streams_each_has_its_turn(
    streams: dict[int, tuple[int, int]], turn: int
) -> None:
    seen = {
        next(iter(shares(streams, max_rows=1, max_bytes=None, turn=turn + n))) for n in range(len(streams))
    }
    assert seen == set(streams)


def test_the_first_frame_always_fits_and_the_next_ones_only_if_they_do() -> None:
    budget = Budget(rows=10, bytes=5)
    assert budget.fitting([100, 200]) == 1
    budget.take(1, 100)
    assert budget.fitting([1]) == 0
