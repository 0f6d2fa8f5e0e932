"""Several recordings become one: frames in order, each once, gaps where none of them has a frame."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ...errors import MergeConflict
from ..gaps import Gap
from ..recording import Recording
from ..rows import RowBlock
from ..selection import Frames
from ..writer import WriterLimits
from .copying import Copied, EpochCopy, copy_tables, new_recording
from .repair import consecutive
from .verify import Progress

NOT_RECORDED: Final = "not_recorded"
"""The reason for sequences that lie between what the merged recordings have."""


def merge(
    sources: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    limits: WriterLimits | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Makes one recording of several. A frame that more than one has is taken once, if they agree on it;
    otherwise MergeConflict names it.
    """
    recordings = [Recording(source) for source in sources]
    done = Copied()
    total = sum(int(one.segments["payload_bytes"].sum()) for one in recordings)
    with new_recording(target, limits) as writer:
        for stream_id in sorted({stream for one in recordings for stream in one.streams}):
            have = [one for one in recordings if stream_id in one.streams]
            for epoch in sorted({epoch for one in have for epoch in one.epochs(stream_id)}):
                those = [one for one in have if epoch in one.epochs(stream_id)]
                gaps: list[Gap] = [gap for one in those for gap in one.gaps(stream_id, epoch=epoch)]
                account = EpochCopy(writer, done, gaps, NOT_RECORDED)
                heads = [_Head(one.frames(stream_id, epoch=epoch)) for one in those]
                for block, rows in _in_order(heads):
                    for start, stop in consecutive(rows):
                        account.write(block.as_frames(start, stop))
                        if progress is not None:
                            progress(min(done.payload_bytes, total), total)
                account.finish(None, is_end=True)
        copy_tables(recordings, writer.root, done.streams)
    return done


class _Head:
    """Where one of the recordings stands."""

    def __init__(self, frames: Frames) -> None:
        self._runs = frames.runs()
        self.block: RowBlock | None = None
        self.rows: npt.NDArray[np.intp] = np.empty(0, np.intp)
        self.advance(0)

    def advance(self, count: int) -> None:
        self.rows = self.rows[count:]
        while not len(self.rows):
            found = next(self._runs, None)
            if found is None:
                self.block = None
                return
            self.block, rows = found
            self.rows = np.asarray(rows, np.intp)

    @property
    def seqs(self) -> npt.NDArray[np.uint64]:
        assert self.block is not None, "only asked while there is something"
        return self.block.seq[self.rows]

    @property
    def next_seq(self) -> int:
        return int(self.seqs[0])


def _in_order(heads: list[_Head]) -> Iterator[tuple[RowBlock, npt.NDArray[np.intp]]]:
    """Rows of all, by sequence: of the one that is behind, as many as come before another goes on."""
    while live := [head for head in heads if head.block is not None]:
        first = min(live, key=lambda head: head.next_seq)
        twins = [head for head in live if head is not first and head.next_seq == first.next_seq]
        others = [head.next_seq for head in live if head is not first and head not in twins]
        seqs = first.seqs
        count = int(np.searchsorted(seqs, np.uint64(min(others)))) if others else len(seqs)
        for twin in twins:
            count = min(count, _common(seqs, twin.seqs))
        for twin in twins:
            _agree(first, twin, count)
            twin.advance(count)
        assert first.block is not None, "it is among the live ones"
        yield first.block, first.rows[:count]
        first.advance(count)


def _common(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> int:
    """How many sequences the two have in common from where they stand."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(one[:count] != other[:count])
    return int(differ[0]) if len(differ) else count


def _agree(one: _Head, other: _Head, count: int) -> None:
    assert one.block is not None, "only asked while there is something"
    assert other.block is not None, "only asked while there is something"
    mine, theirs = one.rows[:count], other.rows[:count]
    for name in ("crc32c", "payload_bytes", "dtype", "dims", "timestamp_ns"):
        equal = getattr(one.block, name)[mine] == getattr(other.block, name)[theirs]
        equal = equal.all(axis=1) if equal.ndim > 1 else equal
        if not equal.all():
            seq = int(one.seqs[int(np.argmin(equal))])
            raise MergeConflict(
                f"{one.block.path} and {other.block.path} have different frames under stream "
                f"{one.block.stream_id}, epoch {one.block.epoch}, sequence {seq}; cut one of them first",
                path=other.block.path,
            )
