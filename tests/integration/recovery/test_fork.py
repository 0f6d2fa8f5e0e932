"""fork in a client of a driver: the child has no lease, no lock and no mapping of its parent."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.integration.faults.forking_process import ForkingProcess
from tests.remote_process import RemoteProcess

from .deployment import ROUNDS, Deployment, Periods

# A lease that lasts longer than every timeout of the test.
FOREVER = Periods(keepalive=0.1, grace=1000)


def forking_process(deployment: Deployment, **options: Any) -> RemoteProcess:
    """A process with every kind of handle and an open claim."""
    open_options = {**deployment.options, **options}
    # Forking with threads, which Python warns about, is the subject of this test.
    remote = deployment.start(
        ForkingProcess, open_options, deployment.stream_id, env={"PYTHONWARNINGS": "ignore"}
    )
    remote.call("pid")
    return remote


def assert_works(parent: RemoteProcess) -> None:
    """Checks that the parent still sends and receives."""
    assert parent.call("send_frames") == {"wrong": 0, "balanced": [True, True]}


@pytest.fixture(params=["driver", "embedded"])
def parent(deployment: Deployment, request: pytest.FixtureRequest) -> RemoteProcess:
    """A forking process on a driver in another process, or with an embedded driver."""
    deployment.driver()
    if request.param == "driver":
        deployment.service()
    return forking_process(deployment, mode=request.param)


def test_handles_raise_in_the_child_and_the_parent_keeps_its_leases(
    deployment: Deployment, parent: RemoteProcess
) -> None:
    leases = deployment.leases()
    for _ in range(ROUNDS):
        reply = parent.call("in_child", check="use_handles")
        assert reply["status"] == 0
        outcomes = reply["value"]
        assert len(outcomes) > 40, "the handles have more public names"
        assert {name: outcome for name, outcome in outcomes.items() if outcome != "ForkedError"} == {}
        assert_works(parent)
    assert [row["lease_id"] for row in deployment.leases()] == [row["lease_id"] for row in leases]


@pytest.mark.parametrize("way", ["sys.exit", "inside the blocks", "after deleting all"])
def test_child_that_exits_detaches_no_lease_and_stops_no_driver(
    deployment: Deployment, parent: RemoteProcess, way: str
) -> None:
    leases, epochs = deployment.leases(), deployment.epochs()
    assert len(leases) == 2
    assert parent.call("exit_child", way=way) == {"status": 3, "stderr": ""}
    assert_works(parent)
    assert deployment.epochs() == epochs
    assert [row["lease_id"] for row in deployment.leases()] == [row["lease_id"] for row in leases]


@pytest.mark.requirement("driver-4.8-1", "driver-4.8-3")
def test_children_have_their_own_client_ids_and_leases(deployment: Deployment) -> None:
    """All children start with the same memory, and with the same state of a random generator in it."""
    deployment.configure(FOREVER)
    deployment.driver()
    deployment.service()
    parent = forking_process(deployment)
    known = deployment.lease_ids()
    assert len(known) == 2
    for _ in range(ROUNDS):
        reply = parent.call("in_child", check="attach")
        assert reply["status"] == 0
        lease = reply["value"]
        assert lease not in known, "the lease belongs to another client"
        known.add(lease)
    # The children ended without a detach, so their leases still exist.
    assert deployment.lease_ids() == known
    assert len({row["client_id"] for row in deployment.leases()}) == len(known)
    assert_works(parent)


@pytest.mark.requirement("driver-7-1", "driver-7-2")
def test_killed_producer_is_detected_although_its_child_lives(deployment: Deployment) -> None:
    deployment.configure(FOREVER)
    deployment.driver()
    deployment.service()
    consumer = deployment.consumer()
    epoch = 0
    for _ in range(ROUNDS):
        parent = forking_process(deployment)
        child = parent.call("keep_child")
        (row,) = [row for row in deployment.leases() if row["role"] == "producer"]
        parent.kill()
        try:
            deployment.until(lambda: deployment.stream()["producer"] is None)
            assert row["lease_id"] not in [lease["lease_id"] for lease in deployment.leases()]
            producer = deployment.streaming_producer()
            epoch = deployment.wait_epoch(consumer, after=epoch)
        finally:
            # The test run adopts orphans, so the child is now its own.
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        producer.call("close")
    assert deployment.call_driver("status")["counters"]["dead_producers"] == ROUNDS


@pytest.mark.requirement("driver-2.1-1")
def test_namespace_of_a_killed_embedder_is_free_although_its_child_lives(deployment: Deployment) -> None:
    deployment.driver()
    for _ in range(ROUNDS):
        parent = forking_process(deployment, mode="embedded")
        child = parent.call("keep_child")
        parent.kill()
        try:
            successor = deployment.worker(mode="embedded")
            assert successor.call("produce", stream_id=deployment.stream_id) > 0
            # The files of the killed process are removed when they are stale.
            deployment.until(lambda: len(deployment.epochs()) == 1)
            successor.call("close")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
