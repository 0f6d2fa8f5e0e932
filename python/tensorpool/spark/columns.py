"""The columns of a DataFrame of frames, for Spark and for Arrow."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, StringType, StructType

from ..errors import ConfigError
from ..runtime.config.config import nearest
from .options import Options

# In the order of the recording's own columns. All may be null: gap rows have only a few.
_FRAME: Final[dict[str, DataType]] = {
    "stream_id": LongType(),
    "epoch": LongType(),
    "seq": LongType(),
    "timestamp_ns": LongType(),
    "publish_timestamp_ns": LongType(),
    "receive_time_ns": LongType(),
    "meta_version": LongType(),
    "trace_id": LongType(),
    "dtype": StringType(),
    "shape": ArrayType(IntegerType(), False),
    "strides": ArrayType(LongType(), False),
    "major_order": StringType(),
    "payload_bytes": LongType(),
    "crc32c": LongType(),
}
_REF: Final[dict[str, DataType]] = {"segment": StringType(), "payload_offset": LongType()}
_INLINE: Final[dict[str, DataType]] = {"payload": BinaryType()}
_GAP: Final[dict[str, DataType]] = {"gap_count": LongType(), "gap_reason": StringType()}
_ALL: Final = {**_FRAME, **_REF, **_INLINE, **_GAP}

_ARROW: Final[dict[str, pa.DataType]] = {
    "string": pa.utf8(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "array<int>": pa.list_(pa.field("element", pa.int32(), nullable=False)),
    "array<bigint>": pa.list_(pa.field("element", pa.int64(), nullable=False)),
}


def spark_schema(options: Options) -> StructType:
    """The columns that the options ask for."""
    columns = dict(_FRAME)
    if options.payload != "none":
        columns |= _REF if options.payload == "ref" else _INLINE
    if options["includeGaps"]:
        columns |= _GAP
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind, True)
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    return pa.schema([pa.field(one.name, _ARROW[one.dataType.simpleString()]) for one in schema.fields])


def check_schema(schema: StructType, options: Options) -> None:
    """A schema that the user gave may leave columns out, and nothing else."""
    known = {one.name: one.dataType for one in spark_schema(options).fields}
    for one in schema.fields:
        if one.name not in known:
            if one.name in _ALL:
                needs = "includeGaps true" if one.name in _GAP else f"payload {_needed(one.name)}"
                raise ConfigError(f"column {one.name} needs option {needs}")
            near = nearest(one.name, known)
            hint = f"; did you mean {near}?" if near else f"; there are {', '.join(known)}"
            raise ConfigError(f"frames have no column {one.name}{hint}")
        if one.dataType.simpleString() != known[one.name].simpleString():
            raise ConfigError(
                f"column {one.name} is {known[one.name].simpleString()}, not {one.dataType.simpleString()}"
            )


def _needed(name: str) -> str:
    return "ref" if name in _REF else "inline"
