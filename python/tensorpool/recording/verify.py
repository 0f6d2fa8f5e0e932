"""Check of all bytes of a recording (`verify`): every file has a checksum, or follows from the others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from .. import _native
from ..durable import replace_file
from ..errors import CorruptRecording, NotARecording
from . import layout, manifest, metadata, metadata_index, segment_index, table_index
from .arrow_format import TABLES
from .gaps import RecordingLedger
from .layout import check_root
from .manifest import DamagedManifest, RecordKind
from .manifest_store import load_index
from .recording import Recording
from .rows import RowBlock
from .segment_file import SegmentFile
from .storage import RemoteRecording, StorageUri, local_path, open_remote, read_object
from .tables import COPIED, COPY_SUFFIX, scan_table, table_path, table_sessions

Progress = Callable[[int, int], None]
"""Called with the amount done and the total."""
_ZERO_CHECKSUMS: Final = np.array(
    [_native.crc32c(bytes(size)) for size in range(layout.ALIGNMENT)], np.uint32
)
"""The checksum of every length of padding."""
_INDEXED_MINOR: Final = 2
"""The minor version that added the index of tables."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference between a recording and what was written. `kind` is a stable identifier."""

    kind: str
    path: Path | StorageUri
    offset: int | None
    message: str

    def __str__(self) -> str:
        location = str(self.path) if self.offset is None else f"{self.path}, byte {self.offset}"
        return f"{location}: {self.message}"


@dataclass(slots=True)
class VerifyResult:
    """Totals and findings. A note is a finding that loses nothing: a torn end, an index that is behind."""

    rows: int = 0
    size_bytes: int = 0
    segments: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    ledgers: list[RecordingLedger] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def add_problem(self, kind: str, path: Path | StorageUri, offset: int | None, message: str) -> None:
        """Adds a problem."""
        self.problems.append(Problem(kind, path, offset, message))

    def add_note(self, kind: str, path: Path | StorageUri, offset: int | None, message: str) -> None:
        """Adds a note: a finding that does not make the recording bad."""
        self.notes.append(Problem(kind, path, offset, message))


def verify(root: str | os.PathLike[str], *, progress: Progress | None = None) -> VerifyResult:
    """Checks every batch, payload and table against its checksum, and every index against the files.

    Of a remote recording every byte that the manifest and `_archive.json` name is read.
    """
    remote = open_remote(root)
    if remote is not None:
        try:
            remote.require_tables()
            result = _verify(remote.root, remote, progress)
        finally:
            remote.close()
        # The small files were checked as copies: name the originals.
        result.problems = [_in_store(remote, problem) for problem in result.problems]
        result.notes = [_in_store(remote, note) for note in result.notes]
        return result
    return _verify(local_path(root) or Path(root), None, progress)


def _in_store(remote: RemoteRecording, problem: Problem) -> Problem:
    path = problem.path
    if isinstance(path, Path) and path.is_relative_to(remote.root):
        relative = path.relative_to(remote.root).as_posix()
        path = remote.uri if relative == "." else remote.uri / relative
    return replace(problem, path=path)


def _verify(root: Path, remote: RemoteRecording | None, progress: Progress | None) -> VerifyResult:
    check_root(root)
    result = VerifyResult()
    if fault := layout.marker_fault(root):
        result.add_problem("marker", root / layout.MARKER_FILE, None, f"{fault}; repair writes a new one")
    listed = _check_manifest(root, result)
    if remote is None:
        segments = layout.all_segments(root)
        sizes = {name: sum(path.stat().st_size for path in _files_of(root, name)) for name in segments}
    else:
        segments = {name: True for name, record in (listed or {}).items() if record.kind == RecordKind.SEALED}
        sizes = {name: record.size_bytes for name, record in (listed or {}).items()}
    done, total = 0, sum(sizes.values())
    checker = _SegmentChecker(root, result, remote)
    for name, is_sealed in segments.items():
        record = listed.get(name) if listed is not None else None
        if listed is not None and record is None:
            result.add_note("unlisted", name.sealed(root), None, "is not in the manifest; repair adds it")
        checker.check(name, is_sealed, record if record and record.kind == RecordKind.SEALED else None)
        done += sizes[name]
        if progress is not None:
            progress(done, total)
    for name, record in (listed or {}).items():
        if name not in segments and record.kind == RecordKind.SEALED:
            result.add_problem("missing", name.sealed(root), None, "is in the manifest, but has no file")
    for path in foreign_files(root) if remote is None else ():
        result.add_note("foreign", path, None, "is not a file of the recording; readers ignore it")
    _check_tables(root, result)
    if result.ok:
        with Recording(root if remote is None else str(remote.uri)) as recording:
            result.ledgers = recording.ledgers()
        for ledger in result.ledgers:
            if not ledger.balanced:
                message = f"stream {ledger.stream_id}, epoch {ledger.epoch} does not add up: {ledger}"
                result.add_problem("ledger", root, None, message)
    return result


def _files_of(root: Path, name: layout.SegmentName) -> list[Path]:
    return [path for path in (name.partial(root), name.sealed(root)) if path.exists()]


class _ListedSegment(NamedTuple):
    """The part of a manifest record that `verify` compares with the file."""

    kind: int
    rows: int
    size_bytes: int
    head_crc32c: int


def _check_manifest(root: Path, result: VerifyResult) -> dict[layout.SegmentName, _ListedSegment] | None:
    """The segments that the manifest lists; None if it is damaged or missing."""
    path = root / layout.MANIFEST_FILE
    try:
        known = manifest.load(root)
    except DamagedManifest as error:
        if path.exists() or layout.all_segments(root):
            message = f"{error}; readers read every segment instead, and repair writes a new one"
            # A user may have copied the segments alone. A changed manifest is a problem.
            add = result.add_problem if path.exists() else result.add_note
            add("manifest", path, None, message)
        # Otherwise nothing was recorded, so there is nothing to list.
        return None
    result.notes += manifest_leftovers(root, known)
    return {
        manifest.segment_name(record): _ListedSegment(
            *(int(record[name]) for name in ("kind", "rows", "size_bytes", "head_crc32c"))
        )
        for record in load_index(root).segments
    }


def manifest_leftovers(root: Path, known: manifest.Manifest) -> list[Problem]:
    """What is beside an intact manifest and changes nothing: a torn record, another log, no count."""
    notes: list[Problem] = []
    # Read after the log: a writer counts its records after it has written them.
    count = manifest.read_count(root)
    path = root / layout.MANIFEST_COUNT
    if count is None:
        if manifest.has_count(root):
            message = "is missing or damaged: it shows whether the log is complete; repair writes a new one"
            notes.append(Problem("manifest", path, None, message))
    elif count.generation == known.generation and count.log_records < known.log_records:
        message = f"the log has {known.log_records} records, but {count.log_records} were counted"
        notes.append(Problem("manifest", path, None, message))
    for log in manifest.log_files(root):
        if log != manifest.log_path(root, known.generation):
            notes.append(Problem("manifest", log, None, "is the log of another manifest; readers ignore it"))
        elif (size := known.log_records * manifest.RECORD.itemsize) < log.stat().st_size:
            message = "a record is torn or was added; readers ignore it"
            notes.append(Problem("manifest", log, size, message))
    return notes


class _SegmentChecker:
    """Checks segments in order, and that their sequences only grow."""

    def __init__(self, root: Path, result: VerifyResult, remote: RemoteRecording | None) -> None:
        self._root = root
        self._remote = remote
        self._result = result
        self._last: tuple[tuple[int, int], int] | None = None
        """Stream and epoch of the last segment, and its last sequence."""

    def check(self, name: layout.SegmentName, is_sealed: bool, record: _ListedSegment | None) -> None:
        """Checks the file of a segment against its checksums and its record."""
        root, result = self._root, self._result
        path: Path | StorageUri = name.sealed(root) if is_sealed else name.partial(root)
        if is_sealed and name.partial(root).exists():
            message = "exists beside the sealed segment of this name; repair sets it aside"
            result.add_problem("duplicate", name.partial(root), None, message)
        try:
            if self._remote is None:
                file = SegmentFile(path)
            else:
                path = self._remote.uri / name.relative()
                file = self._remote.open_segment(name, whole=True)
        except FileNotFoundError:
            if self._remote is not None:
                result.add_problem("missing", path, None, "is in the manifest, but not in the store")
            elif not is_sealed:
                self.check(name, True, record)
            return
        except (CorruptRecording, NotARecording) as error:
            # A writer that has just created its segment has not written the schema yet.
            add = result.add_problem if is_sealed else result.add_note
            add("schema", path, 0, str(error))
            return
        scan = file.scan_more(resume=True)
        result.segments += 1
        result.size_bytes += len(file.data)
        for damage in scan.damage:
            is_tail = damage.end == len(file.data)
            add = result.add_note if is_tail and not is_sealed else result.add_problem
            kind = "torn" if is_tail else "batch"
            add(kind, path, damage.start, f"{damage.reason} ({damage.size_bytes} bytes)")
        if scan.is_ended and scan.end < len(file.data):
            message = f"{len(file.data) - scan.end} bytes follow the end of the segment"
            result.add_problem("appended", path, scan.end, message)
        if (fault := file.name_fault(name)) is not None:
            message = f"{fault}: it is not the segment that was written under this name"
            result.add_problem("misplaced", path, 0, message)
            return
        for batch in scan.batches:
            self._check_batch(name, path, file, batch)
        if record is not None and not scan.damage:
            self._check_record(path, file, record)
        if self._remote is not None:
            # Of the store: an index that is missing or wrong costs time only.
            with contextlib.suppress(FileNotFoundError, CorruptRecording):
                name.directory(root).mkdir(parents=True, exist_ok=True)
                replace_file(
                    name.index(root),
                    read_object(self._remote.uri / name.relative(layout.INDEX)),
                    sync=False,
                )
        if is_sealed and (fault := segment_index.fault(root, name, file)) is not None:
            message = f"{fault}; no frame is affected, and repair writes a new one"
            result.add_note("index", name.index(root), None, message)

    def _check_batch(
        self, name: layout.SegmentName, path: Path | StorageUri, file: SegmentFile, batch: Any
    ) -> None:
        result = self._result
        try:
            block = RowBlock(file, batch)
        except CorruptRecording as error:
            result.add_problem("batch", path, batch.start, str(error))
            return
        if (block.stream_id, block.epoch) != (name.stream_id, name.epoch):
            message = f"belongs to stream {block.stream_id}, epoch {block.epoch}"
            result.add_problem("misplaced", path, batch.start, message)
        key = name.stream_id, name.epoch
        last_key, last_seq = self._last or (None, -1)
        after = last_seq if last_key == key else -1
        if int(block.seq[0]) <= after or (block.seq[1:] <= block.seq[:-1]).any():
            message = f"sequence {int(block.seq[0])} comes after {after}: rows are in the recording twice"
            result.add_problem("overlap", path, batch.start, message)
        self._last = key, int(block.seq[-1])
        result.rows += len(block)
        for row in block.damaged_rows().tolist():
            message = f"the payload of frame {int(block.seq[row])} does not match its checksum"
            result.add_problem("payload", path, int(block.payload_offset[row]), message)
        ends = (block.payload_offset + block.payload_bytes).astype(np.uint64)
        step = np.uint64(layout.ALIGNMENT)
        sizes = (step - ends % step) % step
        wrong = _native.crc32c_each(block.bytes, ends, sizes) != _ZERO_CHECKSUMS[sizes]
        for row in np.flatnonzero(wrong).tolist():
            message = f"the padding behind frame {int(block.seq[row])} is not zero; no frame is affected"
            result.add_note("padding", path, int(ends[row]), message)

    def _check_record(self, path: Path | StorageUri, file: SegmentFile, record: _ListedSegment) -> None:
        scan, result = file.scan, self._result
        if record.rows > scan.rows:
            message = f"has {scan.rows} rows, but the manifest lists {record.rows}"
            result.add_problem("short", path, scan.end, message)
        elif record.size_bytes != len(file.data) and scan.end == len(file.data):
            message = f"has {len(file.data)} bytes, but was sealed with {record.size_bytes}"
            result.add_problem("size", path, scan.end, message)
        if record.head_crc32c and record.head_crc32c != file.head_crc32c:
            result.add_problem("schema", path, 0, "the schema was changed: its checksum does not match")


def foreign_files(root: Path) -> list[Path]:
    """Files between those of the recording that no reader looks at, such as copies under other names."""
    found: list[Path] = []
    for stream_dir in layout.stream_dirs(root).values():
        for epoch_dir in layout.epoch_dirs(stream_dir).values():
            expected = {f"{first_seq:020}{layout.INDEX}" for first_seq in layout.segments_in(epoch_dir)}
            found += [
                path
                for path in epoch_dir.iterdir()
                if not layout.is_segment_file(path.name) and path.name not in expected
            ]
    for table in TABLES:
        directory = root / layout.TABLES_DIR / table
        expected = {f"{session}{layout.SEALED}" for session in table_sessions(root, table)}
        if table in (COPIED, metadata_index.INDEXED):
            suffix = COPY_SUFFIX if table == COPIED else metadata_index.SUFFIX
            expected |= {Path(name).with_suffix(suffix).name for name in expected}
        if directory.is_dir():
            found += [path for path in directory.iterdir() if path.name not in expected]
    return sorted(found)


def _check_tables(root: Path, result: VerifyResult) -> None:
    indexes = {
        session: table_index.read_session(root, session) for session in table_index.session_names(root)
    }
    for session, index in indexes.items():
        if index is not None and index.fault is not None:
            message = f"{index.fault}; no row is affected, and repair writes a new one"
            result.add_note("index", table_index.index_path(root, session), None, message)
    for table in TABLES:
        for session in table_sessions(root, table):
            index = indexes.get(session)
            path = table_path(root, table, session)
            paths = [path, path.with_suffix(COPY_SUFFIX)] if table == COPIED else [path]
            for part in paths:
                _check_table(part, session, index and index.tables.get(table), index is not None, result)
    directory = root / layout.TABLES_DIR / metadata_index.INDEXED
    for path in sorted(directory.glob(f"*{layout.SEALED}")) if directory.is_dir() else ():
        try:
            fault = metadata.index_fault(path)
        except CorruptRecording:
            continue
        if fault is not None:
            versions = path.with_suffix(metadata_index.SUFFIX)
            result.add_note("index", versions, None, f"{fault}; no row is affected, and repair mends it")


def _check_table(
    path: Path, session: str, state: table_index.TableState | None, has_index: bool, result: VerifyResult
) -> None:
    try:
        scan = scan_table(path.read_bytes())
    except FileNotFoundError:
        is_expected = state is not None
        if is_expected or (path.suffix == COPY_SUFFIX and has_index):
            result.add_problem("table", path, None, "is in the index, but has no file")
        return
    if scan.session not in (None, session):
        result.add_problem("misplaced", path, 0, f"belongs to session {scan.session}")
        return
    if (fault := scan.fault(state)) is not None:
        result.add_problem("table", path, None, fault)
    elif state is not None and state.is_closed and scan.size_bytes != state.size_bytes:
        message = f"{scan.size_bytes - state.size_bytes} bytes follow the end of the table"
        result.add_problem("table", path, state.size_bytes, message)
    elif scan.end < scan.size_bytes:
        result.add_note("torn", path, scan.end, "the end is torn; no row that was synced is affected")
    if has_index and scan.is_ended and (state is None or not state.is_closed):
        result.add_note("index", path, None, "is not in the index as it ended; repair adds it")
    if not has_index and scan.minor >= _INDEXED_MINOR and path.suffix != COPY_SUFFIX:
        message = "has no index: whether rows are missing at its end is not known; repair writes one"
        result.add_note("index", path, None, message)
