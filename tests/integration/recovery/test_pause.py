"""SIGSTOP and SIGCONT: a pause shorter than the grace costs nothing, a longer one costs the lease."""

from __future__ import annotations

import time

import pytest

from .deployment import ROUNDS, Deployment, Periods


@pytest.mark.requirement("driver-4.4-1", "driver-4.4-3")
def test_a_client_paused_for_less_than_the_grace_keeps_its_lease(fleet: Deployment) -> None:
    times = Periods(keepalive=0.1, grace=200)
    fleet.configure(times)
    fleet.driver()
    fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    epoch = fleet.flow(consumer)
    leases = sorted(producer.call("leases") + consumer.call("leases"))
    for member in (producer, consumer) * ROUNDS:
        (lease_id,) = member.call("leases")

        def left_s(lease_id: int = lease_id) -> float:
            rows = {int(row["lease_id"]): row["expires_in_s"] for row in fleet.leases()}
            return float(rows[lease_id])

        member.stop()
        fleet.until(lambda: left_s() < times.lease - 3 * times.keepalive)
        member.resume()
        fleet.until(lambda: left_s() > times.lease - 1.5 * times.keepalive)
        fleet.receives(consumer)
    assert fleet.settled(producer, [consumer]) == epoch
    assert sorted(producer.call("leases") + consumer.call("leases")) == leases
    fleet.accounts(producer, [consumer])
    for member in (producer, consumer):
        assert [kind for kind, _ in member.call("story")].count("attached") == 1


@pytest.mark.requirement("driver-4.4-4", "driver-4.7-1", "driver-4.7-2", "driver-4.9-6")
def test_a_consumer_paused_for_longer_than_the_grace_attaches_again(fleet: Deployment) -> None:
    fleet.configure(Periods(grace=10, announce=0.3))
    fleet.driver()
    fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    for _ in range(ROUNDS):
        fleet.flow(consumer)
        (lease_id,) = consumer.call("leases")
        consumer.stop()
        fleet.gone(lease_id)
        consumer.resume()
        fleet.agreed(producer, [consumer])
        assert consumer.call("leases") != [lease_id]
        fleet.receives(consumer)
    fleet.accounts(producer, [consumer])


@pytest.mark.requirement(
    "driver-4.4-4", "driver-4.7-1", "driver-4.7-2", "driver-4.9-6", "driver-4.9-7", "driver-5-1"
)
def test_a_producer_paused_for_longer_than_the_grace_wakes_up_harmless_and_waits_for_its_turn(
    fleet: Deployment,
) -> None:
    """Another one takes its place meanwhile. What the first writes on, before it has looked around, reaches
    nobody; when the second is gone it is the producer again, by itself."""
    fleet.configure(Periods(grace=10, announce=0.3))
    fleet.driver()
    fleet.service()
    consumer, sleeper, other = fleet.consumer(), fleet.streaming(), fleet.worker()
    for _ in range(ROUNDS):
        first = fleet.flow(consumer)
        (lease_id,) = sleeper.call("leases")
        sleeper.stop()
        fleet.gone(lease_id)
        other.call("produce", stream_id=fleet.stream_id)
        other.call("offer_always", per_second=500)
        second = fleet.flow(consumer, after=first)
        sleeper.resume()
        fleet.until(lambda: sleeper.call("offering")["last"] == "detached")
        fleet.until(lambda: sleeper.call("lease")["code"] == "REJECTED")
        assert sleeper.call("leases") == []
        assert fleet.flow(consumer) == second
        assert other.call("stop_offering")["last"] == "published"
        assert other.call("producer_ledger")["balanced"]
        other.call("close_producer")
        fleet.flow(consumer, after=second)
        fleet.agreed(sleeper, [consumer])
        fleet.untorn([consumer])
    fleet.accounts(sleeper, [consumer])


@pytest.mark.requirement("driver-4.4-1", "driver-4.4-3")
def test_a_stalled_driver_reads_what_has_arrived_before_it_judges(fleet: Deployment) -> None:
    # Clients miss three announces before they give a driver up: here it is back long before that.
    times = Periods(grace=10, announce=5.0)
    fleet.configure(times)
    fleet.driver()
    service = fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    epoch = fleet.flow(consumer)
    leases = sorted(producer.call("leases") + consumer.call("leases"))
    for _ in range(ROUNDS):
        service.stop()
        # The length of the stall is the fault itself.
        time.sleep(1.6 * times.lease)
        service.resume()
        assert sorted(fleet.lease_ids()) == leases
        fleet.until(lambda: all(row["expires_in_s"] > 0 for row in fleet.leases()))
    assert fleet.settled(producer, [consumer]) == epoch
    assert fleet.ask("status")["counters"]["expired"] == 0
    fleet.accounts(producer, [consumer])


@pytest.mark.requirement("driver-4.12-4", "driver-10-1")
def test_a_driver_stalled_for_long_is_given_up_and_found_again(fleet: Deployment) -> None:
    fleet.driver()
    service = fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    for _ in range(ROUNDS):
        epoch = fleet.flow(consumer)
        service.stop()
        fleet.until(lambda: producer.call("offering")["last"] == "detached")
        fleet.until(lambda: consumer.call("mapped") is None)
        service.resume()
        fleet.flow(consumer, after=epoch)
        fleet.agreed(producer, [consumer])
    fleet.accounts(producer, [consumer])
