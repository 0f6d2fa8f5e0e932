"""Reads the frames of one task. Runs in an executor: opens the recording for itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import CorruptRecording, FrameNotRecorded
from ..recording import Cursor, Gap, Recording
from ..recording.gaps import CORRUPT, UNEXPLAINED, classify_missing
from ..recording.rows import RowBlock
from ..recording.tables import read_gaps
from .blocks import Rows, gap_batch, gathered, pieces, to_arrow
from .plan import FrameRange

REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class ScanTerms:
    """What of the options a task has to know."""

    path: str
    payload: str
    max_batch_bytes: int
    include_gaps: bool
    fail_on_loss: bool
    time: tuple[int | None, int | None] = (None, None)


class RangeScan:
    """One pass over a range. Damage is an error, or a gap if that is allowed."""

    def __init__(self, what: FrameRange, terms: ScanTerms, schema: pa.Schema) -> None:
        self._range = what
        self._terms = terms
        self._schema = schema
        self._recording = Recording(terms.path)
        self._seen: dict[int, list[npt.NDArray[np.uint64]]] = {}
        self._last: Cursor | None = None
        """The last row of the share before this one."""
        self._last_row: Cursor | None = None
        self._bad: str | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The frames in order; the gaps among them last."""
        inline = self._terms.payload == "inline"
        for parts in gathered(self._frames(inline), self._terms.max_batch_bytes, inline=inline):
            yield to_arrow(parts, self._schema)
        self._check_end()
        if self._terms.include_gaps and (gaps := self._gaps()):
            yield gap_batch(gaps, self._schema)

    def _frames(self, inline: bool) -> Iterator[tuple[RowBlock, Rows]]:
        for block, rows in self._share(self._runs()):
            kept = self._sound(block, rows) if inline else rows
            if len(kept) == 0:
                continue
            self._note(block, kept)
            for piece in pieces(block, kept, self._terms.max_batch_bytes, inline=inline):
                yield block, piece

    def _runs(self) -> Iterator[tuple[RowBlock, Rows]]:
        what, terms = self._range, self._terms
        segments = self._recording.by_segment(
            what.stream_id,
            after=what.start.cursor_before(what.stream_id),
            until=what.end.cursor_before(what.stream_id),
            time=terms.time,
            skip_damage=not terms.fail_on_loss,
        )
        for name, frames in segments:
            try:
                yield from frames.runs()
            except (CorruptRecording, FrameNotRecorded) as error:
                if terms.fail_on_loss:
                    raise self._lost(str(error)) from None
                is_removed = isinstance(error, FrameNotRecorded)
                self._bad = REMOVED if is_removed else CORRUPT
                continue
            if not terms.fail_on_loss and self._recording.segment(name).file.scan.damage:
                self._bad = CORRUPT

    def _share(self, runs: Iterator[tuple[RowBlock, Rows]]) -> Iterator[tuple[RowBlock, Rows]]:
        """This task's part of the rows."""
        if self._range.parts == 1:
            yield from runs
            return
        every = list(runs)
        total = sum(len(rows) for _, rows in every)
        low = total * self._range.part // self._range.parts
        high = total * (self._range.part + 1) // self._range.parts
        at = 0
        for block, rows in every:
            begin, end = max(low - at, 0), min(high - at, len(rows))
            if at < low <= at + len(rows):
                # What is missing right behind the share before is this share's to tell.
                self._last = Cursor(self._range.stream_id, block.epoch, int(block.seq[rows[low - at - 1]]))
            if begin < end:
                yield block, rows[begin:end]
            at += len(rows)

    def _sound(self, block: RowBlock, rows: Rows) -> Rows:
        """The rows without those whose payload is not what was written."""
        damaged = block.damaged_rows()
        if not len(damaged):
            return rows
        chosen = np.asarray(rows)
        wrong = chosen[np.isin(chosen, damaged)]
        if len(wrong) and self._terms.fail_on_loss:
            seq = int(block.seq[wrong[0]])
            raise self._lost(
                f"{block.path}, byte {int(block.payload_at[wrong[0]])}: the payload of frame {seq} is damaged"
            )
        if len(wrong):
            self._bad = CORRUPT
        return chosen[~np.isin(chosen, damaged)]

    def _note(self, block: RowBlock, rows: Rows) -> None:
        seqs = block.seq[np.asarray(rows)]
        if self._terms.include_gaps:
            self._seen.setdefault(block.epoch, []).append(np.array(seqs))
        self._last_row = Cursor(self._range.stream_id, block.epoch, int(seqs[-1]))

    def _check_end(self) -> None:
        what = self._range
        is_last_part = what.part == what.parts - 1
        if not what.ends_with_row or not is_last_part or self._terms.time != (None, None):
            return
        expected = what.end.cursor_before(what.stream_id)
        if self._last_row == expected:
            return
        if self._terms.fail_on_loss:
            raise self._lost(
                f"{self._terms.path}: frames up to {expected} were there when the query was planned"
            )
        self._bad = self._bad or CORRUPT

    def _lost(self, what: str) -> CorruptRecording:
        return CorruptRecording(
            f"stream {self._range.stream_id}: {what}. To go on without: option failOnDataLoss=false "
            "(includeGaps=true makes rows of what is missing)",
            path=self._terms.path,
        )

    # --- gaps

    def _gaps(self) -> list[Gap]:
        """What is missing between the rows of the range, and why."""
        stream_id = self._range.stream_id
        declared = read_gaps(self._recording.root, stream_id)
        epochs = sorted({*self._seen, *self._whole_epochs(declared)})
        found = []
        for epoch in epochs:
            of_epoch = [gap for gap in declared if gap.epoch == epoch]
            rows = np.concatenate(self._seen[epoch]) if epoch in self._seen else np.empty(0, np.uint64)
            default = self._bad or UNEXPLAINED
            for first, last, reason in classify_missing(
                self._missing(epoch, rows, of_epoch), of_epoch, default
            ):
                removed = self._recording.removed_until(stream_id, epoch)
                why = REMOVED if reason == default and last <= removed else reason
                found.append(Gap(stream_id, epoch, first, last - first + 1, why))
        return found

    def _whole_epochs(self, declared: list[Gap]) -> set[int]:
        """Epochs that may have gaps and no rows here. Of the shares of a segment, the first tells of them."""
        start, end = self._range.start, self._range.end
        if self._terms.time != (None, None) or self._range.part > 0:
            return set()
        # A segment is of one epoch: the other shares see to what follows.
        stop = end.epoch if self._range.parts == 1 else min(self._seen, default=end.epoch) - 1
        return {gap.epoch for gap in declared if start.epoch <= gap.epoch <= stop}

    def _missing(
        self, epoch: int, rows: npt.NDArray[np.uint64], declared: list[Gap]
    ) -> list[tuple[int, int]]:
        low, high = self._bounds(epoch, rows, declared)
        if low > high:
            return []
        if not len(rows):
            return [(low, high)]
        first, last = int(rows[0]), int(rows[-1])
        inner = [
            (int(rows[i]) + 1, int(rows[i + 1]) - 1) for i in np.flatnonzero(np.diff(rows) != 1).tolist()
        ]
        before = [(low, first - 1)] if low < first else []
        behind = [(last + 1, high)] if high > last else []
        return [*before, *inner, *behind]

    def _bounds(self, epoch: int, rows: npt.NDArray[np.uint64], declared: list[Gap]) -> tuple[int, int]:
        """The first and last sequence of an epoch that this task has to account for."""
        start, end, what = self._range.start, self._range.end, self._range
        first = int(rows[0]) if len(rows) else None
        last = int(rows[-1]) if len(rows) else None
        if self._terms.time != (None, None):
            return first or 0, last if last is not None else -1
        if self._last is not None and self._last.epoch == epoch:
            low = self._last.seq + 1
        elif epoch == start.epoch and start.seq > 0:
            low = start.seq
        else:
            known = [gap.first_seq for gap in declared] + ([first] if first is not None else [])
            low = min(known, default=0)
        if what.part < what.parts - 1 and last is not None:
            high = last
        elif epoch == end.epoch:
            # Behind the last row nothing is known yet, unless that row itself is lost.
            high = end.seq - 1 if what.ends_with_row else (last if last is not None else -1)
        else:
            known = [gap.last_seq for gap in declared] + ([last] if last is not None else [])
            high = max(known, default=-1)
        return low, high
