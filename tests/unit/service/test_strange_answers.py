"""Answers from services that are not ours to write: other implementations, and whoever pretends to be one."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import pytest

from tensorpool import _native
from tensorpool.clock import ManualClock
from tensorpool.errors import CommandFailed
from tensorpool.service import Event, ServiceClient, find_services
from tensorpool.transport.channels import ServiceStreams

STRANGE = ("no JSON", "[1, 2]", "null", "7", "{}", '{"pid": "7"}', "[" * 100_000)


class Wire:
    """Both streams: each request is answered with what the test has put in line."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.answers: deque[tuple[str, str, Any]] = deque()
        self._waiting: list[bytes] = []

    is_ready = is_connected = True
    closed = False

    def offer(self, message: bytes) -> str:
        request = Event.decode(message)
        for tag, key, value in self.answers:
            self._waiting.append(Event(tag, key, value, request.correlation_id).encode(self.clock))
        self.answers.clear()
        return "sent"

    def take(self, limit: int, timeout: float) -> list[bytes]:
        self.clock.advance(timeout)
        taken, self._waiting = self._waiting, []
        return taken

    def close(self) -> None:
        pass


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def wire(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire(clock)
    for name in ("Mailbox", "Publication"):
        monkeypatch.setattr(_native, name, lambda *_: made)
    return made


@pytest.fixture
def client(wire: Wire, clock: ManualClock) -> ServiceClient:
    return ServiceClient(None, "camera", token="secret", clock=clock)  # type: ignore[arg-type]


def test_who_cannot_say_who_it_is_is_not_listed(wire: Wire, clock: ManualClock) -> None:
    wire.answers.extend((f"service:x{n}", "ping().result", one) for n, one in enumerate(STRANGE))
    wire.answers.append(("service:camera", "ping().result", '{"pid": 7}'))
    found = find_services(None, streams=ServiceStreams(), clock=clock)  # type: ignore[arg-type]
    assert found == [{"tag": "service:camera", "pid": 7}]


@pytest.mark.parametrize("value", STRANGE)
def test_a_ping_that_is_answered_with_anything_else_says_so(
    client: ServiceClient, wire: Wire, value: str
) -> None:
    wire.answers.append((client.tag, "ping().result", value))
    with pytest.raises(CommandFailed, match="does not say who it is"):
        client.ping()


@pytest.mark.parametrize("value", ["no JSON", "[" * 100_000])
def test_a_result_that_is_no_json_says_so(client: ServiceClient, wire: Wire, value: str) -> None:
    client._needs_token = frozenset()
    wire.answers.append((client.tag, "shoot().result", value))
    with pytest.raises(CommandFailed, match="no JSON"):
        client.call("shoot")


@pytest.mark.parametrize(
    "value", ["7", "{}", json.dumps({"commands": 7}), json.dumps({"commands": {"a": 1}})]
)
def test_a_token_goes_nowhere_where_it_is_not_said_who_needs_it(
    client: ServiceClient, wire: Wire, value: str
) -> None:
    wire.answers.append((client.tag, "describe().result", value))
    with pytest.raises(CommandFailed, match="which commands need a token"):
        client.call("shoot")
