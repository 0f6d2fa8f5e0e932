"""`gold/quality`, the part that runs in executors: events of some streams into rows of intervals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from . import schemas
from .quality import EVENTS, FRAME, GAP, REJECT, StreamPosition, intervals
from .schemas import Table
from .table_files import TableFileWriter, dates, moments, read_file

# Names in no stage of the tables: these files are the stage's own.
TRACES: Final = Table("gold/traces", EVENTS)
CARRY: Final = Table("gold/carry", EVENTS)


def measure_files(item: dict[str, Any]) -> dict[str, Any]:
    """The work of one task: new events and carried ones of a group of streams."""
    events = pa.concat_tables([EVENTS.empty_table(), *_events(item)]).combine_chunks()
    target, staging = item["target_bytes"], item["staging"]
    closed, still_open = TableFileWriter(staging, target), TableFileWriter(staging, target)
    carry = TableFileWriter(staging, target)
    streams, places = events["stream_id"].to_numpy(), {}
    rows: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for stream in np.unique(streams).tolist():
        place = StreamPosition(*item["places"].get(str(stream), [None, None]))
        done, growing, kept, place = intervals(
            events.filter(pa.array(streams == stream)), place, item["interval_ns"], item["lateness_ns"]
        )
        rows[0].extend(done)
        rows[1].extend(growing)
        carry.add(CARRY, kept)
        places[str(stream)] = place.to_json()
    for files, found in zip((closed, still_open), rows, strict=True):
        if found:
            files.add(schemas.quality(), _table(found))
    return {
        "closed": [one.to_json() for one in closed.close()],
        "open": [one.to_json() for one in still_open.close()],
        "carried": [one.to_json() for one in carry.close()],
        "places": places,
    }


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    starts = np.array([row["interval_start_ns"] for row in rows], np.int64)
    schema = schemas.quality().schema
    columns = {
        field.name: moments(starts)
        if field.name == "interval_start"
        else pa.array([row[field.name] for row in rows], field.type)
        for field in schema
    }
    return pa.table({**columns, "date": dates(starts)})


def _events(item: dict[str, Any]) -> Iterator[pa.Table]:
    for path in item["carry"]:
        yield read_file(path).cast(EVENTS)
    for stream, path in item["frames"]:
        rows = _read(path, ["epoch", "seq", "receive_time_ns", "payload_bytes", "latency_ns"])
        yield _made(stream, FRAME, rows, amount=rows["payload_bytes"], latency=rows["latency_ns"])
    for stream, path in item["gaps"]:
        rows = _read(path, ["epoch", "first_seq", "receive_time_ns", "count", "reason"])
        yield _made(
            stream,
            GAP,
            rows.rename_columns(["epoch", "seq", "receive_time_ns", "count", "reason"]),
            amount=rows["count"],
            reason=rows["reason"],
        )
    for stream, path in item["rejects"]:
        rows = _read(path, ["epoch", "seq", "receive_time_ns", "reason"])
        yield _made(
            stream, REJECT, rows, amount=pa.array(np.ones(len(rows), np.int64)), reason=rows["reason"]
        )
    if item["traces"] is not None:
        rows = read_file(item["traces"]).cast(EVENTS)
        own = rows["stream_id"].to_numpy() % item["groups"] == item["group"]
        yield rows.filter(pa.array(own))


def _read(path: str, names: list[str]) -> pa.Table:
    return read_file(path, names).select(names)


def _made(
    stream: int, kind: int, rows: pa.Table, *, amount: Any, latency: Any = None, reason: Any = None
) -> pa.Table:
    count = len(rows)
    return pa.table(
        {
            "stream_id": pa.array(np.full(count, stream, np.int64)),
            "kind": pa.array(np.full(count, kind, np.int8)),
            "at_ns": rows["receive_time_ns"],
            "epoch": rows["epoch"],
            "seq": rows["seq"],
            "amount": amount,
            "latency_ns": pa.nulls(count, pa.int64()) if latency is None else latency,
            "reason": pa.nulls(count, pa.string()) if reason is None else reason,
        }
    ).cast(EVENTS)


__all__ = ["CARRY", "TRACES", "measure_files"]
