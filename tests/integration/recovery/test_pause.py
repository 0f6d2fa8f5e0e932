"""SIGSTOP and SIGCONT: a pause shorter than the grace keeps the lease, a longer pause ends it."""

from __future__ import annotations

import time

import pytest

from .deployment import ROUNDS, Deployment, Periods


@pytest.mark.requirement("driver-4.4-1", "driver-4.4-3")
def test_client_paused_within_the_grace_keeps_its_lease(deployment: Deployment) -> None:
    periods = Periods(keepalive=0.1, grace=200)
    deployment.configure(periods)
    deployment.driver()
    deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    epoch = deployment.wait_epoch(consumer)
    leases = sorted(producer.call("leases") + consumer.call("leases"))
    for client in (producer, consumer) * ROUNDS:
        (lease_id,) = client.call("leases")

        def left_s(lease_id: int = lease_id) -> float:
            rows = {int(row["lease_id"]): row["expires_in_s"] for row in deployment.leases()}
            return float(rows[lease_id])

        client.stop()
        deployment.until(lambda: left_s() < periods.lease - 3 * periods.keepalive)
        client.resume()
        deployment.until(lambda: left_s() > periods.lease - 1.5 * periods.keepalive)
        deployment.wait_received(consumer)
    assert deployment.wait_settled(producer, [consumer]) == epoch
    assert sorted(producer.call("leases") + consumer.call("leases")) == leases
    deployment.assert_balanced(producer, [consumer])
    for client in (producer, consumer):
        assert [kind for kind, _ in client.call("event_history")].count("attached") == 1


@pytest.mark.requirement("driver-4.4-4", "driver-4.7-1", "driver-4.7-2", "driver-4.9-6")
def test_consumer_paused_beyond_the_grace_reattaches(deployment: Deployment) -> None:
    deployment.configure(Periods(grace=10, announce=0.3))
    deployment.driver()
    deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    for _ in range(ROUNDS):
        deployment.wait_epoch(consumer)
        (lease_id,) = consumer.call("leases")
        consumer.stop()
        deployment.wait_lease_gone(lease_id)
        consumer.resume()
        deployment.wait_agreed(producer, [consumer])
        assert consumer.call("leases") != [lease_id]
        deployment.wait_received(consumer)
    deployment.assert_balanced(producer, [consumer])


@pytest.mark.requirement(
    "driver-4.4-4", "driver-4.7-1", "driver-4.7-2", "driver-4.9-6", "driver-4.9-7", "driver-5-1"
)
def test_producer_paused_beyond_the_grace_waits_for_its_successor(
    deployment: Deployment,
) -> None:
    """Another producer attaches during the pause. Frames that the first still writes reach no consumer. When
    the second has ended, the first reattaches."""
    deployment.configure(Periods(grace=10, announce=0.3))
    deployment.driver()
    deployment.service()
    consumer, paused, other = deployment.consumer(), deployment.streaming_producer(), deployment.worker()
    for _ in range(ROUNDS):
        first = deployment.wait_epoch(consumer)
        (lease_id,) = paused.call("leases")
        paused.stop()
        deployment.wait_lease_gone(lease_id)
        other.call("produce", stream_id=deployment.stream_id)
        other.call("offer_always", per_second=500)
        second = deployment.wait_epoch(consumer, after=first)
        paused.resume()
        deployment.until(lambda: paused.call("offering")["last"] == "detached")
        deployment.until(lambda: paused.call("lease")["code"] == "REJECTED")
        assert paused.call("leases") == []
        assert deployment.wait_epoch(consumer) == second
        assert other.call("stop_offering")["last"] == "published"
        assert other.call("producer_ledger")["balanced"]
        other.call("close_producer")
        deployment.wait_epoch(consumer, after=second)
        deployment.wait_agreed(paused, [consumer])
        deployment.assert_untorn([consumer])
    deployment.assert_balanced(paused, [consumer])


@pytest.mark.requirement("driver-4.4-1", "driver-4.4-3")
def test_stalled_driver_reads_keepalives_before_it_expires_leases(deployment: Deployment) -> None:
    # Clients give up a driver after three missed announces; this stall is much shorter.
    periods = Periods(grace=10, announce=5.0)
    deployment.configure(periods)
    deployment.driver()
    service = deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    epoch = deployment.wait_epoch(consumer)
    leases = sorted(producer.call("leases") + consumer.call("leases"))
    for _ in range(ROUNDS):
        service.stop()
        # The duration of the stall is the fault under test.
        time.sleep(1.6 * periods.lease)
        service.resume()
        assert sorted(deployment.lease_ids()) == leases
        deployment.until(lambda: all(row["expires_in_s"] > 0 for row in deployment.leases()))
    assert deployment.wait_settled(producer, [consumer]) == epoch
    assert deployment.call_driver("status")["counters"]["expired"] == 0
    deployment.assert_balanced(producer, [consumer])


@pytest.mark.requirement("driver-4.12-4", "driver-10-1")
def test_clients_leave_a_long_stalled_driver_and_reattach(deployment: Deployment) -> None:
    deployment.driver()
    service = deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    for _ in range(ROUNDS):
        epoch = deployment.wait_epoch(consumer)
        service.stop()
        deployment.until(lambda: producer.call("offering")["last"] == "detached")
        deployment.until(lambda: consumer.call("mapped") is None)
        service.resume()
        deployment.wait_epoch(consumer, after=epoch)
        deployment.wait_agreed(producer, [consumer])
    deployment.assert_balanced(producer, [consumer])
