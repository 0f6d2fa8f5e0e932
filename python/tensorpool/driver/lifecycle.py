"""The lifecycle of each stream's files and leases, and the records of both (driver §4.7, §6, §7). Pure.

Files are absent, then created under a new epoch (clean), then assigned to a producer under a further epoch,
then superseded when its lease ends, while new files are created. `advance` requests the next step of a
stream; every event ends with it. Clean files were never mapped by a producer, so they may get another name
and epoch. Used files may not: a paused producer could resume and write to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from ..sbe.driver import LeaseRevokeReason, Role, ShmLeaseRevoked
from ..sbe.wire import ResponseCode
from ..shm import EpochFiles
from .actions import Action, Announce, AssignFiles, MakeFiles, RemoveFiles, Send, Warn, Withdraw
from .config import DriverSettings
from .counters import DriverCounters
from .leases import Lease, LeaseTable, Refusal
from .plan import Plan, StreamLayout, StreamPlan
from .requests import Attach, ResponseCache, ascii_text, attach_granted, attach_refused
from .storage import BaseDirs

# Pauses between two attempts to create the files of an epoch that is owed: the first, and the longest.
_FIRST_RETRY_NS: Final = 250_000_000
_MAX_RETRY_NS: Final = 2_000_000_000
# How long a search for idle files that found too few is not repeated: it looks at every stream.
_NO_ROOM_NS: Final = 50_000_000
_STOPPING = Refusal(ResponseCode.REJECTED, "the driver is stopping; attach again when it is back")


class Job(Enum):
    """The file work in progress for a stream; at most one at a time."""

    NONE = "none"
    MAKING = "making"
    ASSIGNING = "assigning"
    ANNOUNCING = "announcing"


@dataclass(frozen=True, slots=True)
class PendingAttach:
    """An attach whose response waits for the files. Its lease is reserved meanwhile."""

    request: Attach
    lease: Lease


@dataclass(slots=True, eq=False)
class StreamRecord:
    """A stream with files, leases or pending attaches."""

    stream_id: int
    is_static: bool = False
    job: Job = Job.NONE
    files: EpochFiles | None = None
    """The live files. During an assignment their directory may have either name."""
    is_clean: bool = True
    """No producer ever mapped the files, so they can be assigned to one under a new epoch."""
    announced: tuple[int, int] | None = None
    """Announced epoch and producer id."""
    is_requested: bool = False
    """An epoch is owed: files are created and announced even without a pending attach."""
    fault: str | None = None
    """Why the owed epoch could not be created at the last attempt."""
    retry_after_ns: int = _FIRST_RETRY_NS
    """Pause before the next attempt; each failure doubles it."""
    is_pausing: bool = False
    """File work has failed: without an attach, the next attempt waits for the end of the pause."""
    pending: list[PendingAttach] = field(default_factory=list)
    superseded: Path | None = None
    """The files of the last producer, which a paused process may still map. Removed after the grace."""
    last_epoch: int = 0
    idle_since_ns: int = 0
    directories: dict[Path, int] = field(default_factory=dict)
    """Sizes of all directories that are not removed yet."""
    making_bytes: int = 0
    placement: tuple[Path | None, int | None] = (None, None)
    """Base directory and NUMA node of the plan when the files were created. The node may be another."""

    @property
    def state(self) -> str:
        """The state for users: a job, `absent`, `waiting` for space, `clean` or `used`."""
        if self.job is not Job.NONE:
            return str(self.job.value)
        if self.files is None:
            return "waiting" if self.fault is not None else "absent"
        return "clean" if self.is_clean else "used"

    @property
    def nbytes(self) -> int:
        """The size of all directories, and of files in creation."""
        return self.making_bytes + sum(self.directories.values())

    @property
    def has_pending_producer(self) -> bool:
        """Whether a pending attach is a producer's."""
        return any(attach.request.role is Role.PRODUCER for attach in self.pending)


class StreamRecords:
    """All records, and the total size of their files."""

    def __init__(self) -> None:
        self._records: dict[int, StreamRecord] = {}
        self._with_files: set[int] = set()
        self.total_bytes = 0
        self.dynamic = 0
        """The number of records of dynamic streams."""

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter(list(self._records.values()))

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._records

    @property
    def with_files(self) -> int:
        """The number of streams with live files."""
        return len(self._with_files)

    def get(self, stream_id: int) -> StreamRecord | None:
        """The record of a stream; None without one."""
        return self._records.get(stream_id)

    def __getitem__(self, stream_id: int) -> StreamRecord:
        return self._records[stream_id]

    def get_or_add(self, plan: StreamPlan, now_ns: int) -> StreamRecord:
        """The record of a stream; a new one if there is none."""
        record = self._records.get(plan.stream_id)
        if record is None:
            record = StreamRecord(plan.stream_id, plan.is_static, idle_since_ns=now_ns)
            self._records[plan.stream_id] = record
            self.dynamic += not plan.is_static
        return record

    def drop(self, record: StreamRecord) -> None:
        """Removes a record. Does nothing if it was removed already."""
        if self._records.pop(record.stream_id, None) is not None:
            self.dynamic -= not record.is_static

    # --- files and their sizes

    def start_creation(self, record: StreamRecord, nbytes: int) -> None:
        """Counts files that are being created."""
        record.job = Job.MAKING
        record.making_bytes = nbytes
        self.total_bytes += nbytes

    def fail_job(self, record: StreamRecord) -> None:
        """Ends a failed job. Files that were being assigned are lost."""
        self.total_bytes -= record.making_bytes
        record.making_bytes = 0
        if record.job is Job.ASSIGNING and record.files is not None:
            self.remove_directory(record, record.files.directory)
            self.set_live(record, None)
        record.job = Job.NONE

    def finish_job(self, record: StreamRecord, files: EpochFiles) -> None:
        """Ends a job with files that were created or assigned."""
        if record.files is not None:
            self.remove_directory(record, record.files.directory)
        self.total_bytes -= record.making_bytes
        record.making_bytes = 0
        nbytes = StreamLayout.from_files(files).nbytes
        record.directories[files.directory] = nbytes
        self.total_bytes += nbytes
        record.job = Job.NONE
        self.set_live(record, files)

    def remove_directory(self, record: StreamRecord, directory: Path) -> None:
        """Stops counting a directory."""
        self.total_bytes -= record.directories.pop(directory, 0)

    def set_live(self, record: StreamRecord, files: EpochFiles | None) -> None:
        """Sets the live files of a stream, clean and not announced."""
        record.files = files
        record.is_clean = True
        record.announced = None
        if files is None:
            self._with_files.discard(record.stream_id)
        else:
            self._with_files.add(record.stream_id)


class _RetiredDirectory(NamedTuple):
    due_ns: int
    stream_id: int
    directory: Path


class Lifecycle:
    """The transitions of streams, files and leases. Appends to `actions`."""

    def __init__(
        self,
        settings: DriverSettings,
        bases: BaseDirs,
        plan: Plan,
        leases: LeaseTable,
        counters: DriverCounters,
        responses: ResponseCache,
        actions: list[Action],
    ) -> None:
        self.records = StreamRecords()
        self.is_stopping = False
        self._settings = settings
        self._bases = bases
        self._plan = plan
        self._leases = leases
        self._counters = counters
        self._responses = responses
        self._actions = actions
        # Ordered by due time, because all have the same grace.
        self._retired: deque[_RetiredDirectory] = deque()
        # Streams that are owed an epoch whose files could not be created, and the time of the next attempt.
        self._waiting: dict[int, int] = {}
        # Streams with pending attaches that wait for the removal of other streams' files, in their order.
        self._hungry: dict[int, None] = {}
        self._no_room_until_ns = 0

    # --- attaches

    def enqueue(self, request: Attach, plan: StreamPlan, now_ns: int, *, is_repetition: bool = False) -> None:
        """Adds an attach that may be granted. Its response is sent when the files exist, perhaps at once."""
        record = self.records.get_or_add(plan, now_ns)
        lease = self._leases.reserve(
            request.stream_id,
            request.client_id,
            request.role,
            now_ns,
            correlation_id=request.correlation_id,
            nbytes=plan.layout.nbytes if self.needs_files(request.stream_id) else 0,
        )
        lease.is_repeated = is_repetition
        record.pending.append(PendingAttach(request, lease))
        self.advance(record, now_ns)

    def needs_files(self, stream_id: int) -> bool:
        """Whether an attach makes the driver create files."""
        record = self.records.get(stream_id)
        return record is None or (record.files is None and record.job is Job.NONE)

    def repeat_grant(self, lease: Lease, request: Attach) -> None:
        """Sends the response of a granted lease once more. Nothing if the stream has no files just now."""
        record = self.records[lease.stream_id]
        if record.files is not None and record.job is Job.NONE:
            response = attach_granted(request, lease, record.files)
            self._responses.respond(response, request.key, is_awaited=True)

    def provision(self, plan: StreamPlan, now_ns: int) -> None:
        """Creates the files of a stream without a pending attach."""
        record = self.records.get_or_add(plan, now_ns)
        record.is_requested = True
        self.advance(record, now_ns)

    def refuse_reserved(self, lease: Lease, reason: str, now_ns: int) -> None:
        """Refuses a pending attach."""
        record = self.records[lease.stream_id]
        attach = next(attach for attach in record.pending if attach.lease is lease)
        record.pending.remove(attach)
        self._refuse(attach, Refusal(ResponseCode.REJECTED, reason))
        if lease.role is Role.PRODUCER:
            # The client never got the files' names, so the files are still clean.
            record.is_clean = True
        self.advance(record, now_ns)

    def _refuse(self, attach: PendingAttach, refusal: Refusal) -> None:
        """Drops a reserved lease without a notice: its client never had the lease."""
        self._leases.drop(attach.lease)
        request = attach.request
        response = attach_refused(request.correlation_id, refusal, request.revision)
        self._responses.respond(response, request.key, is_awaited=attach.lease.is_repeated)

    def _grant(self, attach: PendingAttach, files: EpochFiles, now_ns: int) -> None:
        self._leases.grant(attach.lease, now_ns)
        self._counters.attaches.add()
        response = attach_granted(attach.request, attach.lease, files)
        self._responses.respond(response, attach.request.key, is_awaited=attach.lease.is_repeated)

    def _fail(self, record: StreamRecord, refusal: Refusal, now_ns: int) -> None:
        """Refuses all pending attaches. An epoch that is owed is tried again later, without an attach."""
        pending, record.pending = record.pending, []
        for attach in pending:
            self._refuse(attach, refusal)
        # Clients with a lease have lost their epoch: they wait for an announce of the next one.
        is_owed = record.is_requested or bool(self._leases.of_stream(record.stream_id))
        record.is_requested = is_owed and not self.is_stopping
        record.is_pausing = record.is_pausing and record.is_requested
        if record.is_requested:
            self._wait(record, refusal, now_ns)
        self._drop_if_empty(record)

    def _wait(self, record: StreamRecord, refusal: Refusal, now_ns: int) -> None:
        if record.fault is None:
            self._actions.append(
                Warn(
                    f"stream {record.stream_id} has no files, and the next epoch cannot be created yet: "
                    f"{refusal.reason}; the driver tries again until there is room"
                )
            )
        record.fault = refusal.reason
        self._waiting[record.stream_id] = now_ns + record.retry_after_ns
        record.retry_after_ns = min(2 * record.retry_after_ns, _MAX_RETRY_NS)

    def retry_waiting(self, now_ns: int) -> None:
        """Tries again to create the epochs that are owed and due."""
        for stream_id in [stream_id for stream_id, due_ns in self._waiting.items() if due_ns <= now_ns]:
            del self._waiting[stream_id]
            record = self.records.get(stream_id)
            if record is None or not record.is_requested:
                continue
            record.is_pausing = False
            is_used = record.is_static or record.pending or self._leases.of_stream(stream_id)
            if not is_used and now_ns - record.idle_since_ns >= self._settings.release_idle_ns:
                # By now the driver would have removed the files of this dynamic stream.
                record.is_requested = False
            self.advance(record, now_ns)

    # --- the next step

    def advance(self, record: StreamRecord, now_ns: int) -> None:
        """Requests the next step of a stream's files, or grants the pending attaches if none is left."""
        if record.job is not Job.NONE or self.is_stopping:
            return
        plan = self._plan[record.stream_id]
        if (
            record.files is not None
            and record.is_clean
            and (StreamLayout.from_files(record.files), record.placement)
            != (plan.layout, self._placement(plan))
        ):
            self._replace_layout(record, now_ns)
        if record.files is None:
            self._make(record, plan, now_ns)
            return
        if record.is_clean and record.has_pending_producer:
            self._assign(record, record.files, plan)
            return
        producer = None if record.is_clean else self._leases.producer_of(record.stream_id)
        producer_id = 0 if producer is None else producer.client_id
        if record.announced != (record.files.epoch, producer_id):
            record.job = Job.ANNOUNCING
            record.announced = (record.files.epoch, producer_id)
            self._actions.append(Announce(record.stream_id, record.files, producer_id))
            return
        pending, record.pending = record.pending, []
        for attach in pending:
            self._grant(attach, record.files, now_ns)

    def _replace_layout(self, record: StreamRecord, now_ns: int) -> None:
        """Removes or retires files whose layout differs from the plan."""
        if record.announced is None:
            self._remove_live(record)
        else:
            self._retire(record, now_ns)
        record.is_requested = True

    def _placement(self, plan: StreamPlan) -> tuple[Path, int | None]:
        return self._bases.base_dir(plan), plan.numa_node

    def _make(self, record: StreamRecord, plan: StreamPlan, now_ns: int) -> None:
        if not record.pending and not record.is_requested:
            self._drop_if_empty(record)
            return
        if record.is_pausing and not record.pending:
            return
        total = self.records.total_bytes
        refusal = self._plan.over_quota(plan, stream_bytes=record.nbytes, total_bytes=total)
        if refusal is None:
            self.records.start_creation(record, plan.layout.nbytes)
            record.placement = self._placement(plan)
            self._actions.append(MakeFiles(plan))
            return
        if record.pending and self.make_room(plan.layout.nbytes, now_ns):
            # The attach stays reserved until the files of other streams are removed.
            self._hungry[record.stream_id] = None
            return
        self._fail(record, refusal, now_ns)

    def make_room(self, need_bytes: int, now_ns: int) -> bool:
        """Removes files of idle dynamic streams, the longest idle first, so that `need_bytes` fit the quota.
        False, and nothing is removed, if that is not enough."""
        quota = self._plan.quota_bytes
        if quota is None or need_bytes > quota or now_ns < self._no_room_until_ns:
            return False
        over = self.records.total_bytes + need_bytes - quota - self._leaving_bytes()
        idle = sorted(
            (record for record in self.records if self._is_idle(record)), key=lambda r: r.idle_since_ns
        )
        chosen: list[StreamRecord] = []
        for record in idle:
            if over <= 0:
                break
            chosen.append(record)
            over -= record.nbytes
        if over > 0:
            self._no_room_until_ns = now_ns + _NO_ROOM_NS
            return False
        for record in chosen:
            self._actions.append(Withdraw(record.stream_id))
            self._remove_live(record)
        return True

    def _leaving_bytes(self) -> int:
        """The size of files whose removal was requested and is not finished."""
        return sum(
            nbytes
            for record in self.records
            for directory, nbytes in record.directories.items()
            if directory != record.superseded
            and (record.files is None or directory != record.files.directory)
        )

    def _is_idle(self, record: StreamRecord) -> bool:
        is_used = record.pending or record.is_requested or self._leases.of_stream(record.stream_id)
        return not record.is_static and record.job is Job.NONE and record.files is not None and not is_used

    def _assign(self, record: StreamRecord, files: EpochFiles, plan: StreamPlan) -> None:
        record.job = Job.ASSIGNING
        if record.announced is not None:
            # The assignment renames the directory: consumers must not get announces of the old name.
            record.announced = None
            self._actions.append(Withdraw(record.stream_id))
        self._actions.append(AssignFiles(plan, files))

    # --- results

    def on_ready(self, record: StreamRecord, files: EpochFiles, now_ns: int) -> None:
        """Files were created or assigned."""
        was_assigned = record.job is Job.ASSIGNING
        self.records.finish_job(record, files)
        if files.epoch <= record.last_epoch:
            self._remove_live(record)
            reason = f"epoch {files.epoch} is not above {record.last_epoch}; check the state directory"
            self.on_failed(record, Refusal(ResponseCode.INTERNAL_ERROR, reason), now_ns)
            return
        record.last_epoch = files.epoch
        record.is_clean = not (was_assigned and record.has_pending_producer)
        self.advance(record, now_ns)

    def on_failed(self, record: StreamRecord, refusal: Refusal, now_ns: int) -> None:
        """Files could not be created or assigned."""
        self._counters.failures.add()
        self.records.fail_job(record)
        record.is_pausing = True
        self._fail(record, refusal, now_ns)

    def on_removed(self, record: StreamRecord, directory: Path, now_ns: int) -> None:
        """A directory was removed."""
        self.records.remove_directory(record, directory)
        self.advance(record, now_ns)
        hungry, self._hungry = self._hungry, {}
        for stream_id in hungry:
            waiting = self.records.get(stream_id)
            if waiting is not None:
                self.advance(waiting, now_ns)

    def on_announced(self, record: StreamRecord, failure: str | None, now_ns: int) -> None:
        """Announces have started, or the regions could not be mapped."""
        record.job = Job.NONE
        if failure is None:
            self._counters.epochs.add()
            record.is_requested, record.is_pausing = False, False
            record.fault, record.retry_after_ns = None, _FIRST_RETRY_NS
            self.advance(record, now_ns)
            return
        # The files were never announced, so they can be removed at once.
        self._actions.append(Withdraw(record.stream_id))
        self._remove_live(record)
        self.on_failed(record, Refusal(ResponseCode.INTERNAL_ERROR, failure), now_ns)

    # --- ends

    def end(self, lease: Lease, reason: LeaseRevokeReason, text: str, now_ns: int) -> None:
        """Ends a granted lease: sends a notice, and for a producer starts a new epoch."""
        is_awaited = lease.has_client
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
        self._actions.append(Send(notice, is_awaited=is_awaited))
        record = self.records[lease.stream_id]
        record.idle_since_ns = now_ns
        if lease.role is Role.PRODUCER:
            self._retire(record, now_ns)
            record.is_requested = True
        self.advance(record, now_ns)

    def replace_files(self, record: StreamRecord, now_ns: int) -> None:
        """Supersedes the files of a stream without a producer, and creates others."""
        self._retire(record, now_ns)
        record.is_requested = True
        self.advance(record, now_ns)

    def remove_retired(self, now_ns: int) -> None:
        """Removes superseded directories whose grace is over."""
        while self._retired and self._retired[0].due_ns <= now_ns:
            _, stream_id, directory = self._retired.popleft()
            record = self.records.get(stream_id)
            # The directory may have been removed early, when the stream's next directory was superseded.
            if record is not None and record.superseded == directory:
                self._remove_superseded(record)

    def release_idle(self, now_ns: int) -> None:
        """Removes the files of dynamic streams that had no lease for long; the streams stay provisioned."""
        for record in self.records:
            is_used = record.pending or self._leases.of_stream(record.stream_id)
            if record.is_static or record.job is not Job.NONE or record.files is None or is_used:
                continue
            if now_ns - record.idle_since_ns >= self._settings.release_idle_ns:
                self._actions.append(Withdraw(record.stream_id))
                self._remove_live(record)

    def refuse_all(self, now_ns: int) -> None:
        """Refuses all pending attaches, and all later ones."""
        self.is_stopping = True
        for record in self.records:
            self._fail(record, _STOPPING, now_ns)

    def remove_all(self) -> None:
        """Withdraws all announces and removes all directories."""
        for record in self.records:
            self._actions.append(Withdraw(record.stream_id))
            being_assigned = record.files.directory if record.files and record.job is Job.ASSIGNING else None
            for directory in record.directories:
                # A directory in assignment may have either name. The storage knows it and removes it.
                if directory != being_assigned:
                    self._actions.append(RemoveFiles(record.stream_id, directory))

    def _retire(self, record: StreamRecord, now_ns: int) -> None:
        """Supersedes the live files. A stream keeps one superseded directory; an older one is removed."""
        if record.files is None:
            return
        self._actions.append(Withdraw(record.stream_id))
        self._remove_superseded(record)
        record.superseded = record.files.directory
        due_ns = now_ns + self._leases.lease_ns
        self._retired.append(_RetiredDirectory(due_ns, record.stream_id, record.superseded))
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
        has_any = record.job is not Job.NONE or record.files or record.directories or record.pending
        if not has_any and not record.is_requested and not self._leases.of_stream(record.stream_id):
            self.records.drop(record)
