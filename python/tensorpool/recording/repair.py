"""Repair of a recording: intact frames are kept, damaged ones become gaps, damaged files are quarantined.

Of tables, intact rows are kept, and the indexes are written again. Files that a repair replaces are moved to
`_damaged`, never deleted.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from .. import _native
from ..clock import SYSTEM_CLOCK
from ..durable import make_directories, replace_file, sync_directory
from ..errors import CorruptRecording, NotARecording
from ..text import parse_number
from . import layout, manifest, manifest_store, metadata, metadata_index, segment_index, table_index
from .arrow_format import END_OF_STREAM, TABLES
from .gaps import CORRUPT, UNEXPLAINED, Gap, classify_missing, find_holes
from .layout import check_root, create_root, lock_stream
from .manifest import DamagedManifest, Manifest, RecordKind
from .recording import Recording
from .rows import RowBlock
from .segment_file import SegmentFile
from .segment_writer import SegmentWriter
from .stream_writer import RecoveredSegment, recover_segment
from .table_index import TableState
from .tables import (
    COPIED,
    COPY_SUFFIX,
    TableScan,
    TableWriter,
    read_gaps,
    scan_table,
    table_head,
    table_path,
    table_sessions,
)
from .verify import Progress, foreign_files, manifest_leftovers


def quarantine(root: Path, path: Path, name: str) -> Path:
    """Moves a file to `_damaged`, under a name that no file has there. Returns its new path."""
    directory = root / layout.DAMAGED_DIR
    for parent in make_directories(directory, above=root):
        sync_directory(parent)
    aside, number = directory / name, 1
    while aside.exists():
        number += 1
        aside = directory / f"{name}.{number}"
    path.rename(aside)
    sync_directory(aside.parent)
    sync_directory(path.parent)
    return aside


@dataclass(frozen=True, slots=True)
class RepairedTable:
    """A table's file that a repair has written again."""

    path: Path
    rows: int
    """Rows that were kept."""
    lost_rows: int
    """Lost rows that the index names."""

    def __str__(self) -> str:
        lost = f", {self.lost_rows} lost" if self.lost_rows else ""
        return f"{self.path}: {self.rows} rows kept{lost}"


def repair_tables(root: Path, aside: list[Path], indexes: list[Path]) -> list[RepairedTable]:
    """Writes damaged tables again without the damage. Adds to `aside` and `indexes` what else was done:
    files that were set aside, and indexes that were written again.
    """
    repaired: list[RepairedTable] = []
    for table in TABLES:
        for session in table_sessions(root, table):
            repaired += _repair_table(root, table, session, aside)
    _write_indexes(root, aside, indexes)
    _write_version_indexes(root, indexes)
    return repaired


def _read(path: Path) -> TableScan | None:
    try:
        return scan_table(path.read_bytes())
    except FileNotFoundError:
        return None


def _repair_table(root: Path, table: str, session: str, aside: list[Path]) -> list[RepairedTable]:
    index = table_index.read_session(root, session)
    state = index.tables.get(table) if index is not None else None
    path = table_path(root, table, session)
    paths = [path, path.with_suffix(COPY_SUFFIX)] if table == COPIED else [path]
    scans = {part: _read(part) for part in paths}
    for part, scan in scans.items():
        if scan is not None and scan.session not in (None, session):
            aside.append(quarantine(root, part, f"{table}-{part.name}"))
            scans[part] = None
    intact = [scan for scan in scans.values() if scan is not None and _is_intact(scan, state)]
    found = [scan for scan in scans.values() if scan is not None]
    if not found and state is None:
        return []
    if intact and len(intact) == len(paths) and len({scan.content for scan in intact}) == 1:
        return []
    if intact and len(paths) > 1 and index is None and len(found) == 1 and not found[0].session:
        # A file of an old version, which had no copy.
        return []
    if not intact or len(paths) == 1:
        best = max(found, key=lambda scan: scan.rows, default=None)
        content = _rewritten(table, session, best)
    else:
        # The longer of two intact files: a crash may have come between their writes.
        content = max(intact, key=lambda scan: len(scan.content)).content
    for part, scan in scans.items():
        if scan is not None and scan.content != content:
            aside.append(quarantine(root, part, f"{table}-{part.name}"))
    rows = scan_table(content).rows
    for part in paths:
        part.parent.mkdir(parents=True, exist_ok=True)
        replace_file(part, content)
    known = state.rows if state is not None else rows
    _replace_state(root, session, table, content)
    return [RepairedTable(path, rows, max(known - rows, 0))]


def _is_intact(scan: TableScan, state: TableState | None) -> bool:
    if scan.fault(state) is not None:
        return False
    # A torn end of a table that was not closed is no damage: its writer may be running.
    return state is None or not state.is_closed or scan.size_bytes == state.size_bytes


def _rewritten(table: str, session: str, scan: TableScan | None) -> bytes:
    """The intact batches of a file behind a new schema, and the end mark."""
    parts = [scan.content[start:end] for _, start, end in scan.located] if scan is not None else []
    return b"".join([table_head(table, session), *parts, END_OF_STREAM])


def _replace_state(root: Path, session: str, table: str, content: bytes) -> None:
    index = table_index.read_session(root, session)
    tables = dict(index.tables) if index is not None else {}
    tables[table] = _state_of(content)
    table_index.write_index(root, session, tables)


def _state_of(content: bytes) -> TableState:
    scan = scan_table(content)
    return TableState(scan.end, scan.rows, _native.crc32c(content[: scan.end]), scan.is_ended)


def _write_indexes(root: Path, aside: list[Path], indexes: list[Path]) -> None:
    """Writes indexes again that are damaged, belong to no session, or are missing."""
    sessions = {session for table in TABLES for session in table_sessions(root, table)}
    for session in sorted(sessions | set(table_index.session_names(root))):
        index = table_index.read_session(root, session)
        tables = {}
        for table in TABLES:
            scan = _read(table_path(root, table, session))
            if scan is not None and scan.session == session:
                tables[table] = _state_of(scan.content)
        if index is not None and index.fault is None:
            ended = {table: state for table, state in tables.items() if state.is_closed}
            if not ended.items() - index.tables.items():
                continue
            tables = index.tables | ended
        if tables:
            table_index.write_index(root, session, tables)
            indexes.append(table_index.index_path(root, session))
        elif index is not None:
            path = table_index.index_path(root, session)
            aside.append(quarantine(root, path, path.name))


def _write_version_indexes(root: Path, indexes: list[Path]) -> None:
    directory = root / layout.TABLES_DIR / metadata_index.INDEXED
    for path in sorted(directory.glob(f"*{layout.SEALED}")) if directory.is_dir() else ():
        try:
            if metadata.index_fault(path) is not None:
                metadata.write_index(path)
                indexes.append(path.with_suffix(metadata_index.SUFFIX))
        except CorruptRecording:
            continue


# The reason of sequences that no row of the table of gaps explains. Not one that a writer could declare.
_NEW: Final = ""


@dataclass(slots=True)
class RepairResult:
    """The changes of a repair."""

    recovered: list[RecoveredSegment] = field(default_factory=list)
    """Segments that a crashed writer left open."""
    rewritten: list[Path] = field(default_factory=list)
    quarantined: list[Path] = field(default_factory=list)
    """The damaged originals, under their new paths."""
    put_back: list[Path] = field(default_factory=list)
    """Segments that had the name of another one, under their own names."""
    tables: list[RepairedTable] = field(default_factory=list)
    """Tables that were written again."""
    indexes: list[Path] = field(default_factory=list)
    """Indexes of tables and segments that were written again."""
    lost: list[Gap] = field(default_factory=list)
    manifest_rebuilt: bool = False
    marker_rewritten: bool = False

    @property
    def changed(self) -> bool:
        """Whether anything was repaired."""
        return bool(
            self.recovered or self.rewritten or self.quarantined or self.put_back or self.tables
            or self.indexes or self.manifest_rebuilt or self.marker_rewritten
        )  # fmt: skip


def repair(root: str | os.PathLike[str], *, progress: Progress | None = None) -> RepairResult:
    """Recovers open segments, rewrites damaged segments and tables without the damage, rebuilds the manifest.

    Takes the locks of all streams, so it raises LockHeld while a writer is running. Damaged originals are
    moved to `_damaged`.
    """
    root = Path(root)
    check_root(root)
    result = RepairResult()
    if layout.marker_fault(root) is not None:
        layout.write_marker(root, created_ns=_created_ns(root))
        result.marker_rewritten = True
    create_root(root, created_ns=SYSTEM_CLOCK.wall_ns())
    with manifest_store.locked(root):
        known, is_damaged = _load_manifest(root)
    result.manifest_rebuilt = is_damaged
    locks = []
    session = f"{SYSTEM_CLOCK.wall_ns():020}-{os.getpid()}-{secrets.token_hex(4)}"
    tables = TableWriter(root, session)
    try:
        streams = layout.stream_dirs(root)
        for stream_dir in streams.values():
            locks.append(lock_stream(stream_dir, "repair"))
        # Before the segments: their gaps are compared with those that were declared.
        result.tables = repair_tables(root, result.quarantined, result.indexes)
        segments = _SegmentRepair(root, known, tables, result)
        segments.recover_open(streams)
        segments.put_back_misplaced(streams)
        names = [name for name in layout.all_segments(root) if name.stream_id in streams]
        for number, name in enumerate(names):
            segments.repair(name)
            if progress is not None:
                progress(number + 1, len(names))
        segments.add_missing()
        for path in foreign_files(root):
            result.quarantined.append(quarantine(root, path, path.name))
        segments.write_indexes(streams)
        with manifest_store.locked(root):
            before, is_damaged = _load_manifest(root)
            is_damaged |= before is None or bool(manifest_leftovers(root, before))
            # From the files alone: a segment that was rewritten may have the size of the old one.
            after = manifest_store.rebuild_locked(root, known=before)
            if is_damaged or before is None or not np.array_equal(before.segments, after.segments):
                result.manifest_rebuilt = True
        if any(table.lost_rows for table in result.tables if table.path.parent.name == COPIED):
            _explain_holes(root, tables, result)
    finally:
        tables.close()
        for lock in locks:
            lock.release()
    return result


def _created_ns(root: Path) -> int:
    """The time at which a recording began, by the names of its sessions."""
    times = [name.partition("-")[0] for name in table_index.session_names(root)]
    return min(filter(None, map(parse_number, times)), default=SYSTEM_CLOCK.wall_ns())


def _load_manifest(root: Path) -> tuple[Manifest | None, bool]:
    """What the manifest says, and whether it is damaged."""
    try:
        return manifest.load(root), False
    except DamagedManifest as error:
        return error.known, True


def _explain_holes(root: Path, tables: TableWriter, result: RepairResult) -> None:
    """Adds gaps for holes whose rows were lost with a table: a writer leaves no hole without a row."""
    tables.flush()
    recording = Recording(root)
    for stream_id in recording.streams:
        for epoch in recording.epochs(stream_id):
            declared = read_gaps(root, stream_id, epoch)
            holes = [
                (gap.first_seq, gap.last_seq)
                for gap in recording.gaps(stream_id, epoch=epoch)
                if gap.reason == UNEXPLAINED
            ]
            for first, last, reason in classify_missing(holes, declared, _NEW):
                if reason == _NEW:
                    gap = Gap(stream_id, epoch, first, last - first + 1, CORRUPT)
                    result.lost.append(gap)
                    tables.add_gap(gap, SYSTEM_CLOCK.wall_ns())


class _SegmentRepair:
    """Repairs the segments of a recording one by one, in order."""

    def __init__(self, root: Path, known: Manifest | None, tables: TableWriter, result: RepairResult) -> None:
        self._root = root
        self._tables = tables
        self._result = result
        self._last: dict[tuple[int, int], int] = {}
        """Stream and epoch → the last sequence so far: a sequence is recorded once."""
        self._listed: dict[layout.SegmentName, int] = {}
        """The sealed segments of the manifest → their last sequence."""
        self._heads: dict[layout.SegmentName, int] = {}
        """The sealed segments of the manifest → the checksum of their schema; 0 if it is not known."""
        for record in known.segments if known is not None else ():
            if record["kind"] == RecordKind.SEALED and record["rows"]:
                name = manifest.segment_name(record)
                self._listed[name] = int(record["last_seq"])
                self._heads[name] = int(record["head_crc32c"])

    def recover_open(self, streams: dict[int, Path]) -> None:
        """Seals open segments. One that is damaged before its end is repaired like a sealed one."""
        root = self._root
        for name in layout.all_segments(root):
            path = name.partial(root)
            if name.stream_id not in streams or not path.exists():
                continue
            if name.sealed(root).exists():
                self._result.quarantined.append(quarantine(root, path, _aside_name(name, path)))
            elif _has_inner_damage(path):
                path.rename(name.sealed(root))
            else:
                self._result.recovered.append(recover_segment(root, name))

    def put_back_misplaced(self, streams: dict[int, Path]) -> None:
        """Gives segments their own names again; a second copy of a segment is set aside."""
        root, result = self._root, self._result
        moved: list[tuple[Path, layout.SegmentName]] = []
        for name in layout.all_segments(root):
            path = name.sealed(root)
            if name.stream_id in streams and (own := _own_name(path, name)) is not None:
                moved.append((_set_aside(root, name), own))
        for aside, own in moved:
            is_listed = own in self._listed
            if is_listed and not own.sealed(root).exists() and own.stream_id in streams:
                own.directory(root).mkdir(parents=True, exist_ok=True)
                aside.rename(own.sealed(root))
                result.put_back.append(own.sealed(root))
            else:
                result.quarantined.append(aside)

    def repair(self, name: layout.SegmentName) -> None:
        """Rewrites a segment without its damaged rows, if it has any."""
        root, result = self._root, self._result
        path = name.sealed(root)
        last_seq = self._listed.pop(name, None)
        after = self._last.get((name.stream_id, name.epoch))
        kept: list[tuple[RowBlock, npt.NDArray[np.intp]]] = []
        try:
            file = SegmentFile(path, lenient=True)
        except FileNotFoundError:
            return
        except (CorruptRecording, NotARecording):
            is_damaged = True
        else:
            scan = file.scan_more(resume=True)
            # Without a schema the scan searches for the first batch; the bytes before it are damage.
            is_damaged = bool(scan.damage) or file.tail() is not None
            is_damaged |= self._heads.get(name, 0) not in (0, file.head_crc32c)
            for location in scan.batches:
                try:
                    block = RowBlock(file, location)
                except CorruptRecording:
                    is_damaged = True
                    continue
                bad = block.damaged_rows()
                if after is not None:
                    bad = np.union1d(bad, np.flatnonzero(block.seq <= np.uint64(after)))
                is_damaged |= len(bad) > 0
                kept.append((block, np.setdiff1d(np.arange(len(block)), bad)))
                after = max(after if after is not None else 0, int(block.seq[-1]))
            if last_seq is not None and scan.batches and scan.batches[-1].last_seq < last_seq:
                is_damaged = True
        seqs = np.concatenate([block.seq[rows] for block, rows in kept] or [np.empty(0, np.uint64)])
        if len(seqs):
            self._last[name.stream_id, name.epoch] = int(seqs[-1])
        if not is_damaged:
            return
        self._add_lost(name, seqs, last_seq)
        writer = None
        if len(seqs):
            own = layout.SegmentName(name.stream_id, name.epoch, int(seqs[0]))
            own.partial(root).unlink(missing_ok=True)
            writer = SegmentWriter(root, own)
            for block, rows in kept:
                for start, stop in consecutive_runs(rows):
                    writer.write(block.to_frames(start, stop))
        result.quarantined.append(_set_aside(root, name))
        if writer is not None:
            result.rewritten.append(writer.seal())

    def write_indexes(self, streams: dict[int, Path]) -> None:
        """Writes the indexes of segments again that are damaged, missing, or of another file."""
        root = self._root
        for name, is_sealed in layout.all_segments(root).items():
            if name.stream_id not in streams or not is_sealed:
                continue
            try:
                is_wrong = segment_index.fault(root, name, SegmentFile(name.sealed(root))) is not None
            except (CorruptRecording, NotARecording, FileNotFoundError):
                continue
            if is_wrong:
                segment_index.write(root, name, name.sealed(root))
                self._result.indexes.append(name.index(root))

    def add_missing(self) -> None:
        """Adds gaps for segments that the manifest lists and that have no file."""
        for name, last_seq in sorted(self._listed.items()):
            self._add_lost(name, np.empty(0, np.uint64), last_seq)
        self._listed.clear()

    def _add_lost(self, name: layout.SegmentName, seqs: npt.NDArray[np.uint64], last_seq: int | None) -> None:
        """Adds the gaps that damage leaves in a segment. Before its file is replaced: a kill may follow."""
        missing = find_holes(seqs, after=name.first_seq - 1) if len(seqs) else []
        end = int(seqs[-1]) if len(seqs) else name.first_seq - 1
        if last_seq is not None and end < last_seq:
            missing.append((end + 1, last_seq))
        declared = read_gaps(self._root, name.stream_id, name.epoch)
        for first, last, reason in classify_missing(missing, declared, _NEW):
            if reason == _NEW:
                gap = Gap(name.stream_id, name.epoch, first, last - first + 1, CORRUPT)
                self._result.lost.append(gap)
                self._tables.add_gap(gap, SYSTEM_CLOCK.wall_ns())
        self._tables.flush()


def _set_aside(root: Path, name: layout.SegmentName) -> Path:
    """Moves a sealed segment to the damaged files. Its index follows from it, and is removed."""
    path = name.sealed(root)
    name.index(root).unlink(missing_ok=True)
    return quarantine(root, path, _aside_name(name, path))


def _aside_name(name: layout.SegmentName, path: Path) -> str:
    return f"{name.stream_id}-{name.epoch}-{path.name}"


def _has_inner_damage(path: Path) -> bool:
    """Whether an open segment has intact batches behind a damaged one, which a recovery would cut off."""
    try:
        file = SegmentFile(path, lenient=True)
    except NotARecording:
        return False
    except FileNotFoundError:
        return False
    scan = file.scan_more(resume=True)
    is_damaged = False
    for location in scan.batches:
        if is_damaged or any(damage.end <= location.start for damage in scan.damage):
            return True
        try:
            is_damaged = len(RowBlock(file, location).damaged_rows()) > 0
        except CorruptRecording:
            is_damaged = True
    return False


def _own_name(path: Path, name: layout.SegmentName) -> layout.SegmentName | None:
    """The name that a file should have, if that is another one; None if it fits or is not known."""
    try:
        file = SegmentFile(path)
        file.scan_more(resume=True)
        if file.name_fault(name) is None or not file.scan.batches:
            return None
        block = RowBlock(file, file.scan.batches[0])
    except (CorruptRecording, NotARecording, FileNotFoundError):
        return None
    own = layout.SegmentName(block.stream_id, block.epoch, int(block.seq[0]))
    return None if own == name else own


def consecutive_runs(rows: npt.NDArray[np.intp] | range) -> list[tuple[int, int]]:
    """Runs of consecutive row numbers as (start, stop): their payloads are contiguous."""
    if len(rows) == 0:
        return []
    if isinstance(rows, range):
        return [(rows.start, rows.stop)]
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(rows, cuts)]
