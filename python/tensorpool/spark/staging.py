"""Rows to be written, and the staging of a task's rows until they are committed.

Staged rows are in `_sinks/<query>/` of the recording: one directory per attempt of a task, with the payloads
in one file and an index in another. A failed attempt leaves a directory that no commit message names; the
next commit removes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict, cast

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from ..durable import write_all, write_errors
from ..errors import ConfigError
from ..recording import NO_TIMESTAMP, NO_TRACE
from ..recording.layout import aligned, unsigned
from ..recording.tensors import ITEM_BYTES, MAX_DIMS, NUMBERS, ORDER_NUMBERS, contiguous_strides
from ..runtime.config.config import nearest
from ..text import parse_number
from .options import Options
from .tensors.rows import Segments, verify_payload

__all__ = ["INDEX", "NO_SEQ", "SINKS_DIR", "discard", "load", "query_dir", "stage"]

SINKS_DIR: Final = "_sinks"
NO_SEQ: Final = (1 << 64) - 1
"""`epoch` or `seq` of a row that has none: the sink numbers the frame."""
_PAYLOAD, _INDEX = "payload", "index.npy"

INDEX: Final = np.dtype(
    [
        ("stream_id", "<u4"),
        ("epoch", "<u8"),
        ("seq", "<u8"),
        ("timestamp_ns", "<u8"),
        ("publish_timestamp_ns", "<u8"),
        ("receive_time_ns", "<i8"),
        ("meta_version", "<u4"),
        ("trace_id", "<u8"),
        ("dtype", "<i2"),
        ("major_order", "<i2"),
        ("ndims", "u1"),
        ("dims", "<i4", (MAX_DIMS,)),
        ("strides", "<i8", (MAX_DIMS,)),
        ("at", "<u8"),
        ("payload_bytes", "<u8"),
        ("task", "<u4"),
    ]
)

_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "stream_id": ("bigint", "int"),
    "epoch": ("bigint", "int"),
    "seq": ("bigint", "int"),
    "timestamp_ns": ("bigint",),
    "publish_timestamp_ns": ("bigint",),
    "receive_time_ns": ("bigint",),
    "meta_version": ("bigint", "int"),
    "trace_id": ("bigint",),
    "dtype": ("string",),
    "shape": ("array<int>", "array<bigint>"),
    "strides": ("array<bigint>", "array<int>"),
    "major_order": ("string",),
    "payload_bytes": ("bigint",),
    "crc32c": ("bigint",),
    "segment": ("string",),
    "payload_offset": ("bigint",),
    "payload": ("binary",),
    # It follows from `receive_time_ns`, and is not written.
    "time": ("timestamp",),
}


def check_incoming(schema: StructType, options: Options) -> None:
    """Raises ConfigError for columns that cannot be written."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in kinds.items():
        if name not in _KINDS:
            if name.startswith("gap_"):
                raise ConfigError(
                    "gap rows are not written: df.where('gap_count is null').drop('gap_count', 'gap_reason')"
                )
            near = nearest(name, _KINDS)
            hint = (
                f"did you mean {near}?" if near else f"df.drop({name!r}), or write one of {', '.join(_KINDS)}"
            )
            raise ConfigError(f"a frame has no column {name}; {hint}")
        if kind not in _KINDS[name]:
            raise ConfigError(f"column {name} has to be {_KINDS[name][0]}, not {kind}")
    if "payload" not in kinds and not {"segment", "payload_offset", "payload_bytes"} <= kinds.keys():
        raise ConfigError(
            "the rows have no payload: add a column payload (binary), or write rows read with payload=ref"
        )
    if "stream_id" not in kinds and options["stream"] is None:
        raise ConfigError("the stream is missing: add a column stream_id, or option stream")
    if ("seq" in kinds) != ("epoch" in kinds) and "seq" in kinds and options["epoch"] is None:
        raise ConfigError("rows have seq but no epoch: add epoch or option epoch, or drop seq")


class _IncomingRow(TypedDict, total=False):
    """A row to be written. `check_incoming` has checked which columns there are, and their types."""

    stream_id: int | None
    epoch: int | None
    seq: int | None
    timestamp_ns: int | None
    publish_timestamp_ns: int | None
    receive_time_ns: int | None
    meta_version: int | None
    trace_id: int | None
    dtype: str | None
    shape: list[int] | None
    strides: list[int] | None
    major_order: str | None
    payload_bytes: int
    crc32c: int | None
    segment: str | None
    payload_offset: int


@dataclass(slots=True)
class IncomingFrame:
    """One row to be written. `seq` is None if the sink numbers the frames."""

    stream_id: int
    epoch: int | None
    seq: int | None
    timestamp_ns: int
    publish_timestamp_ns: int | None
    receive_time_ns: int
    meta_version: int
    trace_id: int | None
    dtype: str
    shape: list[int]
    strides: list[int]
    major_order: str
    data: memoryview

    def __str__(self) -> str:
        return f"stream {self.stream_id}, epoch {self.epoch}, frame {self.seq}"


def incoming_frames(batches: Iterator[pa.RecordBatch], options: Options) -> Iterator[IncomingFrame]:
    """The rows of batches. Missing columns have defaults; an invalid row is a ValueError."""
    segments = Segments()
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != "payload"}
        payload = batch.column("payload") if "payload" in batch.schema.names else None
        now_ns = time.time_ns()
        for number in range(len(batch)):
            row = cast("_IncomingRow", {name: values[number] for name, values in columns.items()})
            yield _parse_row(row, None if payload is None else payload[number], segments, options, now_ns)


def _parse_row(
    row: _IncomingRow, payload: Any, segments: Segments, options: Options, now_ns: int
) -> IncomingFrame:
    def number(value: int | None, default: int | None) -> int | None:
        return default if value is None else unsigned(int(value))

    stream_id = row.get("stream_id", options["stream"])
    label = f"stream {stream_id}, epoch {row.get('epoch')}, frame {row.get('seq')}"
    if payload is not None and payload.is_valid:
        data = memoryview(payload.as_buffer())
        if (length := row.get("payload_bytes")) is not None:
            data = data[:length]
    elif (segment := row.get("segment")) is not None:
        data = segments.read(segment, row["payload_offset"], row["payload_bytes"])
        if (checksum := row.get("crc32c")) is not None:
            verify_payload(data, checksum, label, segment)
    else:
        raise ValueError(f"{label}: the row has no payload")
    dtype = row.get("dtype") or "uint8"
    if dtype not in NUMBERS:
        raise ValueError(f"{label}: element type {dtype!r} is none of {', '.join(NUMBERS)}")
    item = int(ITEM_BYTES[NUMBERS[dtype]])
    given_shape, given_strides = row.get("shape"), row.get("strides")
    shape = [len(data) // item] if given_shape is None else list(given_shape)
    order = row.get("major_order") or "row"
    if order not in ORDER_NUMBERS or not 1 <= len(shape) <= MAX_DIMS:
        raise ValueError(f"{label}: a tensor has 1 to {MAX_DIMS} dimensions in row or column order")
    strides = list(contiguous_strides(shape, item, order) if given_strides is None else given_strides)
    stream = number(row.get("stream_id"), options["stream"])
    if stream is None:
        raise ValueError(f"{label}: stream_id is null")
    return IncomingFrame(
        stream_id=stream,
        epoch=number(row.get("epoch"), options["epoch"]),
        seq=number(row.get("seq"), None),
        timestamp_ns=number(row.get("timestamp_ns"), now_ns) or 0,
        publish_timestamp_ns=number(row.get("publish_timestamp_ns"), None),
        receive_time_ns=row.get("receive_time_ns") or now_ns,
        meta_version=number(row.get("meta_version"), 0) or 0,
        trace_id=number(row.get("trace_id"), None),
        dtype=dtype,
        shape=shape,
        strides=strides,
        major_order=order,
        data=data,
    )


def query_dir(root: Path, key: str) -> Path:
    """The directory of a query's staged rows and state."""
    if not key or not all(character.isalnum() or character == "-" for character in key):
        raise ValueError(f"{key!r} is not the id of a query")
    return root / SINKS_DIR / key


def stage(root: Path, key: str, batch_id: int, task: int, frames: Iterable[IncomingFrame]) -> tuple[str, int]:
    """Writes a task's frames to a new staging directory. Returns its name and the number of frames."""
    directory = query_dir(root, key) / f"{batch_id}-{task}-{secrets.token_hex(4)}"
    directory.mkdir(mode=0o700, parents=True)
    rows: list[tuple[Any, ...]] = []
    end = 0
    path = directory / _PAYLOAD
    with write_errors(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for frame in frames:
                size = frame.data.nbytes
                padding = memoryview(bytes(aligned(size) - size))
                write_all(fd, [frame.data, padding])
                rows.append(_index_row(frame, end, size, task))
                end += aligned(size)
        finally:
            os.close(fd)
        index = np.array(rows, INDEX) if rows else np.empty(0, INDEX)
        with (directory / _INDEX).open("xb") as file:
            np.save(file, index, allow_pickle=False)
    return directory.name, len(rows)


def _index_row(frame: IncomingFrame, at: int, size: int, task: int) -> tuple[Any, ...]:
    """A row of INDEX."""
    filler = (0,) * (MAX_DIMS - len(frame.shape))
    return (
        frame.stream_id,
        NO_SEQ if frame.epoch is None else frame.epoch,
        NO_SEQ if frame.seq is None else frame.seq,
        frame.timestamp_ns,
        NO_TIMESTAMP if frame.publish_timestamp_ns is None else frame.publish_timestamp_ns,
        frame.receive_time_ns,
        frame.meta_version,
        NO_TRACE if frame.trace_id is None else frame.trace_id,
        NUMBERS[frame.dtype],
        ORDER_NUMBERS[frame.major_order],
        len(frame.shape),
        (*frame.shape, *filler),
        (*frame.strides, *filler),
        at,
        size,
        task,
    )


class StagedRows(NamedTuple):
    """The index of a task's staged rows, and their payloads as mapped bytes."""

    index: Any
    payload: Any


def load(root: Path, key: str, name: str) -> StagedRows:
    """The rows that a task staged."""
    directory = query_dir(root, key) / name
    index = np.load(directory / _INDEX, allow_pickle=False)
    size = (directory / _PAYLOAD).stat().st_size
    payload = np.memmap(directory / _PAYLOAD, np.uint8, "r") if size else np.empty(0, np.uint8)
    return StagedRows(index, payload)


def discard(root: Path, key: str, *, up_to: int | None = None, only: Iterable[str] = ()) -> None:
    """Removes staging directories: those of all batches up to `up_to`, and those named in `only`."""
    directory = query_dir(root, key)
    names = set(only)
    if up_to is not None and directory.is_dir():
        for path in directory.iterdir():
            first = parse_number(path.name.partition("-")[0])
            if path.is_dir() and first is not None and first <= up_to:
                names.add(path.name)
    for name in names:
        shutil.rmtree(directory / name, ignore_errors=True)
