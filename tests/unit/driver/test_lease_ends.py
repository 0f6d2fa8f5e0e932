"""Ends of leases: notices, epochs, superseded files (driver §4.4, §4.7, §4.9, §6, §7)."""

from __future__ import annotations

import pytest

from tensorpool.driver.actions import Announce, MakeFiles, RemoveFiles, Withdraw
from tensorpool.driver.config import StreamSettings
from tensorpool.sbe import (
    LeaseRevokeReason,
    ResponseCode,
    Role,
    ShmDetachResponse,
    ShmLeaseRevoked,
)
from tests.unit.driver.state_harness import StateHarness

ENDS = [LeaseRevokeReason.DETACHED, LeaseRevokeReason.EXPIRED, LeaseRevokeReason.REVOKED]


@pytest.fixture
def harness() -> StateHarness:
    return StateHarness(streams=(StreamSettings(stream_id=10_000),))


def end(harness: StateHarness, granted, client_id: int, role: Role, how: LeaseRevokeReason) -> None:
    match how:
        case LeaseRevokeReason.DETACHED:
            harness.detach(granted, client_id, role)
        case LeaseRevokeReason.EXPIRED:
            harness.tick(3)
        case LeaseRevokeReason.REVOKED:
            harness.perform(
                harness.state.revoke(harness.now, lease_id=granted.lease_id, text="for a test")[1]
            )


@pytest.mark.requirement(
    "driver-4.7-2", "driver-4.9-3", "driver-4.9-4", "driver-6-1", "driver-7-2", "driver-8-2", "driver-4.4-4"
)
@pytest.mark.parametrize("how", ENDS)
def test_producer_end_sends_a_notice_and_grows_the_epoch(
    harness: StateHarness, how: LeaseRevokeReason
) -> None:
    granted = harness.producer(10_000, 5)
    end(harness, granted, 5, Role.PRODUCER, how)
    assert harness.notices() == [(granted.lease_id, how)]
    # The old epoch is withdrawn at once.
    assert harness.announced == {}
    harness.work()
    assert harness.announced == {10_000: (granted.epoch + 1, 0)}
    # The next producer gets a new epoch again.
    assert harness.producer(10_000, 6).epoch == granted.epoch + 2
    assert harness.history == [
        (10_000, 2, 5),
        (10_000, 3, 0),
        (10_000, 4, 6),
    ]


@pytest.mark.requirement("driver-4.9-4")
@pytest.mark.parametrize("how", ENDS)
def test_consumer_end_sends_a_notice_and_keeps_the_epoch(
    harness: StateHarness, how: LeaseRevokeReason
) -> None:
    granted = harness.attach(10_000, 5)
    end(harness, granted, 5, Role.CONSUMER, how)
    assert harness.notices() == [(granted.lease_id, how)]
    assert harness.jobs == []
    assert harness.announced == {10_000: (granted.epoch, 0)}
    notice = harness.sent[-1]
    assert isinstance(notice, ShmLeaseRevoked)
    assert (notice.client_id, notice.role, notice.timestamp_ns) == (5, Role.CONSUMER, harness.now)


@pytest.mark.requirement("driver-4.9-1")
def test_detach_response_precedes_the_notice(harness: StateHarness) -> None:
    granted = harness.attach(10_000, 5)
    harness.detach(granted, 5, Role.CONSUMER, correlation=77)
    answer, notice = harness.sent[-2:]
    assert answer == ShmDetachResponse(correlation_id=77, code=ResponseCode.OK)
    assert isinstance(notice, ShmLeaseRevoked)
    assert notice.reason is LeaseRevokeReason.DETACHED


@pytest.mark.requirement("driver-4.9-1", "driver-4.9-2")
def test_detach_that_matches_no_lease_is_rejected(harness: StateHarness) -> None:
    granted = harness.attach(10_000, 5)
    other = granted.__class__(
        correlation_id=0, code=ResponseCode.OK, lease_id=granted.lease_id, stream_id=10_001
    )
    harness.detach(other, 5, Role.CONSUMER, 1)
    harness.detach(granted, 6, Role.CONSUMER, 2)
    harness.detach(granted, 5, Role.PRODUCER, 3)
    for correlation in (1, 2, 3):
        answer = harness.response(correlation)
        assert answer.code is ResponseCode.REJECTED
        assert f"has no lease {granted.lease_id}" in answer.error_message
    assert len(harness.state.leases) == 1
    assert harness.notices() == []
    harness.detach(granted, 5, Role.CONSUMER, 4)
    harness.detach(granted, 5, Role.CONSUMER, 5)
    assert harness.response(4).code is ResponseCode.OK
    assert harness.response(5).code is ResponseCode.REJECTED


@pytest.mark.requirement("driver-4.4-3", "driver-4.4-1")
def test_each_keepalive_extends_the_lease(harness: StateHarness) -> None:
    granted = harness.producer(10_000, 5)
    for _ in range(10):
        harness.tick(2.9)
        harness.keep_alive(granted, 5, Role.PRODUCER)
    harness.tick(2.9)
    assert harness.notices() == []
    harness.tick(0.1)
    assert harness.notices() == [(granted.lease_id, LeaseRevokeReason.EXPIRED)]
    assert harness.state.counters.snapshot()["keepalives"] == 10


@pytest.mark.requirement("driver-4.4-5")
def test_period_and_grace_can_be_set() -> None:
    harness = StateHarness(keepalive_ns=100_000_000, grace=5)
    harness.attach(20_000, 5)
    harness.tick(0.499)
    assert harness.notices() == []
    harness.tick(0.001)
    assert len(harness.notices()) == 1


def test_keepalives_are_read_before_leases_expire(harness: StateHarness) -> None:
    granted = harness.attach(10_000, 5)
    silent = harness.attach(10_000, 6)
    # The driver has stalled and has not read all messages yet.
    harness.now += 5_900_000_000
    harness.tick(drained=False)
    assert harness.notices() == []
    harness.keep_alive(granted, 5, Role.CONSUMER)
    harness.tick(drained=True)
    assert harness.notices() == [(silent.lease_id, LeaseRevokeReason.EXPIRED)]


def test_flood_delays_expiry_by_one_lease_at_most(harness: StateHarness) -> None:
    granted = harness.attach(10_000, 5)
    harness.tick(5.999, drained=False)
    assert harness.notices() == []
    harness.tick(0.001, drained=False)
    assert harness.notices() == [(granted.lease_id, LeaseRevokeReason.EXPIRED)]


@pytest.mark.requirement("driver-7-1")
def test_producer_with_a_released_lock_has_ended(harness: StateHarness) -> None:
    granted = harness.producer(10_000, 5)
    harness.perform(harness.state.on_producer_exit(10_000, granted.epoch - 1, harness.now))
    harness.perform(harness.state.on_producer_exit(10_001, granted.epoch, harness.now))
    assert harness.notices() == []
    harness.perform(harness.state.on_producer_exit(10_000, granted.epoch, harness.now))
    assert harness.notices() == [(granted.lease_id, LeaseRevokeReason.EXPIRED)]
    assert "process has ended" in harness.sent[-1].error_message
    # One notice only; the exit of a producer without a lease is ignored.
    harness.perform(harness.state.on_producer_exit(10_000, granted.epoch, harness.now))
    assert len(harness.notices()) == 1
    assert harness.state.counters.snapshot()["dead_producers"] == 1


def test_detach_and_exit_together_end_the_lease_once(harness: StateHarness) -> None:
    granted = harness.producer(10_000, 5)
    harness.detach(granted, 5, Role.PRODUCER)
    harness.perform(harness.state.on_producer_exit(10_000, granted.epoch, harness.now))
    assert harness.notices() == [(granted.lease_id, LeaseRevokeReason.DETACHED)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (LeaseRevokeReason.EXPIRED, LeaseRevokeReason.EXPIRED),
        (LeaseRevokeReason.REVOKED, LeaseRevokeReason.REVOKED),
    ],
)
def test_keepalive_of_an_ended_lease_gets_the_reason(
    harness: StateHarness, how: LeaseRevokeReason, expected: LeaseRevokeReason
) -> None:
    granted = harness.attach(10_000, 5)
    end(harness, granted, 5, Role.CONSUMER, how)
    harness.keep_alive(granted, 5, Role.CONSUMER)
    assert harness.notices() == [(granted.lease_id, expected)] * 2
    assert harness.state.counters.snapshot()["strays"] == 1
    assert len(harness.state.leases) == 0


@pytest.mark.requirement("driver-4.8-2")
def test_lease_of_an_earlier_driver_is_revoked_at_once(harness: StateHarness) -> None:
    old = harness.attach(10_000, 5)
    after = StateHarness(streams=(StreamSettings(stream_id=10_000),), first_lease_id=1 << 50)
    after.keep_alive(old, 5, Role.CONSUMER)
    assert after.notices() == [(old.lease_id, LeaseRevokeReason.REVOKED)]


def test_keepalive_with_another_clients_lease_sends_no_notice(harness: StateHarness) -> None:
    granted = harness.attach(10_000, 5)
    harness.keep_alive(granted, 6, Role.CONSUMER)
    harness.keep_alive(granted, 5, Role.PRODUCER)
    harness.keep_alive(granted, 5, Role.CONSUMER, stream_id=10_001)
    assert harness.notices() == []
    assert harness.state.counters.snapshot()["strays"] == 3


def test_stray_producer_does_not_stop_other_consumers(harness: StateHarness) -> None:
    harness.producer(10_000, 5)
    consumer = harness.attach(10_000, 6)
    harness.keep_alive(consumer, 9, Role.PRODUCER, lease_id=12345)
    assert harness.notices() == []
    harness.keep_alive(consumer, 9, Role.PRODUCER, lease_id=12345, stream_id=10_001)
    assert harness.notices() == [(12345, LeaseRevokeReason.REVOKED)]


def test_superseded_directory_is_removed_after_the_grace(harness: StateHarness) -> None:
    granted = harness.producer(10_000, 5)
    harness.detach(granted, 5, Role.PRODUCER)
    harness.work()
    assert {path.name for path in harness.directories[10_000]} == {"2", "3"}
    harness.tick(2.999)
    harness.work()
    assert {path.name for path in harness.directories[10_000]} == {"2", "3"}
    harness.tick(0.001)
    harness.work()
    assert {path.name for path in harness.directories[10_000]} == {"3"}


def test_stream_keeps_one_superseded_directory(harness: StateHarness) -> None:
    for client in range(1, 50):
        granted = harness.producer(10_000, client)
        harness.detach(granted, client, Role.PRODUCER, client)
        harness.work()
        assert len(harness.directories[10_000]) <= 2
    harness.tick(3)
    harness.work()
    assert len(harness.directories[10_000]) == 1
    nbytes = harness.state.records[10_000].nbytes
    assert harness.state.records.total_bytes == nbytes == harness.state.plan[10_000].layout.nbytes


def test_new_files_are_requested_when_the_producer_ends(harness: StateHarness) -> None:
    granted = harness.producer(10_000, 5)
    actions = harness.state.revoke(harness.now, client_id=5)[1]
    kinds = [type(action) for action in actions]
    assert kinds.index(Withdraw) < kinds.index(MakeFiles)
    assert RemoveFiles not in kinds
    assert granted.epoch == 2


@pytest.mark.requirement("driver-4.7-2")
def test_producer_attach_during_file_creation_is_pending(harness: StateHarness) -> None:
    granted = harness.producer(10_000, 5)
    harness.detach(granted, 5, Role.PRODUCER)
    correlation_id = harness.request_attach(10_000, 6, Role.PRODUCER)
    assert harness.refusal(harness.request_attach(10_000, 7, Role.PRODUCER))[0] is ResponseCode.REJECTED
    harness.work()
    assert harness.response(correlation_id).epoch == granted.epoch + 2


# --- revocation


def test_revoke_ends_the_leases_that_match_all_arguments(harness: StateHarness) -> None:
    for client in (1, 2, 3):
        harness.attach(10_000, client)
    harness.producer(20_000, 4)
    revoked, actions = harness.state.revoke(harness.now, stream_id=10_000, client_id=2, text="too slow")
    harness.perform(actions)
    assert [lease.client_id for lease in revoked] == [2]
    assert harness.sent[-1].error_message == "revoked by the administrator: too slow"
    assert len(harness.state.revoke(harness.now, stream_id=20_000, client_id=2)[0]) == 0
    revoked, actions = harness.state.revoke(harness.now, stream_id=10_000)
    harness.perform(actions)
    assert sorted(lease.client_id for lease in revoked) == [1, 3]
    assert [lease.client_id for lease in harness.state.leases] == [4]
    assert harness.state.counters.snapshot()["revoked"] == 3


@pytest.mark.parametrize("steps", [0, 1])
def test_revoked_reservation_is_a_refusal_without_a_notice(harness: StateHarness, steps: int) -> None:
    correlation_id = harness.request_attach(10_000, 5, Role.PRODUCER)
    harness.work(steps)
    harness.perform(harness.state.revoke(harness.now, client_id=5)[1])
    code, reason = harness.refusal(correlation_id)
    assert (code, reason) == (ResponseCode.REJECTED, "revoked by the administrator")
    assert harness.notices() == []
    harness.work()
    # The files are clean and announced without a producer, for the next attach.
    assert harness.announced[10_000][1] == 0
    assert harness.producer(10_000, 6).code is ResponseCode.OK


def test_revoked_reservation_during_announce_leaves_files_clean(
    harness: StateHarness,
) -> None:
    correlation_id = harness.request_attach(10_000, 5, Role.PRODUCER)
    harness.work(1)
    assigned = harness.state.on_files(harness.result(harness.jobs.pop()), harness.now)
    assert [type(action) for action in assigned] == [Announce]
    harness.perform(harness.state.revoke(harness.now, client_id=5)[1])
    assert harness.refusal(correlation_id)[0] is ResponseCode.REJECTED
    harness.perform(assigned)
    assert harness.announced == {10_000: (2, 0)}
    assert harness.producer(10_000, 6).epoch == 3


def test_each_superseded_directory_has_its_own_grace(harness: StateHarness) -> None:
    for client in (5, 6):
        harness.detach(harness.producer(10_000, client), client, Role.PRODUCER, client)
        harness.work()
        harness.tick(2)
        harness.work()
    # Four seconds after the first end and two after the second.
    assert {path.name for path in harness.directories[10_000]} == {"4", "5"}
    harness.tick(1)
    harness.work()
    assert {path.name for path in harness.directories[10_000]} == {"5"}
