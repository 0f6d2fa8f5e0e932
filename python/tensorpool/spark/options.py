"""The options of one read or write, checked against the table.

Spark compares option names without regard to case; what is wrong is said with the nearest right name.

The table of options of the Spark source and sink, which also makes the reference page.

The columns of a DataFrame of frames, for Spark and for Arrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, StringType, StructType

from ..errors import ConfigError
from ..runtime.config.config import nearest
from ..units import parse_duration, parse_size
from .offsets import Position

__all__ = ["READ", "STREAM", "STREAM_WRITE", "TABLE", "WRITE", "Options", "is_for"]

READ, STREAM, WRITE, STREAM_WRITE = "read", "readStream", "write", "writeStream"
_READS: Final = frozenset({READ, STREAM})
_WRITES: Final = frozenset({WRITE, STREAM_WRITE})

Asked = str | Position
"""`earliest`, `latest`, or a place."""


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One line of the table."""

    name: str
    uses: frozenset[str]
    parse: Callable[[str], Any]
    default: Any
    shown: str
    """The default in words."""
    doc: str


def _word(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"use {' or '.join(words)}")
        return text.lower()

    return parse


def _flag(text: str) -> bool:
    return _word("true", "false")(text) == "true"


def _count(text: str) -> int:
    number = int(text) if re.fullmatch(r"\d+", text) else 0
    if number < 1:
        raise ValueError("use a number from 1 on")
    return number


def _bytes(text: str) -> int:
    size = int(text) if text.isdigit() else parse_size(text)
    if size < 1:
        raise ValueError("use a size as in 64MiB")
    return size


def _path(text: str) -> str:
    # Executors may run elsewhere than where it was typed.
    return str(Path(text).absolute()) if text else ""


def _stream(text: str) -> int:
    number = int(text) if re.fullmatch(r"\d+", text) else -1
    if not 0 <= number < 1 << 32:
        raise ValueError("a stream id is a number from 0 to 4294967295")
    return number


def _streams(text: str) -> tuple[int, ...]:
    return tuple(sorted({_stream(part.strip()) for part in text.split(",")}))


def _offsets(text: str) -> str | dict[int, Asked]:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    form = 'use earliest, latest or {"10000": {"epoch": 1, "seq": 0}, "10001": "earliest"}'
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(form)
        return {
            _stream(stream): place if place in ("earliest", "latest") else Position.from_json(place)
            for stream, place in found.items()
        }
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{form} ({error})") from None


def _time(text: str) -> int:
    if re.fullmatch(r"\d+", text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = datetime(1970, 1, 1)
    if found.tzinfo is None:
        raise ValueError("use a time with a zone, as in 2026-03-01T12:00:00Z, or nanoseconds since 1970")
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _one(
    name: str, uses: frozenset[str], parse: Callable[[str], Any], default: Any, shown: str, doc: str
) -> OptionSpec:
    return OptionSpec(name, uses, parse, default, shown, " ".join(doc.split()))


TABLE: Final = (
    _one(
        "path", _READS | _WRITES, _path, None, "",
        "The recording's directory. Every executor has to see it there.",
    ),
    _one(
        "mode", _READS | _WRITES, _word("recording", "live"), "recording", "recording",
        "`live`: straight from a pool on the executor's own host, or published into one.",
    ),
    _one(
        "streams", _READS, _streams, None, "all, later ones too",
        "Stream ids, separated by commas. Live mode needs it.",
    ),
    _one(
        "startingOffsets", _READS, _offsets, "earliest", "earliest",
        """Where a new query begins: `earliest`, `latest`, or JSON by stream,
        `{"10000": {"epoch": 1, "seq": 500}}` (that frame is read). A stream that it does not name begins at
        its earliest frame.""",
    ),
    _one(
        "endingOffsets", frozenset({READ}), _offsets, "latest", "latest",
        """Where a batch read ends, in the same form (that frame is not read). A stream that it does not name
        is read to its latest frame.""",
    ),
    _one(
        "startingTimestamp", _READS, _time, None, "",
        """Only frames received then or later: `2026-03-01T12:00:00Z`, or nanoseconds since 1970. For a
        stream, the first such frame is where it begins.""",
    ),
    _one("endingTimestamp", frozenset({READ}), _time, None, "", "Only frames received before then."),
    _one(
        "maxRowsPerTrigger", frozenset({STREAM}), _count, None, "no limit", "Rows of a micro-batch, at most.",
    ),
    _one(
        "maxBytesPerTrigger", frozenset({STREAM}), _bytes, None, "no limit",
        "Payload bytes of a micro-batch, at most (`1GiB`); of each stream one frame is always taken.",
    ),
    _one("minPartitions", _READS, _count, None, "", "Cut what is read into at least so many tasks."),
    _one(
        "maxPartitionBytes", _READS, _bytes, None, "by cores, 64MiB to 512MiB",
        """Payload bytes of a task, about. A segment that is larger is shared among tasks. By default each
        core of the driver's host gets its share.""",
    ),
    _one(
        "maxBatchBytes", _READS, _bytes, 16 << 20, "16MiB",
        "Bytes of one Arrow batch between Python and Spark, at most; a larger frame has a batch of its own.",
    ),
    _one(
        "payload", _READS, _word("ref", "inline", "none"), None, "ref (live: inline)",
        """`ref`: where the payload lies, for `tensorpool.spark.tensors`; `inline`: its bytes; `none`:
        neither.""",
    ),
    _one(
        "includeGaps", _READS, _flag, False, "false",
        "Adds columns `gap_count` and `gap_reason`, and a row for each run of missing sequences.",
    ),
    _one(
        "failOnDataLoss", _READS, _flag, True, "true",
        """Fail when frames that should be read were removed or are damaged. `false` goes on, and with
        `includeGaps` they are gap rows (`removed`, `corrupt`).""",
    ),
    _one(
        "leaseTimeout", _READS, parse_duration, None, "10min for a stream, none for a batch",
        "How long retention keeps what a query still needs after the query was last heard of.",
    ),
    _one(
        "retryTimeout", _READS, parse_duration, 30_000_000_000, "30s",
        "How long planning tries again when the disk does not answer; an error there ends the query.",
    ),
    _one(
        "liveWindow", frozenset({STREAM}), parse_duration, 1_000_000_000, "1s",
        "Live mode: how long a micro-batch listens.",
    ),
    _one(
        "aeronDir", frozenset({STREAM}) | _WRITES, str, None, "Aeron's own",
        "Live mode: the media driver's directory.",
    ),
    _one(
        "stream", _WRITES, _stream, None, "",
        "The stream to write, where rows have no column `stream_id`.",
    ),
    _one(
        "epoch", _WRITES, _count, None, "the stream's last, or 1",
        "The epoch to write, where rows have no column `epoch`.",
    ),
    _one(
        "pools", _WRITES, str, None, "as the driver has it",
        "Live mode: payload sizes of the stream, as in `64KiB,1MiB`.",
    ),
    _one("nslots", _WRITES, _count, None, "as the driver has it", "Live mode: frames that the ring holds."),
    _one(
        "busyTimeout", _WRITES, parse_duration, 60_000_000_000, "60s",
        "How long to wait for a stream that someone else is writing.",
    ),
    _one(
        "linger", _WRITES, parse_duration, 500_000_000, "500ms",
        """Live mode: how long a task waits before its first frame, for readers to find its memory, and after
        its last, for readers to take it.""",
    ),
)  # fmt: skip


_BY_NAME: Final = {option.name.lower(): option for option in TABLE}


class Options:
    """The options of one read or write, checked. Missing ones have their defaults."""

    def __init__(self, given: Mapping[str, Any], use: str) -> None:
        self.use = use
        self._values: dict[str, Any] = {}
        for key, text in given.items():
            self._values[key.lower()] = _parsed(key, text, use)
        self._check()

    def __getitem__(self, name: str) -> Any:
        option = _BY_NAME[name.lower()]
        return self._values.get(name.lower(), option.default)

    def is_given(self, name: str) -> bool:
        return name.lower() in self._values

    @property
    def is_live(self) -> bool:
        return bool(self["mode"] == "live")

    @property
    def payload(self) -> str:
        found: str = self["payload"] or ("inline" if self.is_live else "ref")
        return found

    @property
    def path(self) -> str:
        found: str = self["path"]
        return found

    def _check(self) -> None:
        if self.is_live:
            if self.use == READ:
                raise ConfigError(
                    "mode live is a stream without end: use spark.readStream, or mode recording"
                )
            if self.use == STREAM and not self["streams"]:
                raise ConfigError("mode live needs option streams, as in .option('streams', '10000')")
            if self.use == STREAM and self["payload"] == "ref":
                raise ConfigError("mode live has no segments to refer to: use payload inline or none")
            return
        if not self.path:
            raise ConfigError("option path is missing: .option('path', DIR), the directory of a recording")
        if self.is_given("startingTimestamp") and self.is_given("startingOffsets"):
            raise ConfigError("startingOffsets and startingTimestamp both say where to begin: leave one out")
        start, end = self["startingTimestamp"], self["endingTimestamp"]
        if start is not None and end is not None and end <= start:
            raise ConfigError("endingTimestamp is not after startingTimestamp: nothing lies between them")


def _parsed(key: str, text: Any, use: str) -> Any:
    option = _BY_NAME.get(key.lower())
    usable = [one for one in TABLE if use in one.uses]
    if option is None:
        near = nearest(key, [one.name.lower() for one in usable])
        hint = (
            f"; did you mean {_BY_NAME[near].name}?"
            if near
            else f"; there are {', '.join(o.name for o in usable)}"
        )
        raise ConfigError(f"tensorpool has no option {key}{hint}")
    if use not in option.uses:
        raise ConfigError(f"option {option.name} is not for {use}, but for {', '.join(sorted(option.uses))}")
    try:
        return option.parse(str(text).strip())
    except ValueError as error:
        raise ConfigError(f"option {option.name} = {text!r}: {error}") from None


def is_for(key: str, use: str) -> bool:
    """Whether an option of this name belongs to that use."""
    option = _BY_NAME.get(key.lower())
    return option is not None and use in option.uses


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
