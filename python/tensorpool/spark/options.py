"""Options of the Spark source and sink, and the columns of a DataFrame of frames.

The reference page is generated from TABLE. Spark ignores the case of option names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from ..errors import ConfigError
from ..recording.storage import StorageUri, local_path
from ..runtime.config.config import nearest
from ..units import parse_duration, parse_size
from .offsets import Position

__all__ = ["READ", "STREAM", "STREAM_WRITE", "TABLE", "WRITE", "Options", "is_for"]

READ, STREAM, WRITE, STREAM_WRITE = "read", "readStream", "write", "writeStream"
EARLIEST, LATEST = "earliest", "latest"
_READS: Final = frozenset({READ, STREAM})
_WRITES: Final = frozenset({WRITE, STREAM_WRITE})

RequestedPosition = str | Position
"""`earliest`, `latest`, or a position."""


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """Name, parser, default and documentation of one option."""

    name: str
    uses: frozenset[str]
    parse: Callable[[str], Any]
    default: Any
    default_text: str
    """The default as the reference page shows it."""
    doc: str


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"use {' or '.join(choices)}")
        return text.lower()

    return parse


def _flag(text: str) -> bool:
    return _choice("true", "false")(text) == "true"


def _count(text: str) -> int:
    number = int(text) if re.fullmatch(r"\d+", text) else 0
    if number < 1:
        raise ValueError("use a whole number, at least 1")
    return number


def _bytes(text: str) -> int:
    size = int(text) if text.isdigit() else parse_size(text)
    if size < 1:
        raise ValueError("use a size as in 64MiB")
    return size


def _path(text: str) -> str:
    if not text:
        return ""
    path = local_path(text)
    # Executors may have another working directory.
    return str(path.absolute()) if path is not None else str(StorageUri.parse(text))


def _version(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise ValueError("use the number of a version of the table, as in 12")
    return int(text)


def _stream(text: str) -> int:
    number = int(text) if re.fullmatch(r"\d+", text) else -1
    if not 0 <= number < 1 << 32:
        raise ValueError("a stream id is a number from 0 to 4294967295")
    return number


def _streams(text: str) -> tuple[int | str, ...]:
    parts = {part.strip() for part in text.split(",")}
    if "" in parts:
        raise ValueError("use ids or names of streams, separated by commas")
    return tuple(sorted((_stream(part) if part.isdecimal() else part for part in parts), key=str))


def _offsets(text: str) -> str | dict[int, RequestedPosition]:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    hint = 'use earliest, latest or {"10000": {"epoch": 1, "seq": 0}, "10001": "earliest"}'
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError(hint)
        return {
            _stream(stream): position if position in (EARLIEST, LATEST) else Position.from_json(position)
            for stream, position in value.items()
        }
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{hint} ({error})") from None


def _time(text: str) -> int:
    if re.fullmatch(r"\d+", text):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = datetime(1970, 1, 1)
    if time.tzinfo is None:
        raise ValueError("use a time with a zone, as in 2026-03-01T12:00:00Z, or nanoseconds since 1970")
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _option(
    name: str, uses: frozenset[str], parse: Callable[[str], Any], default: Any, default_text: str, doc: str
) -> OptionSpec:
    return OptionSpec(name, uses, parse, default, default_text, " ".join(doc.split()))


TABLE: Final = (
    _option(
        "path", _READS | _WRITES, _path, None, "",
        """Directory of the recording, or a URI (`s3://bucket/recording`) for reading. Executors that do not
        find the directory read its archive, if it has one.""",
    ),
    _option(
        "mode", _READS | _WRITES, _choice("recording", "live"), "recording", "recording",
        "`live`: read from, or publish to, shared memory on the executor's own host.",
    ),
    _option(
        "streams", _READS, _streams, None, "all, later ones too",
        "Ids or names of streams, separated by commas. Required in live mode.",
    ),
    _option(
        "startingOffsets", _READS, _offsets, "earliest", "earliest",
        """Start of a new query: `earliest`, `latest`, or JSON by stream,
        `{"10000": {"epoch": 1, "seq": 500}}` (that frame is read). A stream without an entry starts at its
        earliest frame.""",
    ),
    _option(
        "endingOffsets", frozenset({READ}), _offsets, "latest", "latest",
        """End of a batch read, in the same format (that frame is not read). A stream without an entry is read
        to its latest frame.""",
    ),
    _option(
        "startingTimestamp", _READS, _time, None, "",
        """Only frames received at this time or later: `2026-03-01T12:00:00Z`, or nanoseconds since 1970. A
        streaming query starts at the first such frame.""",
    ),
    _option("endingTimestamp", frozenset({READ}), _time, None, "", "Only frames received before this time."),
    _option(
        "table", frozenset({READ}), str, None, "",
        """A table of a pipeline, as in `silver/frames`: `path` is then the root of its tables, a directory or
        a URI. The options `streams` (ids), `startingTimestamp` and `endingTimestamp` choose its files and
        rows.""",
    ),
    _option(
        "version", frozenset({READ}), _version, None, "the latest", "Version of the table, for time travel.",
    ),
    _option(
        "maxRowsPerTrigger", frozenset({STREAM}), _count, None, "no limit",
        "Maximum number of rows of a micro-batch.",
    ),
    _option(
        "maxBytesPerTrigger", frozenset({STREAM}), _bytes, None, "no limit",
        "Maximum payload bytes of a micro-batch (`1GiB`); at least one frame of each stream is read.",
    ),
    _option("minPartitions", _READS, _count, None, "", "Minimum number of tasks."),
    _option(
        "maxPartitionBytes", _READS, _bytes, None, "by cores, 64MiB to 512MiB",
        """Approximate payload bytes of a task. A larger segment is divided among several tasks. By default
        the data is divided by the number of cores of the host of Spark's driver.""",
    ),
    _option(
        "maxBatchBytes", _READS, _bytes, 16 << 20, "16MiB",
        "Maximum bytes of an Arrow batch between Python and Spark; a larger frame gets its own batch.",
    ),
    _option(
        "payload", _READS, _choice("ref", "inline", "none"), None, "ref (live: inline)",
        """`ref`: the position of the payload, for `tensorpool.spark.tensors`; `inline`: its bytes; `none`:
        neither.""",
    ),
    _option(
        "includeGaps", _READS, _flag, False, "false",
        """Adds the columns `gap_count` and `gap_reason`, and a row for each range of missing sequences, also
        of those before the first frame and, once declared, behind the last.""",
    ),
    _option(
        "includeTime", _READS, _flag, False, "false",
        """Adds the column `time`, the receive time as a timestamp, for windows and watermarks:
        `withWatermark("time", "10 seconds")`.""",
    ),
    _option(
        "failOnDataLoss", _READS, _flag, True, "true",
        """Whether the query fails when frames of its range were removed or are damaged. With `false` it
        continues, and with `includeGaps` they become gap rows (`removed`, `corrupt`).""",
    ),
    _option(
        "leaseTimeout", _READS, parse_duration, None, "10min for a stream, none for a batch",
        "Lifetime of the reader lease: how long retention keeps unread frames after the query crashed.",
    ),
    _option(
        "retryTimeout", _READS, parse_duration, 30_000_000_000, "30s",
        "How long planning is retried after a disk error; an error in planning ends the query.",
    ),
    _option(
        "liveWindow", frozenset({STREAM}), parse_duration, 1_000_000_000, "1s",
        "Live mode: how long a micro-batch receives frames.",
    ),
    _option(
        "aeronDir", frozenset({STREAM}) | _WRITES, str, None, "Aeron's default",
        "Live mode: directory of the media driver.",
    ),
    _option(
        "stream", _WRITES, _stream, None, "",
        "The stream to write if rows have no column `stream_id`.",
    ),
    _option(
        "epoch", _WRITES, _count, None, "the stream's last, or 1",
        "The epoch to write if rows have no column `epoch`.",
    ),
    _option(
        "pools", _WRITES, str, None, "set by the driver",
        "Live mode: strides of the stream's payload pools, as in `64KiB,1MiB`.",
    ),
    _option("nslots", _WRITES, _count, None, "set by the driver", "Live mode: slots of the header ring."),
    _option(
        "busyTimeout", _WRITES, parse_duration, 60_000_000_000, "60s",
        "How long to wait for a stream that another writer holds.",
    ),
    _option(
        "linger", _WRITES, parse_duration, 500_000_000, "500ms",
        """Live mode: how long a task waits before its first frame, so that consumers can map its regions, and
        after its last, so that consumers can read it.""",
    ),
)  # fmt: skip


_BY_NAME: Final = {option.name.lower(): option for option in TABLE}


class Options:
    """The validated options of one read or write. Missing options have their defaults."""

    def __init__(self, given: Mapping[str, Any], use: str) -> None:
        self.use = use
        self._values: dict[str, object] = {}
        for key, text in given.items():
            self._values[key.lower()] = _parse_option(key, text, use)
        self._check()

    def __getitem__(self, name: str) -> Any:
        option = _BY_NAME[name.lower()]
        return self._values.get(name.lower(), option.default)

    def is_given(self, name: str) -> bool:
        """Whether an option was set."""
        return name.lower() in self._values

    @property
    def is_live(self) -> bool:
        """Whether the mode is live."""
        return bool(self["mode"] == "live")

    @property
    def payload(self) -> str:
        """`ref`, `inline` or `none`."""
        value: str = self["payload"] or ("inline" if self.is_live else "ref")
        return value

    @property
    def path(self) -> str:
        """Directory of the recording."""
        value: str = self["path"]
        return value

    def _check(self) -> None:
        if self.is_live:
            if self.use == READ:
                raise ConfigError("mode live has no batch read: use spark.readStream, or mode recording")
            if self.use == STREAM and not self["streams"]:
                raise ConfigError("mode live needs option streams, as in .option('streams', '10000')")
            if self.use == STREAM and self["payload"] == "ref":
                raise ConfigError("mode live has no segments for payload ref: use payload inline or none")
            return
        if not self.path and self.use in _WRITES:
            # Spark passes a writer nothing of a catalog's table, and the columns of the query as its schema.
            raise ConfigError(
                "option path is missing: .option('path', DIR), the directory of a recording; in SQL also for "
                "a table of a catalog: INSERT INTO name WITH (path = 'DIR') SELECT …"
            )
        if not self.path:
            raise ConfigError("option path is missing: .option('path', DIR), the directory of a recording")
        if self.is_given("startingTimestamp") and self.is_given("startingOffsets"):
            raise ConfigError("startingOffsets and startingTimestamp exclude each other: give only one")
        start, end = self["startingTimestamp"], self["endingTimestamp"]
        if start is not None and end is not None and end <= start:
            raise ConfigError("endingTimestamp is not after startingTimestamp: the range is empty")


def _parse_option(key: str, text: Any, use: str) -> Any:
    option = _BY_NAME.get(key.lower())
    if option is None:
        usable = [spec.name for spec in TABLE if use in spec.uses]
        near = nearest(key, [name.lower() for name in usable])
        hint = f"did you mean {_BY_NAME[near].name}?" if near else f"the options are {', '.join(usable)}"
        raise ConfigError(f"tensorpool has no option {key}; {hint}")
    if use not in option.uses:
        raise ConfigError(f"option {option.name} is for {', '.join(sorted(option.uses))}, not for {use}")
    try:
        return option.parse(str(text).strip())
    except ConfigError as error:
        raise ConfigError(f"option {option.name}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"option {option.name} = {text!r}: {error}") from None


def is_option(key: str) -> bool:
    """Whether there is an option of this name."""
    return key.lower() in _BY_NAME


def is_for(key: str, use: str) -> bool:
    """Whether there is an option of this name for a use."""
    option = _BY_NAME.get(key.lower())
    return option is not None and use in option.uses


# In the order of the columns of a recording. All are nullable: gap rows have few values.
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
_TIME: Final[dict[str, DataType]] = {"time": TimestampType()}
_ALL: Final = {**_FRAME, **_REF, **_INLINE, **_GAP, **_TIME}

_ARROW: Final[dict[str, pa.DataType]] = {
    "string": pa.utf8(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<int>": pa.list_(pa.field("element", pa.int32(), nullable=False)),
    "array<bigint>": pa.list_(pa.field("element", pa.int64(), nullable=False)),
}


def spark_schema(options: Options) -> StructType:
    """The columns that the options select."""
    columns = dict(_FRAME)
    if options.payload != "none":
        columns |= _REF if options.payload == "ref" else _INLINE
    if options["includeGaps"]:
        columns |= _GAP
    if options["includeTime"]:
        columns |= _TIME
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind, True)
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types of a Spark schema of frames."""
    return pa.schema([pa.field(field.name, _ARROW[field.dataType.simpleString()]) for field in schema.fields])


def check_schema(schema: StructType, options: Options) -> None:
    """Raises ConfigError unless a user's schema has only columns that the options select."""
    known = {field.name: field.dataType for field in spark_schema(options).fields}
    for field in schema.fields:
        name, kind = field.name, field.dataType.simpleString()
        if name not in known:
            if name in _GAP:
                raise ConfigError(f"column {name} needs option includeGaps true")
            if name in _TIME:
                raise ConfigError(f"column {name} needs option includeTime true")
            if name in _ALL:
                raise ConfigError(f"column {name} needs option payload {'ref' if name in _REF else 'inline'}")
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"the columns are {', '.join(known)}"
            raise ConfigError(f"frames have no column {name}; {hint}")
        if kind != known[name].simpleString():
            raise ConfigError(f"column {name} is {known[name].simpleString()}, not {kind}")
