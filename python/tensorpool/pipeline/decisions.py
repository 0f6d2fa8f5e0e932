"""Decisions: what a micro-batch adds to all tables, and what the pipeline remembers, in one object.

1. Tasks have written files into the directories of their tables, under names that are used once. No log
   names them, so no reader sees them.
2. The decision is created under its number, only if that number does not exist. Now the micro-batch is
   decided. Of two processes that race, the store lets one create it; the other says so and stops.
3. The decision is applied: a transaction for each table, with the pipeline's id and the decision's number.

After a death before step 2 no log names the files, and the micro-batch is planned again. After a death
behind it, the next run applies the decision again, which changes nothing in tables that have it. The next
decision is only created when the one before is applied, so at most one is open.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, TypedDict, cast

from ..errors import PipelineError
from ..recording.table_store import TableStore
from ..text import parse_number
from . import layout
from .alignment import AlignmentJson, AlignmentState
from .delta import DataFile, DataFileJson, DeltaTables
from .metadata import StreamMetadata, Traces, Versions
from .quality import StreamPosition
from .schemas import Table
from .sequence_runs import Run, StoredRuns

if TYPE_CHECKING:
    from ..spark.offsets import OffsetsJson

_KEPT: Final = 32
"""Decisions that are kept. Only the last one is needed; the others are for people."""
_KEPT_STATES: Final = 4
_ACTIVE_NS: Final = 30_000_000_000
"""A process that was active so recently is taken for running."""

EpochRuns = dict[int, StoredRuns]
"""Epoch → its sequences."""
FrameKey = tuple[int, int]
"""Epoch and sequence."""


class RunsJson(TypedDict):
    """A `StoredRuns` as JSON."""

    runs: list[Run]
    closed: int | None


class MemoryJson(TypedDict):
    """A `Memory` as JSON, whose keys are text."""

    offsets: dict[str, OffsetsJson]
    metadata_offsets: dict[str, int]
    metadata: dict[str, Versions]
    seen: dict[str, dict[str, RunsJson]]
    accounted: dict[str, dict[str, RunsJson]]
    last_frames: dict[str, int]
    alignments: dict[str, AlignmentJson]
    positions: dict[str, tuple[int | None, int | None]]
    traces: dict[str, dict[str, int]]
    ends: dict[str, dict[str, FrameKey]]
    carried: dict[str, str]


@dataclass(slots=True)
class Memory:
    """What a decision hands to the next one."""

    offsets: dict[str, OffsetsJson] = field(default_factory=dict)
    """Recording → the offset of its Spark source behind the frames that were read."""
    metadata_offsets: dict[str, int] = field(default_factory=dict)
    """File of a recording's metadata → bytes that are read."""
    metadata: StreamMetadata = field(default_factory=dict)
    seen: dict[int, EpochRuns] = field(default_factory=dict)
    """Stream → sequences in `silver/frames`, to recognise duplicates."""
    accounted: dict[int, EpochRuns] = field(default_factory=dict)
    """Stream → sequences in `silver/frames` or `silver/gaps`."""
    last_frames: dict[int, int] = field(default_factory=dict)
    """Stream → receive time of its latest frame."""
    alignments: dict[str, AlignmentState] = field(default_factory=dict)
    positions: dict[int, StreamPosition] = field(default_factory=dict)
    """Stream → its position in `gold/quality`."""
    traces: Traces = field(default_factory=dict)
    ends: dict[str, dict[int, FrameKey]] = field(default_factory=dict)
    """Function → stream → its last recorded frame."""
    carried: dict[str, str] = field(default_factory=dict)
    """Rows that wait for the next micro-batch, by kind: the name of an object below the root."""

    def to_json(self) -> MemoryJson:
        """The memory as JSON."""
        return {
            "offsets": self.offsets,
            "metadata_offsets": self.metadata_offsets,
            "metadata": {str(stream): versions for stream, versions in self.metadata.items()},
            "seen": _runs_to_json(self.seen),
            "accounted": _runs_to_json(self.accounted),
            "last_frames": {str(stream): at_ns for stream, at_ns in self.last_frames.items()},
            "alignments": {name: state.to_json() for name, state in self.alignments.items()},
            "positions": {
                str(stream): (position.latest_ns, position.open_from)
                for stream, position in self.positions.items()
            },
            "traces": {
                str(trace): {str(stream): depth for stream, depth in streams.items()}
                for trace, streams in self.traces.items()
            },
            "ends": {
                function: {str(stream): end for stream, end in streams.items()}
                for function, streams in self.ends.items()
            },
            "carried": self.carried,
        }

    @classmethod
    def from_json(cls, values: MemoryJson) -> Memory:
        """The memory of `to_json`."""
        return cls(
            offsets=values["offsets"],
            metadata_offsets=values["metadata_offsets"],
            metadata={int(stream): versions for stream, versions in values["metadata"].items()},
            seen=_runs_from_json(values["seen"]),
            accounted=_runs_from_json(values["accounted"]),
            last_frames={int(stream): at_ns for stream, at_ns in values["last_frames"].items()},
            alignments={
                name: AlignmentState.from_json(state) for name, state in values["alignments"].items()
            },
            positions={
                int(stream): StreamPosition(latest_ns, open_from)
                for stream, (latest_ns, open_from) in values["positions"].items()
            },
            traces={
                int(trace): {int(stream): depth for stream, depth in streams.items()}
                for trace, streams in values["traces"].items()
            },
            ends={
                function: {int(stream): (epoch, seq) for stream, (epoch, seq) in streams.items()}
                for function, streams in values["ends"].items()
            },
            carried=values["carried"],
        )


def _runs_to_json(streams: dict[int, EpochRuns]) -> dict[str, dict[str, RunsJson]]:
    return {
        str(stream): {str(epoch): {"runs": own.runs, "closed": own.closed} for epoch, own in epochs.items()}
        for stream, epochs in streams.items()
    }


def _runs_from_json(values: Mapping[str, Mapping[str, RunsJson]]) -> dict[int, EpochRuns]:
    return {
        int(stream): {
            int(epoch): StoredRuns([(first, last) for first, last in own["runs"]], own["closed"])
            for epoch, own in epochs.items()
        }
        for stream, epochs in values.items()
    }


class TotalsJson(TypedDict, total=False):
    """A `StageTotals` as JSON. Counts that are not there are 0."""

    frames: int
    bytes: int
    files: int
    missing: int
    rejects: dict[str, int]
    alignments: dict[str, dict[str, int]]
    functions: dict[str, int]


class StageFiguresJson(TypedDict):
    """A `StageFigures` as JSON."""

    batch: int
    rows: int
    bytes: int
    seconds: float
    at_ns: int | None
    totals: TotalsJson


class DerivedJson(TypedDict):
    """A `DerivedRows` as JSON."""

    function: str
    key: str
    names: list[str]


class DecisionJson(TypedDict):
    """A `BatchDecision` as JSON: the content of its object."""

    number: int
    writer: str
    at_ns: int
    files: list[DataFileJson]
    replaces: list[str]
    derived: list[DerivedJson]
    stages: dict[str, StageFiguresJson]
    memory: MemoryJson


class WriterJson(TypedDict, total=False):
    """The mark of a process that runs the pipeline."""

    writer: str
    at_ns: int


@dataclass(slots=True)
class StageTotals:
    """What a stage has counted since the first micro-batch."""

    frames: int = 0
    bytes: int = 0
    files: int = 0
    missing: int = 0
    rejects: dict[str, int] = field(default_factory=dict)
    """Reason → frames."""
    alignments: dict[str, dict[str, int]] = field(default_factory=dict)
    """Alignment → `aligned`, or the reason of frames without a set → frames."""
    functions: dict[str, int] = field(default_factory=dict)
    """Function → rows."""

    def add(self, more: StageTotals) -> None:
        """Adds the counts of a micro-batch."""
        self.frames += more.frames
        self.bytes += more.bytes
        self.files += more.files
        self.missing += more.missing
        _add_counts(self.rejects, more.rejects)
        _add_counts(self.functions, more.functions)
        for name, counts in more.alignments.items():
            _add_counts(self.alignments.setdefault(name, {}), counts)


def _add_counts(into: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        into[name] = into.get(name, 0) + count


@dataclass(slots=True)
class StageFigures:
    """The last micro-batch of a stage, and its totals."""

    batch: int = -1
    """-1: the stage has not run."""
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    at_ns: int | None = None
    totals: StageTotals = field(default_factory=StageTotals)

    @property
    def bytes_per_s(self) -> float:
        """Payload bytes of the last micro-batch by its processing time."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> StageFiguresJson:
        """The figures as JSON."""
        return cast("StageFiguresJson", asdict(self))

    @classmethod
    def from_json(cls, values: StageFiguresJson) -> StageFigures:
        """The figures of a decision."""
        totals = StageTotals(**values["totals"])
        return cls(
            values["batch"], values["rows"], values["bytes"], values["seconds"], values["at_ns"], totals
        )


@dataclass(slots=True)
class DerivedRows:
    """Arrays of a function that wait in the staging area of its recording."""

    function: str
    key: str
    names: list[str]


@dataclass(slots=True)
class BatchDecision:
    """What one micro-batch changes."""

    number: int
    writer: str
    """The process that has made it."""
    at_ns: int
    files: list[DataFile] = field(default_factory=list)
    replaces: list[str] = field(default_factory=list)
    """Tables whose files are replaced by those of the decision."""
    derived: list[DerivedRows] = field(default_factory=list)
    stages: dict[str, StageFigures] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    def encode(self) -> bytes:
        """The content of its object."""
        values: DecisionJson = {
            "number": self.number,
            "writer": self.writer,
            "at_ns": self.at_ns,
            "files": [file.to_json() for file in self.files],
            "replaces": self.replaces,
            "derived": [
                {"function": rows.function, "key": rows.key, "names": rows.names} for rows in self.derived
            ],
            "stages": {stage: figures.to_json() for stage, figures in self.stages.items()},
            "memory": self.memory.to_json(),
        }
        return json.dumps(values).encode()

    @classmethod
    def decode(cls, content: bytes) -> BatchDecision:
        """The decision of an object."""
        values: DecisionJson = json.loads(content)
        return cls(
            values["number"],
            values["writer"],
            values["at_ns"],
            [DataFile.from_json(file) for file in values["files"]],
            values["replaces"],
            [DerivedRows(**rows) for rows in values["derived"]],
            {stage: StageFigures.from_json(figures) for stage, figures in values["stages"].items()},
            Memory.from_json(values["memory"]),
        )


class DecisionLog:
    """The decisions of a pipeline, of which any number of processes may try to make the next."""

    def __init__(
        self, store: TableStore, tables: DeltaTables, *, pipeline_id: str, name: str | None = None
    ) -> None:
        """`store` is that of the pipeline: the root of the tables, or the directory of its name."""
        self._store = store
        self._tables = tables
        self._id = pipeline_id
        self._name = name
        self.writer = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._marked_s = 0.0

    def last(self) -> BatchDecision | None:
        """The newest decision; None in a new root."""
        return last_decision(self._store)

    def create(self, decision: BatchDecision) -> None:
        """Makes a decision final. Raises PipelineError if another process has made the one of this number."""
        name = _name(decision.number)
        if self._store.put_new(name, decision.encode()) and _numbers(self._store)[-1] == decision.number:
            return
        raise self.overtaken(decision.number)

    def overtaken(self, number: int) -> PipelineError:
        """The error of a process that prepares a decision which another one has made."""
        content = self._store.get(_name(number))
        other = "another process" if content is None else BatchDecision.decode(content).writer
        if other == self.writer:
            # It was created long after its time: later decisions exist, and the tables refuse it.
            self._store.remove(_name(number))
            other = "another process"
        return PipelineError(
            f"{self._store.url}: {other} has decided micro-batch {number} in the meantime, so this process "
            "stops and changes nothing. Two pipelines of one name run on these tables: stop one of them, or "
            "give one a name of its own with name = …, or another root with out = …"
        )

    def apply(self, decision: BatchDecision, tables: Mapping[str, Table]) -> None:
        """Adds the files of a decision to their tables, where they are missing."""
        by_table: dict[str, list[DataFile]] = {name: [] for name in decision.replaces}
        for file in decision.files:
            by_table.setdefault(file.table, []).append(file)
        for name, files in sorted(by_table.items()):
            if name not in tables:
                raise PipelineError(
                    f"{self._store.url}: the last micro-batch has rows for {name}, which the definition no "
                    "longer has; run the definition of before once, then the new one"
                )
            self._tables.commit(
                tables[name],
                files,
                app=self._id,
                number=decision.number,
                replace=name in decision.replaces,
                pipeline=self._name,
            )

    def forget(self, decision: BatchDecision) -> None:
        """Removes old decisions, and carried rows that no decision needs."""
        for number in _numbers(self._store)[:-_KEPT]:
            self._store.remove(_name(number))
        needed = {name.partition("/")[2] for name in decision.memory.carried.values()}
        for name in self._store.names(layout.STATE):
            # Not the latest ones: a process that is about to be overtaken may still read them.
            if name not in needed and int(name.partition("-")[0]) < decision.number - _KEPT_STATES:
                self._store.remove(f"{layout.STATE}/{name}")

    # --- processes

    def mark_active(self, *, period_s: float = 5.0) -> None:
        """Says that this process is running, for `pipeline status`."""
        now = time.monotonic()
        if now - self._marked_s >= period_s or not self._marked_s:
            self._marked_s = now
            mark: WriterJson = {"writer": self.writer, "at_ns": time.time_ns()}
            self._store.put(f"{layout.WRITERS}/{self.writer}.json", json.dumps(mark).encode())

    def mark_ended(self) -> None:
        """Removes the mark of this process, and marks of processes that died."""
        self._store.remove(f"{layout.WRITERS}/{self.writer}.json")
        for name, at_ns in _writers(self._store):
            if time.time_ns() - at_ns > 100 * _ACTIVE_NS:
                self._store.remove(f"{layout.WRITERS}/{name}")


def last_decision(store: TableStore) -> BatchDecision | None:
    """The newest decision of a pipeline, applied or not. `store` is that of the pipeline."""
    for number in reversed(_numbers(store)):
        if (content := store.get(_name(number))) is not None:
            return BatchDecision.decode(content)
    return None


def is_running(store: TableStore) -> bool:
    """Whether a process of the pipeline was active a moment ago."""
    return any(time.time_ns() - at_ns < _ACTIVE_NS for _, at_ns in _writers(store))


def _writers(store: TableStore) -> Iterable[tuple[str, int]]:
    for name in (name for name in store.names(layout.WRITERS) if name.endswith(".json")):
        content = store.get(f"{layout.WRITERS}/{name}")
        values: WriterJson = json.loads(content) if content else {}
        yield name, int(values.get("at_ns", 0))


def _numbers(store: TableStore) -> list[int]:
    numbers = (parse_number(name.removesuffix(".json")) for name in store.names(layout.DECISIONS))
    return sorted(number for number in numbers if number is not None)


def _name(number: int) -> str:
    return f"{layout.DECISIONS}/{number:012}.json"
