"""Leases: who may use which stream in which role (driver §4.1, §4.7, §4.8).

Pure: events and the time go in, what happened comes out. The invariants, whatever the order of events: one
live producer lease a stream, one live lease a client, ids never used twice, and a lease that has ended
stays ended.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ..sbe.driver import LeaseRevokeReason, Role
from ..sbe.wire import ResponseCode

DEFAULT_LEASE_NS: Final = 3_000_000_000
# How many ended leases are remembered, so that a late client can be told what became of its own.
_MAX_ENDED = 4096


class LeaseState(Enum):
    """The life of a lease."""

    ATTACHED = "attached"
    """Given out; no keepalive has come yet."""
    ACTIVE = "active"
    DETACHED = "detached"
    EXPIRED = "expired"
    REVOKED = "revoked"

    @property
    def is_live(self) -> bool:
        return self in (LeaseState.ATTACHED, LeaseState.ACTIVE)


_ENDED = {
    LeaseRevokeReason.DETACHED: LeaseState.DETACHED,
    LeaseRevokeReason.EXPIRED: LeaseState.EXPIRED,
    LeaseRevokeReason.REVOKED: LeaseState.REVOKED,
}


@dataclass(slots=True, eq=False)
class Lease:
    """One client's right to one stream in one role."""

    lease_id: int
    stream_id: int
    client_id: int
    role: Role
    attached_ns: int
    expires_ns: int
    state: LeaseState = LeaseState.ATTACHED
    is_reserved: bool = False
    """Not yet told to the client: its files are in the making. It keeps others out and does not age."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not granted."""

    code: ResponseCode
    reason: str


class LeaseTable:
    """All live leases of one driver."""

    def __init__(self, *, lease_ns: int = DEFAULT_LEASE_NS, first_id: int = 1) -> None:
        self.lease_ns = lease_ns
        self._next_id = first_id
        self._by_id: dict[int, Lease] = {}
        self._by_client: dict[int, Lease] = {}
        self._by_stream: dict[int, dict[int, Lease]] = {}
        self._producers: dict[int, Lease] = {}
        # Each granted lease has one entry, which may be too early: keepalives do not touch the heap.
        self._due: list[tuple[int, int]] = []
        self._ended: OrderedDict[int, LeaseRevokeReason] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_id.values()))

    def get(self, lease_id: int) -> Lease | None:
        return self._by_id.get(lease_id)

    def producer_of(self, stream_id: int) -> Lease | None:
        return self._producers.get(stream_id)

    def of_stream(self, stream_id: int) -> list[Lease]:
        return list(self._by_stream.get(stream_id, {}).values())

    def refusal(
        self, stream_id: int, client_id: int, role: Role, max_leases: int | None = None
    ) -> Refusal | None:
        """Why an attach would be refused; None if it would not."""
        if (held := self._by_client.get(client_id)) is not None:
            return Refusal(
                ResponseCode.REJECTED,
                f"client id {client_id} has lease {held.lease_id} on stream {held.stream_id} already; "
                "draw another client id",
            )
        if role is Role.PRODUCER and (other := self._producers.get(stream_id)) is not None:
            return Refusal(
                ResponseCode.REJECTED,
                f"stream {stream_id} has a producer already: client {other.client_id}, lease "
                f"{other.lease_id}",
            )
        holders = len(self._by_stream.get(stream_id, {}))
        if max_leases is not None and holders >= max_leases:
            return Refusal(
                ResponseCode.REJECTED,
                f"stream {stream_id} has {holders} leases, and its limit is {max_leases}",
            )
        return None

    def reserve(self, stream_id: int, client_id: int, role: Role, now_ns: int) -> Lease:
        """Keeps the place for a client that is still to be told. The caller has asked for a refusal."""
        lease = Lease(self._next_id, stream_id, client_id, role, now_ns, 0, is_reserved=True)
        self._next_id += 1
        self._by_id[lease.lease_id] = self._by_client[client_id] = lease
        self._by_stream.setdefault(stream_id, {})[lease.lease_id] = lease
        if role is Role.PRODUCER:
            self._producers[stream_id] = lease
        return lease

    def grant(self, lease: Lease, now_ns: int) -> None:
        """The client is told now, so its time begins now."""
        lease.is_reserved = False
        lease.attached_ns = now_ns
        lease.expires_ns = now_ns + self.lease_ns
        heapq.heappush(self._due, (lease.expires_ns, lease.lease_id))

    def find(self, lease_id: int, stream_id: int, client_id: int, role: Role) -> Lease | None:
        """The granted lease that all four name; None if one of them is wrong."""
        lease = self._by_id.get(lease_id)
        named = (stream_id, client_id, role)
        if lease is None or lease.is_reserved or (lease.stream_id, lease.client_id, lease.role) != named:
            return None
        return lease

    def keep_alive(self, lease: Lease, now_ns: int) -> None:
        """A valid keepalive: the lease lives on for its full duration."""
        lease.state = LeaseState.ACTIVE
        lease.expires_ns = max(lease.expires_ns, now_ns + self.lease_ns)

    def drop(self, lease: Lease) -> None:
        """A reservation that came to nothing. Nobody was told of it."""
        self._forget(lease)
        lease.state = LeaseState.REVOKED

    def end(self, lease: Lease, reason: LeaseRevokeReason) -> None:
        """The lease is over; nothing brings it back."""
        self._forget(lease)
        lease.state = _ENDED[reason]
        self._ended[lease.lease_id] = reason
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)

    def ended(self, lease_id: int) -> LeaseRevokeReason | None:
        """How a lease came to its end, as long as it is remembered."""
        return self._ended.get(lease_id)

    def _forget(self, lease: Lease) -> None:
        del self._by_id[lease.lease_id]
        del self._by_client[lease.client_id]
        holders = self._by_stream[lease.stream_id]
        del holders[lease.lease_id]
        if not holders:
            del self._by_stream[lease.stream_id]
        if lease.role is Role.PRODUCER:
            del self._producers[lease.stream_id]

    def overdue(self, now_ns: int) -> list[Lease]:
        """Leases whose time was up at `now_ns`, in that order. The caller ends them, each of them, having
        read all keepalives that wait."""
        found = []
        while self._due and self._due[0][0] <= now_ns:
            _, lease_id = heapq.heappop(self._due)
            lease = self._by_id.get(lease_id)
            if lease is None:
                continue
            if lease.expires_ns > now_ns:
                heapq.heappush(self._due, (lease.expires_ns, lease_id))
            else:
                found.append(lease)
        return found
