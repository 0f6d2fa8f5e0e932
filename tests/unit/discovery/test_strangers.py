"""Strangers: where their answers go, what is no question, and how much they may ask."""

from __future__ import annotations

import logging
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.discovery.state import error_response, is_discovery
from tensorpool.sbe import DiscoveryResponse, DiscoveryStatus, Role, ShmAttachRequest
from tests.unit.discovery.world import IN_ITS_OWN_TIME, SECOND_NS, World, announce, question

# --- where answers go


@pytest.mark.requirement("discovery-4.3-2", "discovery-4.3-3")
def test_the_answer_goes_where_the_request_says_and_nowhere_else(world: World) -> None:
    reply = world.reply(response_channel="aeron:ipc?term-length=1m", response_stream_id=9001)
    assert reply is not None
    assert (reply.channel, reply.stream_id) == ("aeron:ipc", 9001)
    # The request stream too, where the client asks for it.
    reply = world.reply(response_stream_id=1000)
    assert reply is not None
    assert reply.stream_id == 1000


@pytest.mark.requirement("discovery-5.1-2", "discovery-5.1-3", "discovery-15-3", "discovery-15-4")
@pytest.mark.parametrize("stream_id", [0, 7004])
def test_a_request_without_a_response_channel_is_dropped_without_a_word(world: World, stream_id: int) -> None:
    assert world.reply(response_channel="", response_stream_id=stream_id) is None
    assert world.counters.refused["no_channel"].value == 1
    assert world.counters.questions.value == 0


@pytest.mark.requirement(
    "discovery-5.1-2",
    "discovery-5.1-4",
    "discovery-5.1-5",
    "discovery-5.1-12",
    "discovery-15-1",
    "discovery-15-2",
)
def test_response_stream_0_is_answered_with_an_error_on_that_channel(world: World) -> None:
    reply = world.reply(response_stream_id=0, request_id=9)
    assert reply is not None
    assert (reply.channel, reply.stream_id) == ("aeron:ipc", 0)
    answer = DiscoveryResponse.decode(reply.message)
    assert (answer.request_id, answer.status, answer.results) == (9, DiscoveryStatus.ERROR, ())
    assert "response_stream_id" in answer.error_message


@pytest.mark.parametrize(
    "channel", ["aeron:udp?endpoint=10.1.2.3:4000", "aeron:ipc?session-id=1", "nonsense"]
)
@pytest.mark.parametrize("stream_id", [0, 7004])
def test_a_channel_that_is_not_allowed_is_refused(world: World, channel: str, stream_id: int) -> None:
    assert world.reply(response_channel=channel, response_stream_id=stream_id) is None
    assert world.counters.refused["channel"].value == 1


@pytest.mark.parametrize("stream_id", [1001, 1100, 1 << 31, (1 << 32) - 1])
def test_no_answer_goes_to_others_streams_or_to_none(world: World, stream_id: int) -> None:
    assert world.reply(response_stream_id=stream_id) is None
    assert world.counters.refused["stream"].value == 1


def test_streams_of_aeron_ipc_are_not_those_of_a_udp_endpoint() -> None:
    world = World(responses=("10.0.0.9:40124",))
    reply = world.reply(response_channel="aeron:udp?endpoint=10.0.0.9:40124", response_stream_id=1001)
    assert reply is not None
    assert reply.channel == "aeron:udp?endpoint=10.0.0.9:40124"


# --- what is no question


@pytest.mark.requirement("discovery-4.2-1")
def test_messages_are_told_apart_by_schema_and_template_before_they_are_decoded(world: World) -> None:
    attach = ShmAttachRequest(
        correlation_id=1, stream_id=1, client_id=2, role=Role.PRODUCER, expected_layout_version=1
    )
    assert not is_discovery(attach.encode())
    assert not is_discovery(announce().encode())
    assert not is_discovery(b"\x00" * 7)
    assert is_discovery(question().encode())
    # An answer, on a stream where somebody asked for it: not a question, and no fault.
    assert world.questions.on_message(error_response(1, "no"), world.now_ns) is None
    assert world.counters.unusable.total == 0
    stranger = struct.pack("<HHHH", 28, 77, 910, 1) + bytes(64)
    assert world.questions.on_message(stranger, world.now_ns) is None
    assert world.counters.unusable["template"].value == 1


@pytest.mark.requirement("discovery-10-4", "discovery-10-2", "discovery-10-3")
@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_version_is_refused_by_the_message_header(world: World, version: int) -> None:
    message = bytearray(question().encode())
    message[6:8] = struct.pack("<H", version)
    assert world.questions.on_message(bytes(message), world.now_ns) is None
    assert world.counters.unusable["version"].value == 1


@IN_ITS_OWN_TIME
@given(st.binary(max_size=300))
def test_garbage_of_our_schema_never_raises(data: bytes) -> None:
    world = World()
    world.questions.put(struct.pack("<HHHH", 28, 1, 910, 1) + data, world.now_ns)
    assert len(list(world.questions.take(world.now_ns, 10))) <= 1
    assert world.questions.waiting == 0


@IN_ITS_OWN_TIME
@given(st.data())
def test_broken_questions_never_raise(data: st.DataObject) -> None:
    message = bytearray(question(name="camera-1", tags=("a", "b")).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        message[data.draw(st.integers(8, len(message) - 1))] = data.draw(st.integers(0, 255))
    world = World()
    world.add(1, name="camera-1", tags=("a", "b"))
    reply = world.questions.on_message(bytes(message), world.now_ns)
    if reply is not None:
        assert reply.channel == "aeron:ipc"
        DiscoveryResponse.decode(reply.message)


# --- limits


def test_a_client_that_asks_too_often_waits_and_others_do_not() -> None:
    world = World(rate_hz=10, burst=5)
    replies = [world.reply(client_id=1) for _ in range(8)]
    assert [reply is not None for reply in replies] == [True] * 5 + [False] * 3
    assert world.counters.refused["rate"].value == 3
    assert world.reply(client_id=2) is not None
    world.pass_time(SECOND_NS // 10)
    assert world.reply(client_id=1) is not None
    assert world.reply(client_id=1) is None
    # What was saved up is no more than a burst.
    world.pass_time(1000 * SECOND_NS)
    assert [world.reply(client_id=1) is not None for _ in range(6)] == [True] * 5 + [False]


def test_a_flood_under_ever_new_client_ids_is_cut_off_as_a_whole() -> None:
    world = World(total_rate_hz=100)
    for client_id in range(1, 5001):
        world.questions.put(question(client_id=client_id).encode(), world.now_ns)
    assert world.counters.refused["flood"].value == 4900
    assert len(list(world.questions.take(world.now_ns, 10_000))) == 100
    world.pass_time(SECOND_NS)
    world.questions.put(question().encode(), world.now_ns)
    assert world.questions.waiting == 1


def test_no_more_than_a_bounded_number_of_questions_waits() -> None:
    world = World(total_rate_hz=1_000_000)
    for _ in range(2000):
        world.questions.put(question().encode(), world.now_ns)
    world.questions.put(question(name="x").encode() + bytes(1 << 17), world.now_ns)
    assert world.questions.waiting == 1024
    assert world.counters.refused["busy"].value == 977
    assert len(list(world.questions.take(world.now_ns, 16))) == 16


def test_buckets_are_kept_for_a_bounded_number_of_clients() -> None:
    world = World(rate_hz=1, burst=1)
    for client_id in range(1, 6001):
        assert world.reply(client_id=client_id) is not None
    assert len(world.questions._clients) == 4096


# --- the log


@pytest.mark.requirement("discovery-13-3")
def test_one_question_in_so_many_is_logged_without_what_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(log_every=3)
    world.add(1, name="secret-project", tags=("hush",))
    with caplog.at_level(logging.INFO):
        for _ in range(7):
            world.ask(name="secret-project", tags=("hush", "hush2"))
    assert len(caplog.records) == 2
    assert "client 42 asked by name, 2 tags: OK, 0 streams" in caplog.text
    assert "secret" not in caplog.text
    assert "hush" not in caplog.text


def test_no_question_is_logged_where_none_is_to_be(caplog: pytest.LogCaptureFixture) -> None:
    world = World(log_every=0, burst=1000)
    with caplog.at_level(logging.INFO):
        for _ in range(200):
            world.ask()
    assert caplog.text == ""


def test_answers_are_kept_for_a_bounded_number_of_questions_and_bytes() -> None:
    world = World()
    marks = tuple(f"t{number}" for number in range(20))
    for number in range(1, 601):
        world.add(number, name=f"camera-{number}", tags=("x" * 500, *marks))
    kept = world.questions._answers
    for number in range(1, 101):
        world.found(name=f"camera-{number}", client_id=number)
    assert 0 < len(kept._kept) <= 32
    # Each of these has them all, and twenty of them are more than is kept.
    for number, mark in enumerate(marks):
        reply = world.reply(tags=(mark,), client_id=1000 + number)
        assert reply is not None
        assert len(reply.message) > (8 << 20) / 20
    assert kept._kept_bytes == sum(len(one.message) for one in kept._kept.values()) <= 8 << 20
