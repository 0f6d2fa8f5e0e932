"""The reader of one recorded stream: blocks of rows with their times and the gaps between them.

One thread at a time uses it: the read-ahead thread, or the replayer's thread while nothing is being read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _native
from ..recording import NO_TIMESTAMP, Cursor, Frames, RecordedFrame, Recording
from ..recording.recording import Time
from ..recording.rows import RowBlock
from .options import TimeBase
from .playhead import Times

# A block is large enough that the interpreter has little to do per frame.
_MAX_BLOCK_BYTES: Final = 64 << 20
_MIN_BLOCK_BYTES: Final = 8 << 20
_MAX_BLOCK_ROWS: Final = 32_768
# A time that is earlier by less is taken for frames that were reordered, not for a clock that was set back.
_MAX_REORDER_NS: Final = 1_000_000_000
VersionMapping = Callable[[int, npt.NDArray[np.int64]], npt.NDArray[np.uint32]]
"""Recorded epoch and metadata versions → the versions that frames carry in the replay."""


class RowRun(NamedTuple):
    """A batch, and the numbers of its selected rows."""

    batch: RowBlock
    rows: npt.NDArray[np.intp]


class _EpochOffset(NamedTuple):
    """Offset from a producer's timestamps to the time of receipt, for one epoch."""

    epoch: int
    offset_ns: int


@dataclass(slots=True)
class ReplayBlock:
    """Rows of consecutive batches of one epoch, with their payloads in memory."""

    native: _native.ReplayRows
    epoch: int
    runs: list[RowRun]
    starts: list[int]
    """The number of the first row of each run."""
    recorded_versions: npt.NDArray[np.int64]
    versions: npt.NDArray[np.uint32]
    """The metadata versions that frames carry in the replay."""
    trace_ids: npt.NDArray[np.uint64]
    first_timestamp_ns: int
    last_timestamp_ns: int
    max_payload_bytes: int
    times: Times = field(default_factory=lambda: np.zeros(0, np.int64))
    gaps: int = 0
    missing: int = 0
    damaged: int = 0

    def frame(self, row: int) -> RecordedFrame:
        """The recorded frame of a row."""
        run = bisect_right(self.starts, row) - 1
        batch, rows = self.runs[run]
        return RecordedFrame(batch, int(rows[row - self.starts[run]]))

    def runs_without(self, damaged: list[int], *, keep_rest: bool) -> list[RowRun]:
        """The runs without these rows; without `keep_rest`, only the rows before the first of them."""
        keep = np.ones(len(self.versions), bool)
        keep[damaged] = False
        if not keep_rest:
            keep[damaged[0] :] = False
        masks = np.split(keep, self.starts[1:])
        kept = [RowRun(batch, rows[mask]) for (batch, rows), mask in zip(self.runs, masks, strict=True)]
        return [run for run in kept if len(run.rows)]


class ReplayReader:
    """Reads the selected frames of one stream, from any position."""

    def __init__(
        self,
        recording: Recording,
        stream_id: int,
        *,
        versions: VersionMapping,
        time_base: TimeBase,
        epoch: int | None,
        seq: tuple[int | None, int | None] | None,
        time: tuple[Time | None, Time | None],
        check: bool,
        skip_damage: bool,
    ) -> None:
        self.stream_id = stream_id
        self._recording = recording
        self._versions = versions
        self._time_base = time_base
        self._epoch, self._seq, self._time = epoch, seq, time
        self._check, self._skip_damage = check, skip_damage
        self._runs: Iterator[tuple[RowBlock, npt.NDArray[np.intp] | range]] = iter(())
        self.rewind()

    def frames(self, *, after: Cursor | None = None, since: Time | None = None) -> Frames:
        """The selected frames of this stream, behind a cursor or from a time on."""
        start, end = self._time
        if since is not None:
            start = since
        return self._recording.frames(
            self.stream_id,
            epoch=self._epoch,
            seq=self._seq,
            time=(start, end),
            after=after,
            skip_damage=self._skip_damage,
        )

    def rewind(self, *, after: Cursor | None = None, since: Time | None = None) -> None:
        """Continue behind a cursor, from a time on, or at the beginning."""
        self._runs = self.frames(after=after, since=since).runs()
        self._last: Cursor | None = None
        self._pending_run: RowRun | None = None
        self._block_bytes = 1
        self._damaged_frame: RecordedFrame | None = None
        self._last_recorded_ns: int | None = None
        self._last_time_ns: int | None = None
        self._set_back_ns = 0
        self._offset: _EpochOffset | None = None

    def next_block(self) -> ReplayBlock | None:
        """The next rows, with their payloads in memory; None at the end.

        Raises CorruptRecording at damage, after all rows before it were returned.
        """
        if self._damaged_frame is not None:
            self._damaged_frame.verify()
        skipped = 0
        while runs := self._next_runs():
            block = self._make_block(runs)
            damaged = block.native.damaged() if self._check else []
            if not self._check:
                block.native.fetch()
            if damaged:
                if not self._skip_damage:
                    self._damaged_frame = block.frame(damaged[0])
                skipped += len(damaged)
                runs = block.runs_without(damaged, keep_rest=self._skip_damage)
                if not runs:
                    if self._damaged_frame is not None:
                        self._damaged_frame.verify()
                    continue
                block = self._make_block(runs)
            self._finish(block)
            block.damaged = skipped if self._skip_damage else 0
            return block
        return None

    def _next_runs(self) -> list[RowRun]:
        """Runs of consecutive batches of one file and epoch; only one run for the first block."""
        runs: list[RowRun] = []
        nbytes = rows = 0
        while (
            nbytes < self._block_bytes
            and rows < _MAX_BLOCK_ROWS
            and (run := self._pending_run or self._next_run()) is not None
        ):
            self._pending_run = run
            if runs:
                first = runs[0].batch
                if first.bytes is not run.batch.bytes or first.epoch != run.batch.epoch:
                    break
            self._pending_run = None
            runs.append(run)
            nbytes += int(run.batch.payload_bytes.sum())
            rows += len(run.rows)
        # Blocks grow, so that the first frame is published early.
        self._block_bytes = min(_MAX_BLOCK_BYTES, max(_MIN_BLOCK_BYTES, 2 * self._block_bytes))
        return runs

    def _next_run(self) -> RowRun | None:
        batch, rows = next(self._runs, (None, ()))
        return None if batch is None else RowRun(batch, np.asarray(rows, np.intp))

    def _make_block(self, runs: list[RowRun]) -> ReplayBlock:
        first = runs[0].batch
        counts = [len(run.rows) for run in runs]
        timestamps, trace_ids = _column(runs, "timestamp_ns"), _column(runs, "trace_id")
        recorded_versions, sizes = _column(runs, "meta_version"), _column(runs, "payload_bytes")
        versions = self._versions(first.epoch, recorded_versions)
        native = _native.ReplayRows(
            first.bytes,
            payload_at=_column(runs, "payload_offset").view(np.uint64),
            payload_bytes=sizes.view(np.uint64),
            crc32c=_column(runs, "crc32c").astype(np.uint32),
            dtype=_column(runs, "dtype"),
            major_order=_column(runs, "major_order"),
            ndims=_column(runs, "ndims"),
            dims=_column(runs, "dims"),
            strides=_column(runs, "strides"),
            timestamp_ns=timestamps,
            meta_version=versions,
            trace_id=trace_ids,
        )
        return ReplayBlock(
            native,
            first.epoch,
            runs,
            starts=np.cumsum([0, *counts[:-1]]).tolist(),
            recorded_versions=recorded_versions,
            versions=versions,
            trace_ids=trace_ids,
            first_timestamp_ns=int(timestamps[0]),
            last_timestamp_ns=int(timestamps.max()),
            max_payload_bytes=int(sizes.max()),
        )

    def _finish(self, block: ReplayBlock) -> None:
        """Add the gaps and times of a block, which depend on the previous block."""
        seq = _column(block.runs, "seq")
        block.gaps, block.missing = self._count_gaps(block.epoch, seq)
        self._last = Cursor(self.stream_id, block.epoch, int(seq[-1]))
        block.times = self._row_times(block)

    def _count_gaps(self, epoch: int, seq: npt.NDArray[np.uint64]) -> tuple[int, int]:
        """The number of gaps before and between these rows, and of the frames missing in them."""
        steps = np.diff(seq)
        holes = steps[steps > 1]
        gaps, missing = len(holes), int((holes - np.uint64(1)).sum())
        if self._last is not None and self._last.epoch == epoch and int(seq[0]) > self._last.seq + 1:
            gaps, missing = gaps + 1, missing + int(seq[0]) - self._last.seq - 1
        return gaps, missing

    def _row_times(self, block: ReplayBlock) -> Times:
        """The recorded times of rows, which never decrease.

        Where a clock was set back, its time continues from the last row.
        """
        received = _column(block.runs, "receive_time_ns")
        times = received if self._time_base == "receive" else self._producer_times(block, received)
        steps = np.diff(times, prepend=times[0] if self._last_recorded_ns is None else self._last_recorded_ns)
        self._last_recorded_ns = int(times[-1])
        if steps.min() < -_MAX_REORDER_NS:
            set_back = self._set_back_ns + np.cumsum(np.where(steps < -_MAX_REORDER_NS, -steps, 0))
            times, self._set_back_ns = times + set_back, int(set_back[-1])
        else:
            times = times + self._set_back_ns
        if self._last_time_ns is not None:
            times[0] = max(times[0], self._last_time_ns)
        times = np.maximum.accumulate(times)
        self._last_time_ns = int(times[-1])
        return times

    def _producer_times(self, block: ReplayBlock, received: Times) -> Times:
        """The producer's timestamps, moved so that the first frame of an epoch has its time of receipt."""
        stamps = _column(block.runs, "timestamp_ns").astype(np.int64)
        if self._time_base == "publish":
            published = _column(block.runs, "publish_timestamp_ns")
            is_known = published != np.uint64(NO_TIMESTAMP)
            stamps = np.where(is_known, published.astype(np.int64), stamps)
        if self._offset is None or self._offset.epoch != block.epoch:
            self._offset = _EpochOffset(block.epoch, int(received[0]) - int(stamps[0]))
        times: Times = stamps + self._offset.offset_ns
        return times


def _column(runs: list[RowRun], name: str) -> npt.NDArray[Any]:
    """A column of the selected rows as one contiguous array."""
    parts = [
        getattr(batch, name) if len(rows) == len(batch) else getattr(batch, name)[rows]
        for batch, rows in runs
    ]  # fmt: skip
    return np.concatenate(parts) if len(parts) > 1 else np.ascontiguousarray(parts[0])
