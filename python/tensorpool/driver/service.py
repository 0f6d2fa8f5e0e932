"""`service:driver`: status, streams, leases and commands of a driver. Commands run on the agent's thread.

64-bit ids are strings, since many JSON readers round such numbers. Lists are in ascending order of id and
come in parts: call again with `first` one above the last id until the list is empty.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..errors import RequestRejected
from ..runtime.config import Secret
from ..sbe.driver import Role
from ..service import Service, command
from ..shm.epoch_files import user_name
from .client import DriverStatus, LeaseRow, StopReply, StreamRow
from .leases import Lease, Refusal
from .plan import StreamPlan

if TYPE_CHECKING:
    from .agent import DriverAgent

# A reply is one message. A quarter of the smallest maximum message length leaves room for all other fields.
_MAX_BYTES: Final = 128 << 10
_MAX_DIGITS: Final = 20
_Row = TypeVar("_Row")


class DriverService(Service, name="driver"):
    """The service of a driver."""

    def __init__(
        self, agent: DriverAgent, *, instance: str | None = None, token: Secret | None = None
    ) -> None:
        super().__init__(instance=instance, token=token)
        self._agent = agent

    @command(reads=True)
    def status(self) -> DriverStatus:
        """Returns the state, settings and counters of the driver."""
        agent = self._agent
        state, settings = agent.state, agent.settings
        return {
            "namespace": agent.namespace,
            "instance": settings.instance_id,
            "pid": os.getpid(),
            "user": user_name(),
            "uptime_s": (agent.clock.monotonic_ns() - agent.started_ns) / 1e9,
            "base_dir": str(agent.base_dir),
            "aeron_dir": agent.aeron_dir,
            "control_stream_id": agent.stream_ids.control,
            "control_fault": agent.control_fault(),
            "embedded": agent.embedded,
            "keepalive_s": settings.keepalive_ns / 1e9,
            "grace": settings.grace,
            "announce_period_s": agent.announce_period_ns / 1e9,
            "streams": len(state.plan),
            "leases": len(state.leases),
            "bytes": state.records.total_bytes,
            "quota": state.plan.quota_bytes,
            "max_leases": settings.max_leases,
            "max_requests_per_second": settings.max_requests_per_second,
            "dynamic_ids": str(settings.dynamic_ids),
            "bridge_ids": str(settings.bridge_ids),
            "any_stream": settings.any_stream,
            "counters": agent.counters.snapshot(),
            "discovery": agent.discovery_counters(),
        }

    @command(reads=True)
    def streams(self, first: int | None = None, limit: int = 1000) -> list[StreamRow]:
        """Returns the provisioned streams, from the id `first` on."""
        start = _number("first", first, default=0)
        plans = (plan for plan in self._agent.state.plan if plan.stream_id >= start)
        return _first_rows((self._stream(plan) for plan in plans), limit)

    @command(reads=True)
    def leases(
        self, stream_id: int | None = None, first: int | str | None = None, limit: int = 1000
    ) -> list[LeaseRow]:
        """Returns the leases in force, of all streams or of one, from the id `first` on."""
        start = _number("first", first, default=0)
        table = self._agent.state.leases
        leases = list(table) if stream_id is None else table.of_stream(_number("stream_id", stream_id))
        selected = sorted(
            (lease for lease in leases if lease.lease_id >= start), key=lambda lease: lease.lease_id
        )
        return _first_rows((self._lease(lease) for lease in selected), limit)

    @command
    def provision(
        self,
        stream_id: int,
        nslots: int | None = None,
        pools: list[str | int] | None = None,
        name: str | None = None,
        tags: list[str] | None = None,
        data_source_id: int | str | None = None,
        numa_node: int | None = None,
    ) -> StreamRow:
        """Provisions a stream: sets its layout and metadata before a client attaches. May be repeated."""
        agent = self._agent
        plan, actions = agent.state.provision(
            _number("stream_id", stream_id),
            agent.clock.monotonic_ns(),
            nslots=nslots,
            pools=pools,
            name=name,
            tags=tags,
            data_source_id=None if data_source_id is None else _number("data_source_id", data_source_id),
            numa_node=None if numa_node is None else _number("numa_node", numa_node),
        )
        agent.perform(actions)
        if isinstance(plan, Refusal):
            raise RequestRejected(plan.reason)
        return self._stream(plan)

    @command(needs_token=True)
    def revoke(
        self,
        lease_id: int | str | None = None,
        stream_id: int | None = None,
        client_id: int | None = None,
        reason: str = "",
    ) -> list[LeaseRow]:
        """Revokes and returns the leases that match all arguments."""
        if lease_id is None and stream_id is None and client_id is None:
            raise RequestRejected("revoke() needs a lease_id, a stream_id or a client_id")
        agent = self._agent
        revoked, actions = agent.state.revoke(
            agent.clock.monotonic_ns(),
            lease_id=None if lease_id is None else _number("lease_id", lease_id),
            stream_id=None if stream_id is None else _number("stream_id", stream_id),
            client_id=None if client_id is None else _number("client_id", client_id),
            text=_text("reason", reason),
        )
        agent.perform(actions)
        return [self._lease(lease) for lease in revoked]

    @command(needs_token=True)
    def stop(self, reason: str = "") -> StopReply:
        """Stops the driver cleanly: sends a notice to all clients, then removes all regions."""
        self._agent.stop(_text("reason", reason))
        return {"pid": os.getpid(), "leases": len(self._agent.state.leases)}

    # --- rows

    def _stream(self, plan: StreamPlan) -> StreamRow:
        state = self._agent.state
        record = state.records.get(plan.stream_id)
        leases = state.leases.of_stream(plan.stream_id)
        producer = state.leases.producer_of(plan.stream_id)
        files = None if record is None else record.files
        return {
            "stream_id": plan.stream_id,
            "name": plan.name,
            "tags": list(plan.tags),
            "data_source_id": None if plan.data_source_id is None else str(plan.data_source_id),
            "kind": "static" if plan.is_static else "dynamic",
            "nslots": plan.layout.nslots,
            "pools": list(plan.layout.strides),
            "numa_node": plan.numa_node if files is None else files.numa_node,
            "bytes": 0 if record is None else record.nbytes,
            "epoch": None if files is None else str(files.epoch),
            "state": "absent" if record is None else record.state,
            "fault": None if record is None else record.fault,
            "producer": None if producer is None else producer.client_id,
            "consumers": sum(lease.role is Role.CONSUMER for lease in leases),
            "directory": None if files is None else str(files.directory),
        }

    def _lease(self, lease: Lease) -> LeaseRow:
        now_ns = self._agent.clock.monotonic_ns()
        record = self._agent.state.records.get(lease.stream_id)
        files = None if record is None else record.files
        return {
            "lease_id": str(lease.lease_id),
            "stream_id": lease.stream_id,
            "client_id": lease.client_id,
            "role": lease.role.name.lower(),
            "state": "reserved" if lease.is_reserved else lease.state.value,
            "age_s": (now_ns - lease.attached_ns) / 1e9,
            "expires_in_s": None if lease.is_reserved else (lease.expires_ns - now_ns) / 1e9,
            "epoch": None if files is None else str(files.epoch),
        }


def _first_rows(rows: Iterable[_Row], limit: Any) -> list[_Row]:
    """The first rows, at most `limit`, that fit into one message."""
    max_rows = _number("limit", limit)
    selected: list[_Row] = []
    nbytes = 0
    for row in rows:
        nbytes += len(json.dumps(row))
        if len(selected) >= max_rows or (selected and nbytes > _MAX_BYTES):
            break
        selected.append(row)
    return selected


def _number(name: str, value: Any, default: int | None = None) -> int:
    """An untrusted id or count: a whole number, or its digits."""
    if value is None and default is not None:
        return default
    if type(value) is int and value >= 0:
        return value
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS:
        return int(value)
    raise RequestRejected(f"{name} {value!r}: use a whole number")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RequestRejected(f"{name} {value!r}: use text")
    return value
