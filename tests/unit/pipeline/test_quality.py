"""Quality by interval: every event counts once, for any batch limits and any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool.pipeline.metadata import FrameTrace, trace_depths
from tensorpool.pipeline.quality import (
    EVENTS,
    FRAME,
    GAP,
    REJECT,
    Interval,
    StreamPosition,
    intervals,
    percentiles,
)

EVENT = st.tuples(st.sampled_from([FRAME, GAP, REJECT]), st.integers(0, 200), st.integers(1, 9))


def events(found: list[Any]) -> pa.Table:
    rows = [
        {
            "stream_id": 7, "kind": kind, "at_ns": at, "epoch": 1, "seq": number, "amount": amount,
            "latency_ns": None, "reason": None if kind == FRAME else "r",
        }
        for number, (kind, at, amount) in enumerate(found)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=EVENTS)


@settings(deadline=None)
@given(st.lists(EVENT, max_size=40), st.integers(1, 8))
def test_every_event_counts_once(found: list[Any], size: int) -> None:
    carry, position = events([]), StreamPosition()
    closed: list[Interval] = []
    still_open: list[Interval] = []
    for start in range(0, len(found), size):
        whole = pa.concat_tables([carry, events(found[start : start + size])])
        measured = intervals(whole, position, 10, 20)
        still_open, carry, position = measured.still_open, measured.events, measured.position
        closed += measured.closed
    rows = closed + still_open
    assert sum(row.frames for row in rows) == sum(1 for kind, _, _ in found if kind == FRAME)
    assert sum(row.column("dropped") for row in rows) == sum(size for kind, _, size in found if kind == GAP)
    rejected = sum(size for kind, _, size in found if kind == REJECT)
    assert sum(row.column("rejected") for row in rows) == rejected
    starts = [row.interval_start_ns for row in rows]
    assert len(set(starts)) == len(starts), "an interval has one row"
    assert not any(row.is_open for row in closed)
    if position.latest_ns is not None:
        assert all(row.interval_start_ns + 10 + 20 > position.latest_ns for row in still_open)


def test_periods_jitter_and_rate_are_of_frames_that_follow_one_another() -> None:
    at = [0, 10, 20, 35, 100]
    rows = pa.Table.from_pylist(
        [
            {
                "stream_id": 7,
                "kind": FRAME,
                "at_ns": when,
                "epoch": 1,
                "seq": seq,
                "amount": 8,
                "latency_ns": seq,
            }
            for when, seq in zip(at, [0, 1, 2, 3, 9], strict=True)
        ],
        schema=EVENTS,
    )
    (row,) = intervals(rows, StreamPosition(), 1_000_000_000, 0).still_open
    assert (row.frames, row.bytes, row.column("rate_hz")) == (5, 40, 5.0)
    assert (row.period_ns.p50, row.column("period_ns_max"), row.jitter_ns.max) == (10, 15, 5)
    assert (row.latency_ns.p50, row.latency_ns.max) == (2, 9)


@settings(deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=120))
def test_percentiles_are_values_that_occurred(values: list[int]) -> None:
    found = percentiles(np.array(values, np.int64))
    assert list(found) == [
        min(one for one in values if 100 * sum(other <= one for other in values) >= of * len(values))
        for of in (50, 90, 99, 100)
    ]


def test_frame_without_known_latency_has_none() -> None:
    rows = events([(FRAME, at, 1) for at in range(4)])
    known = pa.array([7, None, None, 9], pa.int64())
    whole = rows.set_column(rows.schema.get_field_index("latency_ns"), EVENTS.field("latency_ns"), known)
    (row,) = intervals(whole, StreamPosition(), 1_000, 0).still_open
    assert (row.frames, row.latency_ns.p50, row.latency_ns.max) == (4, 7, 9)
    (row,) = intervals(rows, StreamPosition(), 1_000, 0).still_open
    assert (row.frames, row.latency_ns.p50, row.latency_ns.max) == (4, None, None)


def test_depth_grows_along_a_trace_and_over_its_parents() -> None:
    frames = [FrameTrace(5, 1, 100), FrameTrace(5, 2, 110), FrameTrace(5, 3, 120), FrameTrace(6, 1, 105)]
    found, known = trace_depths(frames, {}, {})
    assert found == [1, 2, 3, 1]
    # Made from both: one step behind the deeper of them. What came before is known from the last time.
    found, _ = trace_depths([FrameTrace(9, 4, 200), FrameTrace(5, 2, 210)], {9: [5, 6]}, known)
    assert found == [4, 2]
