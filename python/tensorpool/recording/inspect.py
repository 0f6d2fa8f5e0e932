"""Totals of a recording: its streams, segments, gaps and reader leases."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from . import layout, manifest
from .gaps import RecordingLedger
from .manifest import RecordKind
from .recording import Recording
from .retention import LeaseFile, read_leases
from .storage import StorageUri


@dataclass(slots=True)
class StreamInfo:
    """Totals of one stream of a recording."""

    stream_id: int
    segments: int
    open_segments: int
    rows: int
    size_bytes: int
    first_time_ns: int | None
    last_time_ns: int | None
    ledgers: list[RecordingLedger] = field(default_factory=list)
    name: str = ""

    @property
    def missing(self) -> dict[str, int]:
        """Number of missing sequences by reason."""
        missing: dict[str, int] = {}
        for ledger in self.ledgers:
            for reason, count in ledger.gaps.items():
                missing[reason] = missing.get(reason, 0) + count
        return missing


@dataclass(slots=True)
class RecordingInfo:
    """Totals of a recording."""

    root: Path | StorageUri
    """The directory, or the URI."""
    version: int
    streams: list[StreamInfo]
    leases: list[LeaseFile]

    @property
    def rows(self) -> int:
        """Number of frames."""
        return sum(stream.rows for stream in self.streams)

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""
        return sum(stream.size_bytes for stream in self.streams)


def info(root: str | os.PathLike[str]) -> RecordingInfo:
    """Totals of a recording from its manifest. Opens only segments that are not sealed or have holes."""
    with Recording(root) as recording:
        streams = [_stream_info(recording, stream_id) for stream_id in recording.streams]
        return RecordingInfo(recording.location, layout.VERSION, streams, read_leases(recording.root))


def _stream_info(recording: Recording, stream_id: int) -> StreamInfo:
    records = recording.segments[recording.segments["stream_id"] == stream_id]
    ledgers = recording.ledger(stream_id)
    is_open = records["kind"] == RecordKind.OPEN
    sealed = records[~is_open & (records["rows"] > 0)]
    first = int(sealed["first_time_ns"].min()) if len(sealed) else None
    last = int(sealed["last_time_ns"].max()) if len(sealed) else None
    size = int(records["size_bytes"].sum())
    for record in records[is_open]:
        name = manifest.segment_name(record)
        size += _file_size(recording.root, name)
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
        name=recording.names.get(stream_id, ""),
    )


def _file_size(root: Path, name: layout.SegmentName) -> int:
    for path in (name.partial(root), name.sealed(root)):
        try:
            return path.stat().st_size
        except FileNotFoundError:
            continue
    return 0
