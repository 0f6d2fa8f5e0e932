"""Services under pressure: stopped, flooded, bursting, asked for too much."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.service import Event
from tests.integration.service.roles import Crowd, Guest, Kitchen
from tests.remote_process import RemoteProcess


class Busy(tp.Service, name="busy"):
    number = tp.Property(0)

    @tp.command
    def burst(self, count: int) -> int:
        for _ in range(count):
            self.number += 1
        return self.number

    @tp.command
    def large(self, size: int) -> str:
        return "x" * size

    @tp.command
    def wait(self, timeout: float) -> float:
        return timeout

    @tp.command
    def add(self) -> int:
        self.number += 1
        return self.number


@pytest.fixture
def ctx(aeron_dir: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=aeron_dir) as context:
        yield context


def test_a_service_that_is_stopped_for_a_moment_misses_no_command(aeron_dir: Path) -> None:
    directory = str(aeron_dir)
    with (
        tp.MediaDriver(aeron_dir),
        RemoteProcess(Kitchen, directory, "1") as stopped,
        RemoteProcess(Kitchen, directory, "2") as other,
        RemoteProcess(Guest, directory, "oven", "1") as guest,
        RemoteProcess(Crowd, directory) as crowd,
    ):
        stopped.call("pid")
        other.call("pid")
        assert guest.call("many", count=1) == [1]
        crowd.send("flood", count=100_000)
        stopped.stop()
        time.sleep(0.2)
        guest.send("many", count=20)
        time.sleep(0.1)
        stopped.resume()
        assert guest.receive(100) == list(range(2, 22))
        crowd.receive(100)
        assert stopped.call("state")["baked"] == 21


def test_good_commands_behind_a_bad_one_are_done(ctx: tp.Context, caplog: pytest.LogCaptureFixture) -> None:
    with ctx.serve(Busy()), ctx.service("busy", timeout=30) as client, caplog.at_level(logging.CRITICAL):
        for _ in range(5):
            with pytest.raises(tp.RequestRejected):
                client.call("add", {"nonsense": 1})
            client.call("add")
        assert client.get("number") == 5


def test_no_reply_is_lost_in_a_burst_of_changes(ctx: tp.Context) -> None:
    with ctx.serve(Busy()), ctx.service("busy", timeout=60) as client:
        assert client.call("burst", count=20_000) == 20_000
        assert [client.get("number") for _ in range(50)] == [20_000] * 50


def test_a_result_that_no_message_holds_is_a_failure_with_the_reason(
    ctx: tp.Context, caplog: pytest.LogCaptureFixture
) -> None:
    with ctx.serve(Busy()), ctx.service("busy", timeout=30) as client, caplog.at_level(logging.CRITICAL):
        with pytest.raises(tp.CommandFailed, match="more than one message holds"):
            client.call("large", size=2_000_000)
        assert len(client.call("large", size=100_000)) == 100_000


def test_a_command_may_have_a_parameter_called_timeout(ctx: tp.Context) -> None:
    with ctx.serve(Busy()), ctx.service("busy") as client:
        assert client.call("wait", {"timeout": 7.0}) == 7.0


def test_a_closed_client_says_so_at_once(ctx: tp.Context) -> None:
    client = ctx.service("busy", timeout=60)
    client.close()
    began = time.monotonic()
    with pytest.raises(tp.ClosedError):
        client.get("number")
    assert time.monotonic() - began < 30


def test_what_cannot_be_sent_is_refused_here(ctx: tp.Context) -> None:
    client: Any = ctx.service("busy")
    with pytest.raises(tp.RequestRejected, match="no JSON"):
        client.call("add", x=b"bytes")
    with pytest.raises(tp.CodecError, match="not UTF-8"):
        client.set("number", "\ud800")
    with pytest.raises(tp.ConfigError, match="service name"):
        ctx.service("a:b")


def test_commands_from_before_the_service_came_are_not_done(ctx: tp.Context) -> None:
    """A client that was told that nobody answers must not find it done later."""
    with ctx.serve(Busy(instance="other")):
        with pytest.raises(tp.NoSuchService):
            ctx.service("busy", instance="late").call("add", timeout=0.3)
        with ctx.serve(Busy(instance="late")), ctx.service("busy", instance="late", timeout=30) as client:
            assert client.get("number") == 0


def test_the_token_goes_only_where_it_is_needed(ctx: tp.Context) -> None:
    class Safe(tp.Service, name="safe"):
        @tp.command(needs_token=True)
        def open(self) -> str:
            return "open"

        @tp.command
        def look(self) -> str:
            return "shut"

    streams = ctx.service_streams
    heard = _native.Mailbox(ctx.connection.conductor, streams.channel, streams.control, ["service:safe"])
    with ctx.serve(Safe(token="s3cret")), ctx.service("safe", token="s3cret", timeout=30) as client:
        while not heard.is_ready:
            time.sleep(0.002)
        assert client.call("open") == "open"
        assert client.call("look") == "shut"
        requests: dict[str, bytes] = {}
        while "look()" not in requests:
            requests |= {Event.decode(message).key: message for message in heard.take(64, 30.0)}
    heard.close()
    assert b"s3cret" in requests["open()"]
    assert b"s3cret" not in requests["look()"]
