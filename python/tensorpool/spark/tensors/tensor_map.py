"""`tensors.map`, which applies a numpy function to every tensor, and `tensors.inline`.

Rows carry references, so payloads never pass through Spark: the function gets a read-only view of the mapped
segment. Both use `mapInArrow`, so they work on streaming queries and on Spark Connect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, StructField, StructType

from ..scan import tune_worker
from .rows import Segments, TensorRow, TensorView, stack, views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KEYS", "TensorRow", "inline", "map"]

KEYS: Final = ("stream_id", "epoch", "seq")
"""The columns that identify a frame."""
_TENSOR: Final = ("dtype", "shape", "strides", "payload_bytes")
_MAX_ROWS: Final = 4_096
_MAX_BYTES: Final = 16 << 20
_VALUE_BYTES: Final = 16


class ResultColumns:
    """Collects the results of a function and returns them as batches of limited size."""

    def __init__(self, keep: Sequence[str], schema: StructType, *, with_row: bool) -> None:
        self._keep = list(keep)
        self._names = list(schema.names)
        self._types = [to_arrow_type(field.dataType) for field in schema.fields]
        self._with_row = with_row
        self._clear()

    def _clear(self) -> None:
        self._rows: list[TensorView] = []
        self._values: list[list[Any]] = [[] for _ in self._names]
        self._size = 0

    def each(self, fn: Callable[..., Any], frames: Iterable[TensorView]) -> Iterator[pa.RecordBatch]:
        """The results of `fn` for each frame."""
        for frame in frames:
            arguments = (frame.array, frame.row) if self._with_row else (frame.array,)
            try:
                values = self._split(fn(*arguments))
            except Exception as error:
                raise RuntimeError(f"{frame.row}: {type(error).__name__}: {error}") from error
            for column, value in zip(self._values, values, strict=True):
                column.append(value)
                self._size += _size(value)
            self._rows.append(frame)
            if len(self._rows) >= _MAX_ROWS or self._size >= _MAX_BYTES:
                yield self._batch()
        if self._rows:
            yield self._batch()

    def stacked(
        self, fn: Callable[..., Any], frames: Iterable[TensorView], max_frames: int
    ) -> Iterator[pa.RecordBatch]:
        """The results of `fn` for stacks of up to `max_frames` frames of one type and shape."""
        for run in _runs(frames, max_frames):
            array = stack(run, is_one_segment=len({frame.segment for frame in run}) == 1)
            arguments = (array, [frame.row for frame in run]) if self._with_row else (array,)
            try:
                columns = self._split(fn(*arguments))
                columns = [list(column) for column in columns]
            except Exception as error:
                label = f"{run[0].row} and {len(run) - 1} more"
                raise RuntimeError(f"{label}: {type(error).__name__}: {error}") from error
            for name, column in zip(self._names, columns, strict=True):
                if len(column) != len(run):
                    raise RuntimeError(
                        f"{run[0].row}: the function returned {len(column)} values of {name} for {len(run)} "
                        "tensors"
                    )
            for values, column in zip(self._values, columns, strict=True):
                values.extend(column)
                self._size += sum(_size(value) for value in column)
            self._rows += run
            if len(self._rows) >= _MAX_ROWS or self._size >= _MAX_BYTES:
                yield self._batch()
        if self._rows:
            yield self._batch()

    def _split(self, result: Any) -> list[Any]:
        """One value for each column."""
        if len(self._names) == 1 and not isinstance(result, tuple | Mapping):
            return [result]
        if isinstance(result, Mapping):
            if set(result) != set(self._names):
                raise TypeError(f"the function returned {sorted(result)}, but the schema has {self._names}")
            return [result[name] for name in self._names]
        if not isinstance(result, tuple | list) or len(result) != len(self._names):
            raise TypeError(
                f"the function returned {type(result).__name__}, but the schema has {self._names}"
            )
        return list(result)

    def _batch(self) -> pa.RecordBatch:
        # All rows are of one batch: the kept columns stay exactly as Spark passed them, with nulls and types.
        numbers = pa.array([frame.number for frame in self._rows], pa.int32())
        batch = self._rows[0].batch
        arrays = [batch.column(name).take(numbers) for name in self._keep]
        for name, kind, values in zip(self._names, self._types, self._values, strict=True):
            try:
                arrays.append(pa.array(values, kind))
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise TypeError(f"{self._rows[0].row}: column {name} should be {kind}: {error}") from None
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, names=[*self._keep, *self._names])


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray | memoryview):
        return value.nbytes
    return len(value) if isinstance(value, bytes | str) else _VALUE_BYTES


def _runs(frames: Iterable[TensorView], max_frames: int) -> Iterator[list[TensorView]]:
    run: list[TensorView] = []
    for frame in frames:
        if run and (len(run) == max_frames or _kind(frame) != _kind(run[0])):
            yield run
            run = []
        run.append(frame)
    if run:
        yield run


def _kind(frame: TensorView) -> tuple[Any, ...]:
    return frame.array.dtype, frame.array.shape, frame.array.strides


def map(
    df: DataFrame,
    fn: Callable[..., Any],
    schema: StructType | str,
    *,
    keep: Sequence[str] = KEYS,
    with_row: bool = False,
    batch: int | None = None,
    verify: bool = True,
    skip_damage: bool = False,
    root: str | None = None,
    filesystem: Any = None,
) -> DataFrame:
    """A row for each frame: the columns `keep`, and those of `schema` with the result of `fn(array)`.

    For one column `fn` returns its value, for several a tuple or a dictionary. `with_row` calls
    `fn(array, row)`. With `batch=n` the function gets up to n tensors of one type and shape stacked into one
    array (a view, if they are evenly spaced in the file; with `with_row` a list of rows), and returns for
    each column a sequence of as many values.

    `verify` checks each payload against its checksum first. A wrong checksum is an error that names stream
    and sequence; with `skip_damage` the row is left out. Gap rows are left out. `root` and `filesystem` say
    where executors find the recording if it is not at its path at planning time: another directory, or a
    URI of an object store, which is read by ranges.
    """
    given = _struct(df, schema)
    output = StructType([*(df.schema[name] for name in keep), *given.fields])
    if clash := {*keep} & {*given.names}:
        raise ValueError(
            f"column {min(clash)} would occur twice: leave it out of keep, or give it another name"
        )
    selected = _select(df, keep)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        segments = Segments(root, filesystem)
        out = ResultColumns(keep, given, with_row=with_row)
        for rows in batches:
            frames = views(rows, segments, keep, verify=verify, skip_damage=skip_damage)
            yield from out.stacked(fn, frames, batch) if batch is not None else out.each(fn, frames)
        tune_worker()

    return selected.mapInArrow(run, output)


def inline(
    df: DataFrame,
    *,
    verify: bool = True,
    skip_damage: bool = False,
    root: str | None = None,
    filesystem: Any = None,
) -> DataFrame:
    """The same rows with the payload's bytes in a column `payload` instead of its reference."""
    if "payload" in df.columns:
        return df
    names = [name for name in df.columns if name not in ("segment", "payload_offset")]
    output = StructType([*(df.schema[name] for name in names), StructField("payload", BinaryType(), True)])
    selected = df.select(*names, "segment", "payload_offset")

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        segments = Segments(root, filesystem)
        for rows in batches:
            frames = views(rows, segments, (), verify=verify, skip_damage=skip_damage)
            yield from _with_payload(rows.select(names), frames)
        tune_worker()

    return selected.mapInArrow(run, output)


def _with_payload(rows: pa.RecordBatch, frames: Iterator[TensorView]) -> Iterator[pa.RecordBatch]:
    """Rows with their payloads, in batches of limited size. Rows without a payload get a null."""
    payloads: dict[int, bytes] = {}
    size, start = 0, 0
    for frame in frames:
        payloads[frame.number] = bytes(frame.data)
        size += len(frame.data)
        if size >= _MAX_BYTES:
            yield _add_payloads(rows, start, frame.number + 1, payloads)
            start, size, payloads = frame.number + 1, 0, {}
    if start < len(rows):
        yield _add_payloads(rows, start, len(rows), payloads)


def _add_payloads(rows: pa.RecordBatch, start: int, stop: int, payloads: dict[int, bytes]) -> pa.RecordBatch:
    payload = pa.array([payloads.get(number) for number in range(start, stop)], pa.binary())
    part = rows.slice(start, stop - start)
    return pa.RecordBatch.from_arrays([*part.columns, payload], names=[*part.schema.names, "payload"])


def _struct(df: DataFrame, schema: StructType | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    # Spark's parser needs a session: StructType.fromDDL uses the active one.
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType), "the DDL text has columns"
    return parsed


def _select(df: DataFrame, keep: Sequence[str]) -> DataFrame:
    """Only the columns that the executors need."""
    if "segment" in df.columns:
        payload: tuple[str, ...] = ("segment", "payload_offset", "crc32c")
    elif "payload" in df.columns:
        payload = ("payload",)
    else:
        raise ValueError("the rows have no payload: read with option payload=ref or payload=inline")
    needed = [*KEYS, *_TENSOR, *payload]
    if missing := [name for name in needed if name not in df.columns]:
        raise ValueError(f"column {missing[0]} is missing: tensors need {', '.join(needed)}")
    return df.select(*dict.fromkeys([*keep, *needed]))
