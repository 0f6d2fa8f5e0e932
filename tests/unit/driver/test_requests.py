"""Requests and responses as bytes: both revisions, nulls, malformed requests, repeats (driver §4.2)."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from tensorpool import sbe
from tensorpool.driver.actions import Send, Stop
from tensorpool.driver.config import StreamSettings
from tensorpool.driver.counters import DriverCounters
from tensorpool.driver.leases import Refusal
from tensorpool.driver.requests import ResponseCache, attach_refused, detach_response
from tensorpool.runtime.config import Secret
from tensorpool.sbe import (
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachRequestR2,
    ShmAttachResponse,
    ShmAttachResponseR2,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmDriverShutdown,
    ShmDriverShutdownRequest,
    ShmLeaseKeepalive,
    ShutdownReason,
)
from tests.unit.driver.state_harness import StateHarness, with_header

REFUSED = Refusal(ResponseCode.REJECTED, "no")
ATTACH = ShmAttachRequest(
    correlation_id=11,
    stream_id=10_000,
    client_id=5,
    role=Role.CONSUMER,
    publish_mode=PublishMode.EXISTING_OR_CREATE,
).encode()
ATTACH_R2 = ShmAttachRequestR2(correlation_id=12, stream_id=10_000, client_id=6, role=Role.CONSUMER).encode()
DETACH = ShmDetachRequest(
    correlation_id=13, lease_id=1, stream_id=10_000, client_id=5, role=Role.CONSUMER
).encode()
KEEPALIVE = ShmLeaseKeepalive(
    lease_id=1, stream_id=10_000, client_id=5, role=Role.CONSUMER, client_timestamp_ns=1
).encode()
SHUTDOWN = ShmDriverShutdownRequest(
    correlation_id=14, reason=ShutdownReason.ADMIN, token="open sesame"
).encode()


@pytest.fixture
def harness() -> StateHarness:
    return StateHarness(streams=(StreamSettings(stream_id=10_000),), shutdown_token=Secret("open sesame"))


# --- nulls


@pytest.mark.requirement("driver-4.2-4", "driver-4.2-5", "driver-4.2-6")
def test_failure_response_is_null_except_three_fields() -> None:
    expected = (
        struct.pack("<HHHH", 51, 2, 901, 1)
        + struct.pack("<qi", -9, 3)
        + b"\xff" * (8 + 8 + 4 + 8 + 4 + 4 + 2 + 1)
        + struct.pack("<HH", 18 - 8, 0)
        + struct.pack("<I", 0)
        + struct.pack("<I", 2)
        + b"no"
    )
    assert attach_refused(-9, REFUSED, 1).encode() == expected


@pytest.mark.requirement("driver-4.2-5", "driver-4.2-6")
def test_failure_response_of_the_later_revision_is_null_too() -> None:
    encoded = attach_refused(-9, REFUSED, 2).encode()
    assert encoded[:8] == struct.pack("<HHHH", 54, 2, 901, 1)
    assert encoded[8:20] == struct.pack("<qi", -9, 3)
    assert encoded[20:62] == b"\xff" * (8 + 8 + 4 + 8 + 4 + 4 + 2 + 4)
    assert encoded.endswith(struct.pack("<II", 0, 2) + b"no")


@pytest.mark.requirement("driver-4.2-6")
def test_granted_response_has_no_null_field(harness: StateHarness) -> None:
    harness.send(ATTACH)
    harness.work()
    answer = harness.response(11)
    assert isinstance(answer, ShmAttachResponse)
    again = sbe.decode(answer.encode())
    assert again == answer
    for field in ShmAttachResponse.layout().encoded_fields:
        assert getattr(again, field.python_name) is not None


@pytest.mark.requirement("driver-4.2-7")
def test_absent_enum_is_255_and_has_the_safe_default(harness: StateHarness) -> None:
    request = ShmAttachRequest(correlation_id=1, stream_id=20_000, client_id=5, role=Role.CONSUMER).encode()
    assert request[8 + 22 : 8 + 24] == b"\xff\xff"
    harness.send(request)
    assert "is not provisioned" in harness.refusal(1)[1]


def test_detach_response_is_short() -> None:
    encoded = detach_response(7, None).encode()
    assert encoded == struct.pack("<HHHHqiI", 12, 4, 901, 1, 7, 0, 0)


# --- invalid requests


def counted(harness: StateHarness) -> dict[str, int]:
    counts = harness.state.counters.snapshot()["invalid"]
    assert isinstance(counts, dict)
    return {reason: int(count) for reason, count in counts.items() if count}


@pytest.mark.requirement("driver-4.6-1")
@pytest.mark.parametrize(
    ("message", "correlation", "kind"),
    [
        (ATTACH, 11, ShmAttachResponse),
        (ATTACH_R2, 12, ShmAttachResponseR2),
        (DETACH, 13, ShmDetachResponse),
        (SHUTDOWN, 14, sbe.ControlResponse),
    ],
)
def test_another_schema_version_is_unsupported(
    harness: StateHarness, message: bytes, correlation: int, kind: type[Any]
) -> None:
    harness.send(with_header(message, version=2))
    answer = harness.response(correlation)
    assert isinstance(answer, kind)
    assert answer.code is ResponseCode.UNSUPPORTED
    assert "version is 2, expected 1" in answer.error_message
    assert counted(harness) == {"version": 1}
    assert harness.stops == []


@pytest.mark.requirement("driver-4.6-1")
def test_unknown_publish_mode_is_unsupported(harness: StateHarness) -> None:
    message = bytearray(ATTACH)
    message[8 + 22] = 9
    harness.send(bytes(message))
    assert harness.refusal(11)[0] is ResponseCode.UNSUPPORTED
    assert counted(harness) == {"feature": 1}


def test_unknown_hugepages_policy_is_unsupported(harness: StateHarness) -> None:
    message = bytearray(ATTACH_R2)
    message[8 + 22] = 9
    harness.send(bytes(message))
    answer = harness.response(12)
    assert isinstance(answer, ShmAttachResponseR2)
    assert answer.code is ResponseCode.UNSUPPORTED


@pytest.mark.requirement("driver-4.6-1")
@pytest.mark.parametrize("message", [ATTACH, DETACH])
def test_unknown_role_is_malformed(harness: StateHarness, message: bytes) -> None:
    role_at = {ATTACH: 8 + 16, DETACH: 8 + 24}[message]
    broken = bytearray(message)
    broken[role_at] = 7
    harness.send(bytes(broken))
    answer = harness.sent[-1]
    assert isinstance(answer, ShmAttachResponse | ShmDetachResponse)
    assert answer.code is ResponseCode.INVALID_PARAMS
    assert "7 is no Role" in answer.error_message
    assert counted(harness) == {"malformed": 1}


@pytest.mark.parametrize("length", range(8, len(ATTACH)))
def test_truncated_request_gets_a_response_by_its_correlation_id(harness: StateHarness, length: int) -> None:
    harness.send(ATTACH[:length])
    if length >= 16:
        assert harness.refusal(11)[0] is ResponseCode.INVALID_PARAMS
        assert counted(harness) == {"malformed": 1}
    else:
        assert harness.sent == []
        assert counted(harness) == {"unanswerable": 1}
    assert len(harness.state.leases) == 0


def test_block_that_is_too_short_is_malformed(harness: StateHarness) -> None:
    harness.send(with_header(ATTACH, block_length=20))
    code, reason = harness.refusal(11)
    assert code is ResponseCode.INVALID_PARAMS
    assert "shorter" in reason


def test_longer_block_of_a_later_revision_is_read(harness: StateHarness) -> None:
    harness.send(with_header(ATTACH[:32], block_length=40) + b"\0" * 16)
    harness.work()
    assert harness.response(11).code is ResponseCode.OK


@pytest.mark.parametrize(("length", "reason"), [(0, "short"), (7, "short")])
def test_message_shorter_than_a_header_is_counted(harness: StateHarness, length: int, reason: str) -> None:
    harness.send(ATTACH[:length])
    assert counted(harness) == {reason: 1}
    assert harness.sent == []


def test_unknown_template_is_counted(harness: StateHarness) -> None:
    harness.send(with_header(ATTACH, template_id=99))
    assert counted(harness) == {"template": 1}
    assert harness.sent == []


def test_malformed_keepalive_is_counted_without_a_response(harness: StateHarness) -> None:
    harness.send(KEEPALIVE[:20])
    harness.send(with_header(KEEPALIVE, version=3))
    assert counted(harness) == {"malformed": 1, "version": 1}
    assert harness.sent == []


def test_foreign_messages_are_ignored(harness: StateHarness) -> None:
    others = [
        sbe.QosProducer(stream_id=1, producer_id=1, epoch=1, current_seq=1).encode(),
        ShmDriverShutdown(timestamp_ns=1, reason=ShutdownReason.NORMAL).encode(),
        attach_refused(11, REFUSED, 1).encode(),
        attach_refused(11, REFUSED, 2).encode(),
        detach_response(11, None).encode(),
        with_header(ATTACH, schema_id=77),
    ]
    for message in others:
        harness.send(message)
    assert harness.sent == []
    assert harness.state.counters.snapshot()["foreign"] == len(others)
    assert counted(harness) == {}


def test_malformed_messages_never_raise_or_get_a_lease(harness: StateHarness) -> None:
    dice = random.Random(7)
    for message in (ATTACH, ATTACH_R2, DETACH, KEEPALIVE, SHUTDOWN):
        for _ in range(500):
            broken = bytearray(message)
            for _ in range(dice.randint(1, 6)):
                broken[dice.randrange(len(broken))] = dice.randrange(256)
            harness.send(bytes(broken[: dice.randint(0, len(broken))]))
    assert len(harness.sent) > 100


# --- repeats


@pytest.mark.parametrize("message", [ATTACH, DETACH])
def test_repeated_request_gets_the_cached_response(harness: StateHarness, message: bytes) -> None:
    harness.send(message)
    harness.work()
    first, leases = harness.sent[-1], len(harness.state.leases)
    harness.send(message)
    harness.work()
    assert harness.sent[-2:] == [first, first]
    assert len(harness.state.leases) == leases
    assert harness.state.counters.snapshot()["repeats"] == 1


def test_request_repeated_while_pending_gets_one_response(harness: StateHarness) -> None:
    harness.send(ATTACH)
    harness.send(ATTACH)
    assert len(harness.jobs) == 1
    harness.work()
    assert harness.response(11).code is ResponseCode.OK


def test_same_correlation_id_of_another_client_is_another_request(harness: StateHarness) -> None:
    harness.send(ATTACH)
    other = ShmAttachRequest(correlation_id=11, stream_id=10_000, client_id=9, role=Role.CONSUMER)
    harness.send(other)
    harness.work()
    assert len(harness.state.leases) == 2


def test_response_cache_is_bounded() -> None:
    actions: list = []
    responses = ResponseCache(actions, DriverCounters(), capacity=3)
    for n in range(5):
        responses.respond(ShmDetachResponse(correlation_id=n, code=ResponseCode.OK), (int, 1, n))
    assert len(responses) == 3
    assert not responses.is_repeat((int, 1, 1))
    assert responses.is_repeat((int, 1, 2))
    assert [action.is_repeat for action in actions] == [False] * 5 + [True]


# --- shutdown by message


@pytest.mark.requirement("driver-4.12-1")
def test_right_token_stops_the_driver(harness: StateHarness) -> None:
    harness.send(SHUTDOWN)
    assert harness.response(14).code is ResponseCode.OK
    assert harness.stops == [Stop(ShutdownReason.ADMIN, "")]
    harness.send(SHUTDOWN)
    assert len(harness.stops) == 1


@pytest.mark.requirement("driver-4.12-1")
@pytest.mark.parametrize("token", ["", "open", "open sesame!", "OPEN SESAME"])
def test_wrong_token_stops_nothing(harness: StateHarness, token: str) -> None:
    request = ShmDriverShutdownRequest(correlation_id=1, reason=ShutdownReason.NORMAL, token=token)
    harness.send(request)
    answer = harness.response(1)
    assert (answer.code, answer.error_message) == (ResponseCode.REJECTED, "the token is wrong")
    assert harness.stops == []
    # The response does not contain the token.
    assert token == "" or token not in answer.error_message.replace("the token is wrong", "")


@pytest.mark.requirement("driver-4.12-1")
def test_driver_without_a_token_cannot_be_stopped_by_message() -> None:
    harness = StateHarness()
    harness.send(ShmDriverShutdownRequest(correlation_id=1, reason=ShutdownReason.NORMAL, token=""))
    answer = harness.response(1)
    assert answer.code is ResponseCode.REJECTED
    assert "no token is configured" in answer.error_message
    assert harness.stops == []


@pytest.mark.requirement("driver-4.12-2")
def test_shutdown_notice_precedes_removal(harness: StateHarness) -> None:
    harness.send(ATTACH)
    harness.work()
    waiting = harness.request_attach(20_000, 6, Role.PRODUCER)
    actions = harness.state.on_stop(ShutdownReason.ADMIN, "maintenance", harness.now)
    sent = [action.message for action in actions if isinstance(action, Send)]
    assert sent[-1] == ShmDriverShutdown(
        timestamp_ns=harness.now, reason=ShutdownReason.ADMIN, error_message="maintenance"
    )
    assert actions.index(Send(sent[-1])) < len(actions) - 1
    harness.perform(actions)
    assert "the driver is stopping" in harness.refusal(waiting)[1]
    assert harness.announced == {}
    harness.work()
    assert all(not directories for directories in harness.directories.values())
    # A stopping driver handles no more requests.
    assert harness.state.on_stop(ShutdownReason.NORMAL, "", harness.now) == []
    assert harness.state.on_message(DETACH, harness.now) == []
    assert harness.state.on_tick(harness.now + 10**12, read_until_ns=harness.now + 10**12) == []
