"""Requests of any process: addresses of responses, invalid requests, and limits."""

from __future__ import annotations

import logging
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.discovery.requests import is_discovery
from tensorpool.discovery.responses import error_response
from tensorpool.sbe import DiscoveryResponse, DiscoveryStatus, Role, ShmAttachRequest
from tests.unit.discovery.provider_harness import NO_DEADLINE, SECOND_NS, ProviderHarness, announce, request

# --- response addresses


@pytest.mark.requirement("discovery-4.3-2", "discovery-4.3-3")
def test_response_goes_to_the_requested_address(harness: ProviderHarness) -> None:
    reply = harness.reply(response_channel="aeron:ipc?term-length=1m", response_stream_id=9001)
    assert reply is not None
    assert (reply.channel, reply.stream_id) == ("aeron:ipc", 9001)
    # The request stream is allowed, too.
    reply = harness.reply(response_stream_id=1000)
    assert reply is not None
    assert reply.stream_id == 1000


@pytest.mark.requirement("discovery-5.1-2", "discovery-5.1-3", "discovery-15-3", "discovery-15-4")
@pytest.mark.parametrize("stream_id", [0, 7004])
def test_request_without_a_response_channel_is_dropped(harness: ProviderHarness, stream_id: int) -> None:
    assert harness.reply(response_channel="", response_stream_id=stream_id) is None
    assert harness.counters.refused["no_channel"].value == 1
    assert harness.counters.requests.value == 0


@pytest.mark.requirement(
    "discovery-5.1-2",
    "discovery-5.1-4",
    "discovery-5.1-5",
    "discovery-5.1-12",
    "discovery-15-1",
    "discovery-15-2",
)
def test_response_stream_0_gets_an_error_on_that_channel(harness: ProviderHarness) -> None:
    reply = harness.reply(response_stream_id=0, request_id=9)
    assert reply is not None
    assert (reply.channel, reply.stream_id) == ("aeron:ipc", 0)
    response = DiscoveryResponse.decode(reply.message)
    assert (response.request_id, response.status, response.results) == (9, DiscoveryStatus.ERROR, ())
    assert "response_stream_id" in response.error_message


@pytest.mark.parametrize(
    "channel", ["aeron:udp?endpoint=10.1.2.3:4000", "aeron:ipc?session-id=1", "nonsense"]
)
@pytest.mark.parametrize("stream_id", [0, 7004])
def test_disallowed_response_channel_is_refused(
    harness: ProviderHarness, channel: str, stream_id: int
) -> None:
    assert harness.reply(response_channel=channel, response_stream_id=stream_id) is None
    assert harness.counters.refused["channel"].value == 1


@pytest.mark.parametrize("stream_id", [1001, 1100, 1 << 31, (1 << 32) - 1])
def test_reserved_and_invalid_response_streams_are_refused(harness: ProviderHarness, stream_id: int) -> None:
    assert harness.reply(response_stream_id=stream_id) is None
    assert harness.counters.refused["stream"].value == 1


def test_reserved_streams_apply_to_ipc_only() -> None:
    harness = ProviderHarness(responses=("10.0.0.9:40124",))
    reply = harness.reply(response_channel="aeron:udp?endpoint=10.0.0.9:40124", response_stream_id=1001)
    assert reply is not None
    assert reply.channel == "aeron:udp?endpoint=10.0.0.9:40124"


# --- invalid requests


@pytest.mark.requirement("discovery-4.2-1")
def test_messages_are_selected_by_schema_and_template(harness: ProviderHarness) -> None:
    attach = ShmAttachRequest(
        correlation_id=1, stream_id=1, client_id=2, role=Role.PRODUCER, expected_layout_version=1
    )
    assert not is_discovery(attach.encode())
    assert not is_discovery(announce().encode())
    assert not is_discovery(b"\x00" * 7)
    assert is_discovery(request().encode())
    # A response on the request stream is no request and no fault.
    assert harness.requests.on_message(error_response(1, "no"), harness.now_ns) is None
    assert harness.counters.invalid.total == 0
    other_template = struct.pack("<HHHH", 28, 77, 910, 1) + bytes(64)
    assert harness.requests.on_message(other_template, harness.now_ns) is None
    assert harness.counters.invalid["template"].value == 1


@pytest.mark.requirement("discovery-10-4", "discovery-10-2", "discovery-10-3")
@pytest.mark.parametrize("version", [0, 2, 99])
def test_other_version_is_refused_by_the_message_header(harness: ProviderHarness, version: int) -> None:
    harness.add(1, name="camera-1")
    message = bytearray(request(request_id=9).encode())
    message[6:8] = struct.pack("<H", version)
    reply = harness.requests.on_message(bytes(message), harness.now_ns)
    assert reply is not None
    assert (reply.channel, reply.stream_id) == ("aeron:ipc", 7004)
    response = DiscoveryResponse.decode(reply.message)
    assert (response.request_id, response.status, response.results) == (9, DiscoveryStatus.ERROR, ())
    assert response.error_message.startswith("the request is of another version: ")
    assert str(version) in response.error_message
    counters = harness.counters
    assert (counters.invalid["version"].value, counters.errors.value, counters.requests.value) == (1, 1, 0)


def test_later_version_with_more_fields_gets_an_error(harness: ProviderHarness) -> None:
    """SBE appends fields to the block: the address stays where it was."""
    known = request(request_id=9).encode()
    block = struct.unpack_from("<H", known)[0]
    header = struct.pack("<HHHH", block + 8, 1, 910, 2)
    message = header + known[8 : 8 + block] + bytes(8) + known[8 + block :] + bytes(4)
    reply = harness.requests.on_message(message, harness.now_ns)
    assert reply is not None
    assert DiscoveryResponse.decode(reply.message).request_id == 9


def test_other_version_without_an_allowed_address_gets_no_response(harness: ProviderHarness) -> None:
    message = bytearray(request(response_channel="aeron:udp?endpoint=10.1.2.3:4000").encode())
    message[6:8] = struct.pack("<H", 2)
    assert harness.requests.on_message(bytes(message), harness.now_ns) is None
    assert harness.counters.refused["channel"].value == 1
    assert harness.requests.on_message(bytes(message[:20]), harness.now_ns) is None
    assert harness.counters.invalid["version"].value == 2


def malformed_requests() -> dict[str, bytes]:
    complete = request(request_id=9, name="").encode()
    block = struct.unpack_from("<H", complete)[0]
    named = request(request_id=9, name="camera-1", tags=("a", "b")).encode()
    return {
        # A peer that leaves out an empty name writes no length for it.
        "no name": complete[:-4],
        "part of a length": complete[:-2],
        "part of the name": named[:-3],
        "a name beyond the message": complete[:-4] + struct.pack("<I", 1 << 20),
        "a block without filters": struct.pack("<H", 16) + complete[2:24] + complete[8 + block :],
    }


@pytest.mark.parametrize("message", malformed_requests().values(), ids=malformed_requests())
def test_malformed_request_with_an_address_gets_an_error(harness: ProviderHarness, message: bytes) -> None:
    reply = harness.requests.on_message(message, harness.now_ns)
    assert reply is not None
    assert (reply.channel, reply.stream_id) == ("aeron:ipc", 7004)
    response = DiscoveryResponse.decode(reply.message)
    assert (response.request_id, response.status, response.results) == (9, DiscoveryStatus.ERROR, ())
    assert response.error_message.startswith("the request is malformed: ")
    counters = harness.counters
    assert (counters.invalid["malformed"].value, counters.errors.value, counters.requests.value) == (1, 1, 0)


def test_error_for_a_missing_name_explains_how_to_write_it(harness: ProviderHarness) -> None:
    reply = harness.requests.on_message(malformed_requests()["no name"], harness.now_ns)
    assert reply is not None
    message = DiscoveryResponse.decode(reply.message).error_message
    assert message.endswith("; a request without a name ends with a name of length 0")


def test_malformed_request_without_an_address_gets_no_response(harness: ProviderHarness) -> None:
    complete = request(name="", tags=("a", "b")).encode()
    channel_ends = complete.index(b"aeron:ipc") + len(b"aeron:ipc")
    for length in range(8, channel_ends):
        assert harness.requests.on_message(complete[:length], harness.now_ns) is None
    assert harness.counters.invalid["malformed"].value == channel_ends - 8
    many_tags = bytearray(complete)
    block = struct.unpack_from("<H", complete)[0]
    many_tags[10 + block : 12 + block] = b"\xff\xff"
    assert harness.requests.on_message(bytes(many_tags), harness.now_ns) is None


def test_malformed_requests_have_the_limits_of_all_requests() -> None:
    harness = ProviderHarness(rate_hz=1, burst=2)
    message = malformed_requests()["no name"]
    replies = [harness.requests.on_message(message, harness.now_ns) for _ in range(4)]
    assert [reply is not None for reply in replies] == [True, True, False, False]
    assert harness.counters.refused["rate"].value == 2
    elsewhere = request(response_channel="aeron:udp?endpoint=10.1.2.3:4000").encode()[:-4]
    assert harness.requests.on_message(elsewhere, harness.now_ns) is None
    assert harness.counters.refused["channel"].value == 1


@NO_DEADLINE
@given(st.binary(max_size=300))
def test_queue_never_raises_on_any_bytes(data: bytes) -> None:
    harness = ProviderHarness()
    harness.requests.put(struct.pack("<HHHH", 28, 1, 910, 1) + data, harness.now_ns)
    assert len(list(harness.requests.take(harness.now_ns, 10))) <= 1
    assert len(harness.requests) == 0


@NO_DEADLINE
@given(st.data())
def test_queue_never_raises_on_corrupted_requests(data: st.DataObject) -> None:
    message = bytearray(request(name="camera-1", tags=("a", "b")).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        message[data.draw(st.integers(8, len(message) - 1))] = data.draw(st.integers(0, 255))
    harness = ProviderHarness()
    harness.add(1, name="camera-1", tags=("a", "b"))
    reply = harness.requests.on_message(bytes(message), harness.now_ns)
    if reply is not None:
        assert reply.channel == "aeron:ipc"
        DiscoveryResponse.decode(reply.message)


# --- limits


def test_rate_limit_applies_to_each_client_id() -> None:
    harness = ProviderHarness(rate_hz=10, burst=5)
    replies = [harness.reply(client_id=1) for _ in range(8)]
    assert [reply is not None for reply in replies] == [True] * 5 + [False] * 3
    assert harness.counters.refused["rate"].value == 3
    assert harness.reply(client_id=2) is not None
    harness.advance(SECOND_NS // 10)
    assert harness.reply(client_id=1) is not None
    assert harness.reply(client_id=1) is None
    # No more than a burst is saved.
    harness.advance(1000 * SECOND_NS)
    assert [harness.reply(client_id=1) is not None for _ in range(6)] == [True] * 5 + [False]


def test_total_rate_limit_applies_to_all_client_ids() -> None:
    harness = ProviderHarness(total_rate_hz=100)
    for client_id in range(1, 5001):
        harness.requests.put(request(client_id=client_id).encode(), harness.now_ns)
    assert harness.counters.refused["flood"].value == 4900
    assert len(list(harness.requests.take(harness.now_ns, 10_000))) == 100
    harness.advance(SECOND_NS)
    harness.requests.put(request().encode(), harness.now_ns)
    assert len(harness.requests) == 1


def test_queue_is_bounded() -> None:
    harness = ProviderHarness(total_rate_hz=1_000_000)
    for _ in range(2000):
        harness.requests.put(request().encode(), harness.now_ns)
    harness.requests.put(request(name="x").encode() + bytes(1 << 17), harness.now_ns)
    assert len(harness.requests) == 1024
    assert harness.counters.refused["busy"].value == 977
    assert len(list(harness.requests.take(harness.now_ns, 16))) == 16


def test_rate_limits_are_kept_for_a_bounded_number_of_clients() -> None:
    harness = ProviderHarness(rate_hz=1, burst=1)
    for client_id in range(1, 6001):
        assert harness.reply(client_id=client_id) is not None
    assert len(harness.requests.clients) == 4096


# --- the log


@pytest.mark.requirement("discovery-13-3")
def test_sampled_requests_are_logged_without_names_and_tags(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = ProviderHarness(log_every=3)
    harness.add(1, name="secret-project", tags=("hush",))
    with caplog.at_level(logging.INFO):
        for _ in range(7):
            harness.ask(name="secret-project", tags=("hush", "hush2"))
    assert len(caplog.records) == 2
    assert "client 42, filter on name, 2 tags: OK, 0 streams" in caplog.text
    assert "secret" not in caplog.text
    assert "hush" not in caplog.text


def test_no_request_is_logged_with_log_every_0(caplog: pytest.LogCaptureFixture) -> None:
    harness = ProviderHarness(log_every=0, burst=1000)
    with caplog.at_level(logging.INFO):
        for _ in range(200):
            harness.ask()
    assert caplog.text == ""


def test_cached_responses_are_bounded_in_number_and_bytes() -> None:
    harness = ProviderHarness()
    tags = tuple(f"t{number}" for number in range(20))
    for number in range(1, 601):
        harness.add(number, name=f"camera-{number}", tags=("x" * 500, *tags))
    builder = harness.requests.responses
    for number in range(1, 101):
        harness.found(name=f"camera-{number}", client_id=number)
    assert 0 < builder.cached <= 32
    # Each of these responses has all streams; twenty of them exceed the cache.
    for number, tag in enumerate(tags):
        reply = harness.reply(tags=(tag,), client_id=1000 + number)
        assert reply is not None
        assert len(reply.message) > (8 << 20) / 20
    assert (8 << 20) / 2 < builder.cached_bytes <= 8 << 20
    assert builder.cached < len(tags)
