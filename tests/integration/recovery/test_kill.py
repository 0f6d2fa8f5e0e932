"""kill -9 of any process under load: the others continue, and a restarted process joins them."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest

from .deployment import ROUNDS, Deployment, Periods
from .malformed_sender import MalformedSender


def wait_randomly() -> None:
    """Waits for a random time. The test run prints the seed."""
    time.sleep(random.uniform(0, 0.1))


@pytest.mark.requirement("driver-7-1", "driver-7-2", "driver-4.9-7", "driver-6-1", "driver-6-2")
def test_killed_producer_is_replaced_by_the_next(deployment: Deployment) -> None:
    deployment.driver()
    deployment.service()
    consumer, spare = deployment.consumer(), deployment.process()
    epoch = 0
    for _ in range(ROUNDS):
        producer, spare = deployment.streaming_producer(spare), deployment.process()
        epoch = deployment.wait_epoch(consumer, after=epoch)
        wait_randomly()
        producer.kill()
    producer = deployment.streaming_producer(spare)
    deployment.wait_epoch(consumer, after=epoch)
    deployment.assert_balanced(producer, [consumer])


@pytest.mark.requirement("driver-4.1-1", "driver-4.4-4", "driver-4.9-4")
def test_killed_consumer_loses_its_lease_and_affects_no_other(deployment: Deployment) -> None:
    deployment.configure(Periods(grace=10, announce=0.5))
    deployment.driver()
    deployment.service()
    surviving, spare, killed = deployment.consumer(), deployment.process(), deployment.consumer()
    producer = deployment.streaming_producer()
    epoch = deployment.wait_epoch(surviving, killed)
    for _ in range(ROUNDS):
        wait_randomly()
        killed.kill()
        killed, spare = deployment.consumer(spare), deployment.process()
        deployment.wait_epoch(surviving, killed)
        deployment.wait_agreed(producer, [surviving, killed])
    assert deployment.wait_epoch(surviving, killed) == epoch, (
        "the end of a consumer must not change the epoch"
    )
    deployment.assert_balanced(producer, [surviving, killed])


@pytest.mark.requirement("driver-4.8-2", "driver-4.12-4", "driver-10-1", "driver-10-2")
def test_clients_reattach_to_a_restarted_driver(deployment: Deployment) -> None:
    deployment.driver()
    service = deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    for turn in range(ROUNDS):
        epoch = deployment.wait_epoch(consumer)
        leases = {*producer.call("leases"), *consumer.call("leases")}
        wait_randomly()
        service.kill()
        if turn % 2:
            # Without a new driver both unmap the regions by themselves.
            deployment.until(lambda: producer.call("offering")["last"] == "detached")
            deployment.until(lambda: consumer.call("mapped") is None)
        service = deployment.service()
        assert deployment.wait_epoch(consumer, after=epoch) > epoch
        deployment.wait_agreed(producer, [consumer])
        assert leases.isdisjoint([*producer.call("leases"), *consumer.call("leases")])
    deployment.assert_balanced(producer, [consumer])
    assert producer.call("producer_ledger")["dropped"]["detached"] > 0


@pytest.mark.requirement("driver-4.8-2", "driver-5-1")
def test_requests_to_a_killed_driver_are_not_granted_by_the_next(deployment: Deployment) -> None:
    """Aeron delivers messages that the killed driver has not read to the next driver. A lease for a client
    that no longer exists would block the real producer, here for the whole test."""
    deployment.configure(Periods(keepalive=0.1, grace=1000))
    deployment.driver()
    service = deployment.service()
    consumer, absent_client = deployment.consumer(), deployment.start(MalformedSender, deployment.options)
    for turn in range(ROUNDS):
        deployment.until(lambda: absent_client.call("is_connected"))
        service.kill()
        absent_client.call("send", kind="producer", seed=turn, count=3, stream_id=deployment.stream_id)
        service = deployment.service()
        producer = deployment.streaming_producer()
        deployment.wait_epoch(consumer)
        deployment.wait_agreed(producer, [consumer])
        producer.kill()
    producer = deployment.streaming_producer()
    deployment.wait_epoch(consumer)
    # The epoch of the last killed producer stays for the grace, here longer than the test; that of a killed
    # driver does not.
    deployment.until(lambda: len(deployment.epochs()) == 2)
    deployment.assert_balanced(producer, [consumer], files=False)


@pytest.mark.requirement("driver-4.4-7", "driver-10-1")
def test_driver_and_clients_reconnect_to_a_restarted_media_driver(deployment: Deployment) -> None:
    media_driver, spare = deployment.driver(), deployment.process()
    service = deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    for _ in range(ROUNDS):
        epoch = deployment.wait_epoch(consumer)
        wait_randomly()
        media_driver.kill()
        media_driver, spare = spare, deployment.process()
        media_driver.call("launch", aeron_dir=str(deployment.aeron_dir))
        assert deployment.wait_epoch(consumer, after=epoch) > epoch
        deployment.wait_agreed(producer, [consumer])
    deployment.assert_balanced(producer, [consumer])
    # End the driver before its media driver: it would wait to publish its shutdown.
    service.end()


@pytest.mark.requirement("driver-2.1-1", "driver-10-1", "driver-10-2")
def test_another_process_embeds_after_the_embedder_is_killed(deployment: Deployment) -> None:
    """Without a driver service, the first program embeds both drivers, and the others are ready to."""
    auto: dict[str, Any] = {"mode": "auto", "media_driver": "auto"}
    producer = deployment.producer(**auto)
    producer.call("offer_always", per_second=500)
    consumers, spare = [deployment.consumer(**auto), deployment.consumer(**auto)], deployment.process()
    for _ in range(ROUNDS):
        epoch = deployment.wait_epoch(*consumers)
        clients = [producer, *consumers]
        (embedder,) = [client for client in clients if client.call("embeds_driver")]
        wait_randomly()
        # The process is not reaped yet, so its id still exists, as that of a zombie.
        os.kill(embedder.pid, signal.SIGKILL)
        if embedder is producer:
            producer = deployment.producer(spare, **auto)
            producer.call("offer_always", per_second=500)
        else:
            consumers = [consumer for consumer in consumers if consumer is not embedder]
            consumers.append(deployment.consumer(spare, **auto))
        spare = deployment.process()
        assert deployment.wait_epoch(*consumers, after=epoch) > epoch
        deployment.wait_agreed(producer, consumers)
        embedder.kill()
    deployment.assert_balanced(producer, consumers)
