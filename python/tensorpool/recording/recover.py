"""What a writer that died left behind: complete batches are kept, the torn tail is cut and reported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..durable import sync_directory, write_all, write_errors
from ..errors import CorruptRecording, NotARecording
from . import layout, manifest, manifest_writer
from .index import file_stats
from .manifest import Kind
from .message import END_OF_STREAM
from .rows import RowBlock
from .scan import SegmentFile


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of a segment that was not sealed."""

    name: layout.SegmentName
    rows: int
    cut_bytes: int
    reason: str | None
    """Why bytes were cut; None if the file ended with a complete batch."""
    path: Path | None
    """The sealed file; None if there was no complete batch, and the file is gone."""

    def __str__(self) -> str:
        where = f"stream {self.name.stream_id}, epoch {self.name.epoch}, segment {self.name.first_seq}"
        cut = f", {self.cut_bytes} torn bytes cut ({self.reason})" if self.cut_bytes else ""
        return f"{where}: {self.rows} rows kept{cut}"


def recover_stream(root: Path, stream_id: int) -> list[Recovered]:
    """Seals every open segment of a stream. The caller holds the stream's lock, so no writer is alive."""
    found = []
    for epoch, epoch_dir in layout.epoch_dirs(root / f"stream={stream_id}").items():
        for path in sorted(epoch_dir.glob(f"*{layout.PARTIAL}")):
            number = path.name.removesuffix(layout.PARTIAL)
            if number.isdigit():
                found.append(recover_segment(root, layout.SegmentName(stream_id, epoch, int(number))))
    return found


def recover_segment(root: Path, name: layout.SegmentName) -> Recovered:
    """Cuts the torn tail of an open segment and seals it."""
    path = name.partial(root)
    size = path.stat().st_size
    try:
        file = SegmentFile(path)
    except CorruptRecording as error:
        return _drop(root, name, size, str(error))
    except NotARecording:
        raise
    end, rows, reason = _sound_until(file)
    if rows == 0:
        return _drop(root, name, size, reason)
    is_ended = file.scan.is_ended and reason is None
    del file
    with write_errors(path):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, end)
            if not is_ended:
                write_all(fd, [memoryview(END_OF_STREAM)])
            os.fsync(fd)
        finally:
            os.close(fd)
        sealed = name.sealed(root)
        path.rename(sealed)
        sync_directory(sealed.parent)
    stats = file_stats(SegmentFile(sealed))
    manifest_writer.append(root, manifest.record(Kind.SEALED, name, stats))
    return Recovered(name, rows, max(size - end, 0), reason, sealed)


def _sound_until(file: SegmentFile) -> tuple[int, int, str | None]:
    """Where the complete batches end, how many rows they have, and what is wrong behind them."""
    scan = file.scan_more()
    tail = file.tail()
    reason = tail.reason if tail is not None else None
    rows = 0
    for place in scan.batches:
        # The size of a file may reach the disk before its content: after a power cut a batch may be there in
        # full, with zeros for payload.
        try:
            damaged = RowBlock(file, place).damaged_rows()
        except CorruptRecording as error:
            return place.start, rows, str(error)
        if len(damaged):
            return place.start, rows, "a payload is not what was written"
        rows += place.rows
    return scan.end, rows, reason


def _drop(root: Path, name: layout.SegmentName, size: int, reason: str | None) -> Recovered:
    path = name.partial(root)
    path.unlink()
    sync_directory(path.parent)
    manifest_writer.append(root, manifest.record(Kind.REMOVED, name))
    return Recovered(name, 0, size, reason, None)
