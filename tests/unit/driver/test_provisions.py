"""Which streams there are and what they look like: provisions, quotas, idle streams (driver §6, §13)."""

from __future__ import annotations

import json

import pytest

from tensorpool.driver.actions import MakeFiles
from tensorpool.driver.config import DriverSettings, StreamSettings
from tensorpool.driver.leases import Refusal
from tensorpool.driver.plan import Layout, Plan, StreamPlan
from tensorpool.sbe import ResponseCode, Role
from tests.unit.driver.world import KIB, World

SMALL = Layout(4, (4 * KIB,))


def provision(world: World, stream_id: int, **words) -> StreamPlan | Refusal:
    result, actions = world.state.provision(stream_id, world.now, **words)
    world.do(actions)
    return result


# --- provisions


def test_a_provision_says_the_layout_before_the_attach() -> None:
    world = World()
    plan = provision(world, 20_000, nslots=4, pools=["4KiB"], name="camera-1", tags=["lab"])
    assert isinstance(plan, StreamPlan)
    assert (plan.layout, plan.name, plan.tags, plan.is_static) == (SMALL, "camera-1", ("lab",), False)
    assert world.jobs == []
    assert world.saves == 1
    answer = world.producer(20_000, 5, mode=None)
    assert answer.header_nslots == 4
    assert [pool.stride_bytes for pool in answer.payload_pools] == [4096]


def test_the_same_again_changes_nothing() -> None:
    world = World()
    provision(world, 20_000, nslots=4, pools=["4KiB"])
    world.producer(20_000, 5)
    again = provision(world, 20_000, nslots=4, pools=[4096])
    assert isinstance(again, StreamPlan)
    assert provision(world, 20_000) == again
    assert world.jobs == []
    assert world.saves == 1


@pytest.mark.requirement("driver-6-1")
def test_another_layout_is_a_new_epoch_unless_there_is_a_producer() -> None:
    world = World()
    consumer = world.attach(20_000, 1)
    granted = world.producer(20_000, 5)
    refused = provision(world, 20_000, nslots=4)
    assert isinstance(refused, Refusal)
    assert "has 8 slots of 64KiB, 1MiB, 4MiB and a producer, client 5" in refused.reason
    assert "it can get 4 slots of 64KiB, 1MiB, 4MiB" in refused.reason
    world.detach(granted, 5, Role.PRODUCER)
    world.work()
    before = world.announced[20_000][0]
    assert isinstance(provision(world, 20_000, nslots=4), StreamPlan)
    world.work()
    assert world.announced[20_000][0] > before > consumer.epoch
    assert world.attach(20_000, 2).header_nslots == 4


def test_a_layout_that_changes_while_files_are_made_is_the_one_that_counts() -> None:
    world = World()
    granted = world.producer(20_000, 5)
    world.detach(granted, 5, Role.PRODUCER)
    assert [type(job) for job in world.jobs] == [MakeFiles]
    provision(world, 20_000, nslots=4)
    world.work()
    # What was made with the old layout was never announced.
    assert [epoch for _, epoch, _ in world.history] == [2, 4]
    # So it went at once, and the files of the last producer have their full grace.
    assert {path.name for path in world.directories[20_000]} == {"2", "4"}
    assert world.attach(20_000, 6).header_nslots == 4
    world.tick(3)
    world.work()
    assert [path.name for path in world.directories[20_000]] == ["4"]


def test_a_static_stream_is_only_confirmed() -> None:
    static = StreamSettings(stream_id=10_000, nslots=4, pools=(4096,), name="cam")
    world = World(streams=(static,))
    plan = provision(world, 10_000, nslots=4, pools=["4KiB"], name="other")
    assert isinstance(plan, StreamPlan)
    assert plan.name == "cam"
    assert isinstance(provision(world, 10_000), StreamPlan)
    refused = provision(world, 10_000, nslots=8)
    assert refused == Refusal(
        ResponseCode.REJECTED,
        "stream 10000 is configured with 4 slots of 4KiB; 8 slots of 4KiB cannot be had there",
    )
    assert world.saves == 0


@pytest.mark.parametrize(
    ("words", "part"),
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
def test_what_is_no_layout_is_refused_with_the_reason(words: dict, part: str) -> None:
    world = World()
    refused = provision(world, 20_000, **words)
    assert isinstance(refused, Refusal)
    assert refused.code is ResponseCode.INVALID_PARAMS
    assert part in refused.reason
    assert world.state.plan.get(20_000) is None


def test_a_stream_outside_the_range_cannot_be_provisioned() -> None:
    refused = provision(World(), 19_999)
    assert isinstance(refused, Refusal)
    assert "from 20000 to 29999 only" in refused.reason


# --- quotas


def test_over_the_driver_s_quota_is_rejected_with_figures() -> None:
    layout = Layout(8, (4096,))
    world = World(nslots=8, pools=(4096,), quota_bytes=2 * layout.nbytes)
    world.attach(20_000, 1)
    world.attach(20_001, 2)
    code, reason = world.refusal(world.ask(20_002, 3))
    assert code is ResponseCode.REJECTED
    assert f"take {layout.nbytes} bytes" in reason
    assert f"the driver has {2 * layout.nbytes} bytes of a quota of {2 * layout.nbytes}" in reason
    assert world.state.plan.get(20_002) is None
    assert world.jobs == []


def test_old_files_count_until_they_are_gone_and_then_there_is_room() -> None:
    layout = Layout(8, (4096,))
    stream = StreamSettings(stream_id=10_000, pools=(4096,), quota_bytes=layout.nbytes)
    world = World(streams=(stream,))
    granted = world.producer(10_000, 5)
    world.detach(granted, 5, Role.PRODUCER)
    # The old directory fills the quota, and it stays for the grace.
    assert world.jobs == []
    code, reason = world.refusal(world.ask(10_000, 6))
    assert code is ResponseCode.REJECTED
    assert f"stream 10000 has {layout.nbytes} bytes of a quota of {layout.nbytes}" in reason
    assert "old files go after the lease's grace" in reason
    world.tick(3)
    world.work()
    # Room came, and so did the fresh files, by themselves where nobody had given up on them.
    assert world.attach(10_000, 7).code is ResponseCode.OK
    assert world.state.records.total_bytes == layout.nbytes


def test_fresh_files_come_by_themselves_once_there_is_room() -> None:
    layout = Layout(8, (4096,))
    stream = StreamSettings(stream_id=10_000, pools=(4096,), quota_bytes=layout.nbytes)
    world = World(streams=(stream,))
    granted = world.producer(10_000, 5)
    world.detach(granted, 5, Role.PRODUCER)
    assert world.announced == {}
    world.tick(3)
    world.work()
    assert world.announced == {10_000: (granted.epoch + 1, 0)}


def test_bytes_in_the_making_count() -> None:
    layout = Layout(8, (4096,))
    world = World(nslots=8, pools=(4096,), quota_bytes=layout.nbytes)
    world.ask(20_000, 1)
    assert world.state.records.total_bytes == layout.nbytes
    assert "of a quota" in world.refusal(world.ask(20_001, 2))[1]
    world.refuse_files = Refusal(ResponseCode.INTERNAL_ERROR, "full")
    world.work()
    assert world.state.records.total_bytes == 0


def test_what_never_fits_is_not_provisioned() -> None:
    world = World(quota_bytes=1 << 20)
    refused = provision(world, 20_000, pools=["4MiB"])
    assert isinstance(refused, Refusal)
    assert "of a quota of 1048576" in refused.reason
    assert isinstance(provision(world, 20_000, pools=["4KiB"]), StreamPlan)


def test_streams_made_for_clients_are_limited_in_number() -> None:
    world = World(max_streams=2, streams=(StreamSettings(stream_id=10_000),))
    world.attach(20_000, 1)
    world.attach(20_001, 2)
    code, reason = world.refusal(world.ask(20_002, 3))
    assert code is ResponseCode.REJECTED
    assert reason == "2 streams made for clients are in use, and max_streams is 2"
    assert isinstance(provision(world, 20_003), Refusal)
    assert world.attach(10_000, 4).code is ResponseCode.OK
    assert world.attach(20_001, 5).code is ResponseCode.OK


def test_of_too_many_provisions_the_oldest_that_nobody_uses_is_forgotten() -> None:
    world = World(max_streams=2)
    world.attach(20_000, 1)
    provision(world, 20_001)
    provision(world, 20_002)
    assert [plan.stream_id for plan in world.state.plan] == [20_000, 20_002]


# --- idle streams


def test_a_dynamic_stream_without_leases_loses_its_files_and_stays_provisioned() -> None:
    world = World(release_idle_ns=60_000_000_000)
    granted = world.attach(20_000, 1)
    for _ in range(100):
        world.tick(2)
        world.keep_alive(granted, 1, Role.CONSUMER)
    assert world.directories[20_000] != set()
    world.detach(granted, 1, Role.CONSUMER)
    world.tick(59)
    world.work()
    assert world.announced == {20_000: (1, 0)}
    world.tick(1)
    world.work()
    assert world.announced == {}
    assert world.directories == {20_000: set()}
    assert list(world.state.records) == []
    assert world.attach(20_000, 2, mode=None).epoch == 2


def test_a_static_stream_keeps_its_files() -> None:
    world = World(streams=(StreamSettings(stream_id=10_000),))
    world.detach(world.attach(10_000, 1), 1, Role.CONSUMER)
    world.tick(1000)
    world.work()
    assert world.announced == {10_000: (1, 0)}


# --- the start, and what the next driver knows


@pytest.mark.requirement("driver-13-1")
def test_a_driver_that_recreates_makes_the_files_of_all_static_streams_at_the_start() -> None:
    streams = tuple(StreamSettings(stream_id=10_000 + n) for n in range(3))
    world = World(streams=streams, recreate_at_start=True)
    world.marks = {10_001: 41}
    world.do(world.state.on_start(world.now))
    world.work()
    assert world.announced == {10_000: (1, 0), 10_001: (42, 0), 10_002: (1, 0)}
    assert world.producer(10_001, 5).epoch == 43
    assert World(streams=streams).state.on_start(0) == []


def test_a_restarted_driver_knows_what_was_provisioned() -> None:
    world = World()
    provision(world, 20_000, nslots=4, pools=["4KiB"], name="camera-1", tags=["lab"])
    world.attach(20_001, 5)
    dumped = json.loads(json.dumps(world.state.plan.dump()))
    after = Plan(DriverSettings())
    assert after.load(dumped) == []
    assert list(after) == list(world.state.plan)


def test_provisions_that_no_longer_fit_are_left_out_and_named() -> None:
    good = {"stream_id": 20_000, "nslots": 4, "pools": [4096], "name": "", "tags": []}
    entries = [good, good | {"stream_id": 5}, good | {"nslots": 3, "stream_id": 20_001}, 7, {"nslots": 8}]
    static = good | {"stream_id": 10_000}
    plan = Plan(DriverSettings(streams=(StreamSettings(stream_id=10_000, nslots=16),)))
    faults = plan.load({"version": 1, "streams": [*entries, static]})
    assert [fault.partition(":")[0] for fault in faults] == [
        "stream 5",
        "stream 20001",
        "an entry names no stream",
        "an entry names no stream",
    ]
    assert [one.stream_id for one in plan] == [10_000, 20_000]
    assert plan[10_000].layout.nslots == 16


@pytest.mark.parametrize("dumped", [None, [], {}, {"version": 2, "streams": []}, {"version": 1}])
def test_a_file_that_holds_no_provisions_is_no_harm(dumped: object) -> None:
    plan = Plan(DriverSettings())
    assert plan.load(dumped) == ["there are no provisions in it"]
    assert len(plan) == 0


def test_as_many_provisions_are_remembered_as_may_be_in_use() -> None:
    entries = [{"stream_id": 20_000 + n} for n in range(5)]
    plan = Plan(DriverSettings(max_streams=2))
    assert plan.load({"version": 1, "streams": entries}) == []
    assert [one.stream_id for one in plan] == [20_003, 20_004]
    none = Plan(DriverSettings(max_streams=0))
    assert none.load({"version": 1, "streams": entries}) == []
    assert len(none) == 0
