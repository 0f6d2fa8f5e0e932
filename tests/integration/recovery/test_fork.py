"""fork in a program on a driver: the child holds no lease, no lock and no memory of its parent's."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.integration.faults.forking_process import ForkingProcess
from tests.remote_process import RemoteProcess

from .deployment import ROUNDS, Deployment, Periods

# A lease that outlasts every deadline: what ends sooner ended for another reason.
FOREVER = Periods(keepalive=0.1, grace=1000)


def forker(fleet: Deployment, **options: Any) -> RemoteProcess:
    """Holds one of every handle, and an open claim."""
    words = {**fleet.options, **options}
    # The deprecation of forking with threads is exactly what is tried here.
    remote = fleet.start(ForkingProcess, words, fleet.stream_id, env={"PYTHONWARNINGS": "ignore"})
    remote.call("pid")
    return remote


def assert_goes_on(parent: RemoteProcess) -> None:
    assert parent.call("goes_on") == {"wrong": 0, "balanced": [True, True]}


@pytest.fixture(params=["driver", "embedded"])
def parent(fleet: Deployment, request: pytest.FixtureRequest) -> RemoteProcess:
    """On a driver in another process, or with the driver inside."""
    fleet.driver()
    if request.param == "driver":
        fleet.service()
    return forker(fleet, mode=request.param)


def test_every_handle_raises_in_the_child_and_the_parent_keeps_its_leases(
    fleet: Deployment, parent: RemoteProcess
) -> None:
    leases = fleet.leases()
    for _ in range(ROUNDS):
        answer = parent.call("in_child", check="use_everything")
        assert answer["status"] == 0
        outcomes = answer["value"]
        assert len(outcomes) > 40, "the handles have more to use than that"
        assert {name: found for name, found in outcomes.items() if found != "ForkedError"} == {}
        assert_goes_on(parent)
    assert [row["lease_id"] for row in fleet.leases()] == [row["lease_id"] for row in leases]


@pytest.mark.parametrize("way", ["sys.exit", "inside the blocks", "after deleting all"])
def test_a_child_that_ends_normally_detaches_nobody_and_stops_no_driver(
    fleet: Deployment, parent: RemoteProcess, way: str
) -> None:
    leases, epochs = fleet.leases(), fleet.epochs()
    assert len(leases) == 2
    assert parent.call("exit_child", way=way) == {"status": 3, "said": ""}
    assert_goes_on(parent)
    assert fleet.epochs() == epochs
    assert [row["lease_id"] for row in fleet.leases()] == [row["lease_id"] for row in leases]


@pytest.mark.requirement("driver-4.8-1", "driver-4.8-3")
def test_children_of_one_parent_have_names_and_leases_of_their_own(fleet: Deployment) -> None:
    """All begin with the same memory, and so with the same random numbers if those came from there."""
    fleet.configure(FOREVER)
    fleet.driver()
    fleet.service()
    parent = forker(fleet)
    known = fleet.lease_ids()
    assert len(known) == 2
    for _ in range(ROUNDS):
        answer = parent.call("in_child", check="lease_anew")
        assert answer["status"] == 0
        lease = answer["value"]
        assert lease not in known, "a lease that somebody has already"
        known.add(lease)
    # The children ended without a word: nobody has taken their leases for another's.
    assert fleet.lease_ids() == known
    assert len({row["client_id"] for row in fleet.leases()}) == len(known)
    assert_goes_on(parent)


@pytest.mark.requirement("driver-7-1", "driver-7-2")
def test_a_killed_producer_is_noticed_at_once_though_its_child_lives_on(fleet: Deployment) -> None:
    fleet.configure(FOREVER)
    fleet.driver()
    fleet.service()
    consumer = fleet.consumer()
    epoch = 0
    for _ in range(ROUNDS):
        parent = forker(fleet)
        child = parent.call("keep_child")
        (row,) = [row for row in fleet.leases() if row["role"] == "producer"]
        parent.kill()
        try:
            fleet.until(lambda: fleet.stream()["producer"] is None)
            assert row["lease_id"] not in [one["lease_id"] for one in fleet.leases()]
            producer = fleet.streaming()
            epoch = fleet.flow(consumer, after=epoch)
        finally:
            # Ours since its parent died: orphans are adopted by the test run.
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        producer.call("close")
    assert fleet.ask("status")["counters"]["deaths"] == ROUNDS


@pytest.mark.requirement("driver-2.1-1")
def test_a_killed_embedders_namespace_is_free_though_its_child_lives_on(fleet: Deployment) -> None:
    fleet.driver()
    for _ in range(ROUNDS):
        parent = forker(fleet, mode="embedded")
        child = parent.call("keep_child")
        parent.kill()
        try:
            next_one = fleet.worker(mode="embedded")
            assert next_one.call("produce", stream_id=fleet.stream_id) > 0
            # And what the dead one left is swept when it is old enough.
            fleet.until(lambda: len(fleet.epochs()) == 1)
            next_one.call("close")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
