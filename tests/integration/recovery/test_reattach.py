"""Leases that end while all processes run: clients reattach, and their events show it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.remote_process import RemoteProcess

from .deployment import ROUNDS, STEADY, Deployment

Events = list[tuple[str, int | None]]


class EventReader:
    """Reads the events of a process that are new since the last call."""

    def __init__(self, client: RemoteProcess) -> None:
        self._member = client
        self._read = len(client.call("event_history"))

    def new_events(self) -> Events:
        """Events since the last call."""
        events = [(kind, epoch) for kind, epoch in self._member.call("event_history")]
        unread, self._read = events[self._read :], len(events)
        return unread


def kinds(events: Events) -> list[str]:
    """Kinds of the events."""
    return [kind for kind, _ in events]


def assert_remapped(events: Events, before: int, after: int) -> None:
    """Checks that the old epoch was unmapped first, the new one mapped last, and epochs only grew."""
    maps = [(kind, epoch) for kind, epoch in events if kind in ("mapped", "unmapped")]
    assert maps[0] == ("unmapped", before)
    assert maps[-1] == ("mapped", after)
    assert kinds(maps) == ["unmapped", "mapped"] * (len(maps) // 2)
    epochs = [epoch for kind, epoch in maps if kind == "mapped" and epoch is not None]
    assert epochs == sorted(set(epochs))
    assert epochs[0] > before


@pytest.mark.requirement(
    "driver-4.7-1",
    "driver-4.7-2",
    "driver-4.9-4",
    "driver-4.9-5",
    "driver-4.9-6",
    "driver-4.9-7",
    "driver-6-1",
)
def test_revoked_producer_reattaches_with_a_later_epoch(deployment: Deployment) -> None:
    deployment.configure(STEADY)
    deployment.driver()
    deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    epoch = deployment.wait_epoch(consumer)
    for _ in range(ROUNDS):
        producer_events, consumer_events = EventReader(producer), EventReader(consumer)
        (lease_id,) = producer.call("leases")
        (revoked,) = deployment.call_driver("revoke", lease_id=str(lease_id), reason="a test")
        assert (int(revoked["lease_id"]), revoked["role"]) == (lease_id, "producer")
        later = deployment.wait_epoch(consumer, after=epoch)
        cause, effect = producer_events.new_events()
        # A delayed client may receive the announce of the later epoch before the revocation.
        assert cause in (("revoked", None), ("driver_lost", None))
        assert effect == ("attached", later)
        assert_remapped(consumer_events.new_events(), epoch, later)
        epoch = deployment.wait_agreed(producer, [consumer])
        assert epoch == later
    deployment.assert_balanced(producer, [consumer])
    details = {event["detail"] for event in producer.call("events") if event["kind"] == "revoked"}
    assert details == {"revoked: revoked by the administrator: a test"}
    assert deployment.call_driver("status")["counters"]["revoked"] == ROUNDS


@pytest.mark.requirement("driver-4.7-1", "driver-4.9-4", "driver-4.9-5", "driver-4.9-6")
def test_revoked_consumer_reattaches_to_the_same_epoch(deployment: Deployment) -> None:
    deployment.configure(STEADY)
    deployment.driver()
    deployment.service()
    consumer, other, producer = deployment.consumer(), deployment.consumer(), deployment.streaming_producer()
    epoch = deployment.wait_epoch(consumer, other)
    for _ in range(ROUNDS):
        revoked, *others = [EventReader(client) for client in (consumer, other, producer)]
        (lease_id,) = consumer.call("leases")
        deployment.call_driver("revoke", lease_id=str(lease_id))
        deployment.wait_lease_gone(lease_id)
        deployment.wait_agreed(producer, [consumer, other])
        deployment.wait_received(consumer)
        assert revoked.new_events() == [
            ("revoked", None),
            ("unmapped", epoch),
            ("attached", epoch),
            ("mapped", epoch),
        ]
        assert [events.new_events() for events in others] == [[], []]
    assert deployment.wait_settled(producer, [consumer, other]) == epoch
    deployment.assert_balanced(producer, [consumer, other])


@pytest.mark.requirement("driver-4.9-6", "driver-6-1", "driver-6-2")
def test_stream_recovers_from_repeated_revocations(deployment: Deployment) -> None:
    """Producer and consumer are revoked at once, many times: a response may be outdated when a client uses
    it. A consumer may get files that the driver renames for a producer at once; this must not be an error."""
    deployment.driver()
    deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    epoch = deployment.wait_epoch(consumer)
    for _ in range(10 * ROUNDS):
        assert len(deployment.call_driver("revoke", stream_id=deployment.stream_id)) <= 2
        epoch = deployment.wait_epoch(consumer, after=epoch)
    deployment.assert_balanced(producer, [consumer])


@pytest.mark.requirement("driver-6-1", "driver-6-2", "driver-4.9-3", "driver-4.9-7")
def test_changed_layout_and_detach_give_consumers_a_new_epoch(deployment: Deployment) -> None:
    deployment.configure(STEADY)
    deployment.driver()
    deployment.service()
    consumer, worker = deployment.consumer(), deployment.worker()
    epoch = 0
    for turn in range(ROUNDS):
        layout: dict[str, Any] = {"nslots": 8 << turn % 2, "pools": ["4KiB", "16KiB"][: 1 + turn % 2]}
        worker.call("produce", stream_id=deployment.stream_id, **layout)
        worker.call("offer_always", per_second=500)
        later = deployment.wait_epoch(consumer, after=epoch)
        assert later > epoch
        worker.call("stop_offering")
        assert worker.call("producer_ledger")["balanced"]
        consumer_events = EventReader(consumer)
        worker.call("close_producer")
        # New files without a producer.
        deployment.until(lambda old: (consumer.call("mapped") or 0) > old, later)
        epoch = deployment.wait_agreed(None, [consumer])
        assert_remapped(consumer_events.new_events(), later, epoch)
        assert deployment.stream()["producer"] is None
    worker.call("produce", stream_id=deployment.stream_id)
    worker.call("offer_always", per_second=500)
    deployment.wait_epoch(consumer, after=epoch)
    deployment.assert_balanced(worker, [consumer])


@pytest.mark.requirement("driver-4.12-2", "driver-4.12-3", "driver-10-2")
@pytest.mark.parametrize("driver", ["service", "embedded"])
def test_clients_survive_a_rolling_restart_of_the_driver(deployment: Deployment, driver: str) -> None:
    """An orderly end: the driver informs its clients and removes all files; clients attach to the new
    driver."""

    def start_driver() -> Any:
        # An embedding program ends without a close: its exit has to be enough.
        return deployment.service() if driver == "service" else deployment.worker(mode="embedded")

    deployment.configure(STEADY)
    deployment.driver()
    running = start_driver()
    consumers, producer = [deployment.consumer(), deployment.consumer()], deployment.streaming_producer()
    clients = [producer, *consumers]
    for turn in range(ROUNDS):
        epoch = deployment.wait_epoch(*consumers)
        readers = [EventReader(client) for client in clients]
        assert running.end() == 0
        assert deployment.epochs() == set(), "an orderly end removes all epochs"
        if turn % 2:
            deployment.until(lambda: producer.call("offering")["last"] == "detached")
        running = start_driver()
        later = deployment.wait_epoch(*consumers, after=epoch)
        assert later > epoch
        first, *others = [reader.new_events() for reader in readers]
        assert kinds(first)[0] == "driver_shutdown"
        assert first[-1] == ("attached", later)
        for events in others:
            assert kinds(events)[:2] == ["driver_shutdown", "unmapped"]
            assert_remapped(events, epoch, later)
        deployment.wait_agreed(producer, consumers)
    deployment.assert_balanced(producer, consumers)
    assert producer.call("producer_ledger")["dropped"]["detached"] > 0


@pytest.mark.requirement("driver-4.4-7", "driver-10-1")
def test_clients_survive_a_restart_of_the_media_driver(deployment: Deployment) -> None:
    media_driver = deployment.driver()
    service = deployment.service()
    consumers, producer = [deployment.consumer(), deployment.consumer()], deployment.streaming_producer()
    clients = [producer, *consumers]
    for turn in range(ROUNDS):
        epoch = deployment.wait_epoch(*consumers)
        readers = [EventReader(client) for client in clients]
        media_driver.end()
        if turn % 2:
            deployment.until(lambda: not any(client.call("is_connected") for client in clients))
            assert producer.call("offer") == "detached"
        media_driver = deployment.driver()
        later = deployment.wait_epoch(*consumers, after=epoch)
        for events in (reader.new_events() for reader in readers):
            # Several times if a busy machine delays the new media driver beyond its timeout.
            changes = [kind for kind in kinds(events) if kind.startswith("media_driver")]
            assert changes == ["media_driver_lost", "media_driver_connected"] * (len(changes) // 2), events
            assert changes
            assert "attached" in kinds(events)
        deployment.wait_agreed(producer, consumers)
        assert later > epoch
    deployment.assert_balanced(producer, consumers)
    # End the driver before its media driver: it would wait to publish its shutdown.
    service.end()
