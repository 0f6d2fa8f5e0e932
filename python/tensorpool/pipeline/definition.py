"""A pipeline's definition: the table `[pipeline]` of a TOML file, as dataclasses.

Read by the package's own configuration: a wrong key or value is an error that names it, its line, and the
nearest that would be right; `TENSORPOOL_PIPELINE__<KEY>` overrides. See docs/reference/pipeline.md.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from ..runtime.config import (
    Config,
    DurationNs,
    Override,
    SizeBytes,
    parse_duration,
    parse_size,
    setting,
    settings,
    table,
)
from .columns import columns_fault
from .layout import RESERVED_NAMES

MAX_STREAM_ID: Final = 0xFFFF_FFFE
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}", re.ASCII)
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


def _streams_fault(streams: tuple[int, ...]) -> str | None:
    wrong = [one for one in streams if not 0 < one <= MAX_STREAM_ID]
    if wrong:
        return f"{wrong[0]} is no stream id; use 1 to {MAX_STREAM_ID}"
    return "a stream is there twice" if len(set(streams)) < len(streams) else None


def _name_fault(name: str) -> str | None:
    if _NAME.fullmatch(name):
        return None
    return "a name is small letters, digits, - and _, begins with a letter, and is a directory"


def _function_fault(text: str) -> str | None:
    return None if _FUNCTION.fullmatch(text) else "write module:function, as in 'looks:brightness'"


def _shape_fault(shape: tuple[int, ...]) -> str | None:
    if not 1 <= len(shape) <= 8 or any(size < 0 for size in shape):
        return "1 to 8 sizes, 0 for any"
    return None


_STREAMS_DOC: Final = "Of these streams; none named: of all."


@table
class RuleSettings:
    """What frames of some streams have to be. A frame that is not goes to `silver/rejects`."""

    streams: tuple[int, ...] = setting(_STREAMS_DOC, default=(), check=_streams_fault)
    dtype: tuple[str, ...] = setting("One of these element types; none named: any.", default=())
    shape: tuple[int, ...] | None = setting(
        "This shape; 0 stands for any size.", default=None, check=_shape_fault
    )
    max_payload_bytes: SizeBytes | None = setting("No payload is larger.", default=None)

    def check(self) -> Iterator[tuple[str, str]]:
        """Yields what is wrong with the values as a whole, each with its key."""
        from ..recording.tensors import NUMBERS

        if unknown := [name for name in self.dtype if name not in NUMBERS]:
            yield "dtype", f"{unknown[0]!r} is none of {', '.join(NUMBERS)}"
        if not self.dtype and self.shape is None and self.max_payload_bytes is None:
            yield "streams", "the rule demands nothing: give dtype, shape or max_payload"


@table
class AlignmentSettings:
    """Frames of several streams that belong together, a row for each frame of the first stream."""

    name: str = setting("What its tables are called: `silver/aligned/<name>`.", check=_name_fault)
    streams: tuple[int, ...] = setting("The streams; the first one sets the pace.", check=_streams_fault)
    by: Literal["timestamp", "receive_time", "sequence"] = setting(
        "What is compared: the source's `timestamp_ns` (streams of one host), the recorder's "
        "`receive_time_ns`, or the sequence in the n-th epoch of each stream.",
        default="timestamp",
    )
    tolerance_ns: DurationNs = setting(
        "A partner is at most this far away in time; the nearest is taken.", default=parse_duration("10ms")
    )
    tolerance_sequences: int = setting("The same, by sequence.", default=0, minimum=0)
    wait_ns: DurationNs = setting(
        "How far the other streams may run ahead, in recorded time, before a frame is decided without a "
        "partner that may still come. It bounds what is kept in between.",
        default=parse_duration("10s"),
        minimum=parse_duration("1ms"),
    )
    max_pending: int = setting(
        "Frames that wait for partners, of all its streams; beyond that the oldest are decided.",
        default=100_000,
        minimum=2,
    )

    @property
    def tolerance(self) -> int:
        """In the unit of what is compared."""
        return self.tolerance_sequences if self.by == "sequence" else self.tolerance_ns

    def check(self) -> Iterator[tuple[str, str]]:
        """Yields what is wrong with the values as a whole, each with its key."""
        if len(self.streams) < 2:
            yield "streams", "at least two"


@table
class SilverSettings:
    """What is checked of every frame."""

    verify: bool = setting("Compares every payload with its checksum.", default=True)
    max_runs: int = setting(
        "Runs of sequences that are remembered of an epoch, to know a duplicate. Beyond that the oldest "
        "holes are closed, and a frame that comes for one is `late`.",
        default=2_000,
        minimum=16,
    )


@table
class QualitySettings:
    """`gold/quality`: rates, jitter, drops and latency of each stream."""

    enabled: bool = setting("Whether there is such a table.", default=True)
    interval_ns: DurationNs = setting(
        "A row for each stream and so long, by receive time.",
        default=parse_duration("10s"),
        minimum=parse_duration("100ms"),
    )
    lateness_ns: DurationNs = setting(
        "An interval is closed when its stream is this far behind its end. What comes later still counts in "
        "the interval that is then open.",
        default=parse_duration("10s"),
    )


@table
class StatisticsSettings:
    """`gold/statistics`: least, largest, mean, deviation of every n-th tensor."""

    enabled: bool = setting("Whether there is such a table.", default=True)
    streams: tuple[int, ...] = setting(_STREAMS_DOC, default=(), check=_streams_fault)
    every: int = setting("Of every n-th sequence.", default=1, minimum=1)


@table
class FunctionSettings:
    """A numpy function of your own: `function(array)` for each frame, the array read-only where it lies."""

    name: str = setting("What its table is called: `gold/<name>`.", check=_name_fault)
    function: str = setting("`module:function`, importable on every executor.", check=_function_fault)
    columns: str | None = setting(
        "What it gives, as in `mean double, peak bigint`: a value, a tuple or a dictionary.",
        default=None,
        check=columns_fault,
    )
    streams: tuple[int, ...] = setting(_STREAMS_DOC, default=(), check=_streams_fault)
    every: int = setting("Of every n-th sequence.", default=1, minimum=1)
    output: Literal["table", "recording", "stream"] = setting(
        "`table`: values, into `gold/<name>`. `recording`: arrays, into the recording `derived/<name>`, "
        "exactly once. `stream`: arrays, published where Spark's executors have a driver, at least once.",
        default="table",
    )
    target_stream: int | None = setting(
        "The stream that arrays are recorded or published as; one input stream only.", default=None
    )
    aeron_dir: Path | None = setting(
        "For `stream`: the media driver's directory. None: Aeron's own.", default=None
    )

    def check(self) -> Iterator[tuple[str, str]]:
        """Yields what is wrong with the values as a whole, each with its key."""
        if self.name in RESERVED_NAMES:
            yield "name", f"{self.name} is a table of the pipeline's own"
        if (self.output == "table") != (self.columns is not None):
            need = (
                "needed: what the function gives" if self.columns is None else f"not for output {self.output}"
            )
            yield "columns", need
        if self.target_stream is not None:
            if self.output == "table":
                yield "target_stream", "only for output recording or stream"
            elif not 0 < self.target_stream <= MAX_STREAM_ID:
                yield "target_stream", f"no stream id; use 1 to {MAX_STREAM_ID}"
            elif len(self.streams) != 1:
                yield "target_stream", "needs one input stream: streams = [ID]"
        if self.output == "stream" and self.target_stream is None:
            yield "target_stream", "needed: the stream to publish, other than the one that is read"


@settings("pipeline")
class PipelineSettings:
    """A pipeline: recordings to tables."""

    recordings: tuple[Path, ...] = setting("The directories of the recordings; finished, or still growing.")
    out: Path = setting("Where the tables go: a directory that every executor sees.")
    streams: tuple[int, ...] = setting(
        "Streams to take; none named: all, later ones too.", default=(), check=_streams_fault
    )
    payload: Literal["ref", "inline"] = setting(
        "`ref`: tables say where payloads lie in the recording, which has to be kept. `inline`: they hold "
        "the bytes.",
        default="ref",
    )
    format: Literal["parquet", "delta"] = setting(
        "What tables are. Delta needs the package `deltalake`.", default="parquet"
    )
    target_file_bytes: SizeBytes = setting(
        "Files are ended at about this size.", default=parse_size("128MiB"), minimum=1 << 16
    )
    compact: Literal["days", "always", "never"] = setting(
        "When small files are merged. `days`: those of a day, when it is over. `always`: as soon as there "
        "are sixteen of about a size. `never`: not by itself.",
        default="days",
    )
    trigger_ns: DurationNs = setting(
        "How often a running pipeline takes what has come.", default=parse_duration("10s")
    )
    max_rows: int = setting("Rows of a micro-batch, at most.", default=100_000, minimum=1)
    max_bytes: SizeBytes = setting(
        "Payload bytes of a micro-batch, about.", default=parse_size("4GiB"), minimum=1
    )
    fail_on_loss: bool = setting(
        "Stop when frames were removed or damaged before they were read. False: they are gaps, and it goes "
        "on.",
        default=False,
    )
    silver: SilverSettings = setting("What is checked.", default=SilverSettings())
    rules: tuple[RuleSettings, ...] = setting("What frames have to be.", default=())
    alignments: tuple[AlignmentSettings, ...] = setting("Streams that belong together.", default=())
    quality: QualitySettings = setting("How well streams came in.", default=QualitySettings())
    statistics: StatisticsSettings = setting("What is in the tensors.", default=StatisticsSettings())
    functions: tuple[FunctionSettings, ...] = setting("Functions of your own.", default=())

    def check(self) -> Iterator[tuple[str, str]]:
        """Yields what is wrong with the values as a whole, each with its key."""
        if not self.recordings:
            yield "recordings", "at least one"
        if len({str(one) for one in self.recordings}) < len(self.recordings):
            yield "recordings", "a recording is there twice"
        for key in ("alignments", "functions"):
            names = [one.name for one in getattr(self, key)]
            if twice := [name for name in names if names.count(name) > 1]:
                yield key, f"two are called {twice[0]}"


def load(file: Path, *, environ: Mapping[str, str] = os.environ) -> PipelineSettings:
    """Reads a definition. Relative paths are from the file's own directory. Raises InvalidConfig."""
    return anchored(Config.load(PipelineSettings, file=file, environ=environ)[PipelineSettings], file)


def parse(tables: Mapping[str, Any], *, flags: Mapping[Any, Override] | None = None) -> PipelineSettings:
    """A definition from tables that are parsed already: `{"pipeline": {…}}`."""
    return Config.load(PipelineSettings, tables=tables, environ={}, flags=flags)[PipelineSettings]


def anchored(found: PipelineSettings, file: Path) -> PipelineSettings:
    """With paths from the directory of the file that the definition is in."""
    base = file.absolute().parent
    return dataclasses.replace(
        found, out=base / found.out, recordings=tuple(base / one for one in found.recordings)
    )
