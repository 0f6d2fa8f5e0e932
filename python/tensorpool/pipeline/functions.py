"""Functions of tensors: statistics, and the definition's own functions. Runs in executors.

Functions with a table are called in the task that validates the frames, on the same mapped payloads. Arrays
that are recorded or published need the frames in order: their tasks read the files of `silver/frames`.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import PipelineError
from ..recording.table_store import open_store
from . import layout, schemas
from .definition import FunctionSettings, PipelineSettings
from .schemas import Table, parse_columns
from .table_files import Payloads, dates

_ROWS: Final = 4_096
_INLINE_ROWS: Final = 64
Function = Callable[..., Any]
Callables = Mapping[str, Function]
"""Function objects of a Python definition, by their names in the definition."""
Values = Callable[[npt.NDArray[Any]], Mapping[str, Any]]


def load_function(name: str, place: str | None = None) -> Function:
    """Imports `module:function`, also from the directory `place` of the definition. Raises PipelineError."""
    module, _, attribute = name.partition(":")
    if place is not None and place not in sys.path:
        sys.path.append(place)
    try:
        loaded = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PipelineError(
            f"function {name}: {error}; put its module beside the definition, or install it here and on "
            "every executor"
        ) from error
    if not callable(loaded):
        raise PipelineError(f"function {name} is a {type(loaded).__name__} and not callable")
    function: Function = loaded
    return function


@dataclass(slots=True)
class Tensor:
    """The tensor of a frame."""

    stream_id: int
    epoch: int
    seq: int
    timestamp_ns: int
    receive_time_ns: int
    trace_id: int | None
    array: npt.NDArray[Any]

    def __str__(self) -> str:
        return _where(self.stream_id, self.epoch, self.seq)


def _where(stream_id: int, epoch: int, seq: int) -> str:
    return f"stream {stream_id}, epoch {epoch}, frame {seq}"


_OF_TENSOR: Final = (
    "stream_id", "epoch", "seq", "timestamp_ns", "receive_time_ns", "trace_id", "dtype", "shape", "strides",
)  # fmt: skip


def tensors_of(rows: pa.RecordBatch, segments: Any) -> list[Tensor]:
    """The tensors of some rows."""
    from ..spark.tensors.rows import as_array

    payloads = Payloads(rows, segments)
    columns = {name: rows[name].to_pylist() for name in _OF_TENSOR}
    tensors = []
    for number in range(len(rows)):
        stream_id, epoch, seq = (columns[name][number] for name in ("stream_id", "epoch", "seq"))
        dtype, shape, strides = (columns[name][number] for name in ("dtype", "shape", "strides"))
        tensors.append(
            Tensor(
                stream_id=stream_id,
                epoch=epoch,
                seq=seq,
                timestamp_ns=columns["timestamp_ns"][number],
                receive_time_ns=columns["receive_time_ns"][number],
                trace_id=columns["trace_id"][number],
                array=as_array(payloads[number], dtype, shape, strides, _where(stream_id, epoch, seq)),
            )
        )
    return tensors


@dataclass(slots=True)
class TableFunction:
    """A function whose values go to a table."""

    name: str
    table: Table
    values: Values
    kept: tuple[str, ...]
    """Columns of the frame that the table has too."""
    streams: tuple[int, ...]
    every: int

    def rows(self, frames: pa.RecordBatch, segments: Any) -> pa.Table | None:
        """The rows of the table for some frames; None if it takes none of them."""
        chosen = chosen_rows(frames, self.streams, self.every)
        if not len(chosen):
            return None
        results = [_called(self.values, tensor) for tensor in tensors_of(chosen, segments)]
        received = chosen["receive_time_ns"].to_numpy()
        given = ("stream_id", "epoch", "seq", "receive_time_ns", "time", *self.kept)
        if schemas.PIPELINE.name in chosen.schema.names:
            given += (schemas.PIPELINE.name,)
        columns = {name: chosen[name] for name in given}
        for column in self.table.schema:
            if column.name not in given:
                values = [_plain(result[column.name]) for result in results]
                columns[column.name] = pa.array(values, column.type)
        return pa.table({**columns, "date": dates(received)})


def table_functions(
    settings: PipelineSettings, callables: Callables, place: str | None
) -> list[TableFunction]:
    """The statistics, if they are enabled, and the functions with a table."""
    found = []
    if settings.statistics.enabled:
        asked = settings.statistics
        found.append(statistics(asked.streams, asked.every))
    for function in settings.functions:
        if function.output == "table":
            found.append(table_function(function, callables.get(function.name), place))
    return found


def statistics(streams: tuple[int, ...], every: int) -> TableFunction:
    """The function of `gold/statistics`."""
    from ..spark.tensors.functions import compute_stats

    def values(array: npt.NDArray[Any]) -> Mapping[str, Any]:
        return compute_stats(array)._asdict()

    return TableFunction("statistics", schemas.statistics(), values, ("dtype", "shape"), streams, every)


def table_function(settings: FunctionSettings, function: Function | None, place: str | None) -> TableFunction:
    """A function of the definition. `function`: None to import it."""
    assert settings.columns is not None, "a function with a table has columns"
    schema = parse_columns(settings.columns)
    call = function or load_function(settings.function, place)

    def values(array: npt.NDArray[Any]) -> Mapping[str, Any]:
        return _split(call(array), schema.names)

    table = schemas.function(settings.name, schema)
    return TableFunction(settings.name, table, values, (), settings.streams, settings.every)


def chosen_rows(
    rows: pa.RecordBatch,
    streams: tuple[int, ...],
    every: int,
    after: Mapping[int, tuple[int, int]] | None = None,
) -> pa.RecordBatch:
    """The rows of some streams and of every n-th sequence, after those that are recorded already."""
    stream, epoch, seq = (rows[name].to_numpy() for name in ("stream_id", "epoch", "seq"))
    keep = seq % every == 0
    if streams:
        keep &= np.isin(stream, streams)
    for stream_id, (last_epoch, last_seq) in (after or {}).items():
        keep &= (stream != stream_id) | (epoch > last_epoch) | ((epoch == last_epoch) & (seq > last_seq))
    return rows if keep.all() else rows.filter(pa.array(keep))


# --- arrays that are recorded or published


@dataclass(slots=True)
class ArrayTask:
    """The frames of some files of `silver/frames`, for a function that returns arrays."""

    root: str
    paths: list[str]
    settings: FunctionSettings
    key: str
    """Distinguishes the function from those of other pipelines."""
    number: int = 0
    """The number of the decision."""
    part: int = 0
    place: str | None = None
    after: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Stream → epoch and sequence of the last frame that is recorded already."""


@dataclass(slots=True)
class ArrayResult:
    """The staged rows of a task, and the last frame of each stream."""

    name: str | None
    rows: int
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)


def _frames_of(task: ArrayTask) -> Iterator[Tensor]:
    from ..spark.tensors.rows import Segments

    segments, store, asked = Segments(), open_store(task.root), task.settings
    for path in task.paths:
        with pq.ParquetFile(store.source(f"{layout.SILVER_FRAMES}/{path}")) as file:
            is_inline = "payload" in file.schema_arrow.names
            names = [name for name in file.schema_arrow.names if name not in ("metadata", "recording")]
            for batch in file.iter_batches(
                _INLINE_ROWS if is_inline else _ROWS, columns=names, use_threads=False
            ):
                chosen = chosen_rows(batch, asked.streams, asked.every, task.after)
                if len(chosen):
                    yield from tensors_of(chosen, segments)


def recording_work(function: Function | None) -> Callable[[ArrayTask], ArrayResult]:
    """The task of a function whose arrays are recorded. `function`: None to import it."""
    return partial(_recording_task, function)


def _recording_task(function: Function | None, task: ArrayTask) -> ArrayResult:
    from ..spark import staging

    call = function or load_function(task.settings.function, task.place)
    ends: dict[int, tuple[int, int]] = {}

    def frames() -> Iterator[Any]:
        for tensor, array in _derived(call, task):
            key, stream = (tensor.epoch, tensor.seq), tensor.stream_id
            ends[stream] = max(ends.get(stream, key), key)
            yield _frame(tensor, array, task.settings.target_stream)

    root = Path(task.root) / layout.DERIVED / task.settings.name
    name, rows = staging.stage(root, task.key, task.number, task.part, frames())
    return ArrayResult(name, rows, ends)


def publish_work(function: Function | None) -> Callable[[ArrayTask], ArrayResult]:
    """The task that publishes a function's arrays. `function`: None to import it."""
    return partial(_publish_task, function)


def _publish_task(function: Function | None, task: ArrayTask) -> ArrayResult:
    from ..spark.live_sink import publish
    from ..spark.options import WRITE, Options

    asked = task.settings
    call = function or load_function(asked.function, task.place)
    given: dict[str, str | int | None] = {"mode": "live", "stream": asked.target_stream}
    if asked.aeron_dir is not None:
        given["aeronDir"] = str(asked.aeron_dir)

    def batches() -> Iterator[pa.RecordBatch]:
        for tensor, array in _derived(call, task):
            row = {
                "stream_id": asked.target_stream,
                "timestamp_ns": tensor.timestamp_ns,
                "trace_id": tensor.trace_id or _trace(task.key, tensor),
                "dtype": _dtype(array),
                "shape": list(array.shape),
                "payload": array.tobytes(),
            }
            yield pa.RecordBatch.from_pylist([row])

    return ArrayResult(None, publish(batches(), Options(given, WRITE)))


def _derived(call: Function, task: ArrayTask) -> Iterator[tuple[Tensor, npt.NDArray[Any]]]:
    for tensor in _frames_of(task):
        array = np.atleast_1d(np.ascontiguousarray(_called(call, tensor)))
        _dtype(array, str(tensor))
        yield tensor, array


def _frame(tensor: Tensor, array: npt.NDArray[Any], target: int | None) -> Any:
    from ..recording.layout import unsigned
    from ..spark.staging import IncomingFrame

    return IncomingFrame(
        stream_id=tensor.stream_id if target is None else target,
        epoch=unsigned(tensor.epoch),
        seq=unsigned(tensor.seq),
        timestamp_ns=unsigned(tensor.timestamp_ns),
        publish_timestamp_ns=None,
        receive_time_ns=tensor.receive_time_ns,
        meta_version=0,
        trace_id=None if tensor.trace_id is None else unsigned(tensor.trace_id),
        dtype=_dtype(array),
        shape=list(array.shape),
        strides=list(array.strides),
        major_order="row",
        data=memoryview(array.tobytes()),
    )


def _dtype(array: npt.NDArray[Any], where: str = "") -> str:
    from ..recording.tensors import NUMPY

    for name, kind in NUMPY.items():
        if kind == array.dtype and name not in ("bytes", "bit"):
            return name
    raise PipelineError(
        f"{where}: the function returned elements of type {array.dtype}, which streams do not support"
    )


def _called(call: Callable[[npt.NDArray[Any]], Any], tensor: Tensor) -> Any:
    try:
        return call(tensor.array)
    except Exception as error:
        raise PipelineError(f"{tensor}: {type(error).__name__}: {error}") from error


def _split(result: Any, names: Sequence[str]) -> Mapping[str, Any]:
    if isinstance(result, Mapping):
        if missing := [name for name in names if name not in result]:
            names_text = ", ".join(map(str, result))
            raise ValueError(f"the function returned no {missing[0]!r}; it returned {names_text}")
        return dict(result)
    if len(names) == 1 and not isinstance(result, tuple):
        return {names[0]: result}
    if not isinstance(result, tuple | list) or len(result) != len(names):
        raise ValueError(f"the function returned {result!r}, not {len(names)} values: {', '.join(names)}")
    return dict(zip(names, result, strict=True))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _trace(key: str, tensor: Tensor) -> int:
    """The trace id of a derived frame, the same each time the frame is published."""
    digest = hashlib.blake2b(f"{key} {tensor}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 1) or 1
