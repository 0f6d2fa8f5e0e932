"""One recorded stream as it is played: block by block, with the times that count and the gaps between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .. import _native
from ..recording import NO_TIMESTAMP, Cursor, Frames, RecordedFrame, Recording
from ..recording.recording import Time
from ..recording.rows import RowBlock
from .options import TimeBase
from .state import Times

Run = tuple[RowBlock, npt.NDArray[np.intp]]
"""A batch, and the rows of it that are chosen."""
_READ_BYTES: Final = 64 << 20
_FIRST_BYTES: Final = 8 << 20
_READ_ROWS: Final = 32_768
"""Read at once: so much that the interpreter has little to do for each frame."""
_SET_BACK_NS: Final = 1_000_000_000
"""Time that goes back by less is taken for frames that changed places."""
Versions = Callable[[int, npt.NDArray[np.int64]], npt.NDArray[np.uint32]]
"""Recorded epoch and versions → the versions that frames carry when they are played."""


@dataclass(slots=True)
class Block:
    """Rows of neighbouring batches, ready to be played."""

    native: _native.ReplayRows
    epoch: int
    runs: list[Run]
    starts: list[int]
    """The number of the first row of each run."""
    recorded_versions: npt.NDArray[np.int64]
    versions: npt.NDArray[np.uint32]
    """What the frames carry when they are played."""
    trace_ids: npt.NDArray[np.uint64]
    first_timestamp_ns: int
    last_timestamp_ns: int
    largest_bytes: int
    times: Times = field(default_factory=lambda: np.zeros(0, np.int64))
    gaps: int = 0
    missing: int = 0
    damaged: int = 0

    def frame(self, row: int) -> RecordedFrame:
        run = bisect_right(self.starts, row) - 1
        block, rows = self.runs[run]
        return RecordedFrame(block, int(rows[row - self.starts[run]]))

    def without(self, damaged: list[int], *, rest: bool) -> list[Run]:
        """The runs without these rows; with `rest`, what lies behind the first of them too."""
        keep = np.ones(len(self.versions), bool)
        keep[damaged] = False
        if not rest:
            keep[damaged[0] :] = False
        parts = np.split(keep, self.starts[1:])
        kept = [(block, rows[part]) for (block, rows), part in zip(self.runs, parts, strict=True)]
        return [(block, rows) for block, rows in kept if len(rows)]


class ReplayReader:
    """Reads one stream between two bounds, from wherever it is told to. One thread at a time."""

    def __init__(
        self,
        recording: Recording,
        stream_id: int,
        *,
        versions: Versions,
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
        """What is chosen of this stream, behind a cursor or from a time on."""
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
        """The next block begins there; at the beginning, if nothing is given."""
        self._runs = self.frames(after=after, since=since).runs()
        self._last: Cursor | None = None
        self._held: Run | None = None
        self._read_bytes = 1
        self._damage: RecordedFrame | None = None
        self._raw_ns: int | None = None
        self._carry_ns: int | None = None
        self._ahead_ns = 0
        self._offset: tuple[int, int] | None = None

    def next_block(self) -> Block | None:
        """The next rows, with their payloads in memory; None at the end.

        Damage raises CorruptRecording, after everything before it was handed out.
        """
        if self._damage is not None:
            self._damage.verify()
        skipped = 0
        while runs := self._neighbours():
            made = self._made(runs)
            damaged = made.native.damaged() if self._check else []
            if not self._check:
                made.native.fetch()
            if damaged:
                if not self._skip_damage:
                    self._damage = made.frame(damaged[0])
                skipped += len(damaged)
                runs = made.without(damaged, rest=self._skip_damage)
                if not runs:
                    if self._damage is not None:
                        self._damage.verify()
                    continue
                made = self._made(runs)
            self._finish(made)
            made.damaged = skipped if self._skip_damage else 0
            return made
        return None

    def _neighbours(self) -> list[Run]:
        """A few batches of one file. One where the first frame is waited for."""
        found: list[Run] = []
        nbytes = rows = 0
        while (
            nbytes < self._read_bytes
            and rows < _READ_ROWS
            and (run := self._held or self._next_run()) is not None
        ):
            block, self._held = run[0], run
            if found and (found[0][0].bytes is not block.bytes or found[0][0].epoch != block.epoch):
                break
            self._held = None
            found.append(run)
            nbytes += int(block.payload_bytes.sum())
            rows += len(run[1])
        # More and more, so that whoever plays waits little at the beginning.
        self._read_bytes = min(_READ_BYTES, max(_FIRST_BYTES, 2 * self._read_bytes))
        return found

    def _next_run(self) -> Run | None:
        block, rows = next(self._runs, (None, ()))
        return None if block is None else (block, np.asarray(rows, np.intp))

    def _made(self, runs: list[Run]) -> Block:
        epoch = runs[0][0].epoch
        counts = [len(rows) for _, rows in runs]
        timestamps, trace_ids = _column(runs, "timestamp_ns"), _column(runs, "trace_id")
        recorded, sizes = _column(runs, "meta_version"), _column(runs, "payload_bytes")
        versions = self._versions(epoch, recorded)
        native = _native.ReplayRows(
            runs[0][0].bytes,
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
        starts = np.cumsum([0, *counts[:-1]]).tolist()
        stamps = int(timestamps[0]), int(timestamps.max())
        return Block(native, epoch, runs, starts, recorded, versions, trace_ids, *stamps, int(sizes.max()))

    def _finish(self, made: Block) -> None:
        """Takes note of what is handed out, in its place between what came before and what follows."""
        seq = _column(made.runs, "seq")
        made.gaps, made.missing = self._gaps(made.epoch, seq)
        self._last = Cursor(self.stream_id, made.epoch, int(seq[-1]))
        made.times = self._times(made)

    def _gaps(self, epoch: int, seq: npt.NDArray[np.uint64]) -> tuple[int, int]:
        """How many holes are passed over with these rows, and how many frames they would have had."""
        steps = np.diff(seq)
        holes = steps[steps > 1]
        gaps, missing = len(holes), int((holes - np.uint64(1)).sum())
        if self._last is not None and self._last.epoch == epoch and int(seq[0]) > self._last.seq + 1:
            gaps, missing = gaps + 1, missing + int(seq[0]) - self._last.seq - 1
        return gaps, missing

    def _times(self, made: Block) -> Times:
        """Where rows stand in the recorder's time. They never go back: where a clock was set back, time is
        taken to have gone on from where it was."""
        received = _column(made.runs, "receive_time_ns")
        times = received if self._time_base == "receive" else self._by_the_source(made, received)
        steps = np.diff(times, prepend=times[0] if self._raw_ns is None else self._raw_ns)
        self._raw_ns = int(times[-1])
        if steps.min() < -_SET_BACK_NS:
            ahead = self._ahead_ns + np.cumsum(np.where(steps < -_SET_BACK_NS, -steps, 0))
            times, self._ahead_ns = times + ahead, int(ahead[-1])
        else:
            times = times + self._ahead_ns
        if self._carry_ns is not None:
            times[0] = max(times[0], self._carry_ns)
        times = np.maximum.accumulate(times)
        self._carry_ns = int(times[-1])
        return times

    def _by_the_source(self, made: Block, received: Times) -> Times:
        """The producer's own times, moved so that the first frame of an epoch is where it was received."""
        stamps = _column(made.runs, "timestamp_ns").astype(np.int64)
        if self._time_base == "publish":
            published = _column(made.runs, "publish_timestamp_ns")
            known = published != np.uint64(NO_TIMESTAMP)
            stamps = np.where(known, published.astype(np.int64), stamps)
        if self._offset is None or self._offset[0] != made.epoch:
            self._offset = made.epoch, int(received[0]) - int(stamps[0])
        moved: Times = stamps + self._offset[1]
        return moved


def _column(runs: list[Run], name: str) -> npt.NDArray[Any]:
    """A column of the chosen rows, in one piece."""
    parts = [
        getattr(block, name) if len(rows) == len(block) else getattr(block, name)[rows]
        for block, rows in runs
    ]  # fmt: skip
    return np.concatenate(parts) if len(parts) > 1 else np.ascontiguousarray(parts[0])
