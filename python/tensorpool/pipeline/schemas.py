"""The columns of every table, and their version.

Within a version columns are only added, behind the known ones: readers find them by name. `pipeline.json`
says with which versions a root was begun; a root of a later version than this code knows is refused.

Columns that a table is partitioned by are in the names of its directories and not in its files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from . import layout

VERSIONS: Final = {"bronze": 1, "silver": 1, "gold": 1}
VERSION_KEY: Final = b"tensorpool.pipeline.version"

Payload = Literal["ref", "inline"]

TIME: Final = pa.timestamp("us", tz="UTC")
_SHAPE: Final = pa.list_(pa.field("element", pa.int32(), nullable=False))
_STRIDES: Final = pa.list_(pa.field("element", pa.int64(), nullable=False))
_COUNTS: Final = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))

_FRAME: Final = (
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
"""As in a recording; 64-bit numbers are signed, with the same bits."""
_WHERE: Final[dict[str, tuple[pa.Field, ...]]] = {
    "ref": (pa.field("segment", pa.string()), pa.field("payload_offset", pa.int64())),
    "inline": (pa.field("payload", pa.binary()),),
}
_RECORDING: Final = pa.field("recording", pa.string())
_TIME: Final = pa.field("time", TIME)

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
"""One frame of an aligned row. `segment` and `payload_offset` are null where payloads are inline."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table's columns, in its files and in the names of its directories."""

    name: str
    schema: pa.Schema
    partitions: tuple[str, ...] = ()
    of_version: int | None = None
    """Of files that are there already; None: of this code."""

    @property
    def version(self) -> int:
        return self.of_version if self.of_version is not None else VERSIONS[self.name.partition("/")[0]]

    @property
    def stored(self) -> pa.Schema:
        """What its files have: the version is in the metadata."""
        return self.schema.with_metadata({VERSION_KEY: str(self.version).encode()})

    @property
    def whole(self) -> pa.Schema:
        """With the partition columns, as a reader of the directory sees it."""
        kinds = {"stream_id": pa.int64(), "date": pa.string()}
        return pa.schema([*self.schema, *(pa.field(name, kinds[name]) for name in self.partitions)])


_STREAM_AND_DATE: Final = ("stream_id", "date")


def bronze_frames(payload: Payload = "ref") -> Table:
    """Every frame, as recorded."""
    schema = pa.schema([*_FRAME, *_WHERE[payload], _RECORDING])
    return Table(layout.BRONZE_FRAMES, schema, _STREAM_AND_DATE)


def bronze_gaps() -> Table:
    """Runs of sequences that no row of the recording has. A gap has no time of its own."""
    schema = pa.schema(
        [
            pa.field("epoch", pa.int64()),
            pa.field("seq", pa.int64()),
            pa.field("gap_count", pa.int64()),
            pa.field("gap_reason", pa.string()),
            _RECORDING,
        ]
    )
    return Table(layout.BRONZE_GAPS, schema, ("stream_id",))


def bronze_metadata() -> Table:
    """What producers said of their streams, as it came."""
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
    """Frames that are what they say, each once, with what was said of them."""
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
    return Table(layout.SILVER_FRAMES, schema, _STREAM_AND_DATE)


def silver_rejects(payload: Payload = "ref") -> Table:
    """Frames that were turned away: `checksum`, `missing`, `dtype`, `shape`, `size`, `duplicate`, `late`."""
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
    return Table(layout.SILVER_REJECTS, schema, _STREAM_AND_DATE)


def silver_gaps() -> Table:
    """Sequences that nobody has. The time is that of the frame behind the gap, else of the one before."""
    schema = pa.schema(
        [
            pa.field("epoch", pa.int64()),
            pa.field("first_seq", pa.int64()),
            pa.field("count", pa.int64()),
            pa.field("reason", pa.string()),
            pa.field("receive_time_ns", pa.int64()),
            _TIME,
        ]
    )
    return Table(layout.SILVER_GAPS, schema, _STREAM_AND_DATE)


def aligned(name: str) -> Table:
    """A row for each frame of the first stream that has a partner in every other.

    `frames` are in the order of the definition's streams. `key` is what was compared, of the first stream's
    frame; `spread` is the largest distance from it.
    """
    schema = pa.schema(
        [
            pa.field("key", pa.int64()),
            _TIME,
            pa.field("spread", pa.int64()),
            pa.field("frames", pa.list_(pa.field("element", MEMBER, nullable=False))),
        ]
    )
    return Table(layout.aligned(name), schema, ("date",))


def unaligned(name: str) -> Table:
    """Frames of the first stream without a partner somewhere (`missing`, `timeout`), and frames that came
    after their time was decided (`late`). `streams` are those that lacked, or the late frame's own."""
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
    return Table(layout.unaligned(name), schema, ("date",))


def quality() -> Table:
    """How well a stream came in, by interval of receive time. Rows with `is_open` are replaced as they grow.

    Rates are over the whole interval. A period is the time between two frames of one epoch that follow one
    another in it; jitter is how far a period is from their median. Latency is from publishing to receipt, on
    one host.
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
    return Table(layout.GOLD_QUALITY, schema, ("date",))


_OF_FRAME: Final = (
    pa.field("epoch", pa.int64()),
    pa.field("seq", pa.int64()),
    pa.field("receive_time_ns", pa.int64()),
    _TIME,
)


def statistics() -> Table:
    """What a look at every n-th tensor gives."""
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
    return Table(layout.GOLD_STATISTICS, schema, _STREAM_AND_DATE)


def function(name: str, columns: pa.Schema) -> Table:
    """What a user's function gave for each frame."""
    return Table(layout.function(name), pa.schema([*_OF_FRAME, *columns]), _STREAM_AND_DATE)
