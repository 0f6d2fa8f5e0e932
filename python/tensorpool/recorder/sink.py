"""From pieces to the disk: what is to be written, in order, whatever the disk says. One thread owns it."""

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
from .arena import ArenaRows
from .ledger import StreamLedger, rows_as_gaps
from .messages import MessageRow
from .state import DiskSpace

_LOG = logging.getLogger(__name__)

_MOST_NOTED: Final = 10_000
DISK_FULL: Final = "disk_full"
UNFIT: Final = "unfit"
"""The writer refused it: a frame that no row can hold."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One thing to write. It stays first in line until it is done."""

    piece: ArenaRows | None
    gaps: tuple[Gap, ...]


def free_bytes(path: Path) -> int:
    """What the filesystem has left for us."""
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


class Sink:
    """Writes pieces to a recording, and keeps the account of every stream."""

    def __init__(
        self,
        root: Path,
        *,
        limits: WriterLimits,
        keep_free_bytes: int,
        clock: Clock,
        on_disk: Callable[[bool], None],
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        """`on_disk` hears whether the disk takes what it is given, each time that changes."""
        self.root = root
        self.disk = DiskSpace(keep_free_bytes=keep_free_bytes)
        self.writer = RecordingWriter(root, limits=limits, holder="recorder", clock=clock)
        self.payload_bytes = 0
        self.free_bytes = 0
        # What is shown before the first look at the disk is true as well.
        with suppress(OSError):
            self.free_bytes = free(root)
        # The first table takes a quarter of a second, for what Arrow imports then: not with frames waiting.
        with suppress(RecordingError):
            self.writer.flush()
        self._clock = clock
        self._on_disk = on_disk
        self._free = free
        self._accounts: dict[int, StreamLedger] = {}
        # The same with what is in line: that is where the next piece follows.
        self._planned: dict[int, StreamLedger] = {}
        self._steps: deque[_Step] = deque()
        self._told_recovered = 0
        self._noted = 0

    # --- streams and their accounts

    def open_stream(self, stream_id: int) -> tuple[int, int] | None:
        """Takes the stream's lock; gives the epoch and sequence behind which it goes on."""
        position = self.writer.position(stream_id)
        for one in self.writer.recovered[self._told_recovered :]:
            _LOG.warning("what an earlier recorder left open was sealed: %s", one)
        self._told_recovered = len(self.writer.recovered)
        self._accounts.setdefault(stream_id, StreamLedger(stream_id, position))
        self._planned.setdefault(stream_id, StreamLedger(stream_id, position))
        return position

    @property
    def recovered(self) -> list[RecoveredSegment]:
        return self.writer.recovered

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self._accounts.values())

    def gaps(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for one in list(self._accounts.values()):
            total.update(one.gaps)
        return total

    def ledgers(self) -> list[RecordingLedger]:
        accounts = sorted(self._accounts.items())
        return [ledger for _, account in accounts for ledger in account.ledgers()]

    # --- pieces

    @property
    def waiting(self) -> int:
        return len(self._steps)

    @property
    def waiting_rows(self) -> int:
        return sum(step.piece.rows for step in self._steps if step.piece is not None)

    def put(self, piece: ArenaRows, *, hole_reason: str | None = None) -> None:
        """Puts a piece in line. `hole_reason`: why what lies between it and the one before is not there."""
        planned = self._planned[piece.stream_id]
        hole = None if hole_reason is None else planned.hole_before(piece, hole_reason)
        before = [one.gap for one in piece.gaps if one.gap.epoch != piece.epoch]
        own = [*([hole] if hole else []), *(one.gap for one in piece.gaps if one.gap.epoch == piece.epoch)]
        planned.add(piece, [*before, *own])
        self._steps.extend(_Step(None, (gap,)) for gap in before)
        if piece.batch is not None:
            self._steps.append(_Step(piece, tuple(own)))
        else:
            self._steps.extend(_Step(None, (gap,)) for gap in own)

    def work(self, *, may_wait: bool = False) -> bool:
        """Writes what is in line. False if the disk does not take it: the rest stays in line.

        `may_wait`: also where there was no room a moment ago.
        """
        self._look(at_once=may_wait and not self.disk.is_good)
        while self._steps and self.disk.is_good:
            step = self._steps.popleft()
            try:
                self._write(step)
            except InvalidFrames as error:
                self._refuse(step, error)
            except (WriteFailed, RecordingError) as error:
                self._steps.appendleft(step)
                self._failed(step, error)
        return not self._steps

    def _write(self, step: _Step) -> None:
        if step.piece is not None and step.piece.batch is not None:
            self.writer.write_batch(step.piece.batch, step.gaps)
            self._accounts[step.piece.stream_id].add(step.piece, step.gaps)
            self.payload_bytes += int(step.piece.batch.payload_bytes.sum())
            return
        for gap in step.gaps:
            self._write_gap(gap)

    def _write_gap(self, gap: Gap) -> None:
        self.writer.gap(
            stream_id=gap.stream_id, epoch=gap.epoch, first_seq=gap.first_seq, count=gap.count,
            reason=gap.reason,
        )  # fmt: skip
        self._accounts[gap.stream_id].add_gap(gap)

    def _refuse(self, step: _Step, error: InvalidFrames) -> None:
        """Not to be written, ever: counted instead. What cannot even be counted shows in the ledger."""
        _LOG.error("some frames were refused: %s", error)
        if step.piece is not None:
            self._steps.extendleft(_Step(None, (gap,)) for gap in reversed(self._as_gaps(step, UNFIT)))

    @staticmethod
    def _as_gaps(step: _Step, reason: str) -> list[Gap]:
        """What is left to tell of a step that is not written; gaps of other epochs were steps before it."""
        rows = [] if step.piece is None else rows_as_gaps(step.piece, reason)
        return sorted([*rows, *step.gaps])

    def _failed(self, step: _Step, error: RecordingError) -> None:
        now_ns = self._clock.monotonic_ns()
        if not isinstance(error, DiskFull) and step.piece is not None:
            # The segment may be unusable from here on: the next one is another file.
            try:
                self.writer.rotate(step.piece.stream_id)
            except RecordingError as more:
                _LOG.error("%s", more)
        if self.disk.failed(now_ns, str(error)):
            _LOG.error("nothing is written until there is room: %s", error)
            self._on_disk(False)

    def _look(self, *, at_once: bool = False) -> None:
        now_ns = self._clock.monotonic_ns()
        if not at_once and not self.disk.wants_look(now_ns):
            return
        try:
            self.free_bytes = self._free(self.root)
        except OSError as error:
            if self.disk.failed(now_ns, str(error)):
                self._on_disk(False)
            return
        if self.disk.looked(now_ns, self.free_bytes):
            if self.disk.is_good:
                _LOG.warning("there is room again: writing goes on")
            else:
                _LOG.error("nothing is written until there is room: %s", self.disk.problem)
            self._on_disk(self.disk.is_good)

    # --- words, and the end

    def note(self, note: MessageRow) -> None:
        """Keeps words about a stream. While the disk takes nothing they wait in memory: so only a few."""
        self._noted = 0 if self.disk.is_good else self._noted + 1
        if self._noted > _MOST_NOTED:
            return
        self.writer.add_message(
            note.table, note.message, stream_id=note.stream_id, epoch=note.epoch,
            meta_version=note.meta_version,
        )  # fmt: skip

    def close(self) -> None:
        """Writes what is in line; what the disk does not take is counted as lost. Seals everything."""
        if not self.work(may_wait=True):
            lost = [gap for step in self._steps for gap in self._as_gaps(step, DISK_FULL)]
            self._steps.clear()
            for gap in lost:
                try:
                    self._write_gap(gap)
                except RecordingError as error:
                    _LOG.error("%s could not be counted: %s", gap, error)
        self.writer.close()
