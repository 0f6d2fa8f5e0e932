"""What is in a recording, in figures."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from .. import layout
from ..gaps import RecordingLedger
from ..leases import LeaseClaim, read_leases
from ..manifest import Kind
from ..recording import Recording


@dataclass(slots=True)
class StreamInfo:
    """One stream of a recording."""

    stream_id: int
    segments: int
    open_segments: int
    rows: int
    size_bytes: int
    first_time_ns: int | None
    last_time_ns: int | None
    ledgers: list[RecordingLedger] = field(default_factory=list)

    @property
    def missing(self) -> dict[str, int]:
        """Sequences that are not there, by reason."""
        found: dict[str, int] = {}
        for ledger in self.ledgers:
            for reason, count in ledger.gaps.items():
                found[reason] = found.get(reason, 0) + count
        return found


@dataclass(slots=True)
class RecordingInfo:
    """A recording as a whole."""

    root: Path
    version: int
    streams: list[StreamInfo]
    leases: list[LeaseClaim]

    @property
    def rows(self) -> int:
        return sum(stream.rows for stream in self.streams)

    @property
    def size_bytes(self) -> int:
        return sum(stream.size_bytes for stream in self.streams)


def info(root: str | os.PathLike[str]) -> RecordingInfo:
    """Figures of a recording, from the manifest; only segments that are open or have holes are looked at."""
    recording = Recording(root)
    streams = [_stream(recording, stream_id) for stream_id in recording.streams]
    return RecordingInfo(recording.root, layout.VERSION, streams, read_leases(recording.root))


def _stream(recording: Recording, stream_id: int) -> StreamInfo:
    records = recording.segments[recording.segments["stream_id"] == stream_id]
    ledgers = recording.ledger(stream_id)
    is_open = records["kind"] == Kind.OPEN
    sealed = records[~is_open & (records["rows"] > 0)]
    first = int(sealed["first_time_ns"].min()) if len(sealed) else None
    last = int(sealed["last_time_ns"].max()) if len(sealed) else None
    size = int(records["size_bytes"].sum())
    for record in records[is_open]:
        name = layout.SegmentName(*(int(record[key]) for key in ("stream_id", "epoch", "first_seq")))
        for path in (name.partial(recording.root), name.sealed(recording.root)):
            if path.exists():
                size += path.stat().st_size
                break
        for block, _ in recording.frames(
            stream_id, epoch=name.epoch, seq=(name.first_seq, None), skip_damage=True
        ).runs():
            low, high = int(block.receive_time_ns.min()), int(block.receive_time_ns.max())
            first = low if first is None else min(first, low)
            last = high if last is None else max(last, high)
    return StreamInfo(
        stream_id=stream_id,
        segments=len(records),
        open_segments=int(is_open.sum()),
        rows=sum(ledger.rows for ledger in ledgers),
        size_bytes=size,
        first_time_ns=first,
        last_time_ns=last,
        ledgers=ledgers,
    )
