"""The life of each stream's files and leases, from event to event (driver §4.7, §6, §7). Pure.

absent → made under a new epoch (clean) → given to a producer under a further epoch → superseded when its
lease ends, while fresh ones are made. `advance` looks at where a stream stands and asks for the next step;
every event ends with it. Clean files were never in a writer's hands, and so may get a new name and epoch;
files that a writer had may not, for a paused one may wake up and write.

What a driver knows of each stream's files, and of the bytes that all of them take. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ..sbe.driver import LeaseRevokeReason, Role, ShmLeaseRevoked
from ..sbe.wire import ResponseCode
from ..shm import EpochFiles
from .actions import Action, Announce, AssignFiles, MakeFiles, RemoveFiles, Send, Withdraw
from .config import DriverSettings
from .counters import DriverCounters
from .leases import Lease, LeaseTable, Refusal
from .plan import Layout, Plan, StreamPlan
from .requests import Attach, ResponseCache, ascii_text, attach_granted, attach_refused


class Job(Enum):
    """What is being done with a stream's files. One thing at a time."""

    NONE = "none"
    MAKING = "making"
    ASSIGNING = "assigning"
    ANNOUNCING = "announcing"


@dataclass(frozen=True, slots=True)
class PendingAttach:
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
    waiting: list[PendingAttach] = field(default_factory=list)
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


_STOPPING = Refusal(ResponseCode.REJECTED, "the driver is stopping; attach again when it is back")


class Lifecycle:
    """Streams, their files and their leases. What is to be done is added to `actions`."""

    def __init__(
        self,
        settings: DriverSettings,
        plan: Plan,
        leases: LeaseTable,
        counters: DriverCounters,
        answers: ResponseCache,
        actions: list[Action],
    ) -> None:
        self.records = StreamRecords()
        self.is_stopping = False
        self._settings = settings
        self._plan = plan
        self._leases = leases
        self._counters = counters
        self._answers = answers
        self._actions = actions
        # In the order in which they fall due: all wait for the same grace.
        self._retired: deque[tuple[int, int, Path]] = deque()

    # --- those who wait

    def wait(self, request: Attach, plan: StreamPlan, now_ns: int) -> None:
        """An attach that may be granted: it gets its answer when the files are there, perhaps at once."""
        lease = self._leases.reserve(request.stream_id, request.client_id, request.role, now_ns)
        record = self.records.take(plan, now_ns)
        record.waiting.append(PendingAttach(request, lease))
        self.advance(record, now_ns)

    def want(self, plan: StreamPlan, now_ns: int) -> None:
        """Files are to be made though nobody waits for them."""
        record = self.records.take(plan, now_ns)
        record.is_wanted = True
        self.advance(record, now_ns)

    def refuse_reserved(self, lease: Lease, reason: str, now_ns: int) -> None:
        """One that waits will get nothing."""
        record = self.records[lease.stream_id]
        one = next(one for one in record.waiting if one.lease is lease)
        record.waiting.remove(one)
        self._refuse(one, Refusal(ResponseCode.REJECTED, reason))
        if lease.role is Role.PRODUCER:
            # It was never told of the files, so they are as clean as before.
            record.is_clean = True
        self.advance(record, now_ns)

    def _refuse(self, one: PendingAttach, refusal: Refusal) -> None:
        """The reservation vanishes without a notice: its client never had a lease."""
        self._leases.drop(one.lease)
        answer = attach_refused(one.request.correlation_id, refusal, one.request.revision)
        self._answers.give(answer, one.request.key)

    def _grant(self, one: PendingAttach, files: EpochFiles, plan: StreamPlan, now_ns: int) -> None:
        self._leases.grant(one.lease, now_ns)
        self._counters.attaches.add()
        self._answers.give(attach_granted(one.request, one.lease, plan, files), one.request.key)

    def _fail(self, record: StreamRecord, refusal: Refusal) -> None:
        """Everybody who waits is told why; a later attach tries again."""
        record.is_wanted = False
        waiting, record.waiting = record.waiting, []
        for one in waiting:
            self._refuse(one, refusal)
        self._drop_if_empty(record)

    # --- the next step

    def advance(self, record: StreamRecord, now_ns: int) -> None:
        """Asks for the next step of a stream's files, or answers those who wait if there is none."""
        if record.job is not Job.NONE or self.is_stopping:
            return
        plan = self._plan[record.stream_id]
        if record.files is not None and record.is_clean and Layout.of_files(record.files) != plan.layout:
            self._give_up_old_layout(record, now_ns)
        if record.files is None:
            self._make(record, plan)
            return
        if record.is_clean and record.has_waiting_producer:
            self._assign(record, record.files, plan)
            return
        producer = None if record.is_clean else self._leases.producer_of(record.stream_id)
        producer_id = 0 if producer is None else producer.client_id
        if record.announced != (record.files.epoch, producer_id):
            record.job = Job.ANNOUNCING
            record.announced = (record.files.epoch, producer_id)
            self._actions.append(Announce(record.stream_id, record.files, producer_id))
            return
        waiting, record.waiting = record.waiting, []
        for one in waiting:
            self._grant(one, record.files, plan, now_ns)

    def _give_up_old_layout(self, record: StreamRecord, now_ns: int) -> None:
        if record.announced is None:
            self._remove_live(record)
        else:
            self._retire(record, now_ns)
        record.is_wanted = True

    def _make(self, record: StreamRecord, plan: StreamPlan) -> None:
        if not record.waiting and not record.is_wanted:
            self._drop_if_empty(record)
            return
        total = self.records.total_bytes
        refusal = self._plan.over_quota(plan, stream_bytes=record.nbytes, total_bytes=total)
        if refusal is None:
            self.records.begin(record, plan.layout.nbytes)
            self._actions.append(MakeFiles(plan))
            return
        # While old files are still there, room may come: then it is tried again.
        keep_wanting = record.is_wanted and bool(record.directories)
        self._fail(record, refusal)
        record.is_wanted = keep_wanting

    def _assign(self, record: StreamRecord, files: EpochFiles, plan: StreamPlan) -> None:
        record.job = Job.ASSIGNING
        if record.announced is not None:
            # Announces of a name that is about to vanish would only lead consumers astray.
            record.announced = None
            self._actions.append(Withdraw(record.stream_id))
        self._actions.append(AssignFiles(plan, files))

    # --- what came of it

    def on_ready(self, record: StreamRecord, files: EpochFiles, now_ns: int) -> None:
        was_assigned = record.job is Job.ASSIGNING
        self.records.ready(record, files)
        record.is_wanted = False
        if files.epoch <= record.last_epoch:
            self._remove_live(record)
            reason = f"epoch {files.epoch} is not above {record.last_epoch}; check the state directory"
            self.on_failed(record, Refusal(ResponseCode.INTERNAL_ERROR, reason))
            return
        record.last_epoch = files.epoch
        record.is_clean = not (was_assigned and record.has_waiting_producer)
        self.advance(record, now_ns)

    def on_failed(self, record: StreamRecord, refusal: Refusal) -> None:
        self._counters.failures.add()
        self.records.failed(record)
        self._fail(record, refusal)

    def on_removed(self, record: StreamRecord, directory: Path, now_ns: int) -> None:
        self.records.removed(record, directory)
        self.advance(record, now_ns)

    def on_announced(self, record: StreamRecord, failure: str | None, now_ns: int) -> None:
        record.job = Job.NONE
        if failure is None:
            self._counters.epochs.add()
            self.advance(record, now_ns)
            return
        # Nobody has been told of these files, so nobody can miss them.
        self._actions.append(Withdraw(record.stream_id))
        self._remove_live(record)
        self.on_failed(record, Refusal(ResponseCode.INTERNAL_ERROR, failure))

    # --- ends

    def end(self, lease: Lease, reason: LeaseRevokeReason, text: str, now_ns: int) -> None:
        """A granted lease is over: notice, and for a producer a new epoch."""
        self._leases.end(lease, reason)
        counters = self._counters
        {
            LeaseRevokeReason.DETACHED: counters.detached,
            LeaseRevokeReason.EXPIRED: counters.expired,
            LeaseRevokeReason.REVOKED: counters.revoked,
        }[reason].add()
        notice = ShmLeaseRevoked(
            timestamp_ns=now_ns,
            lease_id=lease.lease_id,
            stream_id=lease.stream_id,
            client_id=lease.client_id,
            role=lease.role,
            reason=reason,
            error_message=ascii_text(text),
        )
        self._actions.append(Send(notice))
        record = self.records[lease.stream_id]
        record.idle_since_ns = now_ns
        if lease.role is Role.PRODUCER:
            self._retire(record, now_ns)
            record.is_wanted = True
        self.advance(record, now_ns)

    def remove_retired(self, now_ns: int) -> None:
        """Superseded directories whose grace is over."""
        while self._retired and self._retired[0][0] <= now_ns:
            _, stream_id, directory = self._retired.popleft()
            record = self.records.get(stream_id)
            # An older one may have gone before its time, to make room for this stream's next.
            if record is not None and record.superseded == directory:
                self._remove_superseded(record)

    def release_idle(self, now_ns: int) -> None:
        """Streams made for clients that nobody has used for long lose their files; they stay provisioned."""
        for record in self.records:
            is_used = record.waiting or self._leases.of_stream(record.stream_id)
            if record.is_static or record.job is not Job.NONE or record.files is None or is_used:
                continue
            if now_ns - record.idle_since_ns >= self._settings.release_idle_ns:
                self._actions.append(Withdraw(record.stream_id))
                self._remove_live(record)

    def refuse_all(self) -> None:
        """Nothing is granted any more."""
        self.is_stopping = True
        for record in self.records:
            self._fail(record, _STOPPING)

    def remove_all(self) -> None:
        """Every announce and every directory goes."""
        for record in self.records:
            self._actions.append(Withdraw(record.stream_id))
            being_assigned = record.files.directory if record.files and record.job is Job.ASSIGNING else None
            for directory in record.directories:
                # What is being assigned has no certain name. The storage knows it, and removes it at its end.
                if directory != being_assigned:
                    self._actions.append(RemoveFiles(record.stream_id, directory))

    def _retire(self, record: StreamRecord, now_ns: int) -> None:
        """The live files are superseded. A stream keeps one such directory: an older one goes at once."""
        if record.files is None:
            return
        self._actions.append(Withdraw(record.stream_id))
        self._remove_superseded(record)
        record.superseded = record.files.directory
        self._retired.append((now_ns + self._leases.lease_ns, record.stream_id, record.superseded))
        self.records.set_live(record, None)

    def _remove_superseded(self, record: StreamRecord) -> None:
        if record.superseded is not None:
            self._actions.append(RemoveFiles(record.stream_id, record.superseded))
            record.superseded = None

    def _remove_live(self, record: StreamRecord) -> None:
        if record.files is not None:
            self._actions.append(RemoveFiles(record.stream_id, record.files.directory))
            self.records.set_live(record, None)

    def _drop_if_empty(self, record: StreamRecord) -> None:
        has_any = record.job is not Job.NONE or record.files or record.directories or record.waiting
        if not has_any and not record.is_wanted and not self._leases.of_stream(record.stream_id):
            self.records.drop(record)
