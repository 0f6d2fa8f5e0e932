"""Functions over tensors, the part that runs in executors: the tensors of silver files, where they lie."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import PipelineError
from . import schemas
from .columns import parse_columns
from .payloads import Payloads
from .table_files import TableFileWriter, dates
from .tasks import Work

_ROWS: Final = 4_096
_INLINE_ROWS: Final = 64
Function = Callable[..., Any]


def load_function(name: str, place: str | None = None) -> Function:
    """`module:function`. `place` is a directory that is looked in too: that of the definition."""
    module, _, attribute = name.partition(":")
    if place is not None and place not in sys.path:
        sys.path.append(place)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PipelineError(
            f"function {name}: {error}; it has to be importable here and on every executor: beside the "
            "definition, or installed"
        ) from error
    if not callable(found):
        raise PipelineError(f"function {name} is a {type(found).__name__}, and cannot be called")
    made: Function = found
    return made


@dataclass(slots=True)
class Tensor:
    """A tensor and its row."""

    row: dict[str, Any]
    array: npt.NDArray[Any]

    def __str__(self) -> str:
        return f"stream {self.row['stream_id']}, epoch {self.row['epoch']}, frame {self.row['seq']}"


def tensors_of(item: dict[str, Any]) -> Iterator[tuple[pa.RecordBatch, list[Tensor]]]:
    """The chosen tensors of an item's files, some at a time, with their rows."""
    from ..spark.tensors.rows import as_array
    from ..spark.tensors.segments import Segments

    segments = Segments()
    for stream_id, path in item["files"]:
        with pq.ParquetFile(path) as file:
            is_inline = "payload" in file.schema_arrow.names
            names = [name for name in file.schema_arrow.names if name not in ("metadata", "recording")]
            for batch in file.iter_batches(
                _INLINE_ROWS if is_inline else _ROWS, columns=names, use_threads=False
            ):
                chosen = _chosen(batch, stream_id, item)
                if not len(chosen):
                    continue
                payloads = Payloads(chosen, segments)
                listed = chosen.select([name for name in names if name != "payload"]).to_pylist()
                found = []
                for number, row in enumerate(listed):
                    row["stream_id"] = stream_id
                    where = f"stream {stream_id}, epoch {row['epoch']}, frame {row['seq']}"
                    array = as_array(payloads[number], row["dtype"], row["shape"], row["strides"], where)
                    found.append(Tensor(row, array))
                yield chosen, found


def _chosen(batch: pa.RecordBatch, stream_id: int, item: dict[str, Any]) -> pa.RecordBatch:
    """Every n-th sequence, behind what was done before."""
    seq, epoch = batch["seq"].to_numpy(), batch["epoch"].to_numpy()
    keep = seq % item["every"] == 0
    after = item.get("after", {}).get(str(stream_id))
    if after is not None:
        keep &= (epoch > after[0]) | ((epoch == after[0]) & (seq > after[1]))
    return batch if keep.all() else batch.filter(pa.array(keep))


def statistics_of(item: dict[str, Any]) -> dict[str, Any]:
    """The work of one task of `gold/statistics`."""
    from ..spark.tensors.functions import compute_stats

    table = schemas.statistics()
    return _tabled(item, table, lambda array: compute_stats(array)._asdict(), ("dtype", "shape"))


def table_work(function: Function | None, name: str, columns: str) -> Work:
    """The work of one task of a function that gives values. None: the item says which."""
    return partial(_table_task, function, name, columns)


def _table_task(function: Function | None, name: str, columns: str, item: dict[str, Any]) -> dict[str, Any]:
    schema = parse_columns(columns)
    call = function or load_function(item["function"], item["place"])

    def values(array: npt.NDArray[Any]) -> dict[str, Any]:
        return _split(call(array), schema.names)

    return _tabled(item, schemas.function(name, schema), values, ())


def _tabled(
    item: dict[str, Any],
    table: schemas.Table,
    values: Callable[[npt.NDArray[Any]], dict[str, Any]],
    kept: Sequence[str],
) -> dict[str, Any]:
    files = TableFileWriter(item["staging"], item["target_bytes"])
    own = [
        name for name in table.schema.names if name not in ("epoch", "seq", "receive_time_ns", "time", *kept)
    ]
    rows = 0
    for batch, tensors in tensors_of(item):
        found = [_called(values, tensor) for tensor in tensors]
        made = {name: batch[name] for name in ("epoch", "seq", "receive_time_ns", "time", *kept)}
        for name in own:
            made[name] = pa.array([_plain(one[name]) for one in found], table.schema.field(name).type)
        stream = np.full(len(batch), tensors[0].row["stream_id"], np.int64)
        made |= {"stream_id": pa.array(stream), "date": dates(batch["receive_time_ns"].to_numpy())}
        files.add(table, pa.table(made))
        rows += len(batch)
    return {"files": [one.to_json() for one in files.close()], "rows": rows}


def recording_work(function: Function | None) -> Work:
    """The work of one task of a function that gives arrays for a recording."""
    return partial(_recording_task, function)


def _recording_task(function: Function | None, item: dict[str, Any]) -> dict[str, Any]:
    from ..spark import staging

    call = function or load_function(item["function"], item["place"])
    ends: dict[str, list[int]] = {}

    def frames() -> Iterator[Any]:
        for tensor, array in _derived(call, item):
            place, stream = [tensor.row["epoch"], tensor.row["seq"]], str(tensor.row["stream_id"])
            ends[stream] = max(ends.get(stream, place), place)
            yield _frame(tensor, array, item["target_stream"])

    root = Path(item["recording"])
    name, rows = staging.stage(root, item["key"], item["batch"], item["number"], frames())
    return {"name": name, "rows": rows, "ends": ends}


def publish_work(function: Function | None) -> Work:
    """The work of the one task that publishes a function's arrays."""
    return partial(_publish_task, function)


def _publish_task(function: Function | None, item: dict[str, Any]) -> dict[str, Any]:
    from ..spark.live_sink import publish
    from ..spark.options import WRITE, Options

    call = function or load_function(item["function"], item["place"])
    given = {"mode": "live", "stream": item["target_stream"]}
    if item["aeron_dir"] is not None:
        given["aeronDir"] = item["aeron_dir"]

    def batches() -> Iterator[pa.RecordBatch]:
        for tensor, array in _derived(call, item):
            row = {
                "stream_id": item["target_stream"],
                "timestamp_ns": tensor.row["timestamp_ns"],
                "trace_id": tensor.row["trace_id"] or _trace(item["key"], tensor),
                "dtype": _dtype(array),
                "shape": list(array.shape),
                "payload": array.tobytes(),
            }
            yield pa.RecordBatch.from_pylist([row])

    return {"rows": publish(batches(), Options(given, WRITE))}


def _derived(call: Function, item: dict[str, Any]) -> Iterator[tuple[Tensor, npt.NDArray[Any]]]:
    for _, tensors in tensors_of(item):
        for tensor in tensors:
            array = np.atleast_1d(np.ascontiguousarray(_called(call, tensor)))
            _dtype(array, str(tensor))
            yield tensor, array


def _frame(tensor: Tensor, array: npt.NDArray[Any], target: int | None) -> Any:
    from ..recording.layout import unsigned
    from ..spark.staging import IncomingFrame

    row = tensor.row
    return IncomingFrame(
        stream_id=row["stream_id"] if target is None else target,
        epoch=unsigned(row["epoch"]),
        seq=unsigned(row["seq"]),
        timestamp_ns=unsigned(row["timestamp_ns"]),
        publish_timestamp_ns=None,
        receive_time_ns=row["receive_time_ns"],
        meta_version=0,
        trace_id=None if row["trace_id"] is None else unsigned(row["trace_id"]),
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
        f"{where}: the function gave elements of type {array.dtype}, which no stream can carry"
    )


def _called(call: Callable[[npt.NDArray[Any]], Any], tensor: Tensor) -> Any:
    try:
        return call(tensor.array)
    except Exception as error:
        raise PipelineError(f"{tensor}: {type(error).__name__}: {error}") from error


def _split(result: Any, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(result, Mapping):
        if missing := [name for name in names if name not in result]:
            raise ValueError(f"the function gave no {missing[0]!r}; it gave {', '.join(map(str, result))}")
        return dict(result)
    if len(names) == 1 and not isinstance(result, tuple):
        return {names[0]: result}
    if not isinstance(result, tuple | list) or len(result) != len(names):
        raise ValueError(f"the function gave {result!r}, and not {len(names)} values: {', '.join(names)}")
    return dict(zip(names, result, strict=True))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _trace(key: str, tensor: Tensor) -> int:
    """The same whenever this frame is published."""
    digest = hashlib.blake2b(f"{key} {tensor}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 1) or 1
