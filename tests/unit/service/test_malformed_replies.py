"""Malformed replies, from other implementations of services or from programs that imitate one."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import pytest

from tensorpool import _native
from tensorpool.clock import ManualClock
from tensorpool.errors import CommandFailed
from tensorpool.service import Event, ServiceClient, ServiceIdentity, find_services
from tensorpool.transport.channels import ServiceStreams

MALFORMED = ("no JSON", "[1, 2]", "null", "7", "{}", '{"pid": "7"}', "[" * 100_000)


class FakeStreams:
    """Both streams in memory: a request gets the replies that the test has queued."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.replies: deque[tuple[str, str, Any]] = deque()
        self._waiting: list[bytes] = []

    is_ready = is_connected = True
    closed = False

    def offer(self, message: bytes) -> str:
        request = Event.decode(message)
        for tag, key, value in self.replies:
            self._waiting.append(Event(tag, key, value, request.correlation_id).encode(self.clock))
        self.replies.clear()
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
def fake_streams(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> FakeStreams:
    streams = FakeStreams(clock)
    for name in ("Mailbox", "Publication"):
        monkeypatch.setattr(_native, name, lambda *_: streams)
    return streams


@pytest.fixture
def client(fake_streams: FakeStreams, clock: ManualClock) -> ServiceClient:
    return ServiceClient(None, "camera", token="secret", clock=clock)  # type: ignore[arg-type]


def test_service_with_a_malformed_ping_is_not_listed(fake_streams: FakeStreams, clock: ManualClock) -> None:
    fake_streams.replies.extend(
        (f"service:x{n}", "ping().result", value) for n, value in enumerate(MALFORMED)
    )
    fake_streams.replies.append(("service:camera", "ping().result", '{"pid": 7}'))
    services = find_services(None, streams=ServiceStreams(), clock=clock)  # type: ignore[arg-type]
    assert services == [ServiceIdentity("service:camera", "camera", None, 7)]


@pytest.mark.parametrize("value", MALFORMED)
def test_malformed_ping_reply_is_an_error(
    client: ServiceClient, fake_streams: FakeStreams, value: str
) -> None:
    fake_streams.replies.append((client.tag, "ping().result", value))
    with pytest.raises(CommandFailed, match="without a process id"):
        client.ping()


@pytest.mark.parametrize("value", ["no JSON", "[" * 100_000])
def test_result_that_is_not_json_is_an_error(
    client: ServiceClient, fake_streams: FakeStreams, value: str
) -> None:
    client._needs_token = frozenset()
    fake_streams.replies.append((client.tag, "shoot().result", value))
    with pytest.raises(CommandFailed, match="not JSON"):
        client.call("shoot")


@pytest.mark.parametrize(
    "value", ["7", "{}", json.dumps({"commands": 7}), json.dumps({"commands": {"a": 1}})]
)
def test_token_is_not_sent_after_a_malformed_describe(
    client: ServiceClient, fake_streams: FakeStreams, value: str
) -> None:
    fake_streams.replies.append((client.tag, "describe().result", value))
    with pytest.raises(CommandFailed, match="commands that need a token"):
        client.call("shoot")
