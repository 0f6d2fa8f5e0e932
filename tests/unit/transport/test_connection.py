"""Connections without a media driver: addresses, and waits for Aeron handles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tensorpool import _native
from tensorpool.errors import ConfigError, MediaDriverUnavailable
from tensorpool.transport import Connection, ServiceStreams, StreamAddress, StreamIds
from tensorpool.transport.channels import descriptor_channel, untethered


class FakeConductor:
    """A conductor with a fixed status."""

    def __init__(self, last_error: str | None = None, connected: bool = True) -> None:
        self.values = SimpleNamespace(last_error=last_error, connected=connected, embeds_driver=False)
        self.closed = False

    def status(self) -> SimpleNamespace:
        return self.values

    def close(self) -> None:
        self.closed = True


class CountingHandle:
    """A handle that becomes ready after some polls."""

    def __init__(self, polls: int) -> None:
        self.polls = polls

    @property
    def is_ready(self) -> bool:
        self.polls -= 1
        return self.polls < 0


def connection(conductor: FakeConductor) -> Connection:
    return Connection(
        cast(_native.Conductor, conductor),
        aeron_dir="/dev/shm/aeron-lab",
        stream_ids=StreamIds(),
        services=ServiceStreams(),
        announce_period_ns=10**9,
        report_period_ns=10**9,
    )


def test_wait_ready_returns_when_all_handles_are_registered() -> None:
    first, second = CountingHandle(3), CountingHandle(5)
    connection(FakeConductor()).wait_ready(first, second, timeout=60.0)
    assert first.polls < 0
    assert second.polls < 0


@pytest.mark.parametrize(
    ("handle", "last_error", "reason"),
    [
        (SimpleNamespace(is_ready=False), None, "it did not answer"),
        (SimpleNamespace(is_ready=False), "no space left", "no space left"),
        (SimpleNamespace(is_ready=False, failure=None), "no space left", "no space left"),
        (SimpleNamespace(is_ready=False, failure="invalid channel"), "other", "invalid channel"),
    ],
)
def test_wait_ready_names_directory_and_reason(handle: Any, last_error: str | None, reason: str) -> None:
    with pytest.raises(MediaDriverUnavailable, match=f"/dev/shm/aeron-lab .*: {reason}; ") as error:
        connection(FakeConductor(last_error)).wait_ready(handle, timeout=0.0)
    assert error.value.aeron_dir == "/dev/shm/aeron-lab"


def test_connection_state_and_close_are_those_of_the_conductor() -> None:
    conductor = FakeConductor(connected=False)
    opened = connection(conductor)
    assert (opened.connected, opened.embeds_media_driver) == (False, False)
    opened.close()
    assert conductor.closed


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        ("aeron:ipc", "aeron:ipc?tether=false"),
        ("aeron:ipc?term-length=64k", "aeron:ipc?term-length=64k|tether=false"),
        ("aeron:ipc?tether=true", "aeron:ipc?tether=true"),
    ],
)
def test_untethered_keeps_other_parameters_and_an_explicit_tether(channel: str, expected: str) -> None:
    assert untethered(channel) == expected


def test_descriptor_channel_sets_term_length_and_untethered_timeouts() -> None:
    media, _, parameters = descriptor_channel(1 << 20).partition("?")
    values = dict(parameter.split("=") for parameter in parameters.split("|"))
    assert (media, values["term-length"]) == ("aeron:ipc", "1048576")
    assert values["untethered-resting-timeout"] == "1s"


def test_stream_address_is_readable_and_hashable() -> None:
    address = StreamAddress("aeron:ipc", 1001)
    assert str(address) == "aeron:ipc, stream 1001"
    assert {address: 1}[StreamAddress("aeron:ipc", 1001)] == 1


def test_service_streams_must_differ() -> None:
    with pytest.raises(ConfigError, match="both stream 5"):
        ServiceStreams(control=5, status=5)
