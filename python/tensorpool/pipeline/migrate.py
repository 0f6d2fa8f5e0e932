"""The migration of a root of version 1: plain Parquet files, or Delta tables without `stream_id` in files.

The tables are written to a new root, so that the old one stays as it is until its owner removes it. What the
old pipeline remembered goes along: the new root continues where the old one ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import PipelineError
from ..recording.table_store import is_object_store, open_store
from ..text import JsonMapping
from . import layout, marker, schemas
from .alignment import PENDING, AlignmentJson
from .decisions import (
    BatchDecision,
    DecisionLog,
    FrameKey,
    Memory,
    RunsJson,
    StageFigures,
    StageTotals,
    TotalsJson,
)
from .definition import PipelineSettings, parse
from .delta import DataFile, DeltaTables
from .engine import carried_rows, tables_of
from .metadata import Versions
from .quality import EVENTS
from .schemas import Table
from .table_files import TableFileWriter

if TYPE_CHECKING:
    from ..spark.offsets import OffsetsJson

_OLD_VERSION: Final = 1
_ROWS: Final = 16_384
_INLINE_ROWS: Final = 64


class _Marker(TypedDict):
    """The content of the marker of version 1."""

    format: str
    versions: dict[str, int]
    definition: JsonMapping


class _FunctionState(TypedDict, total=False):
    ends: dict[str, FrameKey]


class _State(TypedDict, total=False):
    """What the stages of version 1 remembered, by the names they used. Each stage has some of the members."""

    places: dict[str, tuple[int | None, int | None]]
    """Of gold: stream → position. Of bronze: file → bytes that are read."""
    notes: dict[str, Versions]
    seen: dict[str, dict[str, RunsJson]]
    accounted: dict[str, dict[str, RunsJson]]
    last: dict[str, int]
    alignments: dict[str, AlignmentJson]
    traces: dict[str, dict[str, int]]
    functions: dict[str, _FunctionState]
    carried: dict[str, list[str]]


class _Commit(TypedDict):
    """The last commit of a stage of version 1."""

    batch: int
    rows: int
    bytes: int
    seconds: float
    at_ns: int
    totals: dict[str, object]
    state: _State


_Commits = dict[str, _Commit | None]
"""Stage → its last commit."""


def migrate(old: str | os.PathLike[str], new: str) -> dict[str, int]:
    """Writes the tables of a root of version 1 to a new root. Returns the rows of each table.

    The old root is only read. Stop its pipeline first. Raises PipelineError, also if the new root is not
    empty.
    """
    source = Path(old)
    found = _read_marker(source)
    store = open_store(new)
    if store.get(layout.MARKER) is not None or (not is_object_store(new) and store.names("")):
        raise PipelineError(f"{new} is not empty; give a new directory or URI")
    commits = {stage: _last_commit(source, stage) for stage in layout.STAGES}
    definition = {key: value for key, value in found["definition"].items() if key != "format"}
    settings = replace(parse({"pipeline": definition}), out=store.url)
    memory = _memory(source, settings, commits)
    tables = tables_of(settings)
    files: list[DataFile] = []
    for name, table in tables.items():
        writer = TableFileWriter(store, 0, settings.target_file_bytes)
        for rows in _rows(source / _old_name(name), table, is_open=name == layout.GOLD_QUALITY_OPEN):
            writer.add(table, rows)
        files += writer.close()
    for kind, names in _carried_files(commits).items():
        schema = EVENTS if kind == "quality" else PENDING
        parts = [pq.ParquetFile(source / path).read(use_threads=False).cast(schema) for path in names]
        carried_rows(store, memory, kind, pa.concat_tables([schema.empty_table(), *parts]), 0)
    stages = {
        stage: StageFigures(
            0,
            commit["rows"],
            commit["bytes"],
            commit["seconds"],
            commit["at_ns"],
            _totals(stage, commit["totals"]),
        )
        for stage, commit in commits.items()
        if commit is not None
    }
    # The marker is last but one: a migration that was killed leaves a root without it, which is refused.
    begun = marker.begin(settings, tables, is_new=True)
    delta = DeltaTables(store.url, retain_ns=settings.retain_ns)
    # As after a run: readers find all tables, also those without rows.
    for table in tables.values():
        delta.prepare(table)
    log = DecisionLog(store, delta, pipeline_id=begun.pipeline_id)
    decision = BatchDecision(0, log.writer, time.time_ns(), files, [], [], stages, memory)
    log.create(decision)
    log.apply(decision, tables)
    counts: dict[str, int] = {}
    for file in files:
        counts[file.table] = counts.get(file.table, 0) + file.rows
    return counts


def _read_marker(source: Path) -> _Marker:
    try:
        content: _Marker = json.loads((source / layout.MARKER).read_bytes())
    except FileNotFoundError:
        raise PipelineError(f"{source} has no pipeline") from None
    versions = set(content.get("versions", {}).values())
    if content.get("format") != marker.FORMAT or versions != {_OLD_VERSION}:
        raise PipelineError(f"{source} has no tables of version {_OLD_VERSION}; there is nothing to migrate")
    if list((source / "_commits").glob("*/intent.json")):
        raise PipelineError(
            f"{source} has a commit that is not complete: run its pipeline once with the tensorpool that "
            "wrote it, then migrate"
        )
    return content


def _last_commit(source: Path, stage: str) -> _Commit | None:
    paths = sorted((source / "_commits" / stage).glob("[0-9]*.json"))
    if not paths:
        return None
    commit: _Commit = json.loads(paths[-1].read_bytes())
    return commit


def _totals(stage: str, counts: dict[str, object]) -> StageTotals:
    if stage == layout.ALIGN:
        return StageTotals(alignments=cast("dict[str, dict[str, int]]", counts))
    known = {field.name for field in fields(StageTotals)}
    return StageTotals(**cast("TotalsJson", {name: counts[name] for name in counts if name in known}))


def _state(commits: _Commits, stage: str) -> _State:
    commit = commits[stage]
    return {} if commit is None else commit["state"]


def _memory(source: Path, settings: PipelineSettings, commits: _Commits) -> Memory:
    silver, gold = _state(commits, layout.SILVER), _state(commits, layout.GOLD)
    batches = {
        stage: commit["batch"] for stage, commit in commits.items() if commit and stage != layout.ALIGN
    }
    if len(set(batches.values())) > 1:
        raise PipelineError(
            f"{source} was killed between two stages ({batches}): run its pipeline once with the tensorpool "
            "that wrote it, then migrate"
        )
    return Memory.from_json(
        {
            "offsets": _offsets(source, settings, next(iter(batches.values()), -1)),
            "metadata_offsets": cast("dict[str, int]", _state(commits, layout.BRONZE).get("places", {})),
            "metadata": silver.get("notes", {}),
            "seen": silver.get("seen", {}),
            "accounted": silver.get("accounted", {}),
            "last_frames": silver.get("last", {}),
            "alignments": _state(commits, layout.ALIGN).get("alignments", {}),
            "positions": gold.get("places", {}),
            "traces": gold.get("traces", {}),
            "ends": {name: state.get("ends", {}) for name, state in gold.get("functions", {}).items()},
            "carried": {},
        }
    )


def _offsets(source: Path, settings: PipelineSettings, batch: int) -> dict[str, OffsetsJson]:
    """The offsets of Spark's checkpoint: a line of JSON for each recording, after a version and metadata."""
    if batch < 0:
        return {}
    path = source / "_checkpoint" / "offsets" / str(batch)
    try:
        lines = path.read_text("utf-8").splitlines()[2:]
    except FileNotFoundError:
        raise PipelineError(
            f"{path} is gone: without the checkpoint it is unknown which frames are in the tables"
        ) from None
    roots = [str(root) for root in settings.recordings]
    if len(lines) != len(roots):
        raise PipelineError(f"{path} has {len(lines)} sources, and the definition {len(roots)} recordings")
    return {root: json.loads(line) for root, line in zip(roots, lines, strict=True)}


def _carried_files(commits: _Commits) -> dict[str, list[str]]:
    carried: dict[str, list[str]] = {}
    for name, paths in _state(commits, layout.ALIGN).get("carried", {}).items():
        carried[f"align-{name}"] = paths
    for paths in _state(commits, layout.GOLD).get("carried", {}).values():
        carried.setdefault("quality", []).extend(paths)
    return {kind: paths for kind, paths in carried.items() if paths}


def _old_name(name: str) -> str:
    return layout.GOLD_QUALITY if name == layout.GOLD_QUALITY_OPEN else name


def _rows(directory: Path, table: Table, *, is_open: bool) -> Iterator[pa.Table]:
    """The rows of an old table, with the columns of the new one."""
    wants_open = "is_open" in table.schema.names
    for path in _old_files(directory):
        partition = dict(
            unquote(part).split("=", 1) for part in path.relative_to(directory).parts[:-1] if "=" in part
        )
        with pq.ParquetFile(path) as file:
            rows = _INLINE_ROWS if "payload" in file.schema_arrow.names else _ROWS
            for batch in file.iter_batches(rows, use_threads=False):
                whole = pa.Table.from_batches([batch])
                if wants_open:
                    whole = whole.filter(pa.compute.equal(whole["is_open"], is_open))
                yield _converted(whole, table, partition)


def _old_files(directory: Path) -> list[Path]:
    if (directory / "_delta_log").is_dir():
        from deltalake import DeltaTable

        uris = DeltaTable(str(directory)).file_uris()
        return sorted(Path(unquote(uri.removeprefix("file://"))) for uri in uris)
    paths = directory.rglob("*.parquet")
    return sorted(
        path for path in paths if not any(part[:1] in "_." for part in path.relative_to(directory).parts)
    )


def _converted(rows: pa.Table, table: Table, partition: dict[str, str]) -> pa.Table:
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    for field in table.whole:
        if field.name in rows.schema.names:
            columns[field.name] = rows[field.name].cast(field.type)
        elif field.name == "date":
            day = date.fromisoformat(partition["date"])
            columns["date"] = pa.repeat(pa.scalar(day, pa.date32()), len(rows))
        elif field.name == "stream_id":
            columns["stream_id"] = pa.repeat(pa.scalar(int(partition["stream_id"]), pa.int64()), len(rows))
        elif field.name == "time" and "receive_time_ns" in rows.schema.names:
            micros = pa.compute.divide(rows["receive_time_ns"], 1_000)
            columns["time"] = micros.cast(schemas.TIME)
        else:
            columns[field.name] = pa.nulls(len(rows), field.type)
    return pa.table(columns)
