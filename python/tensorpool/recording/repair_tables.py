"""Repair of a recording's tables: intact rows are kept, and the indexes are written again.

Files that a repair replaces are moved to `_damaged`, never deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import _native
from ..durable import make_directories, replace_file, sync_directory
from ..errors import CorruptRecording
from . import layout, metadata, metadata_index, table_index
from .arrow_format import END_OF_STREAM, TABLES
from .table_index import TableState
from .tables import COPIED, COPY_SUFFIX, TableScan, scan_table, table_head, table_path, table_sessions


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
    """Rows that are lost, as far as the index tells."""

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
