"""The ledgers of the recordings behind a pipeline, compared with its tables.

The tables can only agree with each other. Whether they have every frame, the recordings know.
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
class StreamLedger:
    """What all recordings together say of one stream."""

    rows: int = 0
    missing: int = 0
    """Sequences that one recording misses and none has."""
    is_trimmed: bool = False
    """Whether retention removed frames, which the tables may have."""


@dataclass(slots=True)
class _Epoch:
    gaps: list[Sequences] = field(default_factory=list)
    present: list[Sequences] = field(default_factory=list)


def compare(report: Report) -> tuple[list[str], list[str]]:
    """What the tables lack, and which recordings could not be compared."""
    ledgers, unread = read_ledgers(
        [Path(str(one)) for one in report.definition.get("recordings", ())],
        {int(stream) for stream in report.definition.get("streams", ())},
    )
    return (_faults(report, ledgers) if not unread else []), unread


def read_ledgers(roots: Iterable[Path], streams: set[int]) -> tuple[dict[int, StreamLedger], list[str]]:
    """The joined ledgers of recordings by stream, and why recordings could not be read."""
    from ...recording import Recording

    found: dict[int, StreamLedger] = {}
    epochs: dict[tuple[int, int], _Epoch] = {}
    unread: list[str] = []
    for root in roots:
        try:
            with Recording(root) as recording:
                for ledger in recording.ledgers():
                    stream_id = ledger.stream_id
                    if streams and stream_id not in streams:
                        continue
                    joined = found.setdefault(stream_id, StreamLedger())
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
        found[stream_id].missing += sum(last - first + 1 for first, last in missing)
    return found, unread


def _faults(report: Report, ledgers: dict[int, StreamLedger]) -> list[str]:
    found = []
    tables = {stream.stream_id: stream for stream in report.streams}
    for stream_id, ledger in sorted(ledgers.items()):
        stream = tables.get(stream_id)
        recorded = stream.recorded if stream is not None else 0
        dropped = sum(stream.dropped.values()) if stream is not None else 0
        rejected = sum(stream.rejected.values()) if stream is not None else 0
        if recorded < ledger.rows or (recorded > ledger.rows and not ledger.is_trimmed):
            found.append(
                f"stream {stream_id}: the recordings have {ledger.rows:,} frames, bronze has {recorded:,}"
            )
        # A frame that was rejected may be missing in another recording: then it counts in both ways.
        is_equal = ledger.missing <= dropped <= ledger.missing + rejected
        if not is_equal and not ledger.is_trimmed:
            found.append(
                f"stream {stream_id}: the ledgers of the recordings miss {ledger.missing:,} sequences, "
                f"the tables name {dropped:,}"
            )
    return found


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
    """What ranges in order have that the others, in order and without overlaps, do not have."""
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
