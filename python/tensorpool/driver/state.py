"""The state machine of the driver (driver §4 to §10). Pure.

Events are messages, results of file work, ended producers and the time; the results are actions. Only the
agent's thread (`agent.py`) may use it.
"""

from __future__ import annotations

from dataclasses import replace
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
from ..units import NULL_U32
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
from .config import MAX_DIMS, DriverSettings
from .counters import DriverCounters
from .leases import Lease, LeaseTable, Refusal
from .lifecycle import Job, Lifecycle, StreamRecords
from .plan import LAYOUT_VERSION, Plan, StreamPlan
from .requests import (
    Attach,
    InvalidRequest,
    Key,
    RateLimit,
    RequestLimiter,
    ResponseCache,
    ascii_text,
    attach_refused,
    detach_response,
    is_attach,
    read_request,
    shutdown_response,
)
from .storage import BaseDirs

# Reserved leases and leases without a keepalive, as a share of all leases, and the size of their files, as a
# share of the quota: beyond that, a request is handled when it is repeated.
_UNPROVEN_LEASES_SHARE: Final = 16
_UNPROVEN_BYTES_SHARE: Final = 2
# One large stream is no flood.
_MIN_UNPROVEN: Final = 4
# Lease durations without a repetition after which a reserved lease lapses.
_RESERVED_LEASES: Final = 3
# Answers a second to messages that no client of ours sends: invalid requests, keepalives without a lease.
_MAX_NEEDLESS_ANSWERS: Final = 1000
_INVALID_CLIENT_IDS: Final = (0, NULL_U32)
_IDLE_SCAN_NS: Final = 1_000_000_000


class DriverState:
    """The state of one driver. Each event returns the actions to perform."""

    def __init__(
        self,
        settings: DriverSettings,
        *,
        counters: DriverCounters | None = None,
        bases: BaseDirs,
        numa_nodes: frozenset[int] = frozenset({0}),
        first_lease_id: int = 1,
        quota_bytes: int | None = None,
    ) -> None:
        """`quota_bytes`: the quota if the settings have none."""
        self.settings = settings
        self.counters = counters or DriverCounters()
        self.plan = Plan(settings, quota_bytes if settings.quota_bytes is None else settings.quota_bytes)
        self.leases = LeaseTable(
            lease_ns=settings.lease_ns, first_id=first_lease_id, max_leases=settings.max_leases
        )
        self._limiter = RequestLimiter(settings.max_requests_per_second, settings.max_requests_per_image)
        self._needless = RateLimit(_MAX_NEEDLESS_ANSWERS, burst=_MAX_NEEDLESS_ANSWERS)
        self._bases = bases
        self._numa_nodes = numa_nodes
        self._actions: list[Action] = []
        self._responses = ResponseCache(self._actions, self.counters)
        self._lifecycle = Lifecycle(
            settings, bases, self.plan, self.leases, self.counters, self._responses, self._actions
        )
        self._next_scan_ns = 0
        self.counters.leases.bind(lambda: len(self.leases))
        self.counters.streams.bind(lambda: self.records.with_files)
        self.counters.bytes.bind(lambda: self.records.total_bytes)

    @property
    def records(self) -> StreamRecords:
        """The streams with files, leases or pending attaches."""
        return self._lifecycle.records

    @property
    def is_stopping(self) -> bool:
        """Whether the driver grants no more leases."""
        return self._lifecycle.is_stopping

    def _take_actions(self) -> list[Action]:
        actions = list(self._actions)
        self._actions.clear()
        return actions

    # --- events

    def on_start(self, now_ns: int) -> list[Action]:
        """Starts the driver: creates the files of static streams with `recreate_at_start`."""
        for plan in self.plan if self.settings.recreate_at_start else ():
            if plan.is_static:
                self._lifecycle.provision(plan, now_ns)
        return self._take_actions()

    def on_message(self, message: bytes, now_ns: int, *, image: int = 0) -> list[Action]:
        """Handles any message of the control stream. `image`: the Aeron session that sent it."""
        if self.is_stopping:
            return []
        # Before it is decoded: a flood must not keep the driver from the keepalives behind it.
        is_repetition = False
        if is_attach(message):
            is_repetition = self._limiter.is_repetition(message, now_ns)
            is_pressed = self._has_many_unproven
            if not self._limiter.admits(image, now_ns, is_repetition=is_repetition, is_pressed=is_pressed):
                self.counters.postponed.add()
                return []
        match read_request(message):
            case None:
                self.counters.foreign.add()
            case InvalidRequest(reason, response):
                self.counters.invalid[reason].add()
                if response is not None and self._is_answered(now_ns):
                    self._responses.respond(response)
            case Attach() as request:
                self._on_attach(request, now_ns, is_repetition=is_repetition)
            case ShmDetachRequest() as request:
                self._on_detach(request, now_ns)
            case ShmLeaseKeepalive() as request:
                self._on_keepalive(request, now_ns)
            case ShmDriverShutdownRequest() as request:
                self._on_shutdown_request(request)
        return self._take_actions()

    def on_files(self, result: FileResult, now_ns: int) -> list[Action]:
        """Handles the result of file work."""
        record = self.records.get(result.stream_id)
        match result:
            case FilesReady(stream_id, files) if record is None or self.is_stopping:
                self._actions.append(RemoveFiles(stream_id, files.directory))
            case _ if record is None:
                pass
            case FilesReady(_, files):
                self._lifecycle.on_ready(record, files, now_ns)
            case FilesFailed(_, refusal):
                self._lifecycle.on_failed(record, refusal, now_ns)
            case FilesRemoved(_, directory):
                self._lifecycle.on_removed(record, directory, now_ns)
        return self._take_actions()

    def on_announced(self, stream_id: int, failure: str | None, now_ns: int) -> list[Action]:
        """Handles the result of `Announce`: None, or why the regions could not be mapped."""
        record = self.records.get(stream_id)
        if record is not None and record.job is Job.ANNOUNCING:
            self._lifecycle.on_announced(record, failure, now_ns)
        return self._take_actions()

    def on_producer_exit(self, stream_id: int, epoch: int, now_ns: int) -> list[Action]:
        """Handles a producer's lock that was held and is free now: its process has ended (decision 20)."""
        record, lease = self.records.get(stream_id), self.leases.producer_of(stream_id)
        is_current = record is not None and record.files is not None and record.files.epoch == epoch
        if is_current and lease is not None and not lease.is_reserved and not self.is_stopping:
            self.counters.dead_producers.add()
            self._lifecycle.end(lease, LeaseRevokeReason.EXPIRED, "the producer's process has ended", now_ns)
        return self._take_actions()

    def on_damaged(self, stream_id: int, epoch: int, reason: str, now_ns: int) -> list[Action]:
        """Handles an epoch whose regions cannot be used any more: the stream gets another one."""
        record = self.records.get(stream_id)
        is_current = record is not None and record.files is not None and record.files.epoch == epoch
        if record is not None and is_current and record.job is Job.NONE and not self.is_stopping:
            self.counters.damaged.add()
            lease = self.leases.producer_of(stream_id)
            if lease is not None and not lease.is_reserved:
                self._lifecycle.end(lease, LeaseRevokeReason.REVOKED, reason, now_ns)
            else:
                self._lifecycle.replace_files(record, now_ns)
        return self._take_actions()

    def on_tick(self, now_ns: int, *, read_until_ns: int | None) -> list[Action]:
        """Ends expired leases and removes old files.

        `read_until_ns`: all keepalives sent until then were read; None: not known. No lease expires before
        its keepalives are read, after a stall or while the control stream is blocked. A flood of messages
        delays the expiry by one lease duration at most.
        """
        if self.is_stopping:
            return []
        expired_ns = now_ns - self.leases.lease_ns if read_until_ns is None else read_until_ns
        for lease in self.leases.overdue(expired_ns):
            if not lease.is_proven:
                # The client may not have received the response, and may repeat its request. The cached
                # response would name a lease that has ended.
                self._responses.forget((Attach, lease.client_id, lease.correlation_id))
            self._lifecycle.end(lease, LeaseRevokeReason.EXPIRED, "no keepalive came in time", now_ns)
        self._lifecycle.remove_retired(now_ns)
        self._lifecycle.retry_waiting(now_ns)
        if now_ns >= self._next_scan_ns:
            self._next_scan_ns = now_ns + _IDLE_SCAN_NS
            self._end_lapsed(now_ns)
            self._limiter.forget_old(now_ns, self.leases.lease_ns)
            self._lifecycle.release_idle(now_ns)
        return self._take_actions()

    def on_stop(self, reason: ShutdownReason, text: str, now_ns: int) -> list[Action]:
        """Stops the driver: sends a notice, which ends all leases, then removes all files."""
        if self.is_stopping:
            return []
        self._lifecycle.refuse_all(now_ns)
        notice = ShmDriverShutdown(timestamp_ns=now_ns, reason=reason, error_message=ascii_text(text))
        self._actions.append(Send(notice))
        self._lifecycle.remove_all()
        return self._take_actions()

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
        numa_node: Any = None,
    ) -> tuple[StreamPlan | Refusal, list[Action]]:
        """Sets the plan of a dynamic stream. Repetition changes nothing."""
        proposed = self.plan.proposed(
            stream_id,
            nslots=nslots,
            pools=pools,
            name=name,
            tags=tags,
            data_source_id=data_source_id,
            numa_node=numa_node,
        )
        if isinstance(proposed, Refusal):
            return proposed, []
        if numa_node is not None and numa_node not in self._numa_nodes:
            nodes = ", ".join(str(node) for node in sorted(self._numa_nodes))
            reason = f"numa_node {numa_node}: this machine has NUMA nodes {nodes} only"
            return Refusal(ResponseCode.REJECTED, reason), []
        known = self.plan.get(stream_id)
        if proposed == known:
            return proposed, []
        refusal = self._provision_refusal(known, proposed)
        if refusal is not None:
            return refusal, []
        self._adopt(proposed)
        record = self.records.get(stream_id)
        if record is not None:
            self._lifecycle.advance(record, now_ns)
        return proposed, self._take_actions()

    def revoke(
        self,
        now_ns: int,
        *,
        lease_id: int | None = None,
        stream_id: int | None = None,
        client_id: int | None = None,
        text: str = "",
    ) -> tuple[list[Lease], list[Action]]:
        """Revokes the leases that match all arguments. Returns them and the actions."""
        matching = [
            lease
            for lease in self.leases
            if lease_id in (None, lease.lease_id)
            and stream_id in (None, lease.stream_id)
            and client_id in (None, lease.client_id)
        ]
        reason = f"revoked by the administrator{': ' if text else ''}{text}"
        for lease in matching:
            if lease.is_reserved:
                self._lifecycle.refuse_reserved(lease, reason, now_ns)
            else:
                self._lifecycle.end(lease, LeaseRevokeReason.REVOKED, reason, now_ns)
        return matching, self._take_actions()

    # --- attach (driver §4.2, §4.3, §5)

    def _on_attach(self, request: Attach, now_ns: int, *, is_repetition: bool) -> None:
        held = self.leases.of_client(request.client_id)
        is_held = held is not None and (held.correlation_id, held.stream_id, held.role) == (
            request.correlation_id,
            request.stream_id,
            request.role,
        )
        if held is not None and is_held:
            held.asked_ns = now_ns
            held.is_repeated = True
        if self._responses.is_repeat(request.key):
            return
        if held is not None and is_held:
            # Its response has left the cache: there were many others since.
            self.counters.repeats.add()
            if not held.is_reserved:
                self._lifecycle.repeat_grant(held, request)
            return
        if (
            self._has_many_unproven_bytes
            and self._lifecycle.needs_files(request.stream_id)
            and not is_repetition
        ):
            self.counters.postponed.add()
            return
        plan = self._grantable_plan(request, now_ns)
        if isinstance(plan, Refusal):
            response = attach_refused(request.correlation_id, plan, request.revision)
            self._responses.respond(response, request.key, is_awaited=is_repetition)
            return
        self._responses.start(request.key)
        self._lifecycle.enqueue(request, plan, now_ns, is_repetition=is_repetition)

    def _grantable_plan(self, request: Attach, now_ns: int) -> StreamPlan | Refusal:
        """The stream's plan if the attach may be granted."""
        if request.client_id in _INVALID_CLIENT_IDS:
            reason = f"client id {request.client_id} is invalid; use another client id"
            return Refusal(ResponseCode.INVALID_PARAMS, reason)
        known = self.plan.get(request.stream_id)
        plan = known or self._on_demand(request)
        if isinstance(plan, Refusal):
            return plan
        plan = self._placed(request, plan, known)
        refusal = self._mismatch(request, plan) or self.leases.refusal(
            request.stream_id, request.client_id, request.role, plan.max_leases
        )
        if refusal is None and request.stream_id not in self.records and not plan.is_static:
            refusal = self._stream_limit_refusal()
        if refusal is None and known is None:
            # Before the plan is adopted: a refused attach must not provision the stream.
            refusal = self.plan.over_quota(plan, stream_bytes=0, total_bytes=self.records.total_bytes)
            if refusal is not None and self._lifecycle.make_room(plan.layout.nbytes, now_ns):
                refusal = None
        if refusal is not None:
            return refusal
        if plan != known:
            self._adopt(plan)
        return plan

    @property
    def _has_many_unproven(self) -> bool:
        share = self.settings.max_leases // _UNPROVEN_LEASES_SHARE
        return self.leases.unproven > max(share, _MIN_UNPROVEN)

    @property
    def _has_many_unproven_bytes(self) -> bool:
        quota, leases = self.plan.quota_bytes, self.leases
        is_much = quota is not None and leases.unproven_bytes > quota // _UNPROVEN_BYTES_SHARE
        return is_much and leases.unproven >= _MIN_UNPROVEN

    def _is_answered(self, now_ns: int) -> bool:
        """Whether a message that no client of ours sends gets an answer: not if there are many of them."""
        if self._needless.take(now_ns):
            return True
        self.counters.unanswered.add()
        return False

    def _end_lapsed(self, now_ns: int) -> None:
        for lease in self.leases.lapsed(now_ns - _RESERVED_LEASES * self.leases.lease_ns):
            self.counters.lapsed.add()
            reason = "the request was not repeated while its files were created; attach again"
            self._lifecycle.refuse_reserved(lease, reason, now_ns)

    def _placed(self, request: Attach, plan: StreamPlan, known: StreamPlan | None) -> StreamPlan:
        """The plan with the NUMA node and the kind of pages that the producer of a dynamic stream, or the
        client that creates it, asks for. A node that this machine does not have is no error: the response
        contains the node where the regions are."""
        if plan.is_static or not (request.role is Role.PRODUCER or known is None):
            return plan
        if request.desired_node in self._numa_nodes:
            plan = replace(plan, numa_node=request.desired_node)
        if self._bases.hugepages is not None and request.pages is not HugepagesPolicy.UNSPECIFIED:
            plan = replace(plan, hugepages=request.pages is HugepagesPolicy.HUGEPAGES)
        return plan

    def _on_demand(self, request: Attach) -> StreamPlan | Refusal:
        plan = self.plan.proposed(request.stream_id)
        if isinstance(plan, Refusal) or request.publish_mode is PublishMode.EXISTING_OR_CREATE:
            return plan
        return Refusal(
            ResponseCode.REJECTED,
            f"stream {request.stream_id} has no producer yet and is not provisioned: it is created when its "
            "producer attaches, or any client with EXISTING_OR_CREATE",
        )

    def _mismatch(self, request: Attach, plan: StreamPlan) -> Refusal | None:
        expected, has_hugepages = request.expected_layout_version, self._bases.has_hugepages(plan)
        if expected not in (0, LAYOUT_VERSION):
            reason = f"layout version {expected} is expected, but the stream has {LAYOUT_VERSION}"
            return Refusal(ResponseCode.REJECTED, reason)
        if request.max_dims > MAX_DIMS:
            reason = f"{request.max_dims} dimensions are requested, but tensors have {MAX_DIMS} at most"
            return Refusal(ResponseCode.INVALID_PARAMS, reason)
        if request.pages is HugepagesPolicy.HUGEPAGES and not has_hugepages:
            reason = (
                f"hugepages are required, but {self._bases.base_dir(plan)} is not on hugetlbfs; set "
                "driver.hugepages_dir to a directory that is"
            )
            return Refusal(ResponseCode.REJECTED, reason)
        if request.pages is HugepagesPolicy.STANDARD and has_hugepages:
            reason = f"standard pages are required, but {self._bases.base_dir(plan)} is on hugetlbfs"
            return Refusal(ResponseCode.REJECTED, reason)
        return None

    # --- detach, keepalive, shutdown (driver §4.4, §4.9, §4.12)

    def _on_detach(self, request: ShmDetachRequest, now_ns: int) -> None:
        key: Key = (ShmDetachRequest, request.client_id, request.correlation_id)
        if self._responses.is_repeat(key):
            return
        lease = self.leases.find(request.lease_id, request.stream_id, request.client_id, request.role)
        if lease is None:
            if not self._is_answered(now_ns):
                return
            reason = f"client {request.client_id} has no lease {request.lease_id}"
            refusal = Refusal(ResponseCode.REJECTED, reason)
            self._responses.respond(detach_response(request.correlation_id, refusal), key)
            return
        self._responses.respond(
            detach_response(request.correlation_id, None), key, is_awaited=lease.has_client
        )
        self._lifecycle.end(lease, LeaseRevokeReason.DETACHED, "", now_ns)

    def _on_keepalive(self, request: ShmLeaseKeepalive, now_ns: int) -> None:
        lease = self.leases.find(request.lease_id, request.stream_id, request.client_id, request.role)
        if lease is not None:
            self.counters.keepalives.add()
            self.leases.keep_alive(lease, now_ns)
            return
        self.counters.strays.add()
        if self.leases.get(request.lease_id) is not None:
            # Another client holds this lease: a notice would end it there.
            return
        if request.role is Role.PRODUCER and self.leases.producer_of(request.stream_id) is not None:
            # After a notice, consumers would wait for an epoch after that of the live producer.
            return
        if not self._is_answered(now_ns):
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
        if self._responses.is_repeat(key):
            return
        token, refusal = self.settings.shutdown_token, None
        if token is None:
            refusal = Refusal(
                ResponseCode.REJECTED,
                "no token is configured; set driver.shutdown_token to stop the driver by message",
            )
        elif not token.matches(request.token):
            refusal = Refusal(ResponseCode.REJECTED, "the token is wrong")
        self._responses.respond(shutdown_response(request.correlation_id, refusal), key)
        if refusal is None:
            self._actions.append(Stop(request.reason, request.error_message))

    # --- plans

    def _provision_refusal(self, known: StreamPlan | None, proposed: StreamPlan) -> Refusal | None:
        producer = self.leases.producer_of(proposed.stream_id)
        if known is not None and known.layout != proposed.layout and producer is not None:
            return Refusal(
                ResponseCode.REJECTED,
                f"stream {proposed.stream_id} has {known.layout} and a producer, client "
                f"{producer.client_id}; it can get {proposed.layout} when the producer has detached",
            )
        if known is None and (refusal := self._stream_limit_refusal()) is not None:
            return refusal
        return self.plan.over_quota(proposed, stream_bytes=0, total_bytes=0)

    def _stream_limit_refusal(self) -> Refusal | None:
        count, limit = self.records.dynamic, self.settings.max_streams
        if count < limit:
            return None
        reason = f"{count} dynamic streams are in use, and max_streams is {limit}"
        return Refusal(ResponseCode.REJECTED, reason)

    def _adopt(self, plan: StreamPlan) -> None:
        """Adopts a plan and saves it. Beyond the limit, removes the oldest plan of an unused stream."""
        self.plan.adopt(plan)
        if self.plan.dynamic_count > self.settings.max_streams:
            unused = (other.stream_id for other in self.plan.dynamic() if other.stream_id not in self.records)
            oldest = next((stream_id for stream_id in unused if stream_id != plan.stream_id), None)
            if oldest is not None:
                self.plan.remove(oldest)
        self._actions.append(SaveProvisions())
