"""Alignment: nearest partners within the tolerance; each frame of the driving stream is settled once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool.pipeline.alignment import (
    LATE,
    MISSING,
    TIMEOUT,
    AlignmentState,
    AlignmentTerms,
    EpochOrder,
    Progress,
    align,
)

FOREVER = 10**9


class ReferenceAligner:
    """Aligns batches of (stream, key) and stores the sets by key."""

    def __init__(self, terms: AlignmentTerms) -> None:
        self.terms = terms
        self.progress = Progress()
        self.waiting: list[tuple[int, int]] = []
        self.aligned: list[tuple[int, ...]] = []
        self.unaligned: list[tuple[int, int, str]] = []

    def feed(self, rows: list[tuple[int, int]], *, closing: bool = False) -> None:
        marked = [(stream, key, False) for stream, key in self.waiting]
        marked += [(stream, key, True) for stream, key in rows]
        marked.sort(key=lambda row: row[0])
        stream = np.array([row[0] for row in marked], np.int64)
        key = np.array([row[1] for row in marked], np.int64)
        new = np.array([row[2] for row in marked], np.bool_)
        found, self.progress = align(self.terms, stream, key, key, new, self.progress, closing=closing)
        self.aligned += [tuple(int(key[row]) for row in one) for one in found.aligned]
        self.unaligned += [(int(stream[row]), int(key[row]), why) for row, why, _ in found.unaligned]
        self.waiting = [(int(stream[row]), int(key[row])) for row in found.kept]


def expected(driving: list[int], other: list[int], tolerance: int) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for key in driving:
        near = min(other, key=lambda one: (abs(one - key), one), default=None)
        found[key] = near if near is not None and abs(near - key) <= tolerance else None
    return found


KEYS = st.lists(st.integers(0, 300), max_size=40, unique=True).map(sorted)


@settings(deadline=None)
@given(KEYS, KEYS, st.integers(0, 20), st.lists(st.integers(0, 300), max_size=5).map(sorted))
def test_sets_are_nearest_for_any_batch_limits(
    driving: list[int], other: list[int], tolerance: int, cuts: list[int]
) -> None:
    reference = ReferenceAligner(AlignmentTerms((1, 2), tolerance, FOREVER, FOREVER))
    rows = [(1, key) for key in driving] + [(2, key) for key in other]
    for low, high in zip([-1, *cuts], [*cuts, 1000], strict=True):
        reference.feed([(stream, key) for stream, key in rows if low < key <= high])
    reference.feed([], closing=True)
    wanted = expected(driving, other, tolerance)
    assert sorted(reference.aligned) == sorted(
        (key, near) for key, near in wanted.items() if near is not None
    )
    lonely = sorted(
        key for stream, key, why in reference.unaligned if stream == 1 and why in (MISSING, TIMEOUT)
    )
    assert lonely == sorted(key for key, near in wanted.items() if near is None)
    assert not [one for one in reference.unaligned if one[2] == LATE]
    assert not reference.waiting


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 500)), max_size=60, unique=True), st.integers(1, 7)
)
def test_every_driving_frame_is_settled_once_even_out_of_order(rows: list[Any], size: int) -> None:
    reference = ReferenceAligner(AlignmentTerms((1, 2, 3), 5, 20, 10))
    for start in range(0, len(rows), size):
        reference.feed(rows[start : start + size])
    reference.feed([], closing=True)
    decided = [one[0] for one in reference.aligned]
    decided += [key for stream, key, why in reference.unaligned if stream == 1 and why != LATE]
    assert sorted(decided) == sorted(key for stream, key in rows if stream == 1)


def test_pending_frames_are_bounded_when_a_stream_ends() -> None:
    reference = ReferenceAligner(AlignmentTerms((1, 2), 5, 100, FOREVER))
    for start in range(0, 10_000, 50):
        reference.feed([(1, key) for key in range(start, start + 50, 10)])
        assert len(reference.waiting) <= 2 * 100 / 10 + 5
    assert {why for _, _, why in reference.unaligned} == {TIMEOUT}
    # It comes back: what it brings of old times is late, what is new belongs to something again.
    reference.feed([(2, 5_000)])
    assert reference.unaligned[-1] == (2, 5_000, LATE)
    reference.feed([(1, 10_000), (2, 10_001), (2, 10_100)])
    assert reference.aligned == [(10_000, 10_001)]


def test_pending_partners_without_driving_frames_are_bounded() -> None:
    reference = ReferenceAligner(AlignmentTerms((1, 2), 5, 10**6, 100))
    for start in range(0, 100_000, 500):
        reference.feed([(2, key) for key in range(start, start + 500, 10)])
        assert len(reference.waiting) <= 150


def test_alignment_by_sequence_matches_epochs_by_number() -> None:
    order = EpochOrder()
    stream = np.array([1, 2, 1, 2], np.int64)
    epoch = np.array([700, 30, 900, 40], np.int64)
    key = order.keys(stream, epoch, np.array([5, 5, 0, 0], np.int64))
    assert key[0] == key[1]
    assert key[2] == key[3] > key[0]
    state = AlignmentState(Progress({1: 5}, 7, None), order, 3)
    loaded = AlignmentState.from_json(json.loads(json.dumps(state.to_json())))
    assert loaded == state
    again = loaded.epochs
    assert again.keys(stream[:1], np.array([900], np.int64), np.array([7], np.int64))[0] == key[2] + 7
