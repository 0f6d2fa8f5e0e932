"""The live join and the alignment of recorded frames agree on the same recording."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import recording
from tensorpool.pipeline.alignment import AlignmentTerms, Progress, align

DEADLINE_S = 60
MS = 1_000_000


@pytest.mark.parametrize("seed", range(3))
def test_live_join_and_recorded_alignment_choose_the_same_frames(
    ctx: tp.Context,
    free_stream_ids: Callable[[], int],
    wait_until: Callable[..., Any],
    tmp_path: Path,
    seed: int,
) -> None:
    chance = random.Random(seed)
    tolerance_ns = 3 * MS
    pace, other = (ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=256) for _ in range(2))
    # Jitter, equal times, lost frames and frames without a partner.
    events = sorted(
        [
            (10 * MS * n + chance.choice((0, 1, 2, 4)) * MS, True)
            for n in range(1, 60)
            if chance.random() > 0.2
        ]
        + [(7 * MS * n + chance.choice((0, 1, 3)) * MS, False) for n in range(1, 85) if chance.random() > 0.2]
    )
    end_ns = events[-1][0] + 1000 * MS
    live: list[tuple[int, int]] = []
    inputs = {"pace": pace.stream_id, "other": other.stream_id}
    root = tmp_path / "recording"
    with (
        ctx.join(inputs, by="time", tolerance=tolerance_ns / 1e9, timeout=DEADLINE_S) as sets,
        ctx.record(root, streams=list(inputs.values())),
    ):
        assert sets.wait_for_producers(DEADLINE_S)
        wait_until(lambda: pace.consumers()[0] >= 2 and other.consumers()[0] >= 2)
        for timestamp_ns, is_pace in [*events, (end_ns, True), (end_ns, False)]:
            (pace if is_pace else other).offer(np.zeros(8), timestamp_ns=timestamp_ns)
        for joined in sets:
            live.append((joined["pace"].seq, joined["other"].seq))
            if joined.timestamp_ns == end_ns:
                break
    rows = [
        (stream_id, frame.seq, frame.timestamp_ns)
        for stream_id in inputs.values()
        for frame in recording.open(root).frames(stream_id)
    ]
    stream, seq, times = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    terms = AlignmentTerms(tuple(inputs.values()), tolerance_ns, wait_ns=1 << 60, max_pending=10_000)
    found, _ = align(terms, stream, times, times, np.ones(len(rows), np.bool_), Progress(), closing=True)
    aligned = [(int(seq[left]), int(seq[right])) for left, right in found.aligned]
    assert live == aligned
    assert 10 < len(live) < len(events)
