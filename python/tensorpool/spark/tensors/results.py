"""What functions give, as Arrow batches with the columns that were promised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from .frames import FrameView, stack

_ROWS: Final = 4_096
_BYTES: Final = 16 << 20


class Columns:
    """Collects results and hands them over, a few thousand rows or some megabytes at a time."""

    def __init__(self, keep: Sequence[str], schema: StructType, *, with_row: bool) -> None:
        self._keep = list(keep)
        self._names = list(schema.names)
        self._types = [to_arrow_type(field.dataType) for field in schema.fields]
        self._with_row = with_row
        self._clear()

    def _clear(self) -> None:
        self._rows: list[FrameView] = []
        self._values: list[list[Any]] = [[] for _ in self._names]
        self._size = 0

    def each(self, fn: Callable[..., Any], frames: Iterable[FrameView]) -> Iterator[pa.RecordBatch]:
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
        self, fn: Callable[..., Any], frames: Iterable[FrameView], most: int
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
                self._size += sum(map(_size, column))
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


def _runs(frames: Iterable[FrameView], most: int) -> Iterator[list[FrameView]]:
    run: list[FrameView] = []
    for frame in frames:
        if run and (len(run) == most or _kind(frame) != _kind(run[0])):
            yield run
            run = []
        run.append(frame)
    if run:
        yield run


def _kind(frame: FrameView) -> tuple[Any, ...]:
    return frame.array.dtype, frame.array.shape, frame.array.strides
