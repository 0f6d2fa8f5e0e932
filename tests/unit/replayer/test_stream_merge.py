"""The merge of several streams: its order does not depend on where blocks end."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.replayer.playhead import StreamMerge

Streams = list[list[list[int]]]
"""Streams of blocks of times."""


@st.composite
def streams(draw: st.DrawFn) -> Streams:
    drawn: Streams = []
    for _ in range(draw(st.integers(1, 4))):
        # Few different times, so that many rows have the same time.
        times = sorted(draw(st.lists(st.integers(0, 12), max_size=30)))
        cuts = sorted(draw(st.lists(st.integers(0, len(times)), max_size=6)))
        drawn.append([times[a:b] for a, b in zip([0, *cuts], [*cuts, len(times)], strict=True)])
    return drawn


def merged(blocks: Streams) -> list[tuple[int, int, int]]:
    """(time, stream, number of the row in its stream), in the order of the merge."""
    merge = StreamMerge(len(blocks))
    remaining = [[block for block in stream if block] for stream in blocks]
    offsets = [0] * len(blocks)
    sizes = [0] * len(blocks)
    order: list[Any] = []
    while True:
        for stream in merge.without_block():
            offsets[stream] += sizes[stream]
            sizes[stream] = 0
            if remaining[stream]:
                block = remaining[stream].pop(0)
                sizes[stream] = len(block)
                merge.add_block(stream, np.array(block, np.int64))
            else:
                merge.end_stream(stream)
        window = merge.take_window()
        if window is None:
            return order
        assert len(window)
        rows = zip(window.time_ns.tolist(), window.stream.tolist(), window.row.tolist(), strict=True)
        order += [(time, stream, offsets[stream] + row) for time, stream, row in rows]


@given(streams())
def test_merge_orders_by_time_stream_and_row(blocks: Streams) -> None:
    flat = [[time for block in stream for time in block] for stream in blocks]
    expected = sorted(
        (time, stream, row) for stream, times in enumerate(flat) for row, time in enumerate(times)
    )  # fmt: skip
    assert merged(blocks) == expected


def test_merge_continues_when_a_stream_ends() -> None:
    assert merged([[[1, 2]], [[5], [6]], []]) == [(1, 0, 0), (2, 0, 1), (5, 1, 0), (6, 1, 1)]


def test_merge_window_ends_where_a_block_ends() -> None:
    merge = StreamMerge(2)
    merge.add_block(0, np.array([1, 2, 3], np.int64))
    merge.add_block(1, np.array([2], np.int64))
    window = merge.take_window()
    assert window is not None
    # Rows after time 2 may follow rows of the other stream's next block.
    assert window.time_ns.tolist() == [1, 2, 2]
    assert merge.without_block() == [1]
