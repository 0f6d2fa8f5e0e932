"""Properties of SequenceRuns, compared with Python sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool.pipeline.sequence_runs import SequenceRuns, runs_of

SEQS = st.lists(st.integers(0, 60), max_size=40)


@settings(deadline=None)
@given(SEQS, SEQS, SEQS)
def test_sequence_runs_equal_a_set(first: list[int], more: list[int], asked: list[int]) -> None:
    made = SequenceRuns(max_runs=1000)
    for part in (first, more):
        made.add(runs_of(np.array(part, np.int64)))
    true = {*first, *more}
    assert len(made) == len(true)
    assert made.contains(np.array(asked, np.int64)).tolist() == [one in true for one in asked]
    assert all(a[1] + 1 < b[0] for a, b in zip(made.runs, made.runs[1:], strict=False)), "runs touch"


@settings(deadline=None)
@given(SEQS, st.integers(0, 60), st.integers(1, 20))
def test_missing_returns_the_sequences_outside_of_the_set(seqs: list[int], first: int, count: int) -> None:
    missing = SequenceRuns(runs_of(np.array(seqs, np.int64)), max_runs=1000).missing(first, count)
    found = [one for low, high in missing for one in range(low, high + 1)]
    assert found == [one for one in range(first, first + count) if one not in set(seqs)]


@settings(deadline=None)
@given(SEQS, st.integers(1, 5))
def test_bounded_set_closes_holes_and_keeps_members(seqs: list[int], most: int) -> None:
    made = SequenceRuns(runs_of(np.array(seqs, np.int64)), max_runs=most)
    assert len(made.runs) <= most
    assert made.contains(np.array(seqs, np.int64)).all()
    every = np.arange(61)
    is_there, is_closed = made.contains(every), made.is_closed(every)
    for seq in range(61):
        # A hole is still one, or it lies where nothing is known any more, and says so.
        if not is_closed[seq]:
            assert is_there[seq] == (seq in set(seqs)), seq
    if len(SequenceRuns(made.runs, max_runs=1000).runs) == len(
        SequenceRuns(runs_of(np.array(seqs)), max_runs=1000).runs
    ):
        assert not is_closed.any(), "nothing was forgotten"
