"""Leases as a pure state machine: any sequence of events keeps the invariants."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tensorpool.driver.leases import Lease, LeaseState, LeaseTable, Refusal
from tensorpool.sbe import LeaseRevokeReason, ResponseCode, Role

S = 1_000_000_000


def attached(table: LeaseTable, stream: int, client: int, role: Role, now: int = 0) -> Lease:
    assert table.refusal(stream, client, role) is None
    lease = table.reserve(stream, client, role, now)
    table.grant(lease, now)
    return lease


def refused(table: LeaseTable, stream: int, client: int, role: Role, most: int | None = None) -> Refusal:
    refusal = table.refusal(stream, client, role, most)
    assert refusal is not None
    return refusal


@pytest.mark.requirement("driver-5-1")
def test_stream_has_one_producer_and_many_consumers() -> None:
    table = LeaseTable()
    first = attached(table, 10, 1, Role.PRODUCER)
    refusal = refused(table, 10, 2, Role.PRODUCER)
    assert refusal.code is ResponseCode.REJECTED
    assert "has a producer already: client 1" in refusal.reason
    for client in range(3, 50):
        attached(table, 10, client, Role.CONSUMER)
    table.end(first, LeaseRevokeReason.DETACHED)
    assert attached(table, 10, 2, Role.PRODUCER).lease_id > first.lease_id


@pytest.mark.requirement("driver-4.8-4")
def test_client_has_one_lease_over_all_streams() -> None:
    table = LeaseTable()
    attached(table, 10, 1, Role.CONSUMER)
    for stream, role in ((10, Role.CONSUMER), (11, Role.PRODUCER)):
        assert "use another client id" in refused(table, stream, 1, role).reason


@pytest.mark.requirement("driver-4.4-1", "driver-4.4-3", "driver-4.1-1")
def test_lease_lasts_as_long_as_keepalives_arrive() -> None:
    table = LeaseTable()
    lease = attached(table, 10, 1, Role.CONSUMER, now=0)
    assert lease.state is LeaseState.ATTACHED
    assert table.overdue(3 * S - 1) == []
    table.keep_alive(lease, 2 * S)
    assert [lease.state for lease in table] == [LeaseState.ACTIVE]
    assert table.overdue(5 * S - 1) == []
    assert table.overdue(5 * S) == [lease]


def test_keepalive_must_match_the_lease() -> None:
    table = LeaseTable()
    lease = attached(table, 10, 1, Role.CONSUMER)
    assert table.find(lease.lease_id, 10, 1, Role.CONSUMER) is lease
    assert table.find(lease.lease_id, 11, 1, Role.CONSUMER) is None
    assert table.find(lease.lease_id, 10, 2, Role.CONSUMER) is None
    assert table.find(lease.lease_id, 10, 1, Role.PRODUCER) is None
    assert table.find(lease.lease_id + 1, 10, 1, Role.CONSUMER) is None


def test_stream_may_have_a_limit_of_leases() -> None:
    table = LeaseTable()
    attached(table, 10, 1, Role.PRODUCER)
    attached(table, 10, 2, Role.CONSUMER)
    assert "has 2 leases, and its limit is 2" in refused(table, 10, 3, Role.CONSUMER, 2).reason
    assert table.refusal(10, 3, Role.CONSUMER, 3) is None
    assert table.refusal(11, 3, Role.CONSUMER, 2) is None


def test_reserved_lease_excludes_others_and_does_not_expire() -> None:
    table = LeaseTable()
    lease = table.reserve(10, 1, Role.PRODUCER, 0)
    assert "has a producer already" in refused(table, 10, 2, Role.PRODUCER).reason
    assert "has lease" in refused(table, 11, 1, Role.CONSUMER).reason
    assert table.overdue(1000 * S) == []
    # A reserved lease is not known to its client yet, so it cannot be found.
    assert table.find(lease.lease_id, 10, 1, Role.PRODUCER) is None
    table.grant(lease, 1000 * S)
    assert table.overdue(1003 * S - 1) == []
    assert table.overdue(1003 * S) == [lease]


def test_dropped_reservation_leaves_nothing() -> None:
    table = LeaseTable()
    lease = table.reserve(10, 1, Role.PRODUCER, 0)
    table.drop(lease)
    assert len(table) == 0
    assert table.ended(lease.lease_id) is None
    assert attached(table, 10, 1, Role.PRODUCER).lease_id > lease.lease_id


def test_reason_of_an_ended_lease_is_kept_for_a_while() -> None:
    table = LeaseTable()
    first = attached(table, 10, 1, Role.CONSUMER)
    table.end(first, LeaseRevokeReason.EXPIRED)
    assert table.ended(first.lease_id) is LeaseRevokeReason.EXPIRED
    for client in range(2, 5000):
        table.end(attached(table, 10, client, Role.CONSUMER), LeaseRevokeReason.DETACHED)
    assert table.ended(first.lease_id) is None
    assert table.ended(first.lease_id + 4998) is LeaseRevokeReason.DETACHED


def test_overdue_leases_are_returned_once_and_in_order() -> None:
    table = LeaseTable()
    leases = [attached(table, 10, client, Role.CONSUMER, now=(10 - client) * S) for client in range(1, 10)]
    for lease in leases[:3]:
        table.keep_alive(lease, 60 * S)
    assert table.overdue(50 * S) == leases[:2:-1]
    assert table.overdue(50 * S) == []


class AnySequence(RuleBasedStateMachine):
    """Events in any order; the invariants are checked after each."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable()
        self.now = 0
        self.given: set[int] = set()
        self.ended: list[Lease] = []

    @rule(stream=st.integers(1, 3), client=st.integers(1, 6), role=st.sampled_from(Role))
    def attach(self, stream: int, client: int, role: Role) -> None:
        if self.table.refusal(stream, client, role) is None:
            lease = self.table.reserve(stream, client, role, self.now)
            assert lease.lease_id not in self.given
            self.given.add(lease.lease_id)
            self.table.grant(lease, self.now)

    @rule(pick=st.integers(0, 9), reason=st.sampled_from(LeaseRevokeReason))
    def end(self, pick: int, reason: LeaseRevokeReason) -> None:
        live = list(self.table)
        if live:
            lease = live[pick % len(live)]
            self.table.end(lease, reason)
            self.ended.append(lease)

    @rule(pick=st.integers(0, 9))
    def keep_alive(self, pick: int) -> None:
        live = list(self.table)
        if live:
            self.table.keep_alive(live[pick % len(live)], self.now)

    @rule(step=st.integers(0, 4 * S))
    def pass_time(self, step: int) -> None:
        self.now += step
        for lease in self.table.overdue(self.now):
            self.table.end(lease, LeaseRevokeReason.EXPIRED)
            self.ended.append(lease)

    @invariant()
    def holds(self) -> None:
        live = list(self.table)
        producers = [lease.stream_id for lease in live if lease.role is Role.PRODUCER]
        assert len(producers) == len(set(producers))
        assert len({lease.client_id for lease in live}) == len(live)
        assert all(lease.state.is_live and lease.expires_ns > self.now for lease in live)
        assert all(not lease.state.is_live and self.table.get(lease.lease_id) is None for lease in self.ended)
        for stream in (1, 2, 3):
            of_stream = [lease for lease in live if lease.stream_id == stream]
            assert sorted(x.lease_id for x in self.table.of_stream(stream)) == sorted(
                x.lease_id for x in of_stream
            )
            assert self.table.producer_of(stream) in [*of_stream, None]


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
