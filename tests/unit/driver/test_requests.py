"""Bytes in, bytes out: both revisions, nulls, malformed requests, repeats (driver §4.2)."""

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
from tensorpool.driver.requests import ResponseCache, attach_refused, detach_answer
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
from tests.unit.driver.world import World, with_header

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
def world() -> World:
    return World(streams=(StreamSettings(stream_id=10_000),), shutdown_token=Secret("open sesame"))


# --- nulls


@pytest.mark.requirement("driver-4.2-4", "driver-4.2-5", "driver-4.2-6")
def test_a_failure_response_is_null_in_every_byte_but_the_three() -> None:
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
def test_a_failure_response_of_the_later_revision_is_null_too() -> None:
    made = attach_refused(-9, REFUSED, 2).encode()
    assert made[:8] == struct.pack("<HHHH", 54, 2, 901, 1)
    assert made[8:20] == struct.pack("<qi", -9, 3)
    assert made[20:62] == b"\xff" * (8 + 8 + 4 + 8 + 4 + 4 + 2 + 4)
    assert made.endswith(struct.pack("<II", 0, 2) + b"no")


@pytest.mark.requirement("driver-4.2-6")
def test_nothing_that_a_client_needs_is_null_in_a_granted_one(world: World) -> None:
    world.say(ATTACH)
    world.work()
    answer = world.answer(11)
    assert isinstance(answer, ShmAttachResponse)
    again = sbe.decode(answer.encode())
    assert again == answer
    for field in ShmAttachResponse.layout().encoded_fields:
        assert getattr(again, field.python_name) is not None


@pytest.mark.requirement("driver-4.2-7")
def test_an_absent_enum_is_255_and_means_the_careful_choice(world: World) -> None:
    request = ShmAttachRequest(correlation_id=1, stream_id=20_000, client_id=5, role=Role.CONSUMER).encode()
    assert request[8 + 22 : 8 + 24] == b"\xff\xff"
    world.say(request)
    assert "not provisioned" in world.refusal(1)[1]


def test_a_detach_response_is_short() -> None:
    made = detach_answer(7, None).encode()
    assert made == struct.pack("<HHHHqiI", 12, 4, 901, 1, 7, 0, 0)


# --- what cannot be used


def counted(world: World) -> dict[str, int]:
    found = world.state.counters.snapshot()["unusable"]
    assert isinstance(found, dict)
    return {reason: int(count) for reason, count in found.items() if count}


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
    world: World, message: bytes, correlation: int, kind: type[Any]
) -> None:
    world.say(with_header(message, version=2))
    answer = world.answer(correlation)
    assert isinstance(answer, kind)
    assert answer.code is ResponseCode.UNSUPPORTED
    assert "version is 2, expected 1" in answer.error_message
    assert counted(world) == {"version": 1}
    assert world.stops == []


@pytest.mark.requirement("driver-4.6-1")
def test_a_publish_mode_of_the_future_is_unsupported(world: World) -> None:
    message = bytearray(ATTACH)
    message[8 + 22] = 9
    world.say(bytes(message))
    assert world.refusal(11)[0] is ResponseCode.UNSUPPORTED
    assert counted(world) == {"feature": 1}


def test_a_hugepages_policy_of_the_future_is_unsupported(world: World) -> None:
    message = bytearray(ATTACH_R2)
    message[8 + 22] = 9
    world.say(bytes(message))
    answer = world.answer(12)
    assert isinstance(answer, ShmAttachResponseR2)
    assert answer.code is ResponseCode.UNSUPPORTED


@pytest.mark.requirement("driver-4.6-1")
@pytest.mark.parametrize("message", [ATTACH, DETACH])
def test_a_role_that_is_none_is_malformed(world: World, message: bytes) -> None:
    role_at = {ATTACH: 8 + 16, DETACH: 8 + 24}[message]
    broken = bytearray(message)
    broken[role_at] = 7
    world.say(bytes(broken))
    answer = world.sent[-1]
    assert isinstance(answer, ShmAttachResponse | ShmDetachResponse)
    assert answer.code is ResponseCode.INVALID_PARAMS
    assert "7 is no Role" in answer.error_message
    assert counted(world) == {"malformed": 1}


@pytest.mark.parametrize("length", range(8, len(ATTACH)))
def test_a_cut_request_is_answered_as_long_as_its_correlation_id_is_there(world: World, length: int) -> None:
    world.say(ATTACH[:length])
    if length >= 16:
        assert world.refusal(11)[0] is ResponseCode.INVALID_PARAMS
        assert counted(world) == {"malformed": 1}
    else:
        assert world.sent == []
        assert counted(world) == {"unanswerable": 1}
    assert len(world.state.leases) == 0


def test_a_block_that_is_too_short_is_malformed(world: World) -> None:
    world.say(with_header(ATTACH, block_length=20))
    code, reason = world.refusal(11)
    assert code is ResponseCode.INVALID_PARAMS
    assert "shorter" in reason


def test_a_longer_block_of_a_later_revision_is_read(world: World) -> None:
    world.say(with_header(ATTACH[:32], block_length=40) + b"\0" * 16)
    world.work()
    assert world.answer(11).code is ResponseCode.OK


@pytest.mark.parametrize(("length", "reason"), [(0, "short"), (7, "short")])
def test_what_is_shorter_than_a_header_is_counted(world: World, length: int, reason: str) -> None:
    world.say(ATTACH[:length])
    assert counted(world) == {reason: 1}
    assert world.sent == []


def test_a_template_that_nobody_knows_is_counted(world: World) -> None:
    world.say(with_header(ATTACH, template_id=99))
    assert counted(world) == {"template": 1}
    assert world.sent == []


def test_a_malformed_keepalive_is_counted_and_unanswered(world: World) -> None:
    world.say(KEEPALIVE[:20])
    world.say(with_header(KEEPALIVE, version=3))
    assert counted(world) == {"malformed": 1, "version": 1}
    assert world.sent == []


def test_what_is_meant_for_others_is_left_alone(world: World) -> None:
    others = [
        sbe.QosProducer(stream_id=1, producer_id=1, epoch=1, current_seq=1).encode(),
        ShmDriverShutdown(timestamp_ns=1, reason=ShutdownReason.NORMAL).encode(),
        attach_refused(11, REFUSED, 1).encode(),
        attach_refused(11, REFUSED, 2).encode(),
        detach_answer(11, None).encode(),
        with_header(ATTACH, schema_id=77),
    ]
    for message in others:
        world.say(message)
    assert world.sent == []
    assert world.state.counters.snapshot()["foreign"] == len(others)
    assert counted(world) == {}


def test_no_garbage_whatever_raises_or_gets_a_lease(world: World) -> None:
    dice = random.Random(7)
    for message in (ATTACH, ATTACH_R2, DETACH, KEEPALIVE, SHUTDOWN):
        for _ in range(500):
            broken = bytearray(message)
            for _ in range(dice.randint(1, 6)):
                broken[dice.randrange(len(broken))] = dice.randrange(256)
            world.say(bytes(broken[: dice.randint(0, len(broken))]))
    assert len(world.sent) > 100


# --- repeats


@pytest.mark.parametrize("message", [ATTACH, DETACH])
def test_a_request_that_comes_again_gets_the_same_answer_and_nothing_is_done(
    world: World, message: bytes
) -> None:
    world.say(message)
    world.work()
    first, leases = world.sent[-1], len(world.state.leases)
    world.say(message)
    world.work()
    assert world.sent[-2:] == [first, first]
    assert len(world.state.leases) == leases
    assert world.state.counters.snapshot()["repeats"] == 1


def test_a_request_that_comes_again_while_it_is_worked_on_is_answered_once(world: World) -> None:
    world.say(ATTACH)
    world.say(ATTACH)
    assert len(world.jobs) == 1
    world.work()
    assert world.answer(11).code is ResponseCode.OK


def test_the_same_correlation_id_of_another_client_is_another_request(world: World) -> None:
    world.say(ATTACH)
    other = ShmAttachRequest(correlation_id=11, stream_id=10_000, client_id=9, role=Role.CONSUMER)
    world.say(other)
    world.work()
    assert len(world.state.leases) == 2


def test_answers_are_kept_in_bounded_number() -> None:
    actions: list = []
    answers = ResponseCache(actions, DriverCounters(), most=3)
    for n in range(5):
        answers.give(ShmDetachResponse(correlation_id=n, code=ResponseCode.OK), (int, 1, n))
    assert len(answers) == 3
    assert not answers.is_repeat((int, 1, 1))
    assert answers.is_repeat((int, 1, 2))
    assert [one.is_repeat for one in actions] == [False] * 5 + [True]


# --- the end by message


@pytest.mark.requirement("driver-4.12-1")
def test_the_right_token_stops_the_driver(world: World) -> None:
    world.say(SHUTDOWN)
    assert world.answer(14).code is ResponseCode.OK
    assert world.stops == [Stop(ShutdownReason.ADMIN, "")]
    world.say(SHUTDOWN)
    assert len(world.stops) == 1


@pytest.mark.requirement("driver-4.12-1")
@pytest.mark.parametrize("token", ["", "open", "open sesame!", "OPEN SESAME"])
def test_a_wrong_token_stops_nothing(world: World, token: str) -> None:
    request = ShmDriverShutdownRequest(correlation_id=1, reason=ShutdownReason.NORMAL, token=token)
    world.say(request)
    answer = world.answer(1)
    assert (answer.code, answer.error_message) == (ResponseCode.REJECTED, "the token is wrong")
    assert world.stops == []
    # What was tried is said to nobody.
    assert token == "" or token not in answer.error_message.replace("the token is wrong", "")


@pytest.mark.requirement("driver-4.12-1")
def test_without_a_configured_token_nobody_stops_the_driver() -> None:
    world = World()
    world.say(ShmDriverShutdownRequest(correlation_id=1, reason=ShutdownReason.NORMAL, token=""))
    answer = world.answer(1)
    assert answer.code is ResponseCode.REJECTED
    assert "no token is configured" in answer.error_message
    assert world.stops == []


@pytest.mark.requirement("driver-4.12-2")
def test_the_goodbye_comes_before_everything_goes(world: World) -> None:
    world.say(ATTACH)
    world.work()
    waiting = world.ask(20_000, 6, Role.PRODUCER)
    actions = world.state.on_stop(ShutdownReason.ADMIN, "maintenance", world.now)
    sent = [action.message for action in actions if isinstance(action, Send)]
    assert sent[-1] == ShmDriverShutdown(
        timestamp_ns=world.now, reason=ShutdownReason.ADMIN, error_message="maintenance"
    )
    assert actions.index(Send(sent[-1])) < len(actions) - 1
    world.do(actions)
    assert "the driver is stopping" in world.refusal(waiting)[1]
    assert world.announced == {}
    world.work()
    assert all(not directories for directories in world.directories.values())
    # It is over: nothing is answered or done any more.
    assert world.state.on_stop(ShutdownReason.NORMAL, "", world.now) == []
    assert world.state.on_message(DETACH, world.now) == []
    assert world.state.on_tick(world.now + 10**12, drained=True) == []
