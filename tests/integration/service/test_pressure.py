"""Services under load: stopped, flooded, with bursts of changes and too large results."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.service import Event
from tests.integration.service.roles import ManyClients, ServiceClientProcess, ServiceProcess
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


def test_stopped_service_misses_no_command(aeron_dir: Path) -> None:
    directory = str(aeron_dir)
    with (
        tp.MediaDriver(aeron_dir),
        RemoteProcess(ServiceProcess, directory, "1") as stopped,
        RemoteProcess(ServiceProcess, directory, "2") as other,
        RemoteProcess(ServiceClientProcess, directory, "heater", "1") as client_process,
        RemoteProcess(ManyClients, directory) as many_clients,
    ):
        stopped.call("pid")
        other.call("pid")
        assert client_process.call("many", count=1) == [1]
        many_clients.send("flood", count=100_000)
        stopped.stop()
        time.sleep(0.2)
        client_process.send("many", count=20)
        time.sleep(0.1)
        stopped.resume()
        assert client_process.receive(100) == list(range(2, 22))
        many_clients.receive(100)
        assert stopped.call("state")["runs"] == 21


def test_commands_after_a_rejected_command_run(ctx: tp.Context, caplog: pytest.LogCaptureFixture) -> None:
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


def test_too_large_result_is_a_failure_with_the_reason(
    ctx: tp.Context, caplog: pytest.LogCaptureFixture
) -> None:
    with ctx.serve(Busy()), ctx.service("busy", timeout=30) as client, caplog.at_level(logging.CRITICAL):
        with pytest.raises(tp.CommandFailed, match="exceed the maximum message length"):
            client.call("large", size=2_000_000)
        assert len(client.call("large", size=100_000)) == 100_000


def test_command_may_have_a_parameter_called_timeout(ctx: tp.Context) -> None:
    with ctx.serve(Busy()), ctx.service("busy") as client:
        assert client.call("wait", {"timeout": 7.0}) == 7.0


def test_closed_client_raises_at_once(ctx: tp.Context) -> None:
    client = ctx.service("busy", timeout=60)
    client.close()
    start = time.monotonic()
    with pytest.raises(tp.ClosedError):
        client.get("number")
    assert time.monotonic() - start < 30


def test_request_that_cannot_be_encoded_is_refused_locally(ctx: tp.Context) -> None:
    client: Any = ctx.service("busy")
    with pytest.raises(tp.RequestRejected, match="cannot be written as JSON"):
        client.call("add", x=b"bytes")
    with pytest.raises(tp.CodecError, match="not UTF-8"):
        client.set("number", "\ud800")
    with pytest.raises(tp.ConfigError, match="service name"):
        ctx.service("a:b")


def test_commands_sent_before_the_start_do_not_run(ctx: tp.Context) -> None:
    """A command whose client got NoSuchService must not run later."""
    with ctx.serve(Busy(instance="other")):
        with pytest.raises(tp.NoSuchService):
            ctx.service("busy", instance="late").call("add", timeout=0.3)
        with ctx.serve(Busy(instance="late")), ctx.service("busy", instance="late", timeout=30) as client:
            assert client.get("number") == 0


def test_token_is_sent_only_with_commands_that_need_it(ctx: tp.Context) -> None:
    class Safe(tp.Service, name="safe"):
        @tp.command(needs_token=True)
        def open(self) -> str:
            return "open"

        @tp.command
        def read(self) -> str:
            return "shut"

    streams = ctx.service_streams
    mailbox = ctx.connection.mailbox(streams.control_address, ["service:safe"])
    with ctx.serve(Safe(token="s3cret")), ctx.service("safe", token="s3cret", timeout=30) as client:
        while not mailbox.is_ready:
            time.sleep(0.002)
        assert client.call("open") == "open"
        assert client.call("read") == "shut"
        requests: dict[str, bytes] = {}
        while "read()" not in requests:
            requests |= {Event.decode(message).key: message for message in mailbox.take(64, 30.0)}
    mailbox.close()
    assert b"s3cret" in requests["open()"]
    assert b"s3cret" not in requests["read()"]
