"""`tensors.map`: a numpy function over every tensor, where the tensors lie.

Rows carry references, so the payloads never pass through Spark: the function sees a read-only view of the
mapped segment. `mapInArrow` underneath, so it works on streams and on Spark Connect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from ..worker import settle
from .frames import FrameView, TensorRow, views
from .results import Columns
from .segments import Segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KEYS", "TensorRow", "inline", "map"]

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
        out = Columns(keep, given, with_row=with_row)
        for rows in batches:
            frames = views(rows, segments, keep, verify=verify, skip_damage=skip_damage)
            found = out.stacked(fn, frames, batch) if batch is not None else out.each(fn, frames)
            yield from found
        settle()

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
        settle()

    return chosen.mapInArrow(run, output)


def _with_payload(rows: pa.RecordBatch, frames: Iterator[FrameView]) -> Iterator[pa.RecordBatch]:
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
