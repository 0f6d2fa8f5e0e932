"""Several streams in one order: what comes out does not depend on how it was cut into blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.replayer.state import Merge

Streams = list[list[list[int]]]
"""Streams of blocks of times."""


@st.composite
def streams(draw: st.DrawFn) -> Streams:
    found: Streams = []
    for _ in range(draw(st.integers(1, 4))):
        # Few different times, so that many are the same.
        times = sorted(draw(st.lists(st.integers(0, 12), max_size=30)))
        cuts = sorted(draw(st.lists(st.integers(0, len(times)), max_size=6)))
        found.append([times[a:b] for a, b in zip([0, *cuts], [*cuts, len(times)], strict=True)])
    return found


def played(blocks: Streams) -> list[tuple[int, int, int]]:
    """(time, lane, number of the row in its lane), as the merge gives them."""
    merge = Merge(len(blocks))
    left = [[block for block in lane if block] for lane in blocks]
    before = [0] * len(blocks)
    sizes = [0] * len(blocks)
    found: list[Any] = []
    while True:
        for lane in merge.wants():
            before[lane] += sizes[lane]
            sizes[lane] = 0
            if left[lane]:
                block = left[lane].pop(0)
                sizes[lane] = len(block)
                merge.put(lane, np.array(block, np.int64))
            else:
                merge.end(lane)
        window = merge.take()
        if window is None:
            return found
        assert len(window)
        rows = zip(window.time_ns.tolist(), window.lane.tolist(), window.row.tolist(), strict=True)
        found += [(time, lane, before[lane] + row) for time, lane, row in rows]


@given(streams())
def test_rows_come_by_time_then_stream_then_number_wherever_blocks_end(blocks: Streams) -> None:
    flat = [[time for block in lane for time in block] for lane in blocks]
    expected = sorted(
        (time, lane, row) for lane, times in enumerate(flat) for row, time in enumerate(times)
    )  # fmt: skip
    assert played(blocks) == expected


def test_a_lane_that_ends_does_not_hold_the_others() -> None:
    assert played([[[1, 2]], [[5], [6]], []]) == [(1, 0, 0), (2, 0, 1), (5, 1, 0), (6, 1, 1)]


def test_nothing_is_certain_while_a_lane_wants_rows() -> None:
    merge = Merge(2)
    merge.put(0, np.array([1, 2, 3], np.int64))
    merge.put(1, np.array([2], np.int64))
    window = merge.take()
    assert window is not None
    # What comes after 2 may come after the other lane's next block.
    assert window.time_ns.tolist() == [1, 2, 2]
    assert merge.wants() == [1]
