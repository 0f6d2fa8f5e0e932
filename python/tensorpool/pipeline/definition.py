"""A pipeline's definition: the table `[pipeline]` of a TOML file, as dataclasses.

The package's own configuration reads it: an error names the wrong key or value, its line, and the nearest
valid one. `TENSORPOOL_PIPELINE__<KEY>` overrides a key. See docs/reference/pipeline.md.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from ..errors import ConfigError
from ..recording.storage import StorageUri, local_directory
from ..recording.table_store import is_object_store, root_fault
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
from .layout import RESERVED_NAMES
from .schemas import columns_fault

MAX_STREAM_ID: Final = 0xFFFF_FFFE
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}", re.ASCII)
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


def _streams_fault(streams: tuple[int, ...]) -> str | None:
    wrong = [stream_id for stream_id in streams if not 0 < stream_id <= MAX_STREAM_ID]
    if wrong:
        return f"{wrong[0]} is not a stream id; use 1 to {MAX_STREAM_ID}"
    return "a stream is listed twice" if len(set(streams)) < len(streams) else None


def _name_fault(name: str) -> str | None:
    if _NAME.fullmatch(name):
        return None
    return "use small letters, digits, - and _, with a letter first: the name becomes a directory"


def _function_fault(text: str) -> str | None:
    return None if _FUNCTION.fullmatch(text) else "write module:function, as in 'looks:brightness'"


def _shape_fault(shape: tuple[int, ...]) -> str | None:
    if not 1 <= len(shape) <= 8 or any(size < 0 for size in shape):
        return "give 1 to 8 sizes; 0 matches any size"
    return None


def _recordings_fault(roots: tuple[str, ...]) -> str | None:
    for root in roots:
        try:
            # A URI with credentials is refused: rows and logs would carry them on.
            StorageUri.parse(root) if is_object_store(root) else local_directory(root)
        except ConfigError as error:
            return str(error)
    return None


_STREAMS_DOC: Final = "Streams that this applies to. Empty: all streams."


@table
class RuleSettings:
    """Requirements for the frames of some streams. A frame that violates them goes to `silver/rejects`."""

    streams: tuple[int, ...] = setting(_STREAMS_DOC, default=(), check=_streams_fault)
    dtype: tuple[str, ...] = setting("Allowed element types. Empty: all types.", default=())
    shape: tuple[int, ...] | None = setting(
        "Required shape. A size of 0 matches any size.", default=None, check=_shape_fault
    )
    max_payload_bytes: SizeBytes | None = setting("Maximum size of a payload.", default=None)

    def check(self) -> Iterator[tuple[str, str]]:
        """Yields the faults of the values as a whole, each with its key."""
        from ..recording.tensors import NUMBERS

        if unknown := [name for name in self.dtype if name not in NUMBERS]:
            yield "dtype", f"{unknown[0]!r} is not one of {', '.join(NUMBERS)}"
        if not self.dtype and self.shape is None and self.max_payload_bytes is None:
            yield "streams", "the rule has no requirement: give dtype, shape or max_payload"


@table
class AlignmentSettings:
    """An alignment of the frames of several streams: one row for each frame of the first stream."""

    name: str = setting("Name of its tables: `silver/aligned/<name>`.", check=_name_fault)
    streams: tuple[int, ...] = setting(
        "The streams. Each frame of the first one gets a row.", check=_streams_fault
    )
    by: Literal["timestamp", "receive_time", "sequence"] = setting(
        "The compared value: the source's `timestamp_ns` (streams of one host), the recorder's "
        "`receive_time_ns`, or the sequence in the n-th epoch of each stream.",
        default="timestamp",
    )
    tolerance_ns: DurationNs = setting(
        "Maximum distance of a partner in time. The nearest is selected.", default=parse_duration("10ms")
    )
    tolerance_sequences: int = setting(
        "Maximum distance of a partner in sequences, if `by` is `sequence`.", default=0, minimum=0
    )
    wait_ns: DurationNs = setting(
        "How long a frame waits for its partners, in recorded time. After that it is decided without the "
        "missing partners. Bounds the number of pending frames.",
        default=parse_duration("10s"),
        minimum=parse_duration("1ms"),
    )
    max_pending: int = setting(
        "Maximum number of pending frames, of all its streams. Beyond it the oldest frames are decided.",
        default=100_000,
        minimum=2,
    )

    @property
    def tolerance(self) -> int:
        """The tolerance in the unit of the compared value."""
        return self.tolerance_sequences if self.by == "sequence" else self.tolerance_ns

    def check(self) -> Iterator[tuple[str, str]]:
        """Yields the faults of the values as a whole, each with its key."""
        if len(self.streams) < 2:
            yield "streams", "give at least two streams"


@table
class SilverSettings:
    """Checks of every frame."""

    verify: bool = setting("Whether every payload is compared with its checksum.", default=True)
    max_runs: int = setting(
        "Maximum number of runs of sequences that are kept for an epoch, to recognise duplicates. Beyond it "
        "the oldest holes are closed, and a frame that belongs into a closed hole is rejected as `late`.",
        default=2_000,
        minimum=16,
    )


@table
class QualitySettings:
    """`gold/quality`: rates, jitter, drops and latency of each stream."""

    enabled: bool = setting("Whether the table is written.", default=True)
    interval_ns: DurationNs = setting(
        "Length of an interval, by receive time. Each stream has one row for each interval.",
        default=parse_duration("10s"),
        minimum=parse_duration("100ms"),
    )
    lateness_ns: DurationNs = setting(
        "An interval is closed when its stream is this far past the end of the interval. A frame of a closed "
        "interval is counted in the oldest open interval.",
        default=parse_duration("10s"),
    )


@table
class StatisticsSettings:
    """`gold/statistics`: minimum, maximum, mean and standard deviation of every n-th tensor."""

    enabled: bool = setting("Whether the table is written.", default=True)
    streams: tuple[int, ...] = setting(_STREAMS_DOC, default=(), check=_streams_fault)
    every: int = setting("Only frames of every n-th sequence are used.", default=1, minimum=1)


@table
class FunctionSettings:
    """A numpy function of your own: `function(array)` for each frame. The array is read-only."""

    name: str = setting("Name of its table: `gold/<name>`.", check=_name_fault)
    function: str = setting("`module:function`, importable on every executor.", check=_function_fault)
    columns: str | None = setting(
        "Names and types of its results, as in `mean double, peak bigint`. The function returns a value, a "
        "tuple or a dictionary.",
        default=None,
        check=columns_fault,
    )
    streams: tuple[int, ...] = setting(_STREAMS_DOC, default=(), check=_streams_fault)
    every: int = setting("Only frames of every n-th sequence are used.", default=1, minimum=1)
    output: Literal["table", "recording", "stream"] = setting(
        "`table`: values are written to `gold/<name>`. `recording`: arrays are written to the recording "
        "`derived/<name>`, exactly once. `stream`: arrays are published on the host of an "
        "executor, which needs an SHM driver, at least once.",
        default="table",
    )
    target_stream: int | None = setting(
        "Stream id of the recorded or published arrays. Needs exactly one input stream.", default=None
    )
    aeron_dir: Path | None = setting(
        "Directory of the media driver, for `stream`. None: Aeron's default directory.", default=None
    )

    def check(self) -> Iterator[tuple[str, str]]:
        """Yields the faults of the values as a whole, each with its key."""
        if self.name in RESERVED_NAMES:
            yield "name", f"the pipeline itself has a table {self.name}; use another name"
        if (self.output == "table") != (self.columns is not None):
            is_missing = self.columns is None
            fault = f"not allowed for output {self.output}"
            yield "columns", "missing: give the names and types of the results" if is_missing else fault
        if self.target_stream is not None:
            if self.output == "table":
                yield "target_stream", "only allowed for output recording or stream"
            elif not 0 < self.target_stream <= MAX_STREAM_ID:
                yield "target_stream", f"not a stream id; use 1 to {MAX_STREAM_ID}"
            elif len(self.streams) != 1:
                yield "target_stream", "needs one input stream: streams = [ID]"
        if self.output == "stream" and self.target_stream is None:
            yield "target_stream", "missing: give the stream to publish, another one than the input stream"


@settings("pipeline")
class PipelineSettings:
    """A pipeline from recordings to tables."""

    recordings: tuple[str, ...] = setting(
        "The recordings, finished or still growing: directories, or URIs of archives as in "
        "`s3://bucket/recording`.",
        check=_recordings_fault,
    )
    out: str = setting(
        "Where the tables are: a directory, which every executor needs under this path, or a URI as in "
        "`s3://bucket/tables`. Credentials come from the environment.",
        check=root_fault,
    )
    name: str | None = setting(
        "Name of the pipeline, if several of them, on one host or on many, write to the tables at `out`. "
        "Each needs its own; one of them may have none.",
        default=None,
        check=_name_fault,
    )
    streams: tuple[int, ...] = setting(
        "Streams to read. Empty: all streams, also those added later.", default=(), check=_streams_fault
    )
    payload: Literal["ref", "inline"] = setting(
        "`ref`: tables contain the position of each payload in the recording, which has to be kept. "
        "`inline`: tables contain the bytes.",
        default="ref",
    )
    format: Literal["delta"] = setting("Format of the tables. There is one.", default="delta")
    target_file_bytes: SizeBytes = setting(
        "Approximate maximum size of a file.", default=parse_size("128MiB"), minimum=1 << 16
    )
    compact: Literal["always", "days", "never"] = setting(
        "When small files are merged. `always`: every few micro-batches, and the files of a day when the day "
        "is over. `days`: only when the day is over. `never`: only `pipeline compact` merges files.",
        default="always",
    )
    retain_ns: DurationNs = setting(
        "How long merged files and the log of each table are kept, for queries that began before the merge "
        "and for time travel.",
        default=parse_duration("24h"),
        minimum=parse_duration("1h"),
    )
    trigger_ns: DurationNs = setting(
        "Period of the micro-batches of a running pipeline.", default=parse_duration("10s")
    )
    max_rows: int = setting("Maximum rows of a micro-batch.", default=100_000, minimum=1)
    max_bytes: SizeBytes = setting(
        "Approximate maximum of the payload bytes of a micro-batch.", default=parse_size("4GiB"), minimum=1
    )
    fail_on_loss: bool = setting(
        "Whether the run stops when frames were removed or damaged before they were read. False: the "
        "frames count as gaps, and the run continues.",
        default=False,
    )
    silver: SilverSettings = setting("Checks of every frame.", default=SilverSettings())
    rules: tuple[RuleSettings, ...] = setting("Requirements for frames.", default=())
    alignments: tuple[AlignmentSettings, ...] = setting("Alignments of streams.", default=())
    quality: QualitySettings = setting("Quality of the streams by interval.", default=QualitySettings())
    statistics: StatisticsSettings = setting("Statistics of the tensors.", default=StatisticsSettings())
    functions: tuple[FunctionSettings, ...] = setting("Functions of your own.", default=())

    def check(self) -> Iterator[tuple[str, str]]:
        """Yields the faults of the values as a whole, each with its key."""
        if not self.recordings:
            yield "recordings", "give at least one recording"
        if len(set(self.recordings)) < len(self.recordings):
            yield "recordings", "a recording is listed twice"
        for key in ("alignments", "functions"):
            names = [entry.name for entry in getattr(self, key)]
            if twice := [name for name in names if names.count(name) > 1]:
                yield key, f"two of them have the name {twice[0]}"
        if is_object_store(self.out) and any(function.output == "recording" for function in self.functions):
            yield "functions", "arrays are recorded on a local disk: use output table, or a directory for out"


def load(file: Path, *, environ: Mapping[str, str] = os.environ) -> PipelineSettings:
    """Reads a definition. Paths are relative to the directory of the file. Raises InvalidConfig."""
    return anchored(Config.load(PipelineSettings, file=file, environ=environ)[PipelineSettings], file)


def parse(tables: Mapping[str, Any], *, flags: Mapping[Any, Override] | None = None) -> PipelineSettings:
    """The settings of a parsed definition: `{"pipeline": {…}}`. Raises InvalidConfig."""
    return Config.load(PipelineSettings, tables=tables, environ={}, flags=flags)[PipelineSettings]


def anchored(definition: PipelineSettings, file: Path) -> PipelineSettings:
    """The settings with absolute paths; relative ones belong to the directory of the definition's file."""
    base = file.absolute().parent
    return dataclasses.replace(
        definition,
        out=definition.out
        if is_object_store(definition.out)
        else str(base / local_directory(definition.out)),
        recordings=tuple(
            root if is_object_store(root) else str(base / local_directory(root))
            for root in definition.recordings
        ),
    )
