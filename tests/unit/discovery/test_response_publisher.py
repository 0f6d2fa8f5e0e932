"""Response channels: few, bounded, closed when unused. The publications are fakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tensorpool.discovery.provider import ResponsePublisher
from tensorpool.discovery.requests import DiscoveryCounters, Reply
from tensorpool.sbe import DiscoveryResponse, DiscoveryStatus
from tests.unit.discovery.provider_harness import SECOND_NS


@dataclass
class FakePublication:
    """A publication with a given outcome."""

    outcome: str = "sent"
    max_message_length: int | None = 1 << 16
    failure: str | None = None
    is_ready: bool = True
    sent: list[bytes] = field(default_factory=list)
    closed: int = 0

    def offer(self, message: bytes) -> str:
        if self.outcome == "sent":
            self.sent.append(message)
        return self.outcome

    def close(self) -> None:
        self.closed += 1


class PublisherHarness:
    """A response publisher with fake publications; the test sets the time."""

    def __init__(self, **changes: int) -> None:
        self.publications: dict[tuple[str, int], FakePublication] = {}
        self.opened = 0
        self.counters = DiscoveryCounters()
        self.now_ns = 50 * SECOND_NS
        self.next: Callable[[], FakePublication] = FakePublication
        self.has_memory = True
        settings = {"max_channels": 4, "idle_ns": 30 * SECOND_NS, **changes}
        self.responses = ResponsePublisher(
            self.open, self.counters, now_ns=self.now_ns, has_memory=lambda: self.has_memory, **settings
        )

    def open(self, channel: str, stream_id: int) -> FakePublication:
        self.opened += 1
        fake = self.publications[channel, stream_id] = self.next()
        return fake

    def send(self, stream_id: int, message: bytes = b"answer", channel: str = "aeron:ipc") -> None:
        self.responses.send(Reply(channel, stream_id, 7, message), self.now_ns)

    def work(self, ns: int = 0) -> int:
        self.now_ns += ns
        return self.responses.do_work(self.now_ns)


def test_channel_is_reused_for_all_responses() -> None:
    harness = PublisherHarness()
    for _ in range(3):
        harness.send(9)
        assert harness.work() == 1
    assert harness.opened == 1
    assert harness.publications["aeron:ipc", 9].sent == [b"answer"] * 3
    assert harness.counters.responses.value == 3


def test_response_waits_for_a_subscriber_until_its_deadline() -> None:
    harness = PublisherHarness()
    harness.next = lambda: FakePublication(outcome="not_connected")
    harness.send(9)
    fake = harness.publications["aeron:ipc", 9]
    assert harness.work(2 * SECOND_NS) == 0
    fake.outcome = "sent"
    assert harness.work() == 1
    fake.outcome = "back_pressured"
    harness.send(9)
    assert harness.work(2 * SECOND_NS) == 0
    assert harness.work(1) == 0
    assert harness.counters.unsent["not_connected"].value == 1
    fake.outcome = "sent"
    assert harness.work() == 0


def test_unconnected_channel_does_not_delay_others() -> None:
    harness = PublisherHarness()
    harness.next = lambda: FakePublication(outcome="not_connected")
    harness.send(1)
    harness.next = FakePublication
    harness.send(2)
    assert harness.work() == 1
    assert harness.publications["aeron:ipc", 2].sent == [b"answer"]


def test_too_large_response_is_replaced_by_an_error() -> None:
    harness = PublisherHarness()
    harness.next = lambda: FakePublication(max_message_length=None)
    harness.send(9, bytes(1000))
    assert harness.work() == 0
    fake = harness.publications["aeron:ipc", 9]
    fake.max_message_length = 999
    assert harness.work() == 1
    response = DiscoveryResponse.decode(fake.sent[0])
    assert (response.request_id, response.status, response.results) == (7, DiscoveryStatus.ERROR, ())
    assert "1000 bytes" in response.error_message
    assert "narrow the filter" in response.error_message
    assert harness.counters.errors.value == 1


def test_channel_that_aeron_refuses_is_closed_and_counted() -> None:
    harness = PublisherHarness()
    harness.next = lambda: FakePublication(outcome="closed", failure="no such interface")
    harness.send(9)
    harness.work()
    assert len(harness.responses) == 0
    assert harness.publications["aeron:ipc", 9].closed == 1
    assert harness.counters.unsent["refused"].value == 1


def test_unused_channels_close_except_the_permanent_one() -> None:
    harness = PublisherHarness()
    harness.responses.add_permanent("aeron:ipc", 7004, harness.now_ns)
    harness.send(9)
    harness.work(30 * SECOND_NS)
    assert len(harness.responses) == 2
    harness.work(1)
    assert len(harness.responses) == 1
    assert harness.publications["aeron:ipc", 9].closed == 1
    harness.send(7004)
    assert harness.work() == 1
    assert harness.opened == 2


def test_many_channels_stay_within_the_maximum() -> None:
    harness = PublisherHarness(max_channels=4)
    harness.responses.add_permanent("aeron:ipc", 7004, harness.now_ns)
    for stream_id in range(100, 200):
        harness.send(stream_id)
        harness.work()
    assert len(harness.responses) == 4
    assert harness.counters.channels.value == 4
    assert harness.counters.refused["no_room"].value == 97
    harness.send(7004)
    assert harness.work() == 1
    # The least recently used channel makes room after a while.
    harness.work(SECOND_NS + 1)
    harness.send(101)
    harness.work()
    harness.send(500)
    assert harness.work() == 1
    assert harness.publications["aeron:ipc", 100].closed == 1
    assert harness.publications["aeron:ipc", 101].closed == 0
    assert len(harness.responses) == 4


def test_new_channels_are_opened_at_a_bounded_rate() -> None:
    harness = PublisherHarness(max_channels=4, idle_ns=SECOND_NS)
    for turn in range(10):
        for stream_id in range(turn * 10, turn * 10 + 4):
            harness.send(stream_id)
        harness.work()
        harness.work(SECOND_NS + 1 if turn == 0 else SECOND_NS // 100)
        harness.responses.do_work(harness.now_ns + 2 * SECOND_NS)
    assert harness.opened <= 45


def test_queued_responses_are_bounded_in_number_and_bytes() -> None:
    harness = PublisherHarness()
    harness.next = lambda: FakePublication(outcome="back_pressured")
    for _ in range(100):
        harness.send(1)
    assert harness.counters.unsent["full"].value == 36
    for _ in range(5):
        harness.send(2, bytes(4 << 20))
    assert harness.counters.unsent["full"].value == 38
    harness.responses.close()
    assert len(harness.responses) == 0
    # Their bytes count no more.
    harness.send(3, bytes(15 << 20))
    assert harness.counters.unsent["full"].value == 38


@pytest.mark.requirement("discovery-4.3-2")
def test_same_stream_of_another_channel_is_another_publication() -> None:
    harness = PublisherHarness()
    harness.send(9, b"here")
    harness.send(9, b"there", channel="aeron:udp?endpoint=10.0.0.9:40124")
    assert harness.work() == 2
    assert harness.publications["aeron:ipc", 9].sent == [b"here"]
    assert harness.publications["aeron:udp?endpoint=10.0.0.9:40124", 9].sent == [b"there"]


def test_no_local_channel_is_opened_while_memory_is_short() -> None:
    harness = PublisherHarness()
    harness.send(1)
    harness.work()
    harness.has_memory = False
    harness.send(1)
    harness.send(2)
    harness.send(2, channel="aeron:udp?endpoint=10.0.0.9:40124")
    assert harness.work() == 2
    assert sorted(harness.publications) == [("aeron:ipc", 1), ("aeron:udp?endpoint=10.0.0.9:40124", 2)]
    assert harness.counters.refused["no_room"].value == 1


def test_permanent_channel_never_makes_room() -> None:
    harness = PublisherHarness(max_channels=2)
    harness.responses.add_permanent("aeron:ipc", 7004, harness.now_ns)
    harness.work(10 * SECOND_NS)
    harness.send(1)
    harness.work(2 * SECOND_NS)
    harness.send(2)
    assert harness.work() == 1
    assert harness.publications["aeron:ipc", 7004].closed == 0
    assert harness.publications["aeron:ipc", 1].closed == 1


@pytest.mark.parametrize("outcome", ["sent", "not_connected"])
def test_sent_and_dropped_responses_free_their_bytes(outcome: str) -> None:
    harness = PublisherHarness()
    harness.next = lambda: FakePublication(outcome=outcome, max_message_length=16 << 20)
    for _ in range(6):
        harness.send(1, bytes(4 << 20))
        harness.work(3 * SECOND_NS)
    assert harness.counters.unsent["full"].value == 0
    assert harness.counters.responses.value + harness.counters.unsent["not_connected"].value == 6
