"""`tensors.map`: a numpy function over every tensor, where the tensors lie.

Rows carry references, so the payloads never pass through Spark: the function sees a read-only view of the
mapped segment. `mapInArrow` underneath, so it works on streams and on Spark Connect.

What functions give, as Arrow batches with the columns that were promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, StructField, StructType

from ..worker import tune_worker
from .rows import TensorRow, TensorView, stack, views
from .segments import Segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KEYS", "TensorRow", "inline", "map"]

_ROWS: Final = 4_096
_BYTES: Final = 16 << 20


class ResultColumns:
    """Collects results and hands them over, a few thousand rows or some megabytes at a time."""

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
        """Calls `fn` for each frame."""
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
            if len(self._rows) >= _ROWS or self._size >= _BYTES:
                yield self._batch()
        if self._rows:
            yield self._batch()

    def stacked(
        self, fn: Callable[..., Any], frames: Iterable[TensorView], most: int
    ) -> Iterator[pa.RecordBatch]:
        """Calls `fn` for runs of frames that are alike."""
        for run in _runs(frames, most):
            array = stack(run, len({frame.segment for frame in run}) == 1)
            arguments = (array, [frame.row for frame in run]) if self._with_row else (array,)
            try:
                columns = self._split(fn(*arguments))
                columns = [list(column) for column in columns]
            except Exception as error:
                where = f"{run[0].row} and {len(run) - 1} more"
                raise RuntimeError(f"{where}: {type(error).__name__}: {error}") from error
            for name, column in zip(self._names, columns, strict=True):
                if len(column) != len(run):
                    raise RuntimeError(
                        f"{run[0].row}: the function gave {len(column)} values of {name} for {len(run)} "
                        f"tensors"
                    )
            for values, column in zip(self._values, columns, strict=True):
                values.extend(column)
                self._size += sum(_size(value) for value in column)
            self._rows += run
            if len(self._rows) >= _ROWS or self._size >= _BYTES:
                yield self._batch()
        if self._rows:
            yield self._batch()

    def _split(self, result: Any) -> list[Any]:
        """One value for each column."""
        if len(self._names) == 1 and not isinstance(result, tuple | Mapping):
            return [result]
        if isinstance(result, Mapping):
            if set(result) != set(self._names):
                raise TypeError(f"the function gave {sorted(result)}, and the schema has {self._names}")
            return [result[name] for name in self._names]
        if not isinstance(result, tuple | list) or len(result) != len(self._names):
            raise TypeError(f"the function gave {type(result).__name__}, and the schema has {self._names}")
        return list(result)

    def _batch(self) -> pa.RecordBatch:
        # All of one batch: what is kept stays what Spark gave, nulls and types included.
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
    return len(value) if isinstance(value, bytes | str) else 16


def _runs(frames: Iterable[TensorView], most: int) -> Iterator[list[TensorView]]:
    run: list[TensorView] = []
    for frame in frames:
        if run and (len(run) == most or _kind(frame) != _kind(run[0])):
            yield run
            run = []
        run.append(frame)
    if run:
        yield run


def _kind(frame: TensorView) -> tuple[Any, ...]:
    return frame.array.dtype, frame.array.shape, frame.array.strides


KEYS: Final = ("stream_id", "epoch", "seq")
"""What names a frame."""
_TENSOR: Final = ("dtype", "shape", "strides", "payload_bytes")
_INLINE_BYTES: Final = 16 << 20


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
    """A row for each frame: the columns `keep`, and those of `schema` with what `fn(array)` gives.

    For one column `fn` gives its value, for several a tuple or a dictionary. `with_row` calls
    `fn(array, row)`. With `batch=n` the function gets up to n tensors of one type and shape stacked into one
    array (a view, where they lie evenly in the file; with `with_row` a list of rows), and gives for each
    column a sequence of as many values.

    `verify` checks each payload against its checksum first; one that fails is an error that names stream and
    sequence, or left out with `skip_damage`. Gap rows are left out. `root` and `filesystem` say where
    executors
    find the recording, if it is not where it was when the query was planned: another directory, or a URI
    of an object store, which is read by ranges.
    """
    given = _struct(df, schema)
    output = StructType([*(df.schema[name] for name in keep), *given.fields])
    if clash := {*keep} & {*given.names}:
        raise ValueError(
            f"column {min(clash)} would be there twice: leave it out of keep, or name it otherwise"
        )
    chosen = _selected(df, keep)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        segments = Segments(root, filesystem)
        out = ResultColumns(keep, given, with_row=with_row)
        for rows in batches:
            frames = views(rows, segments, keep, verify=verify, skip_damage=skip_damage)
            found = out.stacked(fn, frames, batch) if batch is not None else out.each(fn, frames)
            yield from found
        tune_worker()

    return chosen.mapInArrow(run, output)


def inline(
    df: DataFrame,
    *,
    verify: bool = True,
    skip_damage: bool = False,
    root: str | None = None,
    filesystem: Any = None,
) -> DataFrame:
    """The same rows with their bytes in a column `payload`, instead of where they lie."""
    if "payload" in df.columns:
        return df
    names = [name for name in df.columns if name not in ("segment", "payload_offset")]
    output = StructType([*(df.schema[name] for name in names), StructField("payload", BinaryType(), True)])
    chosen = df.select(*names, "segment", "payload_offset")

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        segments = Segments(root, filesystem)
        for rows in batches:
            frames = views(rows, segments, (), verify=verify, skip_damage=skip_damage)
            yield from _with_payload(rows.select(names), frames)
        tune_worker()

    return chosen.mapInArrow(run, output)


def _with_payload(rows: pa.RecordBatch, frames: Iterator[TensorView]) -> Iterator[pa.RecordBatch]:
    """Rows and their bytes, some megabytes at a time. Rows without a payload are left as they are."""
    found: dict[int, bytes] = {}
    size, start = 0, 0
    for frame in frames:
        found[frame.number] = bytes(frame.data)
        size += len(frame.data)
        if size >= _INLINE_BYTES:
            yield _joined(rows, start, frame.number + 1, found)
            start, size, found = frame.number + 1, 0, {}
    if start < len(rows):
        yield _joined(rows, start, len(rows), found)


def _joined(rows: pa.RecordBatch, start: int, stop: int, found: dict[int, bytes]) -> pa.RecordBatch:
    payload = pa.array([found.get(number) for number in range(start, stop)], pa.binary())
    part = rows.slice(start, stop - start)
    return pa.RecordBatch.from_arrays([*part.columns, payload], names=[*part.schema.names, "payload"])


def _struct(df: DataFrame, schema: StructType | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    # Spark's own parser, which needs a session: StructType.fromDDL looks for the active one.
    found = StructType.fromDDL(schema)
    assert isinstance(found, StructType), "columns were given"
    return found


def _selected(df: DataFrame, keep: Sequence[str]) -> DataFrame:
    """Only what is needed travels to the executors."""
    if "segment" in df.columns:
        where: tuple[str, ...] = ("segment", "payload_offset", "crc32c")
    elif "payload" in df.columns:
        where = ("payload",)
    else:
        raise ValueError("the rows have no payload: read with option payload=ref or payload=inline")
    needed = [*KEYS, *_TENSOR, *where]
    if missing := [name for name in needed if name not in df.columns]:
        raise ValueError(f"column {missing[0]} is missing: tensors need {', '.join(needed)}")
    return df.select(*dict.fromkeys([*keep, *needed]))
