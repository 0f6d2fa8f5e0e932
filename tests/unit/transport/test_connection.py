"""Connections without a media driver: addresses, and waits for Aeron handles."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tensorpool import _native
from tensorpool.errors import ConfigError, MediaDriverUnavailable
from tensorpool.transport import Connection, Scheduling, ServiceStreams, StreamAddress, StreamIds
from tensorpool.transport.channels import descriptor_channel, untethered
from tensorpool.transport.connection import is_real_time, priority_fault


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


@pytest.mark.parametrize("priority", ["normal", "nice:-20", "nice:0", "nice:19", "fifo:1", "fifo:99"])
def test_priorities_are_accepted(priority: str) -> None:
    assert priority_fault(priority) is None
    assert is_real_time(priority) == priority.startswith("fifo")


@pytest.mark.parametrize(
    "priority", ["", "high", "nice", "nice:-21", "nice:20", "fifo:0", "fifo:100", "normal:1"]
)
def test_other_priorities_are_refused_with_examples(priority: str) -> None:
    fault = priority_fault(priority)
    assert fault is not None
    assert "nice:-20" in fault


def scheduling_of_this_thread() -> tuple[set[int], int, int]:
    """Cores, nice value and policy."""
    return os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)


def test_started_threads_inherit_the_scheduling_and_the_caller_keeps_its_own() -> None:
    before = scheduling_of_this_thread()
    core = min(before[0])
    seen: list[tuple[set[int], int, int]] = []

    def start() -> str:
        thread = threading.Thread(target=lambda: seen.append(scheduling_of_this_thread()))
        thread.start()
        thread.join()
        return "started"

    nice = min(before[1] + 3, 19)
    assert Scheduling((core,), f"nice:{nice}").start(start) == "started"
    assert seen == [({core}, nice, before[2])]
    assert scheduling_of_this_thread() == before


def test_default_scheduling_starts_on_the_calling_thread() -> None:
    assert Scheduling().start(threading.get_ident) == threading.get_ident()


def test_cores_that_do_not_exist_are_refused_with_those_that_do() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    for cores in ((9999,), (allowed[0], 9999)):
        with pytest.raises(ConfigError, match="cpu_affinity") as refusal:
            Scheduling(cores).start(lambda: None)
        assert f"may use the cores {allowed}" in str(refusal.value)


@pytest.mark.parametrize(
    ("priority", "function", "remedies"),
    [
        ("fifo:10", "sched_setscheduler", ("ulimit -r", "LimitRTPRIO=10", "setcap cap_sys_nice+ep")),
        ("nice:-5", "setpriority", ("ulimit -e", "LimitNICE=25", "setcap cap_sys_nice+ep")),
    ],
)
def test_priority_that_is_not_permitted_is_refused_with_remedies(
    priority: str, function: str, remedies: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, function, refuse)
    with pytest.raises(ConfigError) as refusal:
        Scheduling(priority=priority).start(lambda: None)
    assert all(remedy in str(refusal.value) for remedy in (priority, *remedies)), refusal.value
