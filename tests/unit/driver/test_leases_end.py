"""How leases end, and what follows: notices, epochs, superseded files (driver §4.4, §4.7, §4.9, §6, §7)."""

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
from tests.unit.driver.world import World

ENDS = [LeaseRevokeReason.DETACHED, LeaseRevokeReason.EXPIRED, LeaseRevokeReason.REVOKED]


@pytest.fixture
def world() -> World:
    return World(streams=(StreamSettings(stream_id=10_000),))


def end(world: World, granted, client_id: int, role: Role, how: LeaseRevokeReason) -> None:
    match how:
        case LeaseRevokeReason.DETACHED:
            world.detach(granted, client_id, role)
        case LeaseRevokeReason.EXPIRED:
            world.tick(3)
        case LeaseRevokeReason.REVOKED:
            world.do(world.state.revoke(world.now, lease_id=granted.lease_id, text="for a test")[1])


@pytest.mark.requirement(
    "driver-4.7-2", "driver-4.9-3", "driver-4.9-4", "driver-6-1", "driver-7-2", "driver-8-2", "driver-4.4-4"
)
@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_a_producer_is_told_and_the_epoch_grows(world: World, how: LeaseRevokeReason) -> None:
    granted = world.producer(10_000, 5)
    end(world, granted, 5, Role.PRODUCER, how)
    assert world.notices() == [(granted.lease_id, how)]
    # The old epoch is not announced for one more moment.
    assert world.announced == {}
    world.work()
    assert world.announced == {10_000: (granted.epoch + 1, 0)}
    # The next producer gets a further one still.
    assert world.producer(10_000, 6).epoch == granted.epoch + 2
    assert world.history == [
        (10_000, 2, 5),
        (10_000, 3, 0),
        (10_000, 4, 6),
    ]


@pytest.mark.requirement("driver-4.9-4")
@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_a_consumer_is_told_and_the_epoch_stays(world: World, how: LeaseRevokeReason) -> None:
    granted = world.attach(10_000, 5)
    end(world, granted, 5, Role.CONSUMER, how)
    assert world.notices() == [(granted.lease_id, how)]
    assert world.jobs == []
    assert world.announced == {10_000: (granted.epoch, 0)}
    notice = world.sent[-1]
    assert isinstance(notice, ShmLeaseRevoked)
    assert (notice.client_id, notice.role, notice.timestamp_ns) == (5, Role.CONSUMER, world.now)


@pytest.mark.requirement("driver-4.9-1")
def test_a_detach_is_answered_before_the_notice(world: World) -> None:
    granted = world.attach(10_000, 5)
    world.detach(granted, 5, Role.CONSUMER, correlation=77)
    answer, notice = world.sent[-2:]
    assert answer == ShmDetachResponse(correlation_id=77, code=ResponseCode.OK)
    assert isinstance(notice, ShmLeaseRevoked)
    assert notice.reason is LeaseRevokeReason.DETACHED


@pytest.mark.requirement("driver-4.9-1", "driver-4.9-2")
def test_a_detach_that_names_no_lease_in_full_is_rejected_and_ends_nothing(world: World) -> None:
    granted = world.attach(10_000, 5)
    other = granted.__class__(
        correlation_id=0, code=ResponseCode.OK, lease_id=granted.lease_id, stream_id=10_001
    )
    world.detach(other, 5, Role.CONSUMER, 1)
    world.detach(granted, 6, Role.CONSUMER, 2)
    world.detach(granted, 5, Role.PRODUCER, 3)
    for correlation in (1, 2, 3):
        answer = world.answer(correlation)
        assert answer.code is ResponseCode.REJECTED
        assert f"there is no such lease: {granted.lease_id}" in answer.error_message
    assert len(world.state.leases) == 1
    assert world.notices() == []
    world.detach(granted, 5, Role.CONSUMER, 4)
    world.detach(granted, 5, Role.CONSUMER, 5)
    assert world.answer(4).code is ResponseCode.OK
    assert world.answer(5).code is ResponseCode.REJECTED


@pytest.mark.requirement("driver-4.4-3", "driver-4.4-1")
def test_each_keepalive_puts_the_expiry_off(world: World) -> None:
    granted = world.producer(10_000, 5)
    for _ in range(10):
        world.tick(2.9)
        world.keep_alive(granted, 5, Role.PRODUCER)
    world.tick(2.9)
    assert world.notices() == []
    world.tick(0.1)
    assert world.notices() == [(granted.lease_id, LeaseRevokeReason.EXPIRED)]
    assert world.state.counters.snapshot()["keepalives"] == 10


@pytest.mark.requirement("driver-4.4-5")
def test_period_and_grace_can_be_set() -> None:
    world = World(keepalive_ns=100_000_000, grace=5)
    world.attach(20_000, 5)
    world.tick(0.499)
    assert world.notices() == []
    world.tick(0.001)
    assert len(world.notices()) == 1


def test_after_a_stall_waiting_keepalives_are_read_before_anyone_is_judged(world: World) -> None:
    granted = world.attach(10_000, 5)
    silent = world.attach(10_000, 6)
    # The driver has slept for ten seconds and has not read everything yet.
    world.now += 5_900_000_000
    world.tick(drained=False)
    assert world.notices() == []
    world.keep_alive(granted, 5, Role.CONSUMER)
    world.tick(drained=True)
    assert world.notices() == [(silent.lease_id, LeaseRevokeReason.EXPIRED)]


def test_a_flood_puts_the_judgement_off_by_one_more_grace_at_most(world: World) -> None:
    granted = world.attach(10_000, 5)
    world.tick(5.999, drained=False)
    assert world.notices() == []
    world.tick(0.001, drained=False)
    assert world.notices() == [(granted.lease_id, LeaseRevokeReason.EXPIRED)]


@pytest.mark.requirement("driver-7-1")
def test_a_producer_whose_lock_is_free_is_dead(world: World) -> None:
    granted = world.producer(10_000, 5)
    world.do(world.state.on_death(10_000, granted.epoch - 1, world.now))
    world.do(world.state.on_death(10_001, granted.epoch, world.now))
    assert world.notices() == []
    world.do(world.state.on_death(10_000, granted.epoch, world.now))
    assert world.notices() == [(granted.lease_id, LeaseRevokeReason.EXPIRED)]
    assert "process has ended" in world.sent[-1].error_message
    # Told once; and the death of a lease that is over is no death.
    world.do(world.state.on_death(10_000, granted.epoch, world.now))
    assert len(world.notices()) == 1
    assert world.state.counters.snapshot()["deaths"] == 1


def test_a_detach_and_a_death_in_one_turn_are_one_end(world: World) -> None:
    granted = world.producer(10_000, 5)
    world.detach(granted, 5, Role.PRODUCER)
    world.do(world.state.on_death(10_000, granted.epoch, world.now))
    assert world.notices() == [(granted.lease_id, LeaseRevokeReason.DETACHED)]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (LeaseRevokeReason.EXPIRED, LeaseRevokeReason.EXPIRED),
        (LeaseRevokeReason.REVOKED, LeaseRevokeReason.REVOKED),
    ],
)
def test_a_keepalive_of_a_lease_that_is_over_is_told_how_it_ended(
    world: World, how: LeaseRevokeReason, told: LeaseRevokeReason
) -> None:
    granted = world.attach(10_000, 5)
    end(world, granted, 5, Role.CONSUMER, how)
    world.keep_alive(granted, 5, Role.CONSUMER)
    assert world.notices() == [(granted.lease_id, told)] * 2
    assert world.state.counters.snapshot()["strays"] == 1
    assert len(world.state.leases) == 0


@pytest.mark.requirement("driver-4.8-2")
def test_a_client_of_an_earlier_driver_learns_at_once_that_its_lease_is_over(world: World) -> None:
    old = world.attach(10_000, 5)
    after = World(streams=(StreamSettings(stream_id=10_000),), first_lease_id=1 << 50)
    after.keep_alive(old, 5, Role.CONSUMER)
    assert after.notices() == [(old.lease_id, LeaseRevokeReason.REVOKED)]


def test_a_keepalive_for_somebody_elses_lease_does_not_end_it_in_their_eyes(world: World) -> None:
    granted = world.attach(10_000, 5)
    world.keep_alive(granted, 6, Role.CONSUMER)
    world.keep_alive(granted, 5, Role.PRODUCER)
    world.keep_alive(granted, 5, Role.CONSUMER, stream_id=10_001)
    assert world.notices() == []
    assert world.state.counters.snapshot()["strays"] == 3


def test_a_stray_producer_does_not_stop_the_consumers_of_the_real_one(world: World) -> None:
    world.producer(10_000, 5)
    stranger = world.attach(10_000, 6)
    world.keep_alive(stranger, 9, Role.PRODUCER, lease_id=12345)
    assert world.notices() == []
    world.keep_alive(stranger, 9, Role.PRODUCER, lease_id=12345, stream_id=10_001)
    assert world.notices() == [(12345, LeaseRevokeReason.REVOKED)]


def test_a_superseded_directory_goes_after_the_grace(world: World) -> None:
    granted = world.producer(10_000, 5)
    world.detach(granted, 5, Role.PRODUCER)
    world.work()
    assert {path.name for path in world.directories[10_000]} == {"2", "3"}
    world.tick(2.999)
    world.work()
    assert {path.name for path in world.directories[10_000]} == {"2", "3"}
    world.tick(0.001)
    world.work()
    assert {path.name for path in world.directories[10_000]} == {"3"}


def test_a_stream_keeps_one_superseded_directory(world: World) -> None:
    for client in range(1, 50):
        granted = world.producer(10_000, client)
        world.detach(granted, client, Role.PRODUCER, client)
        world.work()
        assert len(world.directories[10_000]) <= 2
    world.tick(3)
    world.work()
    assert len(world.directories[10_000]) == 1
    nbytes = world.state.records[10_000].nbytes
    assert world.state.records.total_bytes == nbytes == world.state.plan[10_000].layout.nbytes


def test_fresh_files_are_asked_for_in_the_turn_in_which_the_producer_ends(world: World) -> None:
    granted = world.producer(10_000, 5)
    actions = world.state.revoke(world.now, client_id=5)[1]
    kinds = [type(action) for action in actions]
    assert kinds.index(Withdraw) < kinds.index(MakeFiles)
    assert RemoveFiles not in kinds
    assert granted.epoch == 2


@pytest.mark.requirement("driver-4.7-2")
def test_a_producer_that_attaches_while_fresh_files_are_made_waits_for_them(world: World) -> None:
    granted = world.producer(10_000, 5)
    world.detach(granted, 5, Role.PRODUCER)
    asked = world.ask(10_000, 6, Role.PRODUCER)
    assert world.refusal(world.ask(10_000, 7, Role.PRODUCER))[0] is ResponseCode.REJECTED
    world.work()
    assert world.answer(asked).epoch == granted.epoch + 2


# --- revocation


def test_an_administrator_takes_back_what_fits_all_that_is_named(world: World) -> None:
    for client in (1, 2, 3):
        world.attach(10_000, client)
    world.producer(20_000, 4)
    found, actions = world.state.revoke(world.now, stream_id=10_000, client_id=2, text="too slow")
    world.do(actions)
    assert [lease.client_id for lease in found] == [2]
    assert world.sent[-1].error_message == "revoked by the administrator: too slow"
    assert len(world.state.revoke(world.now, stream_id=20_000, client_id=2)[0]) == 0
    found, actions = world.state.revoke(world.now, stream_id=10_000)
    world.do(actions)
    assert sorted(lease.client_id for lease in found) == [1, 3]
    assert [lease.client_id for lease in world.state.leases] == [4]
    assert world.state.counters.snapshot()["revoked"] == 3


@pytest.mark.parametrize("steps", [0, 1])
def test_a_reservation_that_is_taken_back_is_a_refusal_and_no_notice(world: World, steps: int) -> None:
    asked = world.ask(10_000, 5, Role.PRODUCER)
    world.work(steps)
    world.do(world.state.revoke(world.now, client_id=5)[1])
    code, reason = world.refusal(asked)
    assert (code, reason) == (ResponseCode.REJECTED, "revoked by the administrator")
    assert world.notices() == []
    world.work()
    # The files are there for the next one, clean, and announced without a producer.
    assert world.announced[10_000][1] == 0
    assert world.producer(10_000, 6).code is ResponseCode.OK


def test_a_reservation_that_is_taken_back_while_its_files_are_announced_leaves_them_clean(
    world: World,
) -> None:
    asked = world.ask(10_000, 5, Role.PRODUCER)
    world.work(1)
    assigned = world.state.on_files(world._done(world.jobs.pop()), world.now)
    assert [type(action) for action in assigned] == [Announce]
    world.do(world.state.revoke(world.now, client_id=5)[1])
    assert world.refusal(asked)[0] is ResponseCode.REJECTED
    world.do(assigned)
    assert world.announced == {10_000: (2, 0)}
    assert world.producer(10_000, 6).epoch == 3


def test_the_grace_of_a_superseded_directory_is_its_own(world: World) -> None:
    for client in (5, 6):
        world.detach(world.producer(10_000, client), client, Role.PRODUCER, client)
        world.work()
        world.tick(2)
        world.work()
    # Four seconds after the first end and two after the second.
    assert {path.name for path in world.directories[10_000]} == {"4", "5"}
    world.tick(1)
    world.work()
    assert {path.name for path in world.directories[10_000]} == {"5"}
