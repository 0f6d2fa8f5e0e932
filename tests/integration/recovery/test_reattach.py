"""Leases that end while everybody is well: clients attach again by themselves, and events tell the story."""

from __future__ import annotations

from typing import Any

import pytest

from tests.remote_process import RemoteProcess

from .deployment import ROUNDS, STEADY, Deployment

Story = list[tuple[str, int | None]]


class Reader:
    """Tells what has happened to a process since it was asked last."""

    def __init__(self, member: RemoteProcess) -> None:
        self._member = member
        self._read = len(member.call("story"))

    def news(self) -> Story:
        story = [(kind, epoch) for kind, epoch in self._member.call("story")]
        news, self._read = story[self._read :], len(story)
        return news


def kinds(story: Story) -> list[str]:
    return [kind for kind, _ in story]


def assert_remapped(story: Story, before: int, after: int) -> None:
    """Let go of the old epoch first, ended on the new one, and on the way there epochs only grew."""
    maps = [(kind, epoch) for kind, epoch in story if kind in ("mapped", "unmapped")]
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
def test_a_revoked_producer_comes_back_under_a_further_epoch(fleet: Deployment) -> None:
    fleet.configure(STEADY)
    fleet.driver()
    fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    epoch = fleet.flow(consumer)
    for _ in range(ROUNDS):
        told, heard = Reader(producer), Reader(consumer)
        (lease_id,) = producer.call("leases")
        (revoked,) = fleet.ask("revoke", lease_id=str(lease_id), reason="a test")
        assert (int(revoked["lease_id"]), revoked["role"]) == (lease_id, "producer")
        later = fleet.flow(consumer, after=epoch)
        why, what = told.news()
        # Held up between two looks, it may hear of the later epoch before it hears of its end.
        assert why in (("revoked", None), ("driver_lost", None))
        assert what == ("attached", later)
        assert_remapped(heard.news(), epoch, later)
        epoch = fleet.agreed(producer, [consumer])
        assert epoch == later
    fleet.accounts(producer, [consumer])
    details = {event["detail"] for event in producer.call("events") if event["kind"] == "revoked"}
    assert details == {"revoked: revoked by the administrator: a test"}
    assert fleet.ask("status")["counters"]["revoked"] == ROUNDS


@pytest.mark.requirement("driver-4.7-1", "driver-4.9-4", "driver-4.9-5", "driver-4.9-6")
def test_a_revoked_consumer_comes_back_to_the_same_epoch(fleet: Deployment) -> None:
    fleet.configure(STEADY)
    fleet.driver()
    fleet.service()
    consumer, other, producer = fleet.consumer(), fleet.consumer(), fleet.streaming()
    epoch = fleet.flow(consumer, other)
    for _ in range(ROUNDS):
        told, heard, undisturbed = Reader(consumer), Reader(other), Reader(producer)
        (lease_id,) = consumer.call("leases")
        fleet.ask("revoke", lease_id=str(lease_id))
        fleet.gone(lease_id)
        fleet.agreed(producer, [consumer, other])
        fleet.receives(consumer)
        assert told.news() == [
            ("revoked", None),
            ("unmapped", epoch),
            ("attached", epoch),
            ("mapped", epoch),
        ]
        assert heard.news() == undisturbed.news() == []
    assert fleet.settled(producer, [consumer, other]) == epoch
    fleet.accounts(producer, [consumer, other])


@pytest.mark.requirement("driver-4.9-6", "driver-6-1", "driver-6-2")
def test_a_stream_that_is_revoked_all_the_time_comes_back_each_time(fleet: Deployment) -> None:
    """Producer and consumer at once, again and again: what one is told may be history when it acts on it. A
    consumer may be given files that a producer gets under another name the next moment, and is not told of an
    error by that."""
    fleet.driver()
    fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    epoch = fleet.flow(consumer)
    for _ in range(10 * ROUNDS):
        assert len(fleet.ask("revoke", stream_id=fleet.stream_id)) <= 2
        epoch = fleet.flow(consumer, after=epoch)
    fleet.accounts(producer, [consumer])


@pytest.mark.requirement("driver-6-1", "driver-6-2", "driver-4.9-3", "driver-4.9-7")
def test_a_changed_layout_and_every_detach_mean_a_new_epoch_for_the_consumers(fleet: Deployment) -> None:
    fleet.configure(STEADY)
    fleet.driver()
    fleet.service()
    consumer, worker = fleet.consumer(), fleet.worker()
    epoch = 0
    for turn in range(ROUNDS):
        layout: dict[str, Any] = {"nslots": 8 << turn % 2, "pools": ["4KiB", "16KiB"][: 1 + turn % 2]}
        worker.call("produce", stream_id=fleet.stream_id, **layout)
        worker.call("offer_always", per_second=500)
        later = fleet.flow(consumer, after=epoch)
        assert later > epoch
        worker.call("stop_offering")
        assert worker.call("producer_ledger")["balanced"]
        heard = Reader(consumer)
        worker.call("close_producer")
        # Fresh files, which nobody writes to yet.
        fleet.until(lambda old: (consumer.call("mapped") or 0) > old, later)
        epoch = fleet.agreed(None, [consumer])
        assert_remapped(heard.news(), later, epoch)
        assert fleet.stream()["producer"] is None
    worker.call("produce", stream_id=fleet.stream_id)
    worker.call("offer_always", per_second=500)
    fleet.flow(consumer, after=epoch)
    fleet.accounts(worker, [consumer])


@pytest.mark.requirement("driver-4.12-2", "driver-4.12-3", "driver-10-2")
@pytest.mark.parametrize("driver", ["service", "embedded"])
def test_a_rolling_restart_of_the_driver_is_survived_by_all(fleet: Deployment, driver: str) -> None:
    """In good order: everybody is told, nothing of the old driver stays, and all find the new one."""

    def begin() -> Any:
        # An embedding program ends without a close: its exit has to do.
        return fleet.service() if driver == "service" else fleet.worker(mode="embedded")

    fleet.configure(STEADY)
    fleet.driver()
    running = begin()
    consumers, producer = [fleet.consumer(), fleet.consumer()], fleet.streaming()
    members = [producer, *consumers]
    for turn in range(ROUNDS):
        epoch = fleet.flow(*consumers)
        readers = [Reader(member) for member in members]
        assert running.end() == 0
        assert fleet.epochs() == set(), "an orderly end leaves nothing"
        if turn % 2:
            fleet.until(lambda: producer.call("offering")["last"] == "detached")
        running = begin()
        later = fleet.flow(*consumers, after=epoch)
        assert later > epoch
        told, *heard = [reader.news() for reader in readers]
        assert kinds(told)[0] == "driver_shutdown"
        assert told[-1] == ("attached", later)
        for story in heard:
            assert kinds(story)[:2] == ["driver_shutdown", "unmapped"]
            assert_remapped(story, epoch, later)
        fleet.agreed(producer, consumers)
    fleet.accounts(producer, consumers)
    assert producer.call("producer_ledger")["dropped"]["detached"] > 0


@pytest.mark.requirement("driver-4.4-7", "driver-10-1")
def test_a_restart_of_the_media_driver_is_survived_by_all(fleet: Deployment) -> None:
    media_driver = fleet.driver()
    service = fleet.service()
    consumers, producer = [fleet.consumer(), fleet.consumer()], fleet.streaming()
    members = [producer, *consumers]
    for turn in range(ROUNDS):
        epoch = fleet.flow(*consumers)
        readers = [Reader(member) for member in members]
        media_driver.end()
        if turn % 2:
            fleet.until(lambda: not any(one.call("is_connected") for one in members))
            assert producer.call("offer") == "detached"
        media_driver = fleet.driver()
        later = fleet.flow(*consumers, after=epoch)
        for story in (reader.news() for reader in readers):
            # More than once where a new media driver is starved for as long as a dead one is waited for.
            turns = [kind for kind in kinds(story) if kind.startswith("media_driver")]
            assert turns == ["media_driver_lost", "media_driver_connected"] * (len(turns) // 2), story
            assert turns
            assert "attached" in kinds(story)
        fleet.agreed(producer, consumers)
        assert later > epoch
    fleet.accounts(producer, consumers)
    # Before its media driver, or it would try for a while to say goodbye.
    service.end()
