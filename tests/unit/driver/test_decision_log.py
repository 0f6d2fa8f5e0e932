"""The log of the driver's decisions."""

from __future__ import annotations

import logging

import pytest

from tensorpool.driver.actions import Action, Send
from tensorpool.driver.agent import log_decision
from tensorpool.driver.counters import DriverCounters
from tensorpool.driver.requests import Attach, ResponseCache
from tensorpool.sbe.driver import (
    LeaseRevokeReason,
    Role,
    ShmAttachResponse,
    ShmDriverShutdown,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
    ShutdownReason,
)
from tensorpool.sbe.wire import ResponseCode

CLIENT = 77
# Any number: other implementations draw theirs at random.
CORRELATION = 0xDEAD_BEEF_0000_0001


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    caplog.set_level(logging.INFO)
    ok, refused, failed = (
        ShmAttachResponse(correlation_id=CORRELATION, code=code, error_message="why")
        for code in (ResponseCode.OK, ResponseCode.REJECTED, ResponseCode.INTERNAL_ERROR)
    )
    ok.lease_id, ok.stream_id, ok.epoch = 5, 10_000, 9
    revoked = ShmLeaseRevoked(
        timestamp_ns=0,
        lease_id=5,
        stream_id=10_000,
        client_id=CLIENT,
        role=Role.PRODUCER,
        reason=LeaseRevokeReason.EXPIRED,
        error_message="no keepalive came in time",
    )
    shutdown = ShmDriverShutdown(timestamp_ns=0, reason=ShutdownReason.NORMAL)
    nothing = ShmLeaseKeepalive(
        lease_id=5, stream_id=1, client_id=CLIENT, role=Role.CONSUMER, client_timestamp_ns=0
    )
    for message in (ok, refused, failed, revoked, shutdown, nothing):
        log_decision(message, client_id=CLIENT)
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_each_decision_is_logged_with_client_and_reason(lines: list[tuple[int, str]]) -> None:
    assert [text for _, text in lines] == [
        "lease 5 of stream 10000, epoch 9, granted to client 77",
        "client 77 refused, REJECTED: why",
        "client 77 refused, INTERNAL_ERROR: why",
        "lease 5 of stream 10000, producer, client 77, has ended, expired: no keepalive came in time",
        "announcing the shutdown to all clients: normal",
    ]


def test_only_internal_errors_are_logged_as_warnings(lines: list[tuple[int, str]]) -> None:
    """An embedded driver shares the program's log: normal attaches and detaches must not be warnings."""
    assert [text for level, text in lines if level > logging.INFO] == [
        "client 77 refused, INTERNAL_ERROR: why"
    ]


def test_repeated_response_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_decision(ShmDriverShutdown(timestamp_ns=0, reason=ShutdownReason.NORMAL), is_repeat=True)
    assert not caplog.records


def test_client_of_a_malformed_request_is_not_guessed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_decision(
        ShmAttachResponse(correlation_id=CORRELATION, code=ResponseCode.INVALID_PARAMS, error_message="why")
    )
    assert [record.getMessage() for record in caplog.records] == [
        "a client whose request could not be read refused, INVALID_PARAMS: why"
    ]


def test_responses_are_sent_with_the_client_id_of_their_request() -> None:
    actions: list[Action] = []
    responses = ResponseCache(actions, DriverCounters())
    refused = ShmAttachResponse(correlation_id=CORRELATION, code=ResponseCode.REJECTED, error_message="why")
    responses.respond(refused, (Attach, CLIENT, CORRELATION))
    responses.respond(refused)
    assert [action.client_id for action in actions if isinstance(action, Send)] == [CLIENT, None]
