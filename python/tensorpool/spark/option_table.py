"""The table of options of the Spark source and sink, which also makes the reference page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ..runtime.config.units import parse_duration
from ..shm.sizes import parse_size
from .offsets import Position

READ, STREAM, WRITE, STREAM_WRITE = "read", "readStream", "write", "writeStream"
_READS: Final = frozenset({READ, STREAM})
_WRITES: Final = frozenset({WRITE, STREAM_WRITE})

Asked = str | Position
"""`earliest`, `latest`, or a place."""


@dataclass(frozen=True, slots=True)
class Option:
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
) -> Option:
    return Option(name, uses, parse, default, shown, " ".join(doc.split()))


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
