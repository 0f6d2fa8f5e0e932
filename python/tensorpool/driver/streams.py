"""What a driver knows of each stream's files, and of the bytes that all of them take. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ..sbe.driver import Role
from ..shm import EpochFiles
from .leases import Lease
from .plan import Layout, StreamPlan
from .requests import Attach


class Job(Enum):
    """What is being done with a stream's files. One thing at a time."""

    NONE = "none"
    MAKING = "making"
    ASSIGNING = "assigning"
    ANNOUNCING = "announcing"


@dataclass(frozen=True, slots=True)
class Waiting:
    """An attach that is answered when the files are there. Its lease is reserved meanwhile."""

    request: Attach
    lease: Lease


@dataclass(slots=True, eq=False)
class StreamRecord:
    """A stream that has files, leases, or somebody who waits for it."""

    stream_id: int
    is_static: bool = False
    job: Job = Job.NONE
    files: EpochFiles | None = None
    """The live ones. Being assigned they have no certain name, and are nobody's."""
    is_clean: bool = True
    """No writer ever had them, so that they can be given to one under a further epoch."""
    announced: tuple[int, int] | None = None
    """Epoch and producer id, as they are announced now."""
    is_wanted: bool = False
    """Files are to be made though nobody waits for them."""
    waiting: list[Waiting] = field(default_factory=list)
    superseded: Path | None = None
    """The files of the last producer: a paused writer may still hold them. They go after the grace."""
    last_epoch: int = 0
    idle_since_ns: int = 0
    directories: dict[Path, int] = field(default_factory=dict)
    """Bytes of every directory that is not known to be gone."""
    making_bytes: int = 0

    @property
    def state(self) -> str:
        """In a word, for people."""
        if self.job is not Job.NONE:
            return str(self.job.value)
        if self.files is None:
            return "absent"
        return "clean" if self.is_clean else "used"

    @property
    def nbytes(self) -> int:
        return self.making_bytes + sum(self.directories.values())

    @property
    def has_waiting_producer(self) -> bool:
        return any(one.request.role is Role.PRODUCER for one in self.waiting)


class StreamRecords:
    """All records, and the sum of their bytes."""

    def __init__(self) -> None:
        self._records: dict[int, StreamRecord] = {}
        self._with_files: set[int] = set()
        self.total_bytes = 0
        self.dynamic = 0
        """How many of them are of streams made for clients."""

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter(list(self._records.values()))

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._records

    @property
    def with_files(self) -> int:
        return len(self._with_files)

    def get(self, stream_id: int) -> StreamRecord | None:
        return self._records.get(stream_id)

    def __getitem__(self, stream_id: int) -> StreamRecord:
        return self._records[stream_id]

    def take(self, plan: StreamPlan, now_ns: int) -> StreamRecord:
        """The stream's record, a new one if need be."""
        record = self._records.get(plan.stream_id)
        if record is None:
            record = StreamRecord(plan.stream_id, plan.is_static, idle_since_ns=now_ns)
            self._records[plan.stream_id] = record
            self.dynamic += not plan.is_static
        return record

    def drop(self, record: StreamRecord) -> None:
        """Harmless if it is gone already."""
        if self._records.pop(record.stream_id, None) is not None:
            self.dynamic -= not record.is_static

    # --- bytes

    def begin(self, record: StreamRecord, nbytes: int) -> None:
        """Files are in the making: their bytes count from now on."""
        record.job = Job.MAKING
        record.making_bytes = nbytes
        self.total_bytes += nbytes

    def failed(self, record: StreamRecord) -> None:
        """Nothing came of it. What was assigned is lost too."""
        self.total_bytes -= record.making_bytes
        record.making_bytes = 0
        if record.job is Job.ASSIGNING and record.files is not None:
            self.removed(record, record.files.directory)
            self.set_live(record, None)
        record.job = Job.NONE

    def ready(self, record: StreamRecord, files: EpochFiles) -> None:
        """Files were made, or have got a new name."""
        if record.files is not None:
            self.removed(record, record.files.directory)
        self.total_bytes -= record.making_bytes
        record.making_bytes = 0
        nbytes = Layout.of_files(files).nbytes
        record.directories[files.directory] = nbytes
        self.total_bytes += nbytes
        record.job = Job.NONE
        self.set_live(record, files)

    def removed(self, record: StreamRecord, directory: Path) -> None:
        self.total_bytes -= record.directories.pop(directory, 0)

    def set_live(self, record: StreamRecord, files: EpochFiles | None) -> None:
        record.files = files
        record.is_clean = True
        record.announced = None
        if files is None:
            self._with_files.discard(record.stream_id)
        else:
            self._with_files.add(record.stream_id)
