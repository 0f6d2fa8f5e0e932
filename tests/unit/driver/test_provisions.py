"""Plans of streams: provisions, quotas, idle streams (driver §6, §13)."""

from __future__ import annotations

import json

import pytest

from tensorpool.driver.actions import MakeFiles
from tensorpool.driver.config import DriverSettings, StreamSettings
from tensorpool.driver.leases import Refusal
from tensorpool.driver.plan import Plan, StreamLayout, StreamPlan
from tensorpool.sbe import ResponseCode, Role
from tests.unit.driver.state_harness import KIB, StateHarness

SMALL = StreamLayout(4, (4 * KIB,))


def provision(harness: StateHarness, stream_id: int, **changes) -> StreamPlan | Refusal:
    result, actions = harness.state.provision(stream_id, harness.now, **changes)
    harness.perform(actions)
    return result


# --- provisions


def test_provision_sets_the_layout_before_the_attach() -> None:
    harness = StateHarness()
    plan = provision(harness, 20_000, nslots=4, pools=["4KiB"], name="camera-1", tags=["lab"])
    assert isinstance(plan, StreamPlan)
    assert (plan.layout, plan.name, plan.tags, plan.is_static) == (SMALL, "camera-1", ("lab",), False)
    assert harness.jobs == []
    assert harness.saves == 1
    answer = harness.producer(20_000, 5, mode=None)
    assert answer.header_nslots == 4
    assert [pool.stride_bytes for pool in answer.payload_pools] == [4096]


def test_repeated_provision_changes_nothing() -> None:
    harness = StateHarness()
    provision(harness, 20_000, nslots=4, pools=["4KiB"])
    harness.producer(20_000, 5)
    again = provision(harness, 20_000, nslots=4, pools=[4096])
    assert isinstance(again, StreamPlan)
    assert provision(harness, 20_000) == again
    assert harness.jobs == []
    assert harness.saves == 1


@pytest.mark.requirement("driver-6-1")
def test_changed_layout_needs_a_stream_without_producer() -> None:
    harness = StateHarness()
    consumer = harness.attach(20_000, 1)
    granted = harness.producer(20_000, 5)
    refused = provision(harness, 20_000, nslots=4)
    assert isinstance(refused, Refusal)
    assert "has 8 slots of 64KiB, 1MiB, 4MiB and a producer, client 5" in refused.reason
    assert "it can get 4 slots of 64KiB, 1MiB, 4MiB" in refused.reason
    harness.detach(granted, 5, Role.PRODUCER)
    harness.work()
    before = harness.announced[20_000][0]
    assert isinstance(provision(harness, 20_000, nslots=4), StreamPlan)
    harness.work()
    assert harness.announced[20_000][0] > before > consumer.epoch
    assert harness.attach(20_000, 2).header_nslots == 4


def test_layout_changed_during_file_creation_applies() -> None:
    harness = StateHarness()
    granted = harness.producer(20_000, 5)
    harness.detach(granted, 5, Role.PRODUCER)
    assert [type(job) for job in harness.jobs] == [MakeFiles]
    provision(harness, 20_000, nslots=4)
    harness.work()
    # Files with the old layout were never announced.
    assert [epoch for _, epoch, _ in harness.history] == [2, 4]
    # So they were removed at once; the files of the last producer keep their full grace.
    assert {path.name for path in harness.directories[20_000]} == {"2", "4"}
    assert harness.attach(20_000, 6).header_nslots == 4
    harness.tick(3)
    harness.work()
    assert [path.name for path in harness.directories[20_000]] == ["4"]


def test_provision_of_a_static_stream_changes_nothing() -> None:
    static = StreamSettings(stream_id=10_000, nslots=4, pools=(4096,), name="cam")
    harness = StateHarness(streams=(static,))
    plan = provision(harness, 10_000, nslots=4, pools=["4KiB"], name="other")
    assert isinstance(plan, StreamPlan)
    assert plan.name == "cam"
    assert isinstance(provision(harness, 10_000), StreamPlan)
    refused = provision(harness, 10_000, nslots=8)
    assert refused == Refusal(
        ResponseCode.REJECTED,
        "stream 10000 is configured with 4 slots of 4KiB; a client cannot change it to 8 slots of 4KiB",
    )
    assert harness.saves == 0


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"nslots": 3}, "nslots 3: use a power of two"),
        ({"nslots": "8"}, "nslots '8': use a whole number"),
        ({"nslots": True}, "use a whole number"),
        ({"pools": []}, "pools is empty"),
        ({"pools": ["100"]}, "must be a power of two"),
        ({"pools": ["4Mib"]}, "write a number and"),
        ({"pools": {"a": 1}}, "use a list of sizes"),
        ({"pools": [True]}, "use a list of sizes"),
        ({"name": 5}, "visible characters"),
        ({"name": "a\nb"}, "visible characters"),
        ({"name": "x" * 300}, "visible characters"),
        ({"tags": "lab"}, "use a list"),
        ({"tags": [""]}, "visible characters"),
        ({"tags": ["x"] * 65}, "use a list"),
    ],
)
def test_invalid_layout_is_refused_with_the_reason(changes: dict, part: str) -> None:
    harness = StateHarness()
    refused = provision(harness, 20_000, **changes)
    assert isinstance(refused, Refusal)
    assert refused.code is ResponseCode.INVALID_PARAMS
    assert part in refused.reason
    assert harness.state.plan.get(20_000) is None


def test_stream_outside_the_range_cannot_be_provisioned() -> None:
    refused = provision(StateHarness(), 19_999)
    assert isinstance(refused, Refusal)
    assert "from 20000 to 29999 or 50000 to 59999 only" in refused.reason


# --- quotas


def test_over_the_driver_s_quota_is_rejected_with_figures() -> None:
    layout = StreamLayout(8, (4096,))
    harness = StateHarness(nslots=8, pools=(4096,), quota_bytes=2 * layout.nbytes)
    harness.attach(20_000, 1)
    harness.attach(20_001, 2)
    code, reason = harness.refusal(harness.request_attach(20_002, 3))
    assert code is ResponseCode.REJECTED
    assert f"take {layout.nbytes} bytes" in reason
    assert f"the driver has {2 * layout.nbytes} bytes of a quota of {2 * layout.nbytes}" in reason
    assert harness.state.plan.get(20_002) is None
    assert harness.jobs == []


def test_quota_counts_old_files_until_they_are_removed() -> None:
    layout = StreamLayout(8, (4096,))
    stream = StreamSettings(stream_id=10_000, pools=(4096,), quota_bytes=layout.nbytes)
    harness = StateHarness(streams=(stream,))
    granted = harness.producer(10_000, 5)
    harness.detach(granted, 5, Role.PRODUCER)
    # The old directory fills the quota, and it stays for the grace.
    assert harness.jobs == []
    code, reason = harness.refusal(harness.request_attach(10_000, 6))
    assert code is ResponseCode.REJECTED
    assert f"stream 10000 has {layout.nbytes} bytes of a quota of {layout.nbytes}" in reason
    assert "old files are removed after the lease's grace" in reason
    harness.tick(3)
    harness.work()
    # After the removal, requested files are created without a new attach.
    assert harness.attach(10_000, 7).code is ResponseCode.OK
    assert harness.state.records.total_bytes == layout.nbytes


def test_new_files_are_created_once_the_quota_allows_it() -> None:
    layout = StreamLayout(8, (4096,))
    stream = StreamSettings(stream_id=10_000, pools=(4096,), quota_bytes=layout.nbytes)
    harness = StateHarness(streams=(stream,))
    granted = harness.producer(10_000, 5)
    harness.detach(granted, 5, Role.PRODUCER)
    assert harness.announced == {}
    harness.tick(3)
    harness.work()
    assert harness.announced == {10_000: (granted.epoch + 1, 0)}


def test_quota_counts_files_in_creation() -> None:
    layout = StreamLayout(8, (4096,))
    harness = StateHarness(nslots=8, pools=(4096,), quota_bytes=layout.nbytes)
    harness.request_attach(20_000, 1)
    assert harness.state.records.total_bytes == layout.nbytes
    assert "of a quota" in harness.refusal(harness.request_attach(20_001, 2))[1]
    harness.refuse_files = Refusal(ResponseCode.INTERNAL_ERROR, "full")
    harness.work()
    assert harness.state.records.total_bytes == 0


def test_layout_above_the_quota_is_not_provisioned() -> None:
    harness = StateHarness(quota_bytes=1 << 20)
    refused = provision(harness, 20_000, pools=["4MiB"])
    assert isinstance(refused, Refusal)
    assert "of a quota of 1048576" in refused.reason
    assert isinstance(provision(harness, 20_000, pools=["4KiB"]), StreamPlan)


def test_dynamic_streams_are_limited_in_number() -> None:
    harness = StateHarness(max_streams=2, streams=(StreamSettings(stream_id=10_000),))
    harness.attach(20_000, 1)
    harness.attach(20_001, 2)
    code, reason = harness.refusal(harness.request_attach(20_002, 3))
    assert code is ResponseCode.REJECTED
    assert reason == "2 dynamic streams are in use, and max_streams is 2"
    assert isinstance(provision(harness, 20_003), Refusal)
    assert harness.attach(10_000, 4).code is ResponseCode.OK
    assert harness.attach(20_001, 5).code is ResponseCode.OK


def test_oldest_unused_provision_is_removed_beyond_the_limit() -> None:
    harness = StateHarness(max_streams=2)
    harness.attach(20_000, 1)
    provision(harness, 20_001)
    provision(harness, 20_002)
    assert [plan.stream_id for plan in harness.state.plan] == [20_000, 20_002]


# --- idle streams


def test_idle_dynamic_stream_loses_its_files_and_stays_provisioned() -> None:
    harness = StateHarness(release_idle_ns=60_000_000_000)
    granted = harness.attach(20_000, 1)
    for _ in range(100):
        harness.tick(2)
        harness.keep_alive(granted, 1, Role.CONSUMER)
    assert harness.directories[20_000] != set()
    harness.detach(granted, 1, Role.CONSUMER)
    harness.tick(59)
    harness.work()
    assert harness.announced == {20_000: (1, 0)}
    harness.tick(1)
    harness.work()
    assert harness.announced == {}
    assert harness.directories == {20_000: set()}
    assert list(harness.state.records) == []
    assert harness.attach(20_000, 2, mode=None).epoch == 2


def test_static_stream_keeps_its_files() -> None:
    harness = StateHarness(streams=(StreamSettings(stream_id=10_000),))
    harness.detach(harness.attach(10_000, 1), 1, Role.CONSUMER)
    harness.tick(1000)
    harness.work()
    assert harness.announced == {10_000: (1, 0)}


# --- start, and saved provisions


@pytest.mark.requirement("driver-13-1")
def test_recreate_at_start_requests_files_of_static_streams() -> None:
    streams = tuple(StreamSettings(stream_id=10_000 + n) for n in range(3))
    harness = StateHarness(streams=streams, recreate_at_start=True)
    harness.marks = {10_001: 41}
    harness.perform(harness.state.on_start(harness.now))
    harness.work()
    assert harness.announced == {10_000: (1, 0), 10_001: (42, 0), 10_002: (1, 0)}
    assert harness.producer(10_001, 5).epoch == 43
    assert StateHarness(streams=streams).state.on_start(0) == []


def test_restarted_driver_loads_its_provisions() -> None:
    harness = StateHarness()
    provision(harness, 20_000, nslots=4, pools=["4KiB"], name="camera-1", tags=["lab"])
    harness.attach(20_001, 5)
    dumped = json.loads(json.dumps(harness.state.plan.dump()))
    after = Plan(DriverSettings())
    assert after.load(dumped) == []
    assert list(after) == list(harness.state.plan)


def test_invalid_saved_provisions_are_skipped_and_named() -> None:
    good = {"stream_id": 20_000, "nslots": 4, "pools": [4096], "name": "", "tags": []}
    entries = [good, good | {"stream_id": 5}, good | {"nslots": 3, "stream_id": 20_001}, 7, {"nslots": 8}]
    static = good | {"stream_id": 10_000}
    plan = Plan(DriverSettings(streams=(StreamSettings(stream_id=10_000, nslots=16),)))
    faults = plan.load({"version": 1, "streams": [*entries, static]})
    assert [fault.partition(":")[0] for fault in faults] == [
        "stream 5",
        "stream 20001",
        "an entry has no stream_id",
        "an entry has no stream_id",
    ]
    assert [stream.stream_id for stream in plan] == [10_000, 20_000]
    assert plan[10_000].layout.nslots == 16


@pytest.mark.parametrize("dumped", [None, [], {}, {"version": 2, "streams": []}, {"version": 1}])
def test_file_without_provisions_is_ignored(dumped: object) -> None:
    plan = Plan(DriverSettings())
    assert plan.load(dumped) == ["the file has no provisions of a known version"]
    assert len(plan) == 0


def test_loaded_provisions_are_limited_to_max_streams() -> None:
    entries = [{"stream_id": 20_000 + n} for n in range(5)]
    plan = Plan(DriverSettings(max_streams=2))
    assert plan.load({"version": 1, "streams": entries}) == []
    assert [stream.stream_id for stream in plan] == [20_003, 20_004]
    none = Plan(DriverSettings(max_streams=0))
    assert none.load({"version": 1, "streams": entries}) == []
    assert len(none) == 0
