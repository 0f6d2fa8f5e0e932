"""kill -9 at any moment under load: whoever is left goes on, and whoever comes back finds its place."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest

from .deployment import ROUNDS, Deployment, Periods
from .malformed_sender import MalformedSender


def any_moment() -> None:
    """A fault has no right moment. The seed is the test run's, which it prints."""
    time.sleep(random.uniform(0, 0.1))


@pytest.mark.requirement("driver-7-1", "driver-7-2", "driver-4.9-7", "driver-6-1", "driver-6-2")
def test_a_killed_producer_is_replaced_by_the_next(fleet: Deployment) -> None:
    fleet.driver()
    fleet.service()
    consumer, spare = fleet.consumer(), fleet.process()
    epoch = 0
    for _ in range(ROUNDS):
        producer, spare = fleet.streaming(spare), fleet.process()
        epoch = fleet.flow(consumer, after=epoch)
        any_moment()
        producer.kill()
    producer = fleet.streaming(spare)
    fleet.flow(consumer, after=epoch)
    fleet.accounts(producer, [consumer])


@pytest.mark.requirement("driver-4.1-1", "driver-4.4-4", "driver-4.9-4")
def test_a_killed_consumer_loses_its_lease_and_disturbs_nobody(fleet: Deployment) -> None:
    fleet.configure(Periods(grace=10, announce=0.5))
    fleet.driver()
    fleet.service()
    stays, spare, leaves = fleet.consumer(), fleet.process(), fleet.consumer()
    producer = fleet.streaming()
    epoch = fleet.flow(stays, leaves)
    for _ in range(ROUNDS):
        any_moment()
        leaves.kill()
        leaves, spare = fleet.consumer(spare), fleet.process()
        fleet.flow(stays, leaves)
        fleet.agreed(producer, [stays, leaves])
    assert fleet.flow(stays, leaves) == epoch, "a consumer's end is no reason for a new epoch"
    fleet.accounts(producer, [stays, leaves])


@pytest.mark.requirement("driver-4.8-2", "driver-4.12-4", "driver-10-1", "driver-10-2")
def test_a_killed_driver_is_attached_to_again_when_it_is_back(fleet: Deployment) -> None:
    fleet.driver()
    service = fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    for turn in range(ROUNDS):
        epoch = fleet.flow(consumer)
        leases = {*producer.call("leases"), *consumer.call("leases")}
        any_moment()
        service.kill()
        if turn % 2:
            # Nobody comes: both let go of the memory by themselves.
            fleet.until(lambda: producer.call("offering")["last"] == "detached")
            fleet.until(lambda: consumer.call("mapped") is None)
        service = fleet.service()
        assert fleet.flow(consumer, after=epoch) > epoch
        fleet.agreed(producer, [consumer])
        assert leases.isdisjoint([*producer.call("leases"), *consumer.call("leases")])
    fleet.accounts(producer, [consumer])
    assert producer.call("producer_ledger")["dropped"]["detached"] > 0


@pytest.mark.requirement("driver-4.8-2", "driver-5-1")
def test_what_was_asked_of_a_driver_that_is_dead_is_not_granted_by_the_next(fleet: Deployment) -> None:
    """Aeron keeps what the dead one has not read, and hands it to the next. A lease for somebody who is gone
    would keep the producer out that is there, here for ever."""
    fleet.configure(Periods(keepalive=0.1, grace=1000))
    fleet.driver()
    service = fleet.service()
    consumer, ghost = fleet.consumer(), fleet.start(MalformedSender, fleet.options)
    for turn in range(ROUNDS):
        fleet.until(lambda: ghost.call("is_heard"))
        service.kill()
        ghost.call("send", kind="producer", seed=turn, count=3, stream_id=fleet.stream_id)
        service = fleet.service()
        producer = fleet.streaming()
        fleet.flow(consumer)
        fleet.agreed(producer, [consumer])
        producer.kill()
    producer = fleet.streaming()
    fleet.flow(consumer)
    # The last killed one's memory stays for the grace, which is for ever here; a killed driver's does not.
    fleet.until(lambda: len(fleet.epochs()) == 2)
    fleet.accounts(producer, [consumer], files=False)


@pytest.mark.requirement("driver-4.4-7", "driver-10-1")
def test_a_killed_media_driver_is_found_again_by_the_driver_and_all_clients(fleet: Deployment) -> None:
    media_driver, spare = fleet.driver(), fleet.process()
    service = fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    for _ in range(ROUNDS):
        epoch = fleet.flow(consumer)
        any_moment()
        media_driver.kill()
        media_driver, spare = spare, fleet.process()
        media_driver.call("launch", aeron_dir=str(fleet.aeron_dir))
        assert fleet.flow(consumer, after=epoch) > epoch
        fleet.agreed(producer, [consumer])
    fleet.accounts(producer, [consumer])
    # Before its media driver, or it would try for a while to say goodbye.
    service.end()


@pytest.mark.requirement("driver-2.1-1", "driver-10-1", "driver-10-2")
def test_when_the_embedding_process_is_killed_another_embeds_and_all_go_on(fleet: Deployment) -> None:
    """Nobody runs a service here: the first program has both drivers inside, and the others stand by."""
    both: dict[str, Any] = {"mode": "auto", "media_driver": "auto"}
    producer = fleet.producer(**both)
    producer.call("offer_always", per_second=500)
    consumers, spare = [fleet.consumer(**both), fleet.consumer(**both)], fleet.process()
    for _ in range(ROUNDS):
        epoch = fleet.flow(*consumers)
        members = [producer, *consumers]
        (embedder,) = [one for one in members if one.call("embeds_driver")]
        any_moment()
        # Nobody has noticed its end yet: there is still a process of that number, a dead one.
        os.kill(embedder.pid, signal.SIGKILL)
        if embedder is producer:
            producer = fleet.producer(spare, **both)
            producer.call("offer_always", per_second=500)
        else:
            consumers = [one for one in consumers if one is not embedder]
            consumers.append(fleet.consumer(spare, **both))
        spare = fleet.process()
        assert fleet.flow(*consumers, after=epoch) > epoch
        fleet.agreed(producer, consumers)
        embedder.kill()
    fleet.accounts(producer, consumers)
