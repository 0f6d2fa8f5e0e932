"""Who gets a lease, who does not, and what each is told (driver §4.2, §4.3, §4.6, §4.8, §5)."""

from __future__ import annotations

import pytest

from tensorpool.driver.actions import AssignFiles, MakeFiles
from tensorpool.driver.config import StreamSettings
from tensorpool.driver.leases import Refusal
from tensorpool.sbe import (
    HugepagesPolicy,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequestR2,
    ShmAttachResponseR2,
)
from tests.unit.driver.world import KIB, S, World

STATIC = StreamSettings(stream_id=10_000, nslots=16, pools=(64 * KIB, 4096), max_dims=4)


@pytest.fixture
def world() -> World:
    return World(streams=(STATIC,))


@pytest.mark.requirement("driver-4.2-1", "driver-4.2-3", "driver-4.2-6", "driver-4.3-6")
def test_a_granted_attach_has_everything_that_a_client_needs(world: World) -> None:
    answer = world.producer(10_000, 5)
    assert answer.lease_id == 1
    assert answer.lease_expiry_timestamp_ns == world.now + 3 * S
    assert answer.stream_id == 10_000
    assert answer.epoch == world.marks[10_000]
    assert answer.layout_version == 1
    assert answer.header_nslots == 16
    assert answer.header_slot_bytes == 256
    assert answer.max_dims == 4
    directory = f"/base/tensorpool-user/default/10000/{answer.epoch}"
    assert answer.header_region_uri == f"shm:file?path={directory}/header.ring"
    assert [(pool.pool_id, pool.pool_nslots, pool.stride_bytes) for pool in answer.payload_pools] == [
        (1, 16, 4096),
        (2, 16, 64 * KIB),
    ]
    assert answer.payload_pools[1].region_uri == f"shm:file?path={directory}/2.pool"
    assert answer.error_message == ""
    assert answer.code is ResponseCode.OK


@pytest.mark.requirement("driver-8-2")
def test_the_answer_comes_after_the_announce_that_names_the_producer(world: World) -> None:
    correlation = world.ask(10_000, 5, Role.PRODUCER)
    assert world.sent == []
    world.work(1)
    # Made, but not yet the producer's.
    assert world.sent == []
    assert world.announced == {}
    world.work(1)
    assert world.announced == {10_000: (2, 5)}
    assert world.answer(correlation).epoch == 2


def test_a_consumer_makes_the_files_of_a_provisioned_stream(world: World) -> None:
    answer = world.attach(10_000, 5, mode=PublishMode.REQUIRE_EXISTING)
    assert answer.code is ResponseCode.OK
    assert answer.epoch == 1
    assert world.announced == {10_000: (1, 0)}
    # The next one is answered at once.
    assert world.answer(world.ask(10_000, 6)).epoch == 1


@pytest.mark.requirement("driver-4.2-2", "driver-4.3-4")
@pytest.mark.parametrize("mode", [PublishMode.REQUIRE_EXISTING, None])
def test_without_leave_to_create_a_stream_has_to_be_provisioned(
    world: World, mode: PublishMode | None
) -> None:
    code, reason = world.refusal(world.ask(20_000, 5, mode=mode))
    assert code is ResponseCode.REJECTED
    assert reason == (
        "stream 20000 is not provisioned: it is made when its producer attaches, or any client with "
        "EXISTING_OR_CREATE"
    )
    assert world.jobs == []
    assert world.attach(20_000, 6, mode=PublishMode.EXISTING_OR_CREATE).code is ResponseCode.OK
    assert world.attach(20_000, 7, mode=mode).code is ResponseCode.OK


def test_a_stream_made_on_demand_has_the_default_layout(world: World) -> None:
    answer = world.attach(20_000, 5)
    assert answer.header_nslots == 8
    assert [pool.stride_bytes for pool in answer.payload_pools] == [64 * KIB, 1024 * KIB, 4096 * KIB]
    assert world.saves == 1


def test_a_stream_outside_the_range_is_refused_and_the_range_named(world: World) -> None:
    code, reason = world.refusal(world.ask(9, 5))
    assert code is ResponseCode.REJECTED
    assert "stream 9 is not configured" in reason
    assert "from 20000 to 29999 only" in reason
    assert World(any_stream=True).attach(9, 5).code is ResponseCode.OK


@pytest.mark.parametrize("stream_id", [0, 0xFFFF_FFFF])
def test_the_null_of_a_stream_id_is_no_stream(stream_id: int) -> None:
    world = World(any_stream=True)
    assert world.refusal(world.ask(stream_id, 5))[0] is ResponseCode.INVALID_PARAMS


@pytest.mark.parametrize("client_id", [0, 0xFFFF_FFFF])
def test_the_null_of_a_client_id_is_no_client(world: World, client_id: int) -> None:
    code, reason = world.refusal(world.ask(10_000, client_id))
    assert code is ResponseCode.INVALID_PARAMS
    assert "draw another" in reason


@pytest.mark.requirement("driver-4.3-1", "driver-4.6-1")
def test_another_layout_version_is_rejected(world: World) -> None:
    code, reason = world.refusal(world.ask(10_000, 5, expected_layout_version=2))
    assert code is ResponseCode.REJECTED
    assert reason == "layout version 2 was expected; the stream has 1"
    for version in (0, 1):
        answer = world.attach(10_000, 6 + version, expected_layout_version=version)
        assert answer.layout_version == 1


@pytest.mark.requirement("driver-4.3-2", "driver-4.3-3", "driver-4.6-1")
def test_more_dimensions_than_configured_are_invalid_and_fewer_are_fine(world: World) -> None:
    code, reason = world.refusal(world.ask(10_000, 5, max_dims=5))
    assert code is ResponseCode.INVALID_PARAMS
    assert reason == "5 dimensions were asked for; the stream has 4"
    for client, dims in ((6, 4), (7, 1), (8, 0)):
        assert world.attach(10_000, client, max_dims=dims).max_dims == 4


@pytest.mark.requirement("driver-4.3-5", "driver-4.6-1")
def test_hugepages_that_are_required_and_not_there_are_rejected(world: World) -> None:
    code, reason = world.refusal(world.ask(10_000, 5, require_hugepages=True))
    assert code is ResponseCode.REJECTED
    assert "hugepages are required" in reason
    for client, required in ((6, False), (7, None)):
        assert world.attach(10_000, client, require_hugepages=required).code is ResponseCode.OK
    huge = World(has_hugepages=True)
    assert huge.attach(20_000, 5, require_hugepages=True).code is ResponseCode.OK


def r2(client_id: int, pages: HugepagesPolicy = HugepagesPolicy.UNSPECIFIED) -> ShmAttachRequestR2:
    return ShmAttachRequestR2(
        correlation_id=client_id,
        stream_id=20_000,
        client_id=client_id,
        role=Role.CONSUMER,
        publish_mode=PublishMode.EXISTING_OR_CREATE,
        hugepages_policy=pages,
        desired_node_id=1,
    )


def test_the_later_revision_is_answered_in_its_own_form(world: World) -> None:
    world.say(r2(5))
    world.work()
    answer = world.answer(5)
    assert isinstance(answer, ShmAttachResponseR2)
    assert (answer.code, answer.node_id, answer.epoch) == (ResponseCode.OK, None, 1)
    assert len(answer.payload_pools) == 3
    world.say(r2(6, HugepagesPolicy.HUGEPAGES))
    refused = world.answer(6)
    assert isinstance(refused, ShmAttachResponseR2)
    assert refused.code is ResponseCode.REJECTED


@pytest.mark.parametrize(
    ("has_hugepages", "pages", "code"),
    [
        (False, HugepagesPolicy.STANDARD, ResponseCode.OK),
        (False, HugepagesPolicy.HUGEPAGES, ResponseCode.REJECTED),
        (True, HugepagesPolicy.STANDARD, ResponseCode.REJECTED),
        (True, HugepagesPolicy.HUGEPAGES, ResponseCode.OK),
        (True, HugepagesPolicy.UNSPECIFIED, ResponseCode.OK),
    ],
)
def test_the_later_revision_can_want_either_kind_of_page(
    has_hugepages: bool, pages: HugepagesPolicy, code: ResponseCode
) -> None:
    world = World(has_hugepages=has_hugepages)
    world.say(r2(5, pages))
    world.work()
    assert world.answer(5).code is code


@pytest.mark.requirement("driver-5-1", "driver-4.6-1")
def test_a_second_producer_is_refused_whether_the_first_has_its_files_or_not(world: World) -> None:
    first = world.ask(10_000, 5, Role.PRODUCER)
    code, reason = world.refusal(world.ask(10_000, 6, Role.PRODUCER))
    assert code is ResponseCode.REJECTED
    assert "has a producer already: client 5" in reason
    world.work()
    assert world.answer(first).code is ResponseCode.OK
    assert world.refusal(world.ask(10_000, 7, Role.PRODUCER))[0] is ResponseCode.REJECTED
    assert world.attach(10_000, 8, Role.CONSUMER).code is ResponseCode.OK


@pytest.mark.requirement("driver-4.8-4")
def test_a_client_id_has_one_lease_whatever_the_stream_and_role(world: World) -> None:
    world.producer(10_000, 5)
    for stream_id, role in ((10_000, Role.CONSUMER), (20_000, Role.PRODUCER)):
        code, reason = world.refusal(world.ask(stream_id, 5, role))
        assert code is ResponseCode.REJECTED
        assert "client id 5 has lease 1 on stream 10000 already" in reason
    # The refused attach to a new stream has not provisioned it.
    assert world.state.plan.get(20_000) is None


@pytest.mark.requirement("driver-4.8-1", "driver-4.8-2")
def test_lease_ids_count_up_from_where_the_driver_began() -> None:
    world = World(first_lease_id=1 << 40)
    ids = []
    for client in range(1, 20):
        answer = world.attach(20_000, client)
        assert answer.lease_id is not None
        ids.append(answer.lease_id)
        world.detach(answer, client, Role.CONSUMER, client)
    assert ids == [(1 << 40) + n for n in range(19)]


def test_a_limit_of_leases_is_named() -> None:
    limited = StreamSettings(stream_id=10_000, max_leases=1)
    world = World(streams=(limited,), max_leases_per_stream=2)
    world.attach(10_000, 1)
    assert "has 1 leases, and its limit is 1" in world.refusal(world.ask(10_000, 2))[1]
    world.attach(20_000, 3)
    world.attach(20_000, 4)
    assert "has 2 leases, and its limit is 2" in world.refusal(world.ask(20_000, 5))[1]


def test_attaches_that_come_while_files_are_made_all_wait_for_them(world: World) -> None:
    consumers = [world.ask(10_000, client) for client in (1, 2)]
    producer = world.ask(10_000, 3, Role.PRODUCER)
    late = world.ask(10_000, 4)
    assert [type(job) for job in world.jobs] == [MakeFiles]
    assert world.sent == []
    world.work(1)
    assert [type(job) for job in world.jobs] == [AssignFiles]
    later = world.ask(10_000, 6)
    assert world.sent == []
    world.work()
    # They all get the epoch that the producer has.
    for correlation in (*consumers, producer, late, later):
        assert world.answer(correlation).epoch == 2
    assert world.announced == {10_000: (2, 3)}


REFUSALS = [
    Refusal(ResponseCode.INTERNAL_ERROR, "no room for 4096 bytes"),
    Refusal(ResponseCode.REJECTED, "hugepages are required"),
    Refusal(ResponseCode.INVALID_PARAMS, "3 slots: the number must be a power of two"),
]


@pytest.mark.requirement("driver-4.6-1")
@pytest.mark.parametrize("refusal", REFUSALS)
def test_all_who_wait_for_files_that_cannot_be_made_are_told_why(world: World, refusal: Refusal) -> None:
    world.refuse_files = refusal
    asked = [world.ask(10_000, 5, Role.PRODUCER), world.ask(10_000, 6)]
    world.work()
    for correlation in asked:
        assert world.refusal(correlation) == (refusal.code, refusal.reason)
    assert len(world.state.leases) == 0
    assert world.notices() == []
    assert world.state.records.total_bytes == 0
    assert world.state.counters.snapshot()["failures"] == 1
    # Nothing stands in the way of the next one.
    world.refuse_files = None
    assert world.producer(10_000, 5).epoch == 2


def test_files_that_are_lost_while_they_are_assigned_are_made_again_by_the_next_attach(world: World) -> None:
    world.attach(10_000, 1)
    asked = world.ask(10_000, 5, Role.PRODUCER)
    world.refuse_files = REFUSALS[0]
    world.work()
    assert world.refusal(asked)[0] is ResponseCode.INTERNAL_ERROR
    assert world.announced == {}
    assert world.directories == {10_000: set()}
    world.refuse_files = None
    assert world.producer(10_000, 5).epoch == 3


def test_regions_that_the_driver_cannot_map_are_removed_and_the_reason_told(world: World) -> None:
    world.announce_failure = "mlock: Cannot allocate memory"
    asked = world.ask(10_000, 5, Role.PRODUCER)
    world.work()
    assert world.refusal(asked) == (ResponseCode.INTERNAL_ERROR, "mlock: Cannot allocate memory")
    assert world.directories == {10_000: set()}
    assert len(world.state.leases) == 0
    assert list(world.state.records) == []


def test_an_epoch_that_does_not_grow_is_never_handed_out(world: World) -> None:
    before = world.producer(10_000, 5)
    world.detach(before, 5, Role.PRODUCER)
    # As if somebody had set the mark in the state directory back.
    world.marks[10_000] = 0
    asked = world.ask(10_000, 6)
    world.work()
    code, reason = world.refusal(asked)
    assert code is ResponseCode.INTERNAL_ERROR
    assert reason == "epoch 1 is not above 2; check the state directory"
    assert world.announced == {}
    # Of the first producer's files the grace is not yet over.
    assert [path.name for path in world.directories[10_000]] == ["2"]


def test_the_same_epoch_again_is_never_handed_out_either(world: World) -> None:
    before = world.producer(10_000, 5)
    world.detach(before, 5, Role.PRODUCER)
    world.marks[10_000] = 1
    asked = world.ask(10_000, 6)
    world.work()
    assert world.refusal(asked)[1] == "epoch 2 is not above 2; check the state directory"
    assert world.announced == {}


def test_reasons_are_ascii_and_not_without_end(world: World) -> None:
    world.refuse_files = Refusal(ResponseCode.INTERNAL_ERROR, "/srv/Käse" + "x" * 5000)
    asked = world.ask(10_000, 5)
    world.work()
    reason = world.refusal(asked)[1]
    assert reason.startswith("/srv/K\\xe4se")
    assert len(reason) == 1024
