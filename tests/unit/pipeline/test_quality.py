"""Intervals: every event counts once, however events are cut into batches and whenever they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool.pipeline.lineage import trace_depths
from tensorpool.pipeline.quality import EVENTS, FRAME, GAP, REJECT, StreamPosition, intervals, percentiles

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
    carry, place = events([]), StreamPosition()
    closed: list[dict[str, Any]] = []
    still_open: list[dict[str, Any]] = []
    for start in range(0, len(found), size):
        whole = pa.concat_tables([carry, events(found[start : start + size])])
        done, still_open, carry, place = intervals(whole, place, 10, 20)
        closed += done
    rows = closed + still_open
    assert sum(row["frames"] for row in rows) == sum(1 for kind, _, _ in found if kind == FRAME)
    assert sum(row["dropped"] for row in rows) == sum(amount for kind, _, amount in found if kind == GAP)
    assert sum(row["rejected"] for row in rows) == sum(amount for kind, _, amount in found if kind == REJECT)
    starts = [row["interval_start_ns"] for row in rows]
    assert len(set(starts)) == len(starts), "an interval has one row"
    assert not any(row["is_open"] for row in closed)
    if place.latest_ns is not None:
        assert all(row["interval_start_ns"] + 10 + 20 > place.latest_ns for row in still_open)


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
    _, (row,), _, _ = intervals(rows, StreamPosition(), 1_000_000_000, 0)
    assert (row["frames"], row["bytes"], row["rate_hz"]) == (5, 40, 5.0)
    assert (row["period_ns_p50"], row["period_ns_max"], row["jitter_ns_max"]) == (10, 15, 5)
    assert (row["latency_ns_p50"], row["latency_ns_max"]) == (2, 9)


@settings(deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=120))
def test_percentiles_are_values_that_occurred(values: list[int]) -> None:
    found = percentiles(np.array(values, np.int64))
    assert found == [
        min(one for one in values if 100 * sum(other <= one for other in values) >= of * len(values))
        for of in (50, 90, 99, 100)
    ]


def test_frame_without_known_latency_has_none() -> None:
    rows = events([(FRAME, at, 1) for at in range(4)])
    known = pa.array([7, None, None, 9], pa.int64())
    whole = rows.set_column(rows.schema.get_field_index("latency_ns"), EVENTS.field("latency_ns"), known)
    _, (row,), _, _ = intervals(whole, StreamPosition(), 1_000, 0)
    assert (row["frames"], row["latency_ns_p50"], row["latency_ns_max"]) == (4, 7, 9)
    _, (row,), _, _ = intervals(rows, StreamPosition(), 1_000, 0)
    assert (row["frames"], row["latency_ns_p50"], row["latency_ns_max"]) == (4, None, None)


def test_depth_grows_along_a_trace_and_over_its_parents() -> None:
    found, known = trace_depths([(5, 1, 100), (5, 2, 110), (5, 3, 120), (6, 1, 105)], {}, {})
    assert found == [1, 2, 3, 1]
    # Made from both: one step behind the deeper of them. What came before is known from the last time.
    found, _ = trace_depths([(9, 4, 200), (5, 2, 210)], {9: [5, 6]}, known)
    assert found == [4, 2]
