"""The aligned tables: carries what waits from one micro-batch to the next, one task for each alignment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from . import layout, schemas
from .align import ALIGNED, AlignmentTerms, EpochOrder, Progress, decide
from .definition import AlignmentSettings, PipelineSettings
from .schemas import MEMBER, Table
from .table_files import StagedFile, TableFileWriter, dates, moments, read_file
from .tasks import Tasks

_MEMBERS: Final = [field.name for field in MEMBER]
_FROM_SILVER: Final = [name for name in _MEMBERS if name not in ("stream_id", "key")]
CARRY: Final = Table("silver/carry", pa.schema(list(MEMBER)))


def step(
    settings: PipelineSettings,
    root: Path,
    files: Sequence[dict[str, Any]],
    state: dict[str, Any],
    tasks: Tasks,
    staging: str,
    *,
    closing: bool,
) -> tuple[list[StagedFile], list[StagedFile], dict[str, Any], dict[str, Any]]:
    """One step of every alignment: files of tables, files to carry, what is remembered, what was counted."""
    items = [
        _item(one, root, files, state, settings, staging, closing=closing) for one in settings.alignments
    ]
    written: list[StagedFile] = []
    carried: list[StagedFile] = []
    remembered: dict[str, Any] = {}
    counts: dict[str, dict[str, int]] = {}
    for one, result in zip(settings.alignments, tasks.run(align_files, items), strict=True):
        written += [StagedFile.from_json(file) for file in result["files"]]
        carried += [_named(StagedFile.from_json(file), one.name) for file in result["carried"]]
        remembered[one.name] = result["state"]
        counts[one.name] = result["counts"]
    return written, carried, remembered, counts


def _named(file: StagedFile, name: str) -> StagedFile:
    file.table = name
    return file


def _item(
    one: AlignmentSettings,
    root: Path,
    files: Sequence[dict[str, Any]],
    state: dict[str, Any],
    settings: PipelineSettings,
    staging: str,
    *,
    closing: bool,
) -> dict[str, Any]:
    own = [
        [int(file["partition"]["stream_id"]), str(root / file["path"])]
        for file in files
        if file["table"] == layout.SILVER_FRAMES and int(file["partition"]["stream_id"]) in one.streams
    ]
    return {
        "name": one.name,
        "streams": one.streams,
        "by": one.by,
        "tolerance": one.tolerance,
        "wait_ns": one.wait_ns,
        "max_pending": one.max_pending,
        "files": own,
        "closing": closing,
        "carry": [str(root / name) for name in state.get("carried", {}).get(one.name, [])],
        "state": state.get("alignments", {}).get(one.name, {}),
        "staging": staging,
        "target_bytes": settings.target_file_bytes,
    }


def align_files(item: dict[str, Any]) -> dict[str, Any]:
    """The work of one task: an alignment's new frames, and those that wait."""
    terms = AlignmentTerms(tuple(item["streams"]), item["tolerance"], item["wait_ns"], item["max_pending"])
    order = EpochOrder.from_json(item["state"].get("epochs", {}))
    rows, is_new = _rows(item, order)
    stream, key = (rows[name].to_numpy() for name in ("stream_id", "key"))
    decision, progress = decide(
        terms,
        stream,
        key,
        rows["receive_time_ns"].to_numpy(),
        is_new,
        Progress.from_json(item["state"].get("progress", {})),
        closing=item["closing"],
    )
    files = TableFileWriter(item["staging"], item["target_bytes"])
    if decision.aligned:
        files.add(schemas.aligned(item["name"]), _aligned(rows, key, np.array(decision.aligned, np.int64)))
    if decision.unaligned:
        files.add(schemas.unaligned(item["name"]), _unaligned(rows, decision.unaligned))
    carry = TableFileWriter(item["staging"], item["target_bytes"])
    if len(decision.kept):
        carry.add(CARRY, rows.take(pa.array(decision.kept)))
    counts = Counter(reason for _, reason, _ in decision.unaligned)
    counts[ALIGNED] += len(decision.aligned)
    return {
        "files": [one.to_json() for one in files.close()],
        "carried": [one.to_json() for one in carry.close()],
        "state": {"progress": progress.to_json(), "epochs": order.to_json(), "pending": len(decision.kept)},
        "counts": dict(counts),
    }


def _rows(item: dict[str, Any], order: EpochOrder) -> tuple[pa.Table, Any]:
    """All rows, by stream in the order of recording, and which of them are new."""
    parts = [read_file(path) for path in item["carry"]]
    old = sum(len(part) for part in parts)
    for stream_id, path in item["files"]:
        # Where payloads are inline there is no place to refer to.
        known = set(pq.read_schema(path).names)
        part = read_file(path, [name for name in _FROM_SILVER if name in known])
        for name in _FROM_SILVER:
            if name not in part.schema.names:
                part = part.append_column(name, pa.nulls(len(part), MEMBER.field(name).type))
        stream = np.full(len(part), stream_id, np.int64)
        part = part.append_column("stream_id", pa.array(stream)).append_column("key", pa.array(stream))
        parts.append(part.select(_MEMBERS).cast(CARRY.schema))
    if not parts:
        return CARRY.schema.empty_table(), np.zeros(0, np.bool_)
    whole = pa.concat_tables([part.select(_MEMBERS).cast(CARRY.schema) for part in parts])
    is_new = np.arange(len(whole)) >= old
    sorting = pc.sort_indices(
        whole, [("stream_id", "ascending"), ("epoch", "ascending"), ("seq", "ascending")]
    )
    whole, is_new = whole.take(sorting).combine_chunks(), is_new[sorting.to_numpy()]
    fresh = {"timestamp": "timestamp_ns", "receive_time": "receive_time_ns"}.get(item["by"])
    if fresh is not None:
        key = whole[fresh].to_numpy()
    else:
        key = order.keys(*(whole[name].to_numpy() for name in ("stream_id", "epoch", "seq")))
    return whole.set_column(
        whole.schema.get_field_index("key"), CARRY.schema.field("key"), pa.array(key)
    ), is_new


def _aligned(rows: pa.Table, key: Any, sets: Any) -> pa.Table:
    count, width = sets.shape
    members = rows.select(_MEMBERS).to_struct_array()
    members = members.combine_chunks() if isinstance(members, pa.ChunkedArray) else members
    flat = members.take(pa.array(sets.reshape(-1))).cast(MEMBER)
    offsets = pa.array(np.arange(0, (count + 1) * width, width, dtype=np.int32))
    frames = pa.ListArray.from_arrays(
        offsets, flat, type=pa.list_(pa.field("element", MEMBER, nullable=False))
    )
    received = rows["receive_time_ns"].to_numpy()[sets[:, 0]]
    spread = np.abs(key[sets] - key[sets[:, :1]]).max(axis=1)
    return pa.table(
        {
            "key": key[sets[:, 0]],
            "time": moments(received),
            "spread": spread,
            "frames": frames,
            "date": dates(received),
        }
    )


def _unaligned(rows: pa.Table, found: list[tuple[int, str, list[int]]]) -> pa.Table:
    chosen = rows.take(pa.array([row for row, _, _ in found]))
    received = chosen["receive_time_ns"].to_numpy()
    made = chosen.select(["stream_id", "epoch", "seq", "key"])
    made = made.append_column("time", moments(received))
    made = made.append_column("reason", pa.array([reason for _, reason, _ in found], pa.string()))
    made = made.append_column("streams", pa.array([streams for _, _, streams in found], pa.list_(pa.int64())))
    return made.append_column("date", dates(received))
