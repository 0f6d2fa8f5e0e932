"""Many who want the same stream: producers that race for it, a hundred consumers, one that never polls."""

from __future__ import annotations

import pytest

from tests.remote_process import RemoteError, RemoteProcess

from .consumer_group import ConsumerGroup
from .deployment import ROUNDS, STEADY, Deployment, Periods

# What the descriptor stream holds before a reader that does not poll is put to rest.
DESCRIPTORS_UNTIL_REST = 66_000


@pytest.mark.requirement("driver-5-1", "driver-4.6-1", "driver-4.2-4")
def test_of_two_producers_that_race_one_wins_and_the_other_is_told_why(fleet: Deployment) -> None:
    fleet.configure(STEADY)
    fleet.driver()
    fleet.service()
    consumer, pair = fleet.consumer(), [fleet.worker(), fleet.worker()]
    epoch = 0
    for _ in range(ROUNDS):
        for remote in pair:
            remote.send("produce", stream_id=fleet.stream_id)
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
        assert f"stream {fleet.stream_id}: REJECTED: " in refusal.text
        assert "has a producer already: client" in refusal.text
        assert refusal.text.endswith("`tensorpool driver leases` shows who holds what")
        assert loser.call("leases") == []
        winner.call("offer_always", per_second=500)
        epoch = fleet.flow(consumer, after=epoch)
        assert fleet.agreed(winner, [consumer]) == epoch
        winner.call("stop_offering")
        assert winner.call("producer_ledger")["balanced"]
        winner.call("close_producer")
    producer = pair[0]
    producer.call("produce", stream_id=fleet.stream_id)
    producer.call("offer_always", per_second=500)
    fleet.flow(consumer, after=epoch)
    fleet.accounts(producer, [consumer])


def crowd(fleet: Deployment, count: int) -> RemoteProcess:
    return fleet.start(ConsumerGroup, fleet.options, fleet.stream_id, count)


@pytest.mark.parametrize(("processes", "each"), [(1, 100), (4, 25)])
@pytest.mark.requirement("driver-4.1-1", "driver-4.8-1", "driver-4.8-3")
def test_a_hundred_consumers_of_one_stream_come_and_die(fleet: Deployment, processes: int, each: int) -> None:
    # A hundred at once take their time on a busy machine.
    fleet.configure(Periods(keepalive=0.1, grace=20, announce=0.5))
    fleet.driver()
    fleet.service()
    producer = fleet.worker()
    producer.call("produce", stream_id=fleet.stream_id, nslots=64)
    producer.call("offer_always", per_second=50)
    crowds = [crowd(fleet, each) for _ in range(processes)]
    for _ in range(ROUNDS):

        def is_complete() -> bool:
            own = sorted(lease for one in crowds for lease in one.call("leases"))
            own += producer.call("leases")
            known = sorted(int(row["lease_id"]) for row in fleet.leases())
            return len(own) == 1 + processes * each and sorted(own) == known

        fleet.until(is_complete)
        before = [(one, one.call("fewest")) for one in crowds]
        fleet.until(lambda old: all(one.call("fewest") > count + 5 for one, count in old), before)
        crowds.pop(0).kill()
        crowds.append(crowd(fleet, each))
    fleet.until(is_complete)
    (epoch,) = {epoch for one in crowds for epoch in one.call("epochs")}
    assert fleet.epochs() == {epoch} == {producer.call("producer_epoch")}
    assert producer.call("stop_offering")["last"] == "published"
    assert producer.call("producer_ledger")["balanced"]
    for one in crowds:
        assert one.call("stop") == {"wrong": 0, "balanced": True, "received": True}


@pytest.mark.requirement("driver-4.4-1", "driver-4.4-2")
def test_a_consumer_that_never_polls_keeps_its_lease_and_stalls_nobody(fleet: Deployment) -> None:
    fleet.configure(STEADY)
    fleet.driver()
    fleet.service()
    awake, sleeper = fleet.consumer(), fleet.worker()
    sleeper.call("consume", stream_id=fleet.stream_id)
    producer = fleet.producer()
    fleet.until(lambda: producer.call("offer") == "published" and sleeper.call("take_all"))
    (lease_id,) = sleeper.call("leases")
    producer.call("offer_always")

    def published() -> int:
        return int(producer.call("offering")["outcomes"].get("published", 0))

    for _ in range(ROUNDS):
        fleet.until(lambda goal: published() > goal, published() + DESCRIPTORS_UNTIL_REST)
        fleet.flow(awake)
        fleet.agreed(producer, [awake, sleeper])
    assert sleeper.call("leases") == [lease_id]
    sleeper.call("receive_always")
    fleet.flow(sleeper)
    producer.call("stop_offering")

    def has_caught_up() -> bool:
        sent = producer.call("offer") == "published"
        last = producer.call("producer_ledger")["next_seq"] - 1
        return sent and bool(sleeper.call("consumer_ledger")["last_seq"] == last)

    fleet.until(has_caught_up)
    sleeper.call("stop_receiving")
    ledger = sleeper.call("consumer_ledger")
    assert ledger["balanced"], ledger
    assert ledger["dropped"]["rested"] > 0
    assert producer.call("producer_ledger")["balanced"]
    assert awake.call("stop_receiving")["wrong"] == 0
