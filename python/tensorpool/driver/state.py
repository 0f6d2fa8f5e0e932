"""The driver as a pure state machine: messages, results of file work, deaths and the time go in, actions
come out (driver §4 to §10).

It does no I/O and reads no clock, so every rule can be tested to the last branch. The agent (`agent.py`)
owns it: nothing here may be touched from two threads.
"""

from __future__ import annotations

from typing import Any, Final

from ..sbe.driver import (
    HugepagesPolicy,
    LeaseRevokeReason,
    PublishMode,
    Role,
    ShmDetachRequest,
    ShmDriverShutdown,
    ShmDriverShutdownRequest,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
    ShutdownReason,
)
from ..sbe.wire import ResponseCode
from .actions import (
    Action,
    FileResult,
    FilesFailed,
    FilesReady,
    FilesRemoved,
    RemoveFiles,
    SaveProvisions,
    Send,
    Stop,
)
from .config import DriverSettings
from .counters import DriverCounters
from .leases import Lease, LeaseTable, Refusal
from .lifecycle import Job, Lifecycle, StreamRecords
from .plan import LAYOUT_VERSION, Plan, StreamPlan
from .requests import (
    Attach,
    InvalidRequest,
    Key,
    ResponseCache,
    ascii_text,
    attach_refused,
    detach_answer,
    read_request,
    shutdown_answer,
)

_NO_CLIENT: Final = (0, 0xFFFF_FFFF)
_SCAN_NS: Final = 1_000_000_000


class DriverState:
    """Everything that one driver knows. Each event returns what is to be done."""

    def __init__(
        self,
        settings: DriverSettings,
        *,
        counters: DriverCounters | None = None,
        has_hugepages: bool = False,
        first_lease_id: int = 1,
    ) -> None:
        self.settings = settings
        self.counters = counters or DriverCounters()
        self.plan = Plan(settings)
        self.leases = LeaseTable(lease_ns=settings.lease_ns, first_id=first_lease_id)
        self._has_hugepages = has_hugepages
        self._actions: list[Action] = []
        self._answers = ResponseCache(self._actions, self.counters)
        self._life = Lifecycle(settings, self.plan, self.leases, self.counters, self._answers, self._actions)
        self._next_scan_ns = 0
        self.counters.leases.bind(lambda: len(self.leases))
        self.counters.streams.bind(lambda: self.records.with_files)
        self.counters.bytes.bind(lambda: self.records.total_bytes)

    @property
    def records(self) -> StreamRecords:
        """The streams that have files, leases, or somebody who waits."""
        return self._life.records

    @property
    def is_stopping(self) -> bool:
        return self._life.is_stopping

    def _taken(self) -> list[Action]:
        taken = list(self._actions)
        self._actions.clear()
        return taken

    # --- events

    def on_start(self, now_ns: int) -> list[Action]:
        """The files of all static streams, where the settings want them from the start."""
        for plan in self.plan if self.settings.recreate_at_start else ():
            if plan.is_static:
                self._life.want(plan, now_ns)
        return self._taken()

    def on_message(self, message: bytes, now_ns: int) -> list[Action]:
        """A message of the control stream, whatever it is."""
        if self.is_stopping:
            return []
        match read_request(message):
            case None:
                self.counters.foreign.add()
            case InvalidRequest(reason, answer):
                self.counters.unusable[reason].add()
                if answer is not None:
                    self._answers.give(answer)
            case Attach() as request:
                self._on_attach(request, now_ns)
            case ShmDetachRequest() as request:
                self._on_detach(request, now_ns)
            case ShmLeaseKeepalive() as request:
                self._on_keepalive(request, now_ns)
            case ShmDriverShutdownRequest() as request:
                self._on_shutdown_request(request)
        return self._taken()

    def on_files(self, result: FileResult, now_ns: int) -> list[Action]:
        """File work is done, or has failed."""
        record = self.records.get(result.stream_id)
        match result:
            case FilesReady(stream_id, files) if record is None or self.is_stopping:
                self._actions.append(RemoveFiles(stream_id, files.directory))
            case _ if record is None:
                pass
            case FilesReady(_, files):
                self._life.on_ready(record, files, now_ns)
            case FilesFailed(_, refusal):
                self._life.on_failed(record, refusal)
            case FilesRemoved(_, directory):
                self._life.on_removed(record, directory, now_ns)
        return self._taken()

    def on_announced(self, stream_id: int, failure: str | None, now_ns: int) -> list[Action]:
        """The answer to `Announce`: done, or why the regions could not be mapped."""
        record = self.records.get(stream_id)
        if record is not None and record.job is Job.ANNOUNCING:
            self._life.on_announced(record, failure, now_ns)
        return self._taken()

    def on_death(self, stream_id: int, epoch: int, now_ns: int) -> list[Action]:
        """The lock of a producer was seen held and then free (decision 20)."""
        record, lease = self.records.get(stream_id), self.leases.producer_of(stream_id)
        is_current = record is not None and record.files is not None and record.files.epoch == epoch
        if is_current and lease is not None and not lease.is_reserved and not self.is_stopping:
            self.counters.deaths.add()
            self._life.end(lease, LeaseRevokeReason.EXPIRED, "the producer's process has ended", now_ns)
        return self._taken()

    def on_tick(self, now_ns: int, *, drained: bool) -> list[Action]:
        """Time has passed. `drained`: every keepalive that had arrived has been read.

        After a stall nobody is judged before that; a flood puts the judgement off by one more lease's time
        at most.
        """
        if self.is_stopping:
            return []
        for lease in self.leases.overdue(now_ns if drained else now_ns - self.leases.lease_ns):
            self._life.end(lease, LeaseRevokeReason.EXPIRED, "no keepalive came in time", now_ns)
        self._life.remove_retired(now_ns)
        if now_ns >= self._next_scan_ns:
            self._next_scan_ns = now_ns + _SCAN_NS
            self._life.release_idle(now_ns)
        return self._taken()

    def on_stop(self, reason: ShutdownReason, text: str, now_ns: int) -> list[Action]:
        """The end: everybody is told first, then everything goes. The notice ends all leases at once."""
        if self.is_stopping:
            return []
        self._life.refuse_all()
        notice = ShmDriverShutdown(timestamp_ns=now_ns, reason=reason, error_message=ascii_text(text))
        self._actions.append(Send(notice))
        self._life.remove_all()
        return self._taken()

    # --- administration

    def provision(
        self,
        stream_id: int,
        now_ns: int,
        *,
        nslots: Any = None,
        pools: Any = None,
        name: Any = None,
        tags: Any = None,
        data_source_id: Any = None,
    ) -> tuple[StreamPlan | Refusal, list[Action]]:
        """Says what a dynamic stream is to look like. What is said already changes nothing."""
        wanted = self.plan.proposed(
            stream_id, nslots=nslots, pools=pools, name=name, tags=tags, data_source_id=data_source_id
        )
        if isinstance(wanted, Refusal):
            return wanted, []
        known = self.plan.get(stream_id)
        if wanted == known:
            return wanted, []
        refusal = self._provision_refusal(known, wanted)
        if refusal is not None:
            return refusal, []
        self._adopt(wanted)
        record = self.records.get(stream_id)
        if record is not None:
            self._life.advance(record, now_ns)
        return wanted, self._taken()

    def revoke(
        self,
        now_ns: int,
        *,
        lease_id: int | None = None,
        stream_id: int | None = None,
        client_id: int | None = None,
        text: str = "",
    ) -> tuple[list[Lease], list[Action]]:
        """Takes back every lease that fits all that is given."""
        found = [
            lease
            for lease in self.leases
            if lease_id in (None, lease.lease_id)
            and stream_id in (None, lease.stream_id)
            and client_id in (None, lease.client_id)
        ]
        why = f"revoked by the administrator{': ' if text else ''}{text}"
        for lease in found:
            if lease.is_reserved:
                self._life.refuse_reserved(lease, why, now_ns)
            else:
                self._life.end(lease, LeaseRevokeReason.REVOKED, why, now_ns)
        return found, self._taken()

    # --- attach (driver §4.2, §4.3, §5)

    def _on_attach(self, request: Attach, now_ns: int) -> None:
        if self._answers.is_repeat(request.key):
            return
        plan = self._planned(request)
        if isinstance(plan, Refusal):
            answer = attach_refused(request.correlation_id, plan, request.revision)
            self._answers.give(answer, request.key)
            return
        self._answers.begin(request.key)
        self._life.wait(request, plan, now_ns)

    def _planned(self, request: Attach) -> StreamPlan | Refusal:
        """The stream's plan if the attach may be granted."""
        if request.client_id in _NO_CLIENT:
            reason = f"client id {request.client_id} is none; draw another"
            return Refusal(ResponseCode.INVALID_PARAMS, reason)
        known = self.plan.get(request.stream_id)
        plan = known or self._on_demand(request)
        if isinstance(plan, Refusal):
            return plan
        refusal = self._mismatch(request, plan) or self.leases.refusal(
            request.stream_id, request.client_id, request.role, plan.max_leases
        )
        if refusal is None and request.stream_id not in self.records and not plan.is_static:
            refusal = self._no_room()
        if refusal is None and known is None:
            # Before it is taken over: what cannot be had is not provisioned either.
            refusal = self.plan.over_quota(plan, stream_bytes=0, total_bytes=self.records.total_bytes)
        if refusal is not None:
            return refusal
        if known is None:
            self._adopt(plan)
        return plan

    def _on_demand(self, request: Attach) -> StreamPlan | Refusal:
        plan = self.plan.proposed(request.stream_id)
        if isinstance(plan, Refusal) or request.publish_mode is PublishMode.EXISTING_OR_CREATE:
            return plan
        return Refusal(
            ResponseCode.REJECTED,
            f"stream {request.stream_id} is not provisioned: it is made when its producer attaches, "
            "or any client with EXISTING_OR_CREATE",
        )

    def _mismatch(self, request: Attach, plan: StreamPlan) -> Refusal | None:
        expected, has_hugepages = request.expected_layout_version, self._has_hugepages
        if expected not in (0, LAYOUT_VERSION):
            reason = f"layout version {expected} was expected; the stream has {LAYOUT_VERSION}"
            return Refusal(ResponseCode.REJECTED, reason)
        if request.max_dims > plan.max_dims:
            reason = f"{request.max_dims} dimensions were asked for; the stream has {plan.max_dims}"
            return Refusal(ResponseCode.INVALID_PARAMS, reason)
        if request.pages is HugepagesPolicy.HUGEPAGES and not has_hugepages:
            reason = "hugepages are required, and the base directory is not on hugetlbfs"
            return Refusal(ResponseCode.REJECTED, reason)
        if request.pages is HugepagesPolicy.STANDARD and has_hugepages:
            reason = "standard pages are required, and the base directory is on hugetlbfs"
            return Refusal(ResponseCode.REJECTED, reason)
        return None

    # --- detach, keepalive, shutdown (driver §4.4, §4.9, §4.12)

    def _on_detach(self, request: ShmDetachRequest, now_ns: int) -> None:
        key: Key = (ShmDetachRequest, request.client_id, request.correlation_id)
        if self._answers.is_repeat(key):
            return
        lease = self.leases.find(request.lease_id, request.stream_id, request.client_id, request.role)
        if lease is None:
            reason = f"there is no such lease: {request.lease_id} of client {request.client_id}"
            refusal = Refusal(ResponseCode.REJECTED, reason)
            self._answers.give(detach_answer(request.correlation_id, refusal), key)
            return
        self._answers.give(detach_answer(request.correlation_id, None), key)
        self._life.end(lease, LeaseRevokeReason.DETACHED, "", now_ns)

    def _on_keepalive(self, request: ShmLeaseKeepalive, now_ns: int) -> None:
        lease = self.leases.find(request.lease_id, request.stream_id, request.client_id, request.role)
        if lease is not None:
            self.counters.keepalives.add()
            self.leases.keep_alive(lease, now_ns)
            return
        self.counters.strays.add()
        if self.leases.get(request.lease_id) is not None:
            # Somebody else's lease: a notice would be taken for its end by the one who has it.
            return
        if request.role is Role.PRODUCER and self.leases.producer_of(request.stream_id) is not None:
            # Consumers would wait for an epoch after the one that their producer has just got.
            return
        notice = ShmLeaseRevoked(
            timestamp_ns=now_ns,
            lease_id=request.lease_id,
            stream_id=request.stream_id,
            client_id=request.client_id,
            role=request.role,
            reason=self.leases.ended(request.lease_id) or LeaseRevokeReason.REVOKED,
            error_message="this driver has no such lease; attach again",
        )
        self._actions.append(Send(notice))

    def _on_shutdown_request(self, request: ShmDriverShutdownRequest) -> None:
        key: Key = (ShmDriverShutdownRequest, None, request.correlation_id)
        if self._answers.is_repeat(key):
            return
        token, refusal = self.settings.shutdown_token, None
        if token is None:
            refusal = Refusal(ResponseCode.REJECTED, "no token is configured, so nobody can stop the driver")
        elif not token.matches(request.token):
            refusal = Refusal(ResponseCode.REJECTED, "the token is wrong")
        self._answers.give(shutdown_answer(request.correlation_id, refusal), key)
        if refusal is None:
            self._actions.append(Stop(request.reason, request.error_message))

    # --- plans

    def _provision_refusal(self, known: StreamPlan | None, wanted: StreamPlan) -> Refusal | None:
        producer = self.leases.producer_of(wanted.stream_id)
        if known is not None and known.layout != wanted.layout and producer is not None:
            return Refusal(
                ResponseCode.REJECTED,
                f"stream {wanted.stream_id} has {known.layout} and a producer, client {producer.client_id}; "
                f"it can get {wanted.layout} when that has detached",
            )
        if known is None and (refusal := self._no_room()) is not None:
            return refusal
        return self.plan.over_quota(wanted, stream_bytes=0, total_bytes=0)

    def _no_room(self) -> Refusal | None:
        count, most = self.records.dynamic, self.settings.max_streams
        if count < most:
            return None
        reason = f"{count} streams made for clients are in use, and max_streams is {most}"
        return Refusal(ResponseCode.REJECTED, reason)

    def _adopt(self, plan: StreamPlan) -> None:
        """Takes a plan over, for this driver and the next. Of too many the oldest that nobody uses goes."""
        self.plan.adopt(plan)
        if self.plan.dynamic_count > self.settings.max_streams:
            unused = (one.stream_id for one in self.plan.dynamic() if one.stream_id not in self.records)
            oldest = next((one for one in unused if one != plan.stream_id), None)
            if oldest is not None:
                self.plan.forget(oldest)
        self._actions.append(SaveProvisions())
