"""The ledgers of the recordings behind a pipeline, compared with its tables.

Only the recordings show whether the tables contain every frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...errors import RecordingError
from .figures import Report


class Sequences(NamedTuple):
    """Sequences from `first` to `last`, both included."""

    first: int
    last: int


@dataclass(slots=True)
class SourceLedger:
    """The joined ledgers of one stream in all recordings."""

    rows: int = 0
    missing: int = 0
    """Sequences that are a gap in one recording, and in no other."""
    is_trimmed: bool = False
    """Whether retention removed frames that the tables may contain."""


@dataclass(slots=True)
class _Epoch:
    gaps: list[Sequences] = field(default_factory=list)
    present: list[Sequences] = field(default_factory=list)


def compare(
    report: Report, sources: Iterable[tuple[Iterable[str | Path], set[int]]]
) -> tuple[list[str], list[str]]:
    """Differences between recordings and tables, and the recordings that could not be read.

    `sources`: the recordings of each pipeline, and the streams that it reads; empty for all.
    """
    sums: dict[int, SourceLedger] = {}
    unread: list[str] = []
    for roots, streams in sources:
        ledgers, faults = read_ledgers(roots, streams)
        unread += faults
        for stream_id, ledger in ledgers.items():
            joined = sums.setdefault(stream_id, SourceLedger())
            joined.rows += ledger.rows
            joined.missing += ledger.missing
            joined.is_trimmed |= ledger.is_trimmed
    return (_faults(report, sums) if not unread else []), unread


def read_ledgers(roots: Iterable[str | Path], streams: set[int]) -> tuple[dict[int, SourceLedger], list[str]]:
    """The joined ledgers by stream, and the errors of recordings that could not be read."""
    from ...recording import Recording

    by_stream: dict[int, SourceLedger] = {}
    epochs: dict[tuple[int, int], _Epoch] = {}
    unread: list[str] = []
    for root in roots:
        try:
            with Recording(root) as recording:
                for ledger in recording.ledgers():
                    stream_id = ledger.stream_id
                    if streams and stream_id not in streams:
                        continue
                    joined = by_stream.setdefault(stream_id, SourceLedger())
                    joined.rows += ledger.rows
                    joined.is_trimmed |= recording.removed_until(stream_id, ledger.epoch) >= 0
                    gaps = [
                        Sequences(gap.first_seq, gap.last_seq)
                        for gap in recording.gaps(stream_id, epoch=ledger.epoch)
                    ] if ledger.gaps else []  # fmt: skip
                    epoch = epochs.setdefault((stream_id, ledger.epoch), _Epoch())
                    epoch.gaps += gaps
                    epoch.present += subtract([Sequences(ledger.first_seq, ledger.last_seq)], gaps)
        except (OSError, RecordingError) as error:
            unread.append(f"{root}: {error}")
    for (stream_id, _), epoch in epochs.items():
        missing = subtract(union(epoch.gaps), union(epoch.present))
        by_stream[stream_id].missing += sum(last - first + 1 for first, last in missing)
    return by_stream, unread


def _faults(report: Report, ledgers: dict[int, SourceLedger]) -> list[str]:
    differences = []
    tables = {stream.stream_id: stream for stream in report.streams}
    for stream_id, ledger in sorted(ledgers.items()):
        stream = tables.get(stream_id)
        recorded = stream.recorded if stream is not None else 0
        dropped = sum(stream.dropped.values()) if stream is not None else 0
        rejected = sum(stream.rejected.values()) if stream is not None else 0
        if recorded < ledger.rows or (recorded > ledger.rows and not ledger.is_trimmed):
            differences.append(
                f"stream {stream_id}: the recordings have {ledger.rows:,} frames, bronze has {recorded:,}"
            )
        # A rejected frame may be a gap in another recording: then it counts as dropped and as rejected.
        is_equal = ledger.missing <= dropped <= ledger.missing + rejected
        if not is_equal and not ledger.is_trimmed:
            differences.append(
                f"stream {stream_id}: the ledgers of the recordings miss {ledger.missing:,} sequences, "
                f"the tables name {dropped:,}"
            )
    return differences


def union(ranges: Iterable[Sequences]) -> list[Sequences]:
    """The ranges in order, without overlaps."""
    joined: list[Sequences] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1].last + 1:
            joined[-1] = Sequences(joined[-1].first, max(joined[-1].last, last))
        elif first <= last:
            joined.append(Sequences(first, last))
    return joined


def subtract(ranges: Iterable[Sequences], others: Iterable[Sequences]) -> list[Sequences]:
    """The parts of sorted ranges that are not in the other ranges."""
    left: list[Sequences] = []
    cuts = union(others)
    at = 0
    for first, last in ranges:
        while at < len(cuts) and cuts[at].last < first:
            at += 1
        begin = first
        for cut in cuts[at:]:
            if cut.first > last:
                break
            if cut.first > begin:
                left.append(Sequences(begin, cut.first - 1))
            begin = max(begin, cut.last + 1)
        if begin <= last:
            left.append(Sequences(begin, last))
    return left
