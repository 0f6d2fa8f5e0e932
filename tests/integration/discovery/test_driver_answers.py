"""Responses of a driver on its control stream, and their limits against any request."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.sbe import DiscoveryResponse, ShmAttachRequest
from tensorpool.sbe.driver import Role
from tests.integration.discovery.conftest import discovery_of
from tests.unit.discovery.provider_harness import request

POOL: dict[str, Any] = {"pools": ["64KiB"], "nslots": 4}


def test_discover_without_a_driver_raises_no_provider(
    open_context: Callable[..., tp.Context],
) -> None:
    context = open_context("standalone")
    with pytest.raises(tp.NoProvider, match=r"no response within 0\.3 s on aeron:ipc stream 1000"):
        context.discover(timeout=0.3)
    with pytest.raises(tp.NoProvider):
        context.consumer(name="any", find_timeout=0.3)


def test_driver_does_not_answer_if_discovery_is_disabled(
    open_context: Callable[..., tp.Context], monkeypatch: pytest.MonkeyPatch, free_stream_id: int
) -> None:
    monkeypatch.setenv("TENSORPOOL_DISCOVERY__EMBEDDED", "false")
    context = open_context("embedded")
    with context.producer(free_stream_id, name="camera-1", **POOL), pytest.raises(tp.NoProvider):
        context.discover(timeout=0.3)


@pytest.mark.requirement("discovery-4.3-3", "discovery-4.2-1")
def test_response_goes_to_the_request_stream_only_on_request(
    local_context: tp.Context,
    free_stream_id: int,
    publication: Callable[..., Any],
    subscription: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    control = local_context.stream_ids.control
    received, requests = subscription(local_context, control), publication(local_context, control)
    camera = local_context.producer(free_stream_id, name="camera-1", **POOL)
    local_context.discover(name="camera-1")

    def responses() -> list[DiscoveryResponse]:
        layout = DiscoveryResponse.layout()
        kind = struct.pack("<HH", layout.template_id, layout.schema_id)
        return [DiscoveryResponse.decode(message) for message in received.poll() if message[2:6] == kind]

    assert responses() == []
    wait_until(lambda: requests.offer(request(request_id=99, response_stream_id=control).encode()) == "sent")
    (response,) = wait_until(responses)
    assert (response.request_id, [result.stream_id for result in response.results]) == (99, [free_stream_id])
    # The driver's response on the shared stream is no request.
    assert discovery_of(local_context)["invalid"] == {"malformed": 0, "version": 0, "template": 0}
    assert camera.attached


def test_driver_keeps_working_under_invalid_requests(
    local_context: tp.Context,
    remote_context: tp.Context,
    free_stream_id: int,
    publication: Callable[..., Any],
    subscription: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    requests = publication(remote_context, local_context.stream_ids.control)

    def send(message: bytes) -> None:
        wait_until(lambda: requests.offer(message) == "sent")

    files_before = len(os.listdir("/proc/self/fd"))
    complete = request(name="camera-1", tags=("a", "b")).encode()
    for length in range(8, len(complete)):
        send(complete[:length])
    for channel in (
        "aeron:udp?endpoint=127.0.0.1:9",
        "aeron:udp?control=127.0.0.1:9|control-mode=dynamic",
        "aeron:ipc?linger=1h",
        "aeron:ipc?session-id=7",
        "file:///etc/passwd",
    ):
        send(request(response_channel=channel).encode())
    for stream_id in (local_context.stream_ids.announce, local_context.stream_ids.descriptor, 4001, 1 << 31):
        send(request(response_stream_id=stream_id).encode())
    # A new client and a new response stream without subscribers in each request.
    for number in range(3000):
        send(request(client_id=number + 1, response_stream_id=500_000 + number).encode())
    wait_until(lambda: sum(discovery_of(local_context)["refused"].values()) > 1000)
    counters = discovery_of(local_context)
    assert counters["refused"]["channel"] == 5
    assert counters["refused"]["stream"] == 4
    assert counters["invalid"]["malformed"] == len(complete) - 8
    assert counters["channels"] <= 64
    assert len(os.listdir("/proc/self/fd")) - files_before < 200
    # The driver still grants leases, and answers on the usual response stream.
    with (
        remote_context.producer(free_stream_id, name="camera-1", **POOL),
        remote_context.consumer(name="camera-1", find_timeout=60),
    ):
        assert [stream.stream_id for stream in local_context.discover(name="camera-1")] == [free_stream_id]


@pytest.mark.requirement("discovery-5.1-5")
def test_response_stream_0_gets_an_error(
    local_context: tp.Context,
    publication: Callable[..., Any],
    subscription: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    received = subscription(local_context, 0)
    requests = publication(local_context, local_context.stream_ids.control)
    wait_until(lambda: requests.offer(request(request_id=5, response_stream_id=0).encode()) == "sent")
    (message,) = wait_until(received.poll)
    response = DiscoveryResponse.decode(message)
    assert (response.request_id, response.status.name, response.results) == (5, "ERROR", ())


def test_driver_messages_are_no_discovery_requests(
    local_context: tp.Context, publication: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    requests = publication(local_context, local_context.stream_ids.control)
    attach = ShmAttachRequest(
        correlation_id=1, stream_id=0, client_id=2, role=Role.CONSUMER, expected_layout_version=1
    )
    wait_until(lambda: requests.offer(attach.encode()) == "sent")

    def rejects() -> int:
        with local_context.service("driver") as driver:
            return sum(driver.call("status")["counters"]["rejects"].values())

    wait_until(lambda: rejects() == 1)
    assert discovery_of(local_context)["requests"] == 0


def test_settings_reach_the_driver(
    open_context: Callable[..., tp.Context], tmp_path: Path, free_stream_id: int
) -> None:
    config = tmp_path / "driver.toml"
    config.write_text(
        '[discovery]\nclient_id = 7\n[[discovery.provider.rules]]\nclients = ["7"]\nnames = ["seen*"]\n'
    )
    local_context = open_context("embedded", config=config)
    other = open_context("driver")
    with local_context.producer(free_stream_id, name="seen", **POOL):
        assert [stream.stream_id for stream in local_context.discover()] == [free_stream_id]
        assert other.discover() == []
