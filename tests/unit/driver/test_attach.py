"""Granted and refused attaches and their responses (driver §4.2, §4.3, §4.6, §4.8, §5)."""

from __future__ import annotations

import pytest

from tensorpool.driver.actions import AssignFiles, MakeFiles
from tensorpool.driver.config import StreamSettings
from tensorpool.driver.leases import Refusal
from tensorpool.driver.requests import MAX_RESPONSES
from tensorpool.sbe import (
    HugepagesPolicy,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachRequestR2,
    ShmAttachResponseR2,
)
from tests.unit.driver.state_harness import KIB, S, StateHarness

STATIC = StreamSettings(stream_id=10_000, nslots=16, pools=(64 * KIB, 4096))


@pytest.fixture
def harness() -> StateHarness:
    return StateHarness(streams=(STATIC,))


@pytest.mark.requirement("driver-4.2-1", "driver-4.2-3", "driver-4.2-6", "driver-4.3-6")
def test_granted_attach_has_all_fields(harness: StateHarness) -> None:
    answer = harness.producer(10_000, 5)
    assert answer.lease_id == 1
    assert answer.lease_expiry_timestamp_ns == harness.now + 3 * S
    assert answer.stream_id == 10_000
    assert answer.epoch == harness.marks[10_000]
    assert answer.layout_version == 1
    assert answer.header_nslots == 16
    assert answer.header_slot_bytes == 256
    assert answer.max_dims == 8
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
def test_attach_response_follows_the_announce_of_the_producer(harness: StateHarness) -> None:
    correlation = harness.request_attach(10_000, 5, Role.PRODUCER)
    assert harness.sent == []
    harness.work(1)
    # The files exist, but are not assigned yet.
    assert harness.sent == []
    assert harness.announced == {}
    harness.work(1)
    assert harness.announced == {10_000: (2, 5)}
    assert harness.response(correlation).epoch == 2


def test_consumer_attach_creates_files_of_a_provisioned_stream(harness: StateHarness) -> None:
    answer = harness.attach(10_000, 5, mode=PublishMode.REQUIRE_EXISTING)
    assert answer.code is ResponseCode.OK
    assert answer.epoch == 1
    assert harness.announced == {10_000: (1, 0)}
    # The next attach gets its response at once.
    assert harness.response(harness.request_attach(10_000, 6)).epoch == 1


@pytest.mark.requirement("driver-4.2-2", "driver-4.3-4")
@pytest.mark.parametrize("mode", [PublishMode.REQUIRE_EXISTING, None])
def test_attach_without_create_needs_a_provisioned_stream(
    harness: StateHarness, mode: PublishMode | None
) -> None:
    code, reason = harness.refusal(harness.request_attach(20_000, 5, mode=mode))
    assert code is ResponseCode.REJECTED
    assert reason == (
        "stream 20000 has no producer yet and is not provisioned: it is created when its producer attaches, "
        "or any client with EXISTING_OR_CREATE"
    )
    assert harness.jobs == []
    assert harness.attach(20_000, 6, mode=PublishMode.EXISTING_OR_CREATE).code is ResponseCode.OK
    assert harness.attach(20_000, 7, mode=mode).code is ResponseCode.OK


def test_dynamic_stream_has_the_default_layout(harness: StateHarness) -> None:
    answer = harness.attach(20_000, 5)
    assert answer.header_nslots == 8
    assert [pool.stride_bytes for pool in answer.payload_pools] == [64 * KIB, 1024 * KIB, 4096 * KIB]
    assert harness.saves == 1


def test_stream_outside_dynamic_ids_is_refused_with_the_range(harness: StateHarness) -> None:
    code, reason = harness.refusal(harness.request_attach(9, 5))
    assert code is ResponseCode.REJECTED
    assert "stream 9 is not configured" in reason
    assert "from 20000 to 29999 or 50000 to 59999 only" in reason
    assert StateHarness(any_stream=True).attach(9, 5).code is ResponseCode.OK


@pytest.mark.parametrize("stream_id", [0, 0xFFFF_FFFF])
def test_null_stream_id_is_refused(stream_id: int) -> None:
    harness = StateHarness(any_stream=True)
    assert harness.refusal(harness.request_attach(stream_id, 5))[0] is ResponseCode.INVALID_PARAMS


@pytest.mark.parametrize("client_id", [0, 0xFFFF_FFFF])
def test_null_client_id_is_refused(harness: StateHarness, client_id: int) -> None:
    code, reason = harness.refusal(harness.request_attach(10_000, client_id))
    assert code is ResponseCode.INVALID_PARAMS
    assert "use another client id" in reason


@pytest.mark.requirement("driver-4.3-1", "driver-4.6-1")
def test_another_layout_version_is_rejected(harness: StateHarness) -> None:
    code, reason = harness.refusal(harness.request_attach(10_000, 5, expected_layout_version=2))
    assert code is ResponseCode.REJECTED
    assert reason == "layout version 2 is expected, but the stream has 1"
    for version in (0, 1):
        answer = harness.attach(10_000, 6 + version, expected_layout_version=version)
        assert answer.layout_version == 1


@pytest.mark.requirement("driver-4.3-2", "driver-4.3-3", "driver-4.6-1")
def test_attach_with_too_many_dimensions_is_invalid(harness: StateHarness) -> None:
    code, reason = harness.refusal(harness.request_attach(10_000, 5, max_dims=9))
    assert code is ResponseCode.INVALID_PARAMS
    assert reason == "9 dimensions are requested, but tensors have 8 at most"
    for client, dims in ((6, 8), (7, 1), (8, 0)):
        assert harness.attach(10_000, client, max_dims=dims).max_dims == 8


@pytest.mark.requirement("driver-4.3-5", "driver-4.6-1")
def test_required_hugepages_that_are_missing_are_rejected(harness: StateHarness) -> None:
    code, reason = harness.refusal(harness.request_attach(10_000, 5, require_hugepages=True))
    assert code is ResponseCode.REJECTED
    assert "hugepages are required" in reason
    for client, required in ((6, False), (7, None)):
        assert harness.attach(10_000, client, require_hugepages=required).code is ResponseCode.OK
    huge = StateHarness(has_hugepages=True)
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


def test_attach_of_the_later_revision_gets_its_own_response(harness: StateHarness) -> None:
    harness.send(r2(5))
    harness.work()
    answer = harness.response(5)
    assert isinstance(answer, ShmAttachResponseR2)
    assert (answer.code, answer.node_id, answer.epoch) == (ResponseCode.OK, None, 1)
    assert len(answer.payload_pools) == 3
    harness.send(r2(6, HugepagesPolicy.HUGEPAGES))
    refused = harness.response(6)
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
def test_later_revision_can_require_either_kind_of_page(
    has_hugepages: bool, pages: HugepagesPolicy, code: ResponseCode
) -> None:
    harness = StateHarness(has_hugepages=has_hugepages)
    harness.send(r2(5, pages))
    harness.work()
    assert harness.response(5).code is code


@pytest.mark.requirement("driver-5-1", "driver-4.6-1")
def test_second_producer_is_refused_with_or_without_files(harness: StateHarness) -> None:
    first = harness.request_attach(10_000, 5, Role.PRODUCER)
    code, reason = harness.refusal(harness.request_attach(10_000, 6, Role.PRODUCER))
    assert code is ResponseCode.REJECTED
    assert "has a producer already: client 5" in reason
    harness.work()
    assert harness.response(first).code is ResponseCode.OK
    assert harness.refusal(harness.request_attach(10_000, 7, Role.PRODUCER))[0] is ResponseCode.REJECTED
    assert harness.attach(10_000, 8, Role.CONSUMER).code is ResponseCode.OK


@pytest.mark.requirement("driver-4.8-4")
def test_client_id_has_one_lease_over_all_streams(harness: StateHarness) -> None:
    harness.producer(10_000, 5)
    for stream_id, role in ((10_000, Role.CONSUMER), (20_000, Role.PRODUCER)):
        code, reason = harness.refusal(harness.request_attach(stream_id, 5, role))
        assert code is ResponseCode.REJECTED
        assert "client id 5 has lease 1 on stream 10000 already" in reason
    # The refused attach to a new stream has not provisioned it.
    assert harness.state.plan.get(20_000) is None


@pytest.mark.requirement("driver-4.8-1", "driver-4.8-2")
def test_lease_ids_count_up_from_where_the_driver_began() -> None:
    harness = StateHarness(first_lease_id=1 << 40)
    ids = []
    for client in range(1, 20):
        answer = harness.attach(20_000, client)
        assert answer.lease_id is not None
        ids.append(answer.lease_id)
        harness.detach(answer, client, Role.CONSUMER, client)
    assert ids == [(1 << 40) + n for n in range(19)]


def test_lease_limit_refusal_names_the_limit() -> None:
    limited = StreamSettings(stream_id=10_000, max_leases=1)
    harness = StateHarness(streams=(limited,), max_leases_per_stream=2)
    harness.attach(10_000, 1)
    assert "has 1 leases, and its limit is 1" in harness.refusal(harness.request_attach(10_000, 2))[1]
    harness.attach(20_000, 3)
    harness.attach(20_000, 4)
    assert "has 2 leases, and its limit is 2" in harness.refusal(harness.request_attach(20_000, 5))[1]


def test_attaches_during_file_creation_are_all_pending(harness: StateHarness) -> None:
    consumers = [harness.request_attach(10_000, client) for client in (1, 2)]
    producer = harness.request_attach(10_000, 3, Role.PRODUCER)
    late = harness.request_attach(10_000, 4)
    assert [type(job) for job in harness.jobs] == [MakeFiles]
    assert harness.sent == []
    harness.work(1)
    assert [type(job) for job in harness.jobs] == [AssignFiles]
    later = harness.request_attach(10_000, 6)
    assert harness.sent == []
    harness.work()
    # All responses have the producer's epoch.
    for correlation in (*consumers, producer, late, later):
        assert harness.response(correlation).epoch == 2
    assert harness.announced == {10_000: (2, 3)}


REFUSALS = [
    Refusal(ResponseCode.INTERNAL_ERROR, "no room for 4096 bytes"),
    Refusal(ResponseCode.REJECTED, "hugepages are required"),
    Refusal(ResponseCode.INVALID_PARAMS, "3 slots: the number must be a power of two"),
]


@pytest.mark.requirement("driver-4.6-1")
@pytest.mark.parametrize("refusal", REFUSALS)
def test_pending_attaches_are_refused_when_creation_fails(harness: StateHarness, refusal: Refusal) -> None:
    harness.refuse_files = refusal
    correlation_id = [harness.request_attach(10_000, 5, Role.PRODUCER), harness.request_attach(10_000, 6)]
    harness.work()
    for correlation in correlation_id:
        assert harness.refusal(correlation) == (refusal.code, refusal.reason)
    assert len(harness.state.leases) == 0
    assert harness.notices() == []
    assert harness.state.records.total_bytes == 0
    assert harness.state.counters.snapshot()["failures"] == 1
    # The next attach succeeds.
    harness.refuse_files = None
    assert harness.producer(10_000, 5).epoch == 2


def test_next_attach_recreates_files_lost_during_assignment(harness: StateHarness) -> None:
    harness.attach(10_000, 1)
    correlation_id = harness.request_attach(10_000, 5, Role.PRODUCER)
    harness.refuse_files = REFUSALS[0]
    harness.work()
    assert harness.refusal(correlation_id)[0] is ResponseCode.INTERNAL_ERROR
    assert harness.announced == {}
    assert harness.directories == {10_000: set()}
    harness.refuse_files = None
    assert harness.producer(10_000, 5).epoch == 3


def test_unmappable_regions_are_removed_and_attaches_refused(harness: StateHarness) -> None:
    harness.announce_failure = "mlock: Cannot allocate memory"
    correlation_id = harness.request_attach(10_000, 5, Role.PRODUCER)
    harness.work()
    assert harness.refusal(correlation_id) == (ResponseCode.INTERNAL_ERROR, "mlock: Cannot allocate memory")
    assert harness.directories == {10_000: set()}
    assert len(harness.state.leases) == 0
    assert list(harness.state.records) == []


def test_smaller_epoch_is_never_granted(harness: StateHarness) -> None:
    before = harness.producer(10_000, 5)
    harness.detach(before, 5, Role.PRODUCER)
    # As if the epoch mark in the state directory had been set back.
    harness.marks[10_000] = 0
    correlation_id = harness.request_attach(10_000, 6)
    harness.work()
    code, reason = harness.refusal(correlation_id)
    assert code is ResponseCode.INTERNAL_ERROR
    assert reason == "epoch 1 is not above 2; check the state directory"
    assert harness.announced == {}
    # The grace of the first producer's files is not over yet.
    assert [path.name for path in harness.directories[10_000]] == ["2"]


def test_equal_epoch_is_never_granted(harness: StateHarness) -> None:
    before = harness.producer(10_000, 5)
    harness.detach(before, 5, Role.PRODUCER)
    harness.marks[10_000] = 1
    correlation_id = harness.request_attach(10_000, 6)
    harness.work()
    assert harness.refusal(correlation_id)[1] == "epoch 2 is not above 2; check the state directory"
    assert harness.announced == {}


def test_reasons_are_ascii_and_bounded(harness: StateHarness) -> None:
    harness.refuse_files = Refusal(ResponseCode.INTERNAL_ERROR, "/srv/Käse" + "x" * 5000)
    correlation_id = harness.request_attach(10_000, 5)
    harness.work()
    reason = harness.refusal(correlation_id)[1]
    assert reason.startswith("/srv/K\\xe4se")
    assert len(reason) == 1024


def test_flood_of_refusals_leaves_an_attach_in_progress_alone(harness: StateHarness) -> None:
    """The client repeats its request, because files take long; thousands of refused ones came meanwhile."""
    correlation = 5 << 32
    request = ShmAttachRequest(
        correlation_id=correlation, stream_id=10_000, client_id=5, role=Role.PRODUCER,
        publish_mode=PublishMode.EXISTING_OR_CREATE,
    )  # fmt: skip
    harness.send(request)
    jobs = len(harness.jobs)
    for number in range(MAX_RESPONSES + 10):
        # No such stream, and existing ones only.
        harness.request_attach(77, 1_000 + number, mode=PublishMode.REQUIRE_EXISTING)
    harness.send(request)
    assert len(harness.jobs) == jobs, "the repeated request is not handled a second time"
    harness.work()
    answer = harness.response(correlation)
    assert answer.code is ResponseCode.OK
    harness.sent.clear()
    for number in range(MAX_RESPONSES + 10):
        harness.request_attach(77, 9_000 + number, mode=PublishMode.REQUIRE_EXISTING)
    harness.sent.clear()
    # The flood has used up the requests of this moment: a client repeats its request until it is answered.
    harness.tick(0.2)
    harness.send(request)
    assert harness.response(correlation) == answer, "the same lease, not a refusal of a second one"
