"""Alignment: the nearest within the tolerance, each frame of the pace decided once, however rows are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool.pipeline.align import LATE, MISSING, TIMEOUT, AlignmentTerms, EpochOrder, Progress, decide

FOREVER = 10**9


class ReferenceAligner:
    """Feeds batches of (stream, key) and keeps what was decided, by key."""

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
        found, self.progress = decide(self.terms, stream, key, key, new, self.progress, closing=closing)
        self.aligned += [tuple(int(key[row]) for row in one) for one in found.aligned]
        self.unaligned += [(int(stream[row]), int(key[row]), why) for row, why, _ in found.unaligned]
        self.waiting = [(int(stream[row]), int(key[row])) for row in found.kept]


def expected(pace: list[int], other: list[int], tolerance: int) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for key in pace:
        near = min(other, key=lambda one: (abs(one - key), one), default=None)
        found[key] = near if near is not None and abs(near - key) <= tolerance else None
    return found


KEYS = st.lists(st.integers(0, 300), max_size=40, unique=True).map(sorted)


@settings(deadline=None)
@given(KEYS, KEYS, st.integers(0, 20), st.lists(st.integers(0, 300), max_size=5).map(sorted))
def test_sets_are_the_nearest_whatever_the_batches(
    pace: list[int], other: list[int], tolerance: int, cuts: list[int]
) -> None:
    reference = ReferenceAligner(AlignmentTerms((1, 2), tolerance, FOREVER, FOREVER))
    rows = [(1, key) for key in pace] + [(2, key) for key in other]
    for low, high in zip([-1, *cuts], [*cuts, 1000], strict=True):
        reference.feed([(stream, key) for stream, key in rows if low < key <= high])
    reference.feed([], closing=True)
    wanted = expected(pace, other, tolerance)
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
def test_every_frame_of_the_pace_is_decided_once_even_out_of_order(rows: list[Any], size: int) -> None:
    reference = ReferenceAligner(AlignmentTerms((1, 2, 3), 5, 20, 10))
    for start in range(0, len(rows), size):
        reference.feed(rows[start : start + size])
    reference.feed([], closing=True)
    decided = [one[0] for one in reference.aligned]
    decided += [key for stream, key, why in reference.unaligned if stream == 1 and why != LATE]
    assert sorted(decided) == sorted(key for stream, key in rows if stream == 1)


def test_what_is_kept_is_bounded_when_a_stream_vanishes() -> None:
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


def test_a_pile_of_partners_without_a_pace_is_bounded_too() -> None:
    reference = ReferenceAligner(AlignmentTerms((1, 2), 5, 10**6, 100))
    for start in range(0, 100_000, 500):
        reference.feed([(2, key) for key in range(start, start + 500, 10)])
        assert len(reference.waiting) <= 150


def test_sequences_of_the_nth_epoch_belong_to_those_of_the_nth() -> None:
    order = EpochOrder()
    stream = np.array([1, 2, 1, 2], np.int64)
    epoch = np.array([700, 30, 900, 40], np.int64)
    key = order.keys(stream, epoch, np.array([5, 5, 0, 0], np.int64))
    assert key[0] == key[1]
    assert key[2] == key[3] > key[0]
    again = EpochOrder.from_json(order.to_json())
    assert again.keys(stream[:1], np.array([900], np.int64), np.array([7], np.int64))[0] == key[2] + 7
