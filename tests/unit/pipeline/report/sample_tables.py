"""Sample tables of a pipeline, as the engine writes them for a small recording."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorpool import recording
from tensorpool.pipeline import layout, schemas
from tensorpool.pipeline.delta import DeltaTables
from tensorpool.pipeline.table_files import TableFileWriter
from tensorpool.recording.table_store import open_store

START_NS = 1_772_366_400_000_000_000
DATE = "2026-03-01"
SECOND = 1_000_000_000


def put(root: Path, table: schemas.Table, rows: list[dict[str, Any]], **partition: Any) -> None:
    """Adds one file to a table."""
    day = datetime.date.fromisoformat(partition.get("date", DATE))
    streams = {"stream_id": partition["stream_id"]} if "stream_id" in partition else {}
    whole = pa.Table.from_pylist([{**row, **streams, "date": day} for row in rows], schema=table.whole)
    files = TableFileWriter(open_store(root), 0, 1 << 40)
    files.add(table, whole)
    delta = DeltaTables(str(root))
    number = (delta.prepare(table).transaction_version("samples") or 0) + 1
    delta.commit(table, files.close(), app="samples", number=number, replace=False)
    path = root / "pipeline.json"
    marker = json.loads(path.read_text("utf-8")) if path.exists() else {}
    marker["tables"] = sorted({*marker.get("tables", []), table.name})
    path.write_text(json.dumps(marker), "utf-8")


@dataclass
class SampleTables:
    """The written counts, to compare with a report."""

    root: Path
    frames: dict[int, int] = field(default_factory=dict)
    recorded: dict[int, int] = field(default_factory=dict)


def image(stream: int, number: int) -> npt.NDArray[Any]:
    y, x = np.mgrid[0:48, 0:64]
    wave = np.sin((x + 3 * number) / 7) + np.cos((y - stream % 7 * number) / 9)
    return np.round((wave + 2) / 4 * 255).astype(np.uint8)


def pipeline(
    root: Path, *, streams: tuple[int, ...] = (10_000, 10_001), seconds: int = 12, hz: int = 20,
    interval_s: int = 1, payload: schemas.Payload = "ref",
) -> SampleTables:  # fmt: skip
    """Writes tables of streams with drops and rejects, an alignment and statistics, and their recording."""
    made = SampleTables(root)
    where = root.parent / "recording"
    root.mkdir(parents=True)
    definition = {
        "recordings": [str(where)],
        "out": str(root),
        "alignments": [{"name": "pairs", "streams": list(streams), "by": "timestamp"}],
    }
    marker = {
        "format": "tensorpool-pipeline", "id": "0f6e2c", "versions": schemas.VERSIONS,
        "definition": definition,
    }  # fmt: skip
    (root / "pipeline.json").write_text(json.dumps(marker), "utf-8")
    for stream in streams:
        _stream(made, where, stream, seconds, hz, interval_s, payload)
    frames = made.frames[streams[0]]
    members = [{"key": START_NS + n * SECOND // hz, "spread": 200_000 + n * 100} for n in range(frames - 5)]
    rows = [one | {"time": one["key"] // 1_000, "frames": []} for one in members]
    put(root, schemas.aligned("pairs"), rows, date=DATE)
    alone = [
        {"stream_id": streams[0], "seq": n, "time": START_NS // 1_000, "reason": "missing", "streams": []}
        for n in range(5)
    ]
    put(root, schemas.unaligned("pairs"), alone, date=DATE)
    put(
        root,
        schemas.bronze_metadata(),
        [
            {"stream_id": one, "kind": "DataSourceAnnounce", "json": json.dumps({"name": f"camera-{one}"})}
            for one in streams
        ],
    )
    return made


def _stream(
    made: SampleTables,
    where: Path,
    stream: int,
    seconds: int,
    hz: int,
    interval_s: int,
    payload: schemas.Payload,
) -> None:
    root, rng = made.root, np.random.default_rng(stream)
    count = seconds * hz
    lost = {count // 3, count // 3 + 1, count // 3 + 2}
    spoilt = {count // 2}
    stored: list[dict[str, Any]] = []
    with recording.RecordingWriter(where) as writer:
        for seq in range(count):
            if seq in lost:
                continue
            at = START_NS + seq * SECOND // hz
            writer.append(
                image(stream, seq), stream_id=stream, epoch=1, seq=seq, timestamp_ns=at, receive_time_ns=at
            )
    found = recording.open(where)
    for frame in found.frames(stream):
        row = {
            "epoch": 1, "seq": frame.seq, "timestamp_ns": frame.timestamp_ns,
            "receive_time_ns": frame.receive_time_ns, "dtype": "uint8", "shape": [48, 64],
            "strides": [64, 1], "major_order": "row", "payload_bytes": frame.ref.length,
            "crc32c": frame.ref.crc32c, "recording": str(where), "latency_ns": 100_000,
        }  # fmt: skip
        if payload == "inline":
            row["payload"] = frame.array.tobytes()
        else:
            row |= {"segment": str(frame.ref.path), "payload_offset": frame.ref.offset}
        stored.append(row)
    found.close()
    part = {"stream_id": stream, "date": DATE}
    good = [row for row in stored if row["seq"] not in spoilt]
    put(
        root,
        schemas.bronze_frames(payload),
        [_only(schemas.bronze_frames(payload), row) for row in stored],
        **part,
    )
    put(root, schemas.silver_frames(payload), good, **part)
    bad = [row | {"reason": "checksum"} for row in stored if row["seq"] in spoilt]
    put(
        root,
        schemas.silver_rejects(payload),
        [_only(schemas.silver_rejects(payload), row) for row in bad],
        **part,
    )
    put(
        root,
        schemas.silver_gaps(),
        [{"epoch": 1, "first_seq": min(lost), "count": len(lost), "reason": "overwritten"}],
        **part,
    )
    made.frames[stream], made.recorded[stream] = len(good), len(stored)
    rows = []
    for start in range(0, seconds, interval_s):
        seqs = range(start * hz, (start + interval_s) * hz)
        frames = sum(1 for row in good if row["seq"] in seqs)
        noise = rng.lognormal(0, 0.3)
        dropped = len(lost & set(seqs))
        rows.append(
            {
                "stream_id": stream,
                "interval_start_ns": START_NS + start * SECOND,
                "interval_ns": interval_s * SECOND,
                "is_open": False,
                "frames": frames,
                "bytes": frames * 48 * 64,
                "rate_hz": frames / interval_s,
                "dropped": dropped,
                "rejected": len(spoilt & set(seqs)),
                "epochs": 1,
                "traced": 0,
                **{
                    f"latency_ns_{p}": int(k * 90_000 * noise)
                    for p, k in (("p50", 1), ("p90", 2), ("p99", 4), ("max", 7))
                },
                **{
                    f"jitter_ns_{p}": int(k * 40_000 * noise)
                    for p, k in (("p50", 1), ("p90", 2), ("p99", 5), ("max", 9))
                },
            }
        )
    put(root, schemas.quality(), rows, date=DATE)
    values = [
        {"epoch": 1, "seq": row["seq"], "receive_time_ns": row["receive_time_ns"], "min": 0.0, "max": 255.0,
         "mean": 120 + 20 * float(np.sin(row["seq"] / 90))}
        for row in good
    ]  # fmt: skip
    put(root, schemas.statistics(), values, **part)


def _only(table: schemas.Table, row: dict[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in table.schema.names}


__all__ = ["DATE", "START_NS", "SampleTables", "layout", "pipeline", "put"]
