"""Many clients of one stream: racing producers, a hundred consumers, a consumer that never polls."""

from __future__ import annotations

import pytest

from tests.remote_process import RemoteError, RemoteProcess

from .consumer_group import ConsumerGroup
from .deployment import ROUNDS, STEADY, Deployment, Periods

# Descriptors that the stream holds before a consumer that does not poll is rested.
DESCRIPTORS_UNTIL_REST = 66_000


@pytest.mark.requirement("driver-5-1", "driver-4.6-1", "driver-4.2-4")
def test_one_of_two_racing_producers_attaches_and_the_other_is_rejected(deployment: Deployment) -> None:
    deployment.configure(STEADY)
    deployment.driver()
    deployment.service()
    consumer, pair = deployment.consumer(), [deployment.worker(), deployment.worker()]
    epoch = 0
    for _ in range(ROUNDS):
        for remote in pair:
            remote.send("produce", stream_id=deployment.stream_id)
        outcomes: dict[str, RemoteProcess] = {}
        refusals = []
        for remote in pair:
            try:
                remote.receive()
                outcomes["winner"] = remote
            except RemoteError as error:
                refusals.append(error)
                outcomes["loser"] = remote
        (refusal,) = refusals
        winner, loser = outcomes["winner"], outcomes["loser"]
        assert refusal.kind == "AttachError"
        assert f"stream {deployment.stream_id}: REJECTED: " in refusal.text
        assert "has a producer already: client" in refusal.text
        assert refusal.text.endswith("`tensorpool driver leases` shows who holds what")
        assert loser.call("leases") == []
        winner.call("offer_always", per_second=500)
        epoch = deployment.wait_epoch(consumer, after=epoch)
        assert deployment.wait_agreed(winner, [consumer]) == epoch
        winner.call("stop_offering")
        assert winner.call("producer_ledger")["balanced"]
        winner.call("close_producer")
    producer = pair[0]
    producer.call("produce", stream_id=deployment.stream_id)
    producer.call("offer_always", per_second=500)
    deployment.wait_epoch(consumer, after=epoch)
    deployment.assert_balanced(producer, [consumer])


def consumer_group(deployment: Deployment, count: int) -> RemoteProcess:
    """A process with this number of consumers."""
    return deployment.start(ConsumerGroup, deployment.options, deployment.stream_id, count)


@pytest.mark.parametrize(("processes", "each"), [(1, 100), (4, 25)])
@pytest.mark.requirement("driver-4.1-1", "driver-4.8-1", "driver-4.8-3")
def test_hundred_consumers_of_one_stream_start_and_are_killed(
    deployment: Deployment, processes: int, each: int
) -> None:
    # A hundred attaches at once take long on a busy machine.
    deployment.configure(Periods(keepalive=0.1, grace=20, announce=0.5))
    deployment.driver()
    deployment.service()
    producer = deployment.worker()
    producer.call("produce", stream_id=deployment.stream_id, nslots=64)
    producer.call("offer_always", per_second=50)
    groups = [consumer_group(deployment, each) for _ in range(processes)]
    for _ in range(ROUNDS):

        def is_complete() -> bool:
            own = sorted(lease for group in groups for lease in group.call("leases"))
            own += producer.call("leases")
            known = sorted(int(row["lease_id"]) for row in deployment.leases())
            return len(own) == 1 + processes * each and sorted(own) == known

        deployment.until(is_complete)
        before = [(group, group.call("fewest")) for group in groups]
        deployment.until(lambda old: all(group.call("fewest") > count + 5 for group, count in old), before)
        groups.pop(0).kill()
        groups.append(consumer_group(deployment, each))
    deployment.until(is_complete)
    (epoch,) = {epoch for group in groups for epoch in group.call("epochs")}
    assert deployment.epochs() == {epoch} == {producer.call("producer_epoch")}
    assert producer.call("stop_offering")["last"] == "published"
    assert producer.call("producer_ledger")["balanced"]
    for group in groups:
        assert group.call("stop") == {"wrong": 0, "balanced": True, "received": True}


@pytest.mark.requirement("driver-4.4-1", "driver-4.4-2")
def test_consumer_that_never_polls_keeps_its_lease_and_blocks_no_other(deployment: Deployment) -> None:
    deployment.configure(STEADY)
    deployment.driver()
    deployment.service()
    active, idle = deployment.consumer(), deployment.worker()
    idle.call("consume", stream_id=deployment.stream_id)
    producer = deployment.producer()
    deployment.until(lambda: producer.call("offer") == "published" and idle.call("poll_all"))
    (lease_id,) = idle.call("leases")
    producer.call("offer_always")

    def published() -> int:
        return int(producer.call("offering")["outcomes"].get("published", 0))

    for _ in range(ROUNDS):
        deployment.until(lambda goal: published() > goal, published() + DESCRIPTORS_UNTIL_REST)
        deployment.wait_epoch(active)
        deployment.wait_agreed(producer, [active, idle])
    assert idle.call("leases") == [lease_id]
    idle.call("receive_always")
    deployment.wait_epoch(idle)
    producer.call("stop_offering")

    def has_caught_up() -> bool:
        sent = producer.call("offer") == "published"
        last = producer.call("producer_ledger")["next_seq"] - 1
        return sent and bool(idle.call("consumer_ledger")["last_seq"] == last)

    deployment.until(has_caught_up)
    idle.call("stop_receiving")
    ledger = idle.call("consumer_ledger")
    assert ledger["balanced"], ledger
    assert ledger["dropped"]["rested"] > 0
    assert producer.call("producer_ledger")["balanced"]
    assert active.call("stop_receiving")["wrong"] == 0
