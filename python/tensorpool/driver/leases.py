"""Leases: the clients' rights to streams, and the table of live leases (driver §4.1, §4.7, §4.8).

Pure. The invariants for any order of events: a stream has at most one live producer lease, a client at most
one live lease, no id is used twice, and an ended lease stays ended.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from ..sbe.driver import LeaseRevokeReason, Role
from ..sbe.wire import ResponseCode

DEFAULT_LEASE_NS: Final = 3_000_000_000
# Ended leases that are kept, so that a late keepalive gets the reason of the end.
_MAX_ENDED: Final = 4096


class LeaseState(Enum):
    """The state of a lease."""

    ATTACHED = "attached"
    """Granted, before the first keepalive."""
    ACTIVE = "active"
    DETACHED = "detached"
    EXPIRED = "expired"
    REVOKED = "revoked"

    @property
    def is_live(self) -> bool:
        """Whether the lease is in force."""
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
    nbytes: int = 0
    """The size of the files that were created for this lease."""
    correlation_id: int = 0
    """Of the request that it answers."""
    asked_ns: int = 0
    """When that request came last."""
    is_reserved: bool = False
    """The response waits for the stream's files. A reserved lease excludes others. It lapses if its
    request is not repeated."""
    is_repeated: bool = False
    """Its request came more than once: a client waits for the answer."""

    @property
    def is_proven(self) -> bool:
        """Whether a keepalive was received: a client uses the lease."""
        return self.state is LeaseState.ACTIVE

    @property
    def has_client(self) -> bool:
        """Whether a client is known to wait for the lease, or to use it. A flood gets leases without one."""
        return self.is_repeated or self.is_proven


@dataclass(frozen=True, slots=True)
class Refusal:
    """The code and the reason of a refused request."""

    code: ResponseCode
    reason: str


class _DueLease(NamedTuple):
    """When a lease expires, unless a keepalive arrives."""

    expires_ns: int
    lease_id: int


class LeaseTable:
    """All live leases of one driver."""

    def __init__(
        self, *, lease_ns: int = DEFAULT_LEASE_NS, first_id: int = 1, max_leases: int | None = None
    ) -> None:
        self.lease_ns = lease_ns
        self.unproven = 0
        """The number of leases, reserved or granted, for which no keepalive has come."""
        self.unproven_bytes = 0
        """The size of the files that were created for them."""
        self._max_leases = max_leases
        self._next_id = first_id
        self._by_id: dict[int, Lease] = {}
        self._by_client: dict[int, Lease] = {}
        self._by_stream: dict[int, dict[int, Lease]] = {}
        self._producers: dict[int, Lease] = {}
        # One entry per granted lease. Its time may be too early, because keepalives do not change the heap.
        self._due: list[_DueLease] = []
        self._ended: OrderedDict[int, LeaseRevokeReason] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_id.values()))

    def get(self, lease_id: int) -> Lease | None:
        """The live lease with this id."""
        return self._by_id.get(lease_id)

    def of_client(self, client_id: int) -> Lease | None:
        """The live lease of a client."""
        return self._by_client.get(client_id)

    def lapsed(self, oldest_ns: int) -> list[Lease]:
        """The reserved leases whose request came last before `oldest_ns`."""
        return [lease for lease in self if lease.is_reserved and lease.asked_ns < oldest_ns]

    def producer_of(self, stream_id: int) -> Lease | None:
        """The live producer lease of a stream."""
        return self._producers.get(stream_id)

    def of_stream(self, stream_id: int) -> list[Lease]:
        """All live leases of a stream."""
        return list(self._by_stream.get(stream_id, {}).values())

    def refusal(
        self, stream_id: int, client_id: int, role: Role, max_leases: int | None = None
    ) -> Refusal | None:
        """Why an attach is refused; None if it may be granted."""
        if (held := self._by_client.get(client_id)) is not None:
            return Refusal(
                ResponseCode.REJECTED,
                f"client id {client_id} has lease {held.lease_id} on stream {held.stream_id} already; "
                "use another client id",
            )
        if role is Role.PRODUCER and (other := self._producers.get(stream_id)) is not None:
            return Refusal(
                ResponseCode.REJECTED,
                f"stream {stream_id} has a producer already: client {other.client_id}, lease "
                f"{other.lease_id}",
            )
        if self._max_leases is not None and len(self) >= self._max_leases:
            return Refusal(
                ResponseCode.REJECTED,
                f"the driver has {len(self)} leases, and its limit is {self._max_leases}; end some "
                "(tensorpool driver revoke), or raise driver.max_leases",
            )
        holders = len(self._by_stream.get(stream_id, {}))
        if max_leases is not None and holders >= max_leases:
            return Refusal(
                ResponseCode.REJECTED,
                f"stream {stream_id} has {holders} leases, and its limit is {max_leases}; end one, or raise "
                "max_leases",
            )
        return None

    def reserve(
        self,
        stream_id: int,
        client_id: int,
        role: Role,
        now_ns: int,
        *,
        correlation_id: int = 0,
        nbytes: int = 0,
    ) -> Lease:
        """Adds a lease whose response waits for files. The caller has checked `refusal`."""
        lease = Lease(
            self._next_id,
            stream_id,
            client_id,
            role,
            now_ns,
            0,
            nbytes=nbytes,
            correlation_id=correlation_id,
            asked_ns=now_ns,
            is_reserved=True,
        )
        self.unproven += 1
        self.unproven_bytes += nbytes
        self._next_id += 1
        self._by_id[lease.lease_id] = self._by_client[client_id] = lease
        self._by_stream.setdefault(stream_id, {})[lease.lease_id] = lease
        if role is Role.PRODUCER:
            self._producers[stream_id] = lease
        return lease

    def grant(self, lease: Lease, now_ns: int) -> None:
        """Grants a reserved lease: it expires one lease duration from now."""
        lease.is_reserved = False
        lease.attached_ns = now_ns
        lease.expires_ns = now_ns + self.lease_ns
        heapq.heappush(self._due, _DueLease(lease.expires_ns, lease.lease_id))

    def find(self, lease_id: int, stream_id: int, client_id: int, role: Role) -> Lease | None:
        """The granted lease that matches all four values; None if any differs."""
        lease = self._by_id.get(lease_id)
        named = (stream_id, client_id, role)
        if lease is None or lease.is_reserved or (lease.stream_id, lease.client_id, lease.role) != named:
            return None
        return lease

    def keep_alive(self, lease: Lease, now_ns: int) -> None:
        """Extends a lease by its full duration."""
        if not lease.is_proven:
            self._forget_unproven(lease)
        lease.state = LeaseState.ACTIVE
        lease.expires_ns = max(lease.expires_ns, now_ns + self.lease_ns)

    def drop(self, lease: Lease) -> None:
        """Removes a reserved lease that was never granted."""
        self._remove(lease)
        lease.state = LeaseState.REVOKED

    def end(self, lease: Lease, reason: LeaseRevokeReason) -> None:
        """Ends a lease. It cannot be renewed."""
        self._remove(lease)
        lease.state = _ENDED[reason]
        self._ended[lease.lease_id] = reason
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)

    def ended(self, lease_id: int) -> LeaseRevokeReason | None:
        """Why a lease has ended; None for an unknown lease, or one that ended long ago."""
        return self._ended.get(lease_id)

    def _forget_unproven(self, lease: Lease) -> None:
        self.unproven -= 1
        self.unproven_bytes -= lease.nbytes

    def _remove(self, lease: Lease) -> None:
        if not lease.is_proven:
            self._forget_unproven(lease)
        del self._by_id[lease.lease_id]
        del self._by_client[lease.client_id]
        holders = self._by_stream[lease.stream_id]
        del holders[lease.lease_id]
        if not holders:
            del self._by_stream[lease.stream_id]
        if lease.role is Role.PRODUCER:
            del self._producers[lease.stream_id]

    def overdue(self, now_ns: int) -> list[Lease]:
        """Leases that have expired at `now_ns`, in this order. The caller has read all received keepalives,
        and ends every lease of the list."""
        overdue = []
        while self._due and self._due[0].expires_ns <= now_ns:
            _, lease_id = heapq.heappop(self._due)
            lease = self._by_id.get(lease_id)
            if lease is None:
                continue
            if lease.expires_ns > now_ns:
                heapq.heappush(self._due, _DueLease(lease.expires_ns, lease_id))
            else:
                overdue.append(lease)
        return overdue
