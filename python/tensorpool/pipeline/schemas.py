"""The columns of every table, and their version.

Within a version columns are only added, after the existing ones; readers find them by name. `pipeline.json`
contains the versions of a root. A root of a later version is refused.

Tables are partitioned by day: `date` is in the names of directories and not in files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from ..errors import ConfigError
from . import layout

VERSIONS: Final = {"bronze": 2, "silver": 2, "gold": 2}
VERSION_KEY: Final = b"tensorpool.pipeline.version"

Payload = Literal["ref", "inline"]

TIME: Final = pa.timestamp("us", tz="UTC")
_SHAPE: Final = pa.list_(pa.field("element", pa.int32(), nullable=False))
_STRIDES: Final = pa.list_(pa.field("element", pa.int64(), nullable=False))
_COUNTS: Final = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))

_FRAME: Final = (
    pa.field("stream_id", pa.int64()),
    pa.field("epoch", pa.int64()),
    pa.field("seq", pa.int64()),
    pa.field("timestamp_ns", pa.int64()),
    pa.field("publish_timestamp_ns", pa.int64()),
    pa.field("receive_time_ns", pa.int64()),
    pa.field("meta_version", pa.int64()),
    pa.field("trace_id", pa.int64()),
    pa.field("dtype", pa.string()),
    pa.field("shape", _SHAPE),
    pa.field("strides", _STRIDES),
    pa.field("major_order", pa.string()),
    pa.field("payload_bytes", pa.int64()),
    pa.field("crc32c", pa.int64()),
)
"""The columns of a recording. 64-bit numbers are signed, with the same bits."""
_WHERE: Final[dict[str, tuple[pa.Field, ...]]] = {
    "ref": (pa.field("segment", pa.string()), pa.field("payload_offset", pa.int64())),
    "inline": (pa.field("payload", pa.binary()),),
}
_RECORDING: Final = pa.field("recording", pa.string())
_TIME: Final = pa.field("time", TIME)
PIPELINE: Final = pa.field("pipeline", pa.string())
"""The name of the pipeline that wrote a row: streams of two hosts may have one id. Null without a name."""

MEMBER: Final = pa.struct(
    [
        pa.field("stream_id", pa.int64()),
        pa.field("epoch", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("key", pa.int64()),
        pa.field("timestamp_ns", pa.int64()),
        pa.field("receive_time_ns", pa.int64()),
        pa.field("dtype", pa.string()),
        pa.field("shape", _SHAPE),
        pa.field("strides", _STRIDES),
        pa.field("payload_bytes", pa.int64()),
        pa.field("crc32c", pa.int64()),
        pa.field("segment", pa.string()),
        pa.field("payload_offset", pa.int64()),
    ]
)
"""One frame of an aligned row. `segment` and `payload_offset` are null if payloads are inline."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table's columns, in its files and in the names of its directories."""

    name: str
    schema: pa.Schema
    partitions: tuple[str, ...] = ()

    @property
    def stored(self) -> pa.Schema:
        """The schema of its files, with the version as metadata."""
        version = VERSIONS[self.name.partition("/")[0]]
        return self.schema.append(PIPELINE).with_metadata({VERSION_KEY: str(version).encode()})

    @property
    def whole(self) -> pa.Schema:
        """The schema with the partition columns, as a reader of the table sees it."""
        return pa.schema([*self.schema, *(pa.field(name, pa.date32()) for name in self.partitions)])

    @property
    def shared(self) -> pa.Schema:
        """The schema of a table that several pipelines write to: `whole`, and the pipeline of each row."""
        return self.whole.append(PIPELINE)


_DATE: Final = ("date",)


def bronze_frames(payload: Payload = "ref") -> Table:
    """Every frame, as recorded."""
    schema = pa.schema([*_FRAME, *_WHERE[payload], _RECORDING, _TIME])
    return Table(layout.BRONZE_FRAMES, schema, _DATE)


def bronze_gaps() -> Table:
    """Runs of sequences that are missing in a recording. A gap has no receive time."""
    schema = pa.schema(
        [
            pa.field("stream_id", pa.int64()),
            pa.field("epoch", pa.int64()),
            pa.field("seq", pa.int64()),
            pa.field("gap_count", pa.int64()),
            pa.field("gap_reason", pa.string()),
            _RECORDING,
        ]
    )
    return Table(layout.BRONZE_GAPS, schema)


def bronze_metadata() -> Table:
    """The metadata of streams, as their producers published it."""
    schema = pa.schema(
        [
            pa.field("receive_time_ns", pa.int64()),
            pa.field("stream_id", pa.int64()),
            pa.field("epoch", pa.int64()),
            pa.field("meta_version", pa.int64()),
            pa.field("kind", pa.string()),
            pa.field("message", pa.binary()),
            pa.field("json", pa.string()),
            _RECORDING,
        ]
    )
    return Table(layout.BRONZE_METADATA, schema)


def silver_frames(payload: Payload = "ref") -> Table:
    """Valid frames, each once, with their metadata."""
    schema = pa.schema(
        [
            *_FRAME,
            *_WHERE[payload],
            _RECORDING,
            _TIME,
            pa.field("latency_ns", pa.int64()),
            pa.field("metadata", pa.string()),
        ]
    )
    return Table(layout.SILVER_FRAMES, schema, _DATE)


def silver_rejects(payload: Payload = "ref") -> Table:
    """Rejected frames: `checksum`, `missing`, `dtype`, `shape`, `size`, `duplicate`, `late`."""
    schema = pa.schema(
        [
            *_FRAME,
            *_WHERE[payload],
            _RECORDING,
            _TIME,
            pa.field("reason", pa.string()),
            pa.field("detail", pa.string()),
        ]
    )
    return Table(layout.SILVER_REJECTS, schema, _DATE)


def silver_gaps() -> Table:
    """Sequences that are in no recording. The time is of the frame after the gap, else of the one before."""
    schema = pa.schema(
        [
            pa.field("stream_id", pa.int64()),
            pa.field("epoch", pa.int64()),
            pa.field("first_seq", pa.int64()),
            pa.field("count", pa.int64()),
            pa.field("reason", pa.string()),
            pa.field("receive_time_ns", pa.int64()),
            _TIME,
        ]
    )
    return Table(layout.SILVER_GAPS, schema, _DATE)


def aligned(name: str) -> Table:
    """A row for each frame of the first stream that has a partner in every other stream.

    `frames` are in the order of the definition's streams. `key` is the compared value of the first stream's
    frame; `spread` is the largest distance of a partner from it.
    """
    schema = pa.schema(
        [
            pa.field("key", pa.int64()),
            _TIME,
            pa.field("spread", pa.int64()),
            pa.field("frames", pa.list_(pa.field("element", MEMBER, nullable=False))),
        ]
    )
    return Table(layout.aligned(name), schema, _DATE)


def unaligned(name: str) -> Table:
    """Frames without a set.

    `missing` and `timeout`: a frame of the first stream; `streams` are the streams without a partner.
    `late`: a frame that arrived after the frames around it were decided; `streams` is its own stream.
    """
    schema = pa.schema(
        [
            pa.field("stream_id", pa.int64()),
            pa.field("epoch", pa.int64()),
            pa.field("seq", pa.int64()),
            pa.field("key", pa.int64()),
            _TIME,
            pa.field("reason", pa.string()),
            pa.field("streams", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        ]
    )
    return Table(layout.unaligned(name), schema, _DATE)


def quality(*, is_open: bool = False) -> Table:
    """The quality of streams by interval of receive time. Open intervals have a table of their own.

    Rows of `gold/quality` are final. Each batch replaces `gold/quality_open`, which is small.

    Rates are over the whole interval. A period is the time between two frames of one epoch with consecutive
    sequences; jitter is the distance of a period from the median period. Latency is the time from publication
    to receipt, on one host.
    """
    percentiles = [
        pa.field(f"{what}_ns_{of}", pa.int64())
        for what in ("period", "jitter", "latency")
        for of in ("p50", "p90", "p99", "max")
    ]
    schema = pa.schema(
        [
            pa.field("stream_id", pa.int64()),
            pa.field("interval_start", TIME),
            pa.field("interval_start_ns", pa.int64()),
            pa.field("interval_ns", pa.int64()),
            pa.field("is_open", pa.bool_()),
            pa.field("frames", pa.int64()),
            pa.field("bytes", pa.int64()),
            pa.field("rate_hz", pa.float64()),
            pa.field("bytes_per_s", pa.float64()),
            *percentiles,
            pa.field("dropped", pa.int64()),
            pa.field("drops", _COUNTS),
            pa.field("rejected", pa.int64()),
            pa.field("rejects", _COUNTS),
            pa.field("duplicates", pa.int64()),
            pa.field("epochs", pa.int64()),
            pa.field("traced", pa.int64()),
            pa.field("lineage_depth_mean", pa.float64()),
            pa.field("lineage_depth_max", pa.int64()),
        ]
    )
    return Table(layout.GOLD_QUALITY_OPEN if is_open else layout.GOLD_QUALITY, schema, _DATE)


_OF_FRAME: Final = (
    pa.field("stream_id", pa.int64()),
    pa.field("epoch", pa.int64()),
    pa.field("seq", pa.int64()),
    pa.field("receive_time_ns", pa.int64()),
    _TIME,
)


def statistics() -> Table:
    """Statistics of every n-th tensor."""
    schema = pa.schema(
        [
            *_OF_FRAME,
            pa.field("dtype", pa.string()),
            pa.field("shape", _SHAPE),
            pa.field("min", pa.float64()),
            pa.field("max", pa.float64()),
            pa.field("mean", pa.float64()),
            pa.field("std", pa.float64()),
            pa.field("nan_count", pa.int64()),
        ]
    )
    return Table(layout.GOLD_STATISTICS, schema, _DATE)


def function(name: str, columns: pa.Schema) -> Table:
    """The results of a user's function for each frame."""
    return Table(layout.function(name), pa.schema([*_OF_FRAME, *columns]), _DATE)


# --- columns of functions

KINDS: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
}
_COLUMN: Final = re.compile(r"\s*([A-Za-z_]\w*)\s+(array\s*<\s*)?([a-z]+)\s*(>)?\s*", re.ASCII)
_TAKEN_NAMES: Final = frozenset({"stream_id", "date", "epoch", "seq", "receive_time_ns", "time", "pipeline"})


def parse_columns(text: str) -> pa.Schema:
    """The schema of a column list. Raises ConfigError with the allowed types."""
    fields: list[pa.Field] = []
    for part in text.split(","):
        match = _COLUMN.fullmatch(part)
        if match is None or bool(match[2]) != bool(match[4]) or match[3] not in KINDS:
            raise ConfigError(
                f"{part.strip()!r} is not a column; write a name and one of {', '.join(KINDS)}, or array<…>"
            )
        name, kind = match[1], KINDS[match[3]]
        if name in _TAKEN_NAMES or any(known.name == name for known in fields):
            raise ConfigError(f"column {name} is in the table already; use another name")
        fields.append(pa.field(name, pa.list_(pa.field("element", kind)) if match[2] else kind))
    return pa.schema(fields)


def columns_fault(text: str) -> str | None:
    """Why a column list is invalid; None if it is valid."""
    try:
        parse_columns(text)
    except ConfigError as error:
        return str(error)
    return None
