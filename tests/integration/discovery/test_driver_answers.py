"""What a driver answers on its control stream, to whom, and what strangers cannot do to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.discovery import DiscoverySettings
from tensorpool.sbe import DiscoveryResponse, ShmAttachRequest
from tensorpool.sbe.driver import Role
from tests.integration.discovery.conftest import discovery_of
from tests.unit.discovery.provider_harness import request

POOL: dict[str, Any] = {"pools": ["64KiB"], "nslots": 4}


def test_without_a_driver_nobody_answers_and_the_error_says_so(
    open_context: Callable[..., tp.Context],
) -> None:
    context = open_context("standalone")
    with pytest.raises(tp.NoProvider, match=r"no response within 0\.3 s on aeron:ipc stream 1000"):
        context.discover(timeout=0.3)
    with pytest.raises(tp.NoProvider):
        context.consumer(name="any", find_timeout=0.3)


def test_a_driver_may_be_told_not_to_answer(
    open_context: Callable[..., tp.Context], monkeypatch: pytest.MonkeyPatch, free_stream_id: int
) -> None:
    monkeypatch.setenv("TENSORPOOL_DISCOVERY__EMBEDDED", "false")
    context = open_context("embedded")
    with context.producer(free_stream_id, name="camera-1", **POOL), pytest.raises(tp.NoProvider):
        context.discover(timeout=0.3)


@pytest.mark.requirement("discovery-4.3-3", "discovery-4.2-1")
def test_an_answer_goes_to_the_request_stream_only_for_who_asks_for_it(
    home: tp.Context,
    free_stream_id: int,
    voice: Callable[..., Any],
    ear: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    control = home.stream_ids.control
    heard, speak = ear(home, control), voice(home, control)
    camera = home.producer(free_stream_id, name="camera-1", **POOL)
    home.discover(name="camera-1")

    def answers() -> list[DiscoveryResponse]:
        found = []
        for message in heard.poll():
            if message[2:6] == b"\x02\x00\x8e\x03":
                found.append(DiscoveryResponse.decode(message))
        return found

    assert answers() == []
    wait_until(lambda: speak.offer(request(request_id=99, response_stream_id=control).encode()) == "sent")
    (answer,) = wait_until(answers)
    assert (answer.request_id, [one.stream_id for one in answer.results]) == (99, [free_stream_id])
    # Its own answer on the shared stream is no question to the driver.
    assert discovery_of(home)["unusable"] == {"malformed": 0, "version": 0, "template": 0}
    assert camera.attached


def test_garbage_floods_and_hostile_channels_leave_the_driver_at_work(
    home: tp.Context,
    away: tp.Context,
    free_stream_id: int,
    voice: Callable[..., Any],
    ear: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    speak = voice(away, home.stream_ids.control)

    def say(message: bytes) -> None:
        wait_until(lambda: speak.offer(message) == "sent")

    files_before = len(os.listdir("/proc/self/fd"))
    whole = request(name="camera-1", tags=("a", "b")).encode()
    for length in range(8, len(whole)):
        say(whole[:length])
    for channel in (
        "aeron:udp?endpoint=127.0.0.1:9",
        "aeron:udp?control=127.0.0.1:9|control-mode=dynamic",
        "aeron:ipc?linger=1h",
        "aeron:ipc?session-id=7",
        "file:///etc/passwd",
    ):
        say(request(response_channel=channel).encode())
    for stream_id in (home.stream_ids.announce, home.stream_ids.descriptor, 4001, 1 << 31):
        say(request(response_stream_id=stream_id).encode())
    # Ever new clients, ever new response streams where nobody listens.
    for number in range(3000):
        say(request(client_id=number + 1, response_stream_id=500_000 + number).encode())
    wait_until(lambda: sum(discovery_of(home)["refused"].values()) > 1000)
    counted = discovery_of(home)
    assert counted["refused"]["channel"] == 5
    assert counted["refused"]["stream"] == 4
    assert counted["unusable"]["malformed"] == len(whole) - 8
    assert counted["channels"] <= 64
    assert len(os.listdir("/proc/self/fd")) - files_before < 200
    # The driver still gives leases, and answers those who ask on the usual stream.
    with (
        away.producer(free_stream_id, name="camera-1", **POOL),
        away.consumer(name="camera-1", find_timeout=60),
    ):
        assert [one.stream_id for one in home.discover(name="camera-1")] == [free_stream_id]


@pytest.mark.requirement("discovery-5.1-5")
def test_stream_0_gets_its_error_there(
    home: tp.Context,
    voice: Callable[..., Any],
    ear: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    heard, speak = ear(home, 0), voice(home, home.stream_ids.control)
    wait_until(lambda: speak.offer(request(request_id=5, response_stream_id=0).encode()) == "sent")
    (message,) = wait_until(heard.poll)
    answer = DiscoveryResponse.decode(message)
    assert (answer.request_id, answer.status.name, answer.results) == (5, "ERROR", ())


def test_requests_of_the_driver_s_own_schema_are_none_of_discovery_s_business(
    home: tp.Context, voice: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    speak = voice(home, home.stream_ids.control)
    attach = ShmAttachRequest(
        correlation_id=1, stream_id=0, client_id=2, role=Role.CONSUMER, expected_layout_version=1
    )
    wait_until(lambda: speak.offer(attach.encode()) == "sent")

    def rejects() -> int:
        with home.service("driver") as driver:
            return sum(driver.call("status")["counters"]["rejects"].values())

    wait_until(lambda: rejects() == 1)
    assert discovery_of(home)["questions"] == 0


def test_settings_reach_the_driver(
    open_context: Callable[..., tp.Context], tmp_path: Path, free_stream_id: int
) -> None:
    config = tmp_path / "driver.toml"
    config.write_text(
        '[discovery]\nclient_id = 7\n[[discovery.provider.rules]]\nclients = ["7"]\nnames = ["seen*"]\n'
    )
    home = open_context("embedded", config=config)
    other = open_context("driver")
    assert isinstance(home._discovery, DiscoverySettings)
    with home.producer(free_stream_id, name="seen", **POOL):
        assert [one.stream_id for one in home.discover()] == [free_stream_id]
        assert other.discover() == []
