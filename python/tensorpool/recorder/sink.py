"""The recorder's output: writes rows, gaps and messages in order, and notices a full disk (`DiskSpace`).

The agent's thread owns the sink.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..clock import Clock
from ..errors import DiskFull, InvalidFrames, RecordingError, WriteFailed
from ..recording import Gap, RecordingLedger, RecordingWriter, RecoveredSegment, WriterLimits
from ..service import EventKind
from .arena_rows import ArenaRows
from .ledger import EpochLedgers, ResumePosition, rows_as_gaps
from .messages import MessageRow, lost_event

_LOG = logging.getLogger(__name__)

# Messages are small, but the writer keeps them in memory while the disk is full.
_MAX_MESSAGES_WHILE_FULL: Final = 10_000
DISK_FULL: Final = "disk_full"
"""Gap reason of frames that the disk had no space for."""
UNFIT: Final = "unfit"
"""Gap reason of frames that the writer rejected because no row can hold them."""


@dataclass(frozen=True, slots=True)
class _WriteStep:
    """Rows with their gaps, or one gap. A step stays first in the queue until it is written."""

    arena_rows: ArenaRows | None
    gaps: tuple[Gap, ...]


# Columns of a row and of a batch beside its payloads, and the blocks that a file system rounds up to.
_ROW_BYTES: Final = 512
_BATCH_BYTES: Final = 16 << 10


def _step_bytes(step: _WriteStep) -> int:
    """How many bytes a step needs on the disk at most; 0 for gaps alone, for which there is a reserve."""
    if step.arena_rows is None or step.arena_rows.batch is None:
        return 0
    batch = step.arena_rows.batch
    return batch.packed_bytes + _ROW_BYTES * (len(batch) + len(step.gaps)) + _BATCH_BYTES


def free_bytes(path: Path) -> int:
    """Free bytes of the file system for unprivileged users."""
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


# What is written beside frames while the disk is full: gaps, end marks, records of the manifest.
_MAX_RESERVE_BYTES: Final = 256 << 10


class DiskSpace:
    """Whether the disk can be written to, by the last check of its free space or the last failed write.

    Frames are written only where `keep_free_bytes` stay free behind them, and a reserve for what has to be
    written without them: the gaps that say why they are missing.
    """

    def __init__(self, *, keep_free_bytes: int, retry_ns: int = 1_000_000_000) -> None:
        self._keep_free_bytes = keep_free_bytes
        self._reserve_bytes = min(keep_free_bytes // 4, _MAX_RESERVE_BYTES)
        self._retry_ns = retry_ns
        self._next_check_ns: int | None = None
        self.problem: str | None = None
        """Why nothing is written; None while the disk can be written to."""

    @property
    def is_writable(self) -> bool:
        """Whether the disk can be written to."""
        return self.problem is None

    def is_check_due(self, now_ns: int) -> bool:
        """Whether the free space has to be checked again."""
        return self._next_check_ns is None or now_ns >= self._next_check_ns

    def on_check(self, now_ns: int, free_bytes: int, waiting_bytes: int = 0) -> bool:
        """Update the state with the free space; True if `is_writable` changed.

        Writing resumes at twice the space at which it stops, and when the waiting bytes fit. Otherwise every
        batch could stop it again.
        """
        self._next_check_ns = now_ns + self._retry_ns
        needed = self._keep_free_bytes
        if not self.is_writable:
            needed = max(2 * self._keep_free_bytes, self._floor_bytes(waiting_bytes))
        was_writable = self.is_writable
        if free_bytes < needed or free_bytes == 0:
            if was_writable:
                self.problem = self._describe(free_bytes)
        else:
            self.problem = None
        return was_writable != self.is_writable

    def needs_check_before(self, size_bytes: int) -> bool:
        """Whether the free space has to be known before this many bytes are written."""
        return self._keep_free_bytes > 0 and size_bytes > 0

    def on_reserve(self, now_ns: int, free_bytes: int, size_bytes: int) -> bool:
        """Update the state before a write of this size; True if the disk is full now, and was not."""
        was_writable = self.is_writable
        if self._keep_free_bytes and free_bytes < self._floor_bytes(size_bytes):
            self._next_check_ns = now_ns + self._retry_ns
            self.problem = self._describe(free_bytes)
        return was_writable and not self.is_writable

    def _floor_bytes(self, size_bytes: int) -> int:
        return self._keep_free_bytes + (self._reserve_bytes + size_bytes if self._keep_free_bytes else 0)

    def _describe(self, free_bytes: int) -> str:
        kept = self._keep_free_bytes
        unit, shift = ("MiB", 20) if kept >= 1 << 20 else ("KiB", 10)
        return f"the disk has {free_bytes >> shift} {unit} left; {kept >> shift} {unit} are kept free"

    def on_failure(self, now_ns: int, problem: str) -> bool:
        """Update the state after a failed write or check; True if `is_writable` changed."""
        self._next_check_ns = now_ns + self._retry_ns
        was_writable, self.problem = self.is_writable, problem
        return was_writable


class Sink:
    """Writes arena rows to a recording and keeps the ledger of every stream."""

    def __init__(
        self,
        root: Path,
        *,
        limits: WriterLimits,
        keep_free_bytes: int,
        clock: Clock,
        on_disk_change: Callable[[bool], None],
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        """`on_disk_change` is called with whether the disk can be written to, each time that changes."""
        self.root = root
        self.disk = DiskSpace(keep_free_bytes=keep_free_bytes)
        self.writer = RecordingWriter(root, limits=limits, holder="recorder", clock=clock)
        self.payload_bytes = 0
        self.free_bytes = 0
        # The first stats precede the first check of the disk.
        with suppress(OSError):
            self.free_bytes = free(root)
        # The first table takes a quarter of a second, in which Arrow is imported: no frames wait yet.
        with suppress(RecordingError):
            self.writer.flush()
        self._clock = clock
        self._on_disk_change = on_disk_change
        self._free = free
        self._ledgers: dict[int, EpochLedgers] = {}
        # Ledgers that include the queue: they give the next expected sequence.
        self._planned: dict[int, EpochLedgers] = {}
        self._steps: deque[_WriteStep] = deque()
        self._logged_recovered = 0
        self._messages_while_full = 0
        self._lost_events = 0
        # Since the disk became full, and in total before that.
        self._lost_now = self._lost_messages = 0

    # --- streams and their ledgers

    def open_stream(self, stream_id: int) -> ResumePosition | None:
        """Lock the stream in the recording; returns where an earlier recorder ended."""
        position = self.writer.position(stream_id)
        resume = None if position is None else ResumePosition(*position)
        for segment in self.writer.recovered[self._logged_recovered :]:
            _LOG.warning("sealed a segment that an earlier recorder left open: %s", segment)
        self._logged_recovered = len(self.writer.recovered)
        self._ledgers.setdefault(stream_id, EpochLedgers(stream_id, resume))
        self._planned.setdefault(stream_id, EpochLedgers(stream_id, resume))
        return resume

    @property
    def recovered(self) -> list[RecoveredSegment]:
        """Segments that an earlier recorder left open and that this recorder has sealed."""
        return self.writer.recovered

    @property
    def rows(self) -> int:
        """Written rows of all streams."""
        return sum(ledger.rows for ledger in self._ledgers.values())

    def gaps(self) -> Counter[str]:
        """Missing sequences of all streams, by reason."""
        total: Counter[str] = Counter()
        for ledger in list(self._ledgers.values()):
            total.update(ledger.gaps)
        return total

    def ledgers(self) -> list[RecordingLedger]:
        """One ledger per stream and epoch, in order."""
        return [epoch for _, stream in sorted(self._ledgers.items()) for epoch in stream.ledgers()]

    # --- rows and gaps

    @property
    def pending_rows(self) -> int:
        """Rows in the queue."""
        return sum(step.arena_rows.row_count for step in self._steps if step.arena_rows is not None)

    def enqueue(self, arena_rows: ArenaRows, *, gap_reason: str | None = None) -> None:
        """Append rows to the queue. `gap_reason`: why the sequences since the previous rows are missing."""
        planned = self._planned[arena_rows.stream_id]
        skipped = None if gap_reason is None else planned.gap_before(arena_rows, gap_reason)
        other_epochs = [timed.gap for timed in arena_rows.gaps if timed.gap.epoch != arena_rows.epoch]
        same_epoch = [timed.gap for timed in arena_rows.gaps if timed.gap.epoch == arena_rows.epoch]
        if skipped is not None:
            same_epoch.insert(0, skipped)
        planned.add(arena_rows, [*other_epochs, *same_epoch])
        self._steps.extend(_WriteStep(None, (gap,)) for gap in other_epochs)
        if arena_rows.batch is not None:
            self._steps.append(_WriteStep(arena_rows, tuple(same_epoch)))
        else:
            self._steps.extend(_WriteStep(None, (gap,)) for gap in same_epoch)

    def write_pending(self, *, check_disk_now: bool = False) -> bool:
        """Write the queue; False if the disk is full and steps remain in the queue.

        `check_disk_now`: check a full disk again even if the next check is not due.
        """
        self._check_disk(at_once=check_disk_now and not self.disk.is_writable)
        while self._steps and self.disk.is_writable:
            if not self._has_room(_step_bytes(self._steps[0])):
                break
            step = self._steps.popleft()
            try:
                self._write(step)
            except InvalidFrames as error:
                self._on_invalid_frames(step, error)
            except (WriteFailed, RecordingError) as error:
                self._steps.appendleft(step)
                self._on_write_error(step, error)
        return not self._steps

    def _write(self, step: _WriteStep) -> None:
        if step.arena_rows is not None and step.arena_rows.batch is not None:
            self.writer.write_batch(step.arena_rows.batch, step.gaps)
            self._ledgers[step.arena_rows.stream_id].add(step.arena_rows, step.gaps)
            self.payload_bytes += int(step.arena_rows.batch.payload_bytes.sum())
            return
        for gap in step.gaps:
            self._write_gap(gap)

    def _write_gap(self, gap: Gap) -> None:
        self.writer.gap(
            stream_id=gap.stream_id, epoch=gap.epoch, first_seq=gap.first_seq, count=gap.count,
            reason=gap.reason,
        )  # fmt: skip
        self._ledgers[gap.stream_id].add_gap(gap)

    def _on_invalid_frames(self, step: _WriteStep, error: InvalidFrames) -> None:
        """Put gaps in place of rows that can never be written. If such a gap is invalid too, the ledger
        does not add up."""
        _LOG.error("the writer rejected frames: %s", error)
        if step.arena_rows is not None:
            self._steps.extendleft(_WriteStep(None, (gap,)) for gap in reversed(self._as_gaps(step, UNFIT)))

    @staticmethod
    def _as_gaps(step: _WriteStep, reason: str) -> list[Gap]:
        """The gaps that replace a step; gaps of other epochs are separate steps."""
        rows = [] if step.arena_rows is None else rows_as_gaps(step.arena_rows, reason)
        return sorted([*rows, *step.gaps])

    def _on_write_error(self, step: _WriteStep, error: RecordingError) -> None:
        now_ns = self._clock.monotonic_ns()
        if not isinstance(error, DiskFull) and step.arena_rows is not None:
            # The segment may be damaged: continue in a new file.
            try:
                self.writer.rotate(step.arena_rows.stream_id)
            except RecordingError as rotate_error:
                _LOG.error("%s", rotate_error)
        if self.disk.on_failure(now_ns, str(error)):
            _LOG.error("writing stops until the disk has space: %s", error)
            self._on_writable(False)

    def _has_room(self, size_bytes: int) -> bool:
        """Whether the space that is kept free stays free behind a write. Asked before each write: the disk is
        not ours alone, and one batch may be larger than the space that is kept free.
        """
        if not self.disk.needs_check_before(size_bytes):
            return True
        now_ns = self._clock.monotonic_ns()
        with suppress(OSError):
            self.free_bytes = self._free(self.root)
        if self.disk.on_reserve(now_ns, self.free_bytes, size_bytes):
            _LOG.error("writing stops until the disk has space: %s", self.disk.problem)
            self._on_writable(False)
        return self.disk.is_writable

    def _on_writable(self, is_writable: bool) -> None:
        # Messages wait in memory meanwhile: thousands of them would take the space that is kept free.
        self.writer.holds_messages = not is_writable
        if is_writable:
            self._report_lost()
        self._on_disk_change(is_writable)

    def _check_disk(self, *, at_once: bool = False) -> None:
        now_ns = self._clock.monotonic_ns()
        if not at_once and not self.disk.is_check_due(now_ns):
            return
        try:
            self.free_bytes = self._free(self.root)
        except OSError as error:
            if self.disk.on_failure(now_ns, str(error)):
                self._on_writable(False)
            return
        waiting_bytes = _step_bytes(self._steps[0]) if self._steps else 0
        if self.disk.on_check(now_ns, self.free_bytes, waiting_bytes):
            if self.disk.is_writable:
                _LOG.warning("the disk has space again: writing resumes")
            else:
                _LOG.error("writing stops until the disk has space: %s", self.disk.problem)
            self._on_writable(self.disk.is_writable)

    # --- messages, and the end

    def write_message(self, row: MessageRow) -> None:
        """Write a message about a stream. While the disk is full only a bounded number is kept in memory."""
        if not self._has_room_for_message():
            self._lost_now += 1
            return
        self.writer.add_message(
            row.table, row.message, stream_id=row.stream_id, epoch=row.epoch, meta_version=row.meta_version
        )

    def _has_room_for_message(self) -> bool:
        self._messages_while_full = 0 if self.disk.is_writable else self._messages_while_full + 1
        return self._messages_while_full <= _MAX_MESSAGES_WHILE_FULL

    @property
    def lost_messages(self) -> int:
        """Messages and events that are missing in the tables, because the disk was full."""
        return self._lost_messages + self._lost_now

    def _report_lost(self) -> None:
        if self._lost_now:
            _LOG.error(
                "%d messages about streams are lost: %s",
                self._lost_now,
                self.disk.problem or "the disk was full",
            )
        self._lost_messages, self._lost_now = self.lost_messages, 0

    def write_event(self, message: bytes, kind: str) -> None:
        """Write an event of the services. While the disk is full only a bounded number is kept in memory."""
        if not self._has_room_for_message():
            self._lost_events += 1
            self._lost_now += 1
            return
        if self._lost_events:
            # The record says what is missing in it.
            self.writer.add_event(lost_event(self._lost_events), EventKind.LOST)
            self._lost_events = 0
        self.writer.add_event(message, kind)

    def close(self) -> None:
        """Write the queue and seal the segments. Rows that the disk has no space for become gaps."""
        if not self.write_pending(check_disk_now=True):
            lost = [gap for step in self._steps for gap in self._as_gaps(step, DISK_FULL)]
            self._steps.clear()
            for gap in lost:
                try:
                    self._write_gap(gap)
                except RecordingError as error:
                    _LOG.error("the gap %s could not be written: %s", gap, error)
        if not self.disk.is_writable:
            self._lost_now += self.writer.discard_messages()
        self._report_lost()
        self.writer.close()
