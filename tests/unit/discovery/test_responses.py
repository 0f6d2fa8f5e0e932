"""Publications to those who asked: few, bounded, closed when idle. Aeron is played by a fake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tensorpool.discovery import DiscoveryCounters
from tensorpool.discovery.provider import ResponsePublisher
from tensorpool.discovery.state import Reply
from tensorpool.sbe import DiscoveryResponse, DiscoveryStatus
from tests.unit.discovery.world import SECOND_NS


@dataclass
class Fake:
    """A publication that does as it is told."""

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


class Aeron:
    def __init__(self, **terms: int) -> None:
        self.made: dict[tuple[str, int], Fake] = {}
        self.opened = 0
        self.counters = DiscoveryCounters()
        self.now_ns = 50 * SECOND_NS
        self.next: Callable[[], Fake] = Fake
        settings = {"most": 4, "idle_ns": 30 * SECOND_NS, **terms}
        self.responses = ResponsePublisher(self.open, self.counters, now_ns=self.now_ns, **settings)

    def open(self, channel: str, stream_id: int) -> Fake:
        self.opened += 1
        fake = self.made[channel, stream_id] = self.next()
        return fake

    def send(self, stream_id: int, message: bytes = b"answer", channel: str = "aeron:ipc") -> None:
        self.responses.send(Reply(channel, stream_id, 7, message), self.now_ns)

    def work(self, ns: int = 0) -> int:
        self.now_ns += ns
        return self.responses.do_work(self.now_ns)


def test_a_publication_serves_all_answers_to_its_endpoint() -> None:
    aeron = Aeron()
    for _ in range(3):
        aeron.send(9)
        assert aeron.work() == 1
    assert aeron.opened == 1
    assert aeron.made["aeron:ipc", 9].sent == [b"answer"] * 3
    assert aeron.counters.answers.value == 3


def test_an_answer_waits_for_its_listener_and_not_for_ever() -> None:
    aeron = Aeron()
    aeron.next = lambda: Fake(outcome="not_connected")
    aeron.send(9)
    fake = aeron.made["aeron:ipc", 9]
    assert aeron.work(2 * SECOND_NS) == 0
    fake.outcome = "sent"
    assert aeron.work() == 1
    fake.outcome = "back_pressured"
    aeron.send(9)
    assert aeron.work(2 * SECOND_NS) == 0
    assert aeron.work(1) == 0
    assert aeron.counters.unsent["unheard"].value == 1
    fake.outcome = "sent"
    assert aeron.work() == 0


def test_one_endpoint_that_does_not_listen_holds_up_no_other() -> None:
    aeron = Aeron()
    aeron.next = lambda: Fake(outcome="not_connected")
    aeron.send(1)
    aeron.next = Fake
    aeron.send(2)
    assert aeron.work() == 1
    assert aeron.made["aeron:ipc", 2].sent == [b"answer"]


def test_an_answer_larger_than_the_channel_s_largest_message_is_an_error_instead() -> None:
    aeron = Aeron()
    aeron.next = lambda: Fake(max_message_length=None)
    aeron.send(9, bytes(1000))
    assert aeron.work() == 0
    fake = aeron.made["aeron:ipc", 9]
    fake.max_message_length = 999
    assert aeron.work() == 1
    answer = DiscoveryResponse.decode(fake.sent[0])
    assert (answer.request_id, answer.status, answer.results) == (7, DiscoveryStatus.ERROR, ())
    assert "1000 bytes" in answer.error_message
    assert "narrow the filter" in answer.error_message
    assert aeron.counters.errors.value == 1


def test_a_channel_that_aeron_refuses_is_given_up_and_counted() -> None:
    aeron = Aeron()
    aeron.next = lambda: Fake(outcome="closed", failure="no such interface")
    aeron.send(9)
    aeron.work()
    assert len(aeron.responses) == 0
    assert aeron.made["aeron:ipc", 9].closed == 1
    assert aeron.counters.unsent["refused"].value == 1


def test_what_is_idle_is_closed_but_for_the_one_that_most_use() -> None:
    aeron = Aeron()
    aeron.responses.keep("aeron:ipc", 7004, aeron.now_ns)
    aeron.send(9)
    aeron.work(30 * SECOND_NS)
    assert len(aeron.responses) == 2
    aeron.work(1)
    assert len(aeron.responses) == 1
    assert aeron.made["aeron:ipc", 9].closed == 1
    aeron.send(7004)
    assert aeron.work() == 1
    assert aeron.opened == 2


def test_no_crowd_of_endpoints_opens_more_than_there_may_be_nor_shuts_out_the_usual_one() -> None:
    aeron = Aeron(most=4)
    aeron.responses.keep("aeron:ipc", 7004, aeron.now_ns)
    for stream_id in range(100, 200):
        aeron.send(stream_id)
        aeron.work()
    assert len(aeron.responses) == 4
    assert aeron.counters.channels.value == 4
    assert aeron.counters.refused["no_room"].value == 97
    aeron.send(7004)
    assert aeron.work() == 1
    # What was not used for a while makes room, the oldest first.
    aeron.work(SECOND_NS + 1)
    aeron.send(101)
    aeron.work()
    aeron.send(500)
    assert aeron.work() == 1
    assert aeron.made["aeron:ipc", 100].closed == 1
    assert aeron.made["aeron:ipc", 101].closed == 0
    assert len(aeron.responses) == 4


def test_new_endpoints_are_opened_at_a_bounded_rate() -> None:
    aeron = Aeron(most=4, idle_ns=SECOND_NS)
    for turn in range(10):
        for stream_id in range(turn * 10, turn * 10 + 4):
            aeron.send(stream_id)
        aeron.work()
        aeron.work(SECOND_NS + 1 if turn == 0 else SECOND_NS // 100)
        aeron.responses.do_work(aeron.now_ns + 2 * SECOND_NS)
    assert aeron.opened <= 45


def test_what_waits_is_bounded_in_number_and_in_bytes() -> None:
    aeron = Aeron()
    aeron.next = lambda: Fake(outcome="back_pressured")
    for _ in range(100):
        aeron.send(1)
    assert aeron.counters.unsent["full"].value == 36
    for _ in range(5):
        aeron.send(2, bytes(4 << 20))
    assert aeron.counters.unsent["full"].value == 38
    aeron.responses.close()
    assert len(aeron.responses) == 0
    # All of it was given back.
    aeron.send(3, bytes(15 << 20))
    assert aeron.counters.unsent["full"].value == 38


@pytest.mark.requirement("discovery-4.3-2")
def test_the_same_stream_of_another_channel_is_another_endpoint() -> None:
    aeron = Aeron()
    aeron.send(9, b"here")
    aeron.send(9, b"there", channel="aeron:udp?endpoint=10.0.0.9:40124")
    assert aeron.work() == 2
    assert aeron.made["aeron:ipc", 9].sent == [b"here"]
    assert aeron.made["aeron:udp?endpoint=10.0.0.9:40124", 9].sent == [b"there"]


def test_the_usual_endpoint_makes_room_for_nobody_however_long_it_was_idle() -> None:
    aeron = Aeron(most=2)
    aeron.responses.keep("aeron:ipc", 7004, aeron.now_ns)
    aeron.work(10 * SECOND_NS)
    aeron.send(1)
    aeron.work(2 * SECOND_NS)
    aeron.send(2)
    assert aeron.work() == 1
    assert aeron.made["aeron:ipc", 7004].closed == 0
    assert aeron.made["aeron:ipc", 1].closed == 1


@pytest.mark.parametrize("outcome", ["sent", "not_connected"])
def test_what_has_gone_out_or_was_given_up_takes_no_room_from_what_comes(outcome: str) -> None:
    aeron = Aeron()
    aeron.next = lambda: Fake(outcome=outcome, max_message_length=16 << 20)
    for _ in range(6):
        aeron.send(1, bytes(4 << 20))
        aeron.work(3 * SECOND_NS)
    assert aeron.counters.unsent["full"].value == 0
    assert aeron.counters.answers.value + aeron.counters.unsent["unheard"].value == 6
