"""Where an attach goes, and what a client checks itself: a result is a hint, the driver decides."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.discovery import DiscoveredStream
from tensorpool.errors import DiscoveryError
from tensorpool.sbe import (
    DiscoveryRequest,
    DiscoveryResponse,
    DiscoveryResult,
    DiscoveryStatus,
    PayloadPool,
    ShmAttachRequest,
    ShmDetachRequest,
    ShmLeaseKeepalive,
)
from tests.integration.discovery.conftest import UNMET_S
from tests.integration.discovery.test_embedded import POOL, leases, mapped
from tests.ports import free_port
from tests.unit.discovery.provider_harness import request

# Driver and producer check their regions at some time of each period: not within a test.
SLOW_PERIOD_S = 86_400.0


class Turns:
    """A thread that repeats a step until the test ends."""

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ends.is_set():
            if not self._step():
                self._ends.wait(0.001)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


@pytest.fixture
def turns() -> Iterator[ExitStack]:
    """Threads that end before the contexts close."""
    with ExitStack() as stack:
        yield stack


def to_result(stream: DiscoveredStream) -> DiscoveryResult:
    """The result that a provider would send."""
    pools = tuple(
        PayloadPool(pool_id=number, pool_nslots=stream.nslots, stride_bytes=stride, region_uri="")
        for number, stride in enumerate(stream.pools, start=1)
    )
    return DiscoveryResult(
        stream_id=stream.stream_id,
        producer_id=stream.producer_id,
        epoch=stream.epoch,
        layout_version=stream.layout_version,
        header_nslots=stream.nslots,
        header_slot_bytes=256,
        max_dims=8,
        driver_control_stream_id=stream.control_stream_id,
        payload_pools=pools,
        data_source_name=stream.name,
        driver_instance_id=stream.driver_instance_id,
        driver_control_channel=stream.control_channel,
    )


@pytest.fixture
def answered_by(
    open_context: Callable[..., tp.Context],
    local_context: tp.Context,
    publication: Callable[..., _native.Publication],
    subscription: Callable[..., _native.Subscription],
    turns: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[DiscoveredStream], tp.Context]:
    """A context whose registry answers every request with one result, whatever that says."""

    def run(stream: DiscoveredStream) -> tp.Context:
        monkeypatch.setenv("TENSORPOOL_DISCOVERY__CHANNEL", "aeron:ipc")
        # Without a driver of its own: that would know the stream by the same name.
        client = open_context("standalone")
        requests = subscription(local_context, 7000)
        responses = _native.Publication(local_context.connection.conductor, "aeron:ipc", 7004)
        turns.callback(responses.close)

        def answer() -> int:
            messages = requests.poll()
            for message in messages:
                request_id = DiscoveryRequest.decode(message).request_id
                response = DiscoveryResponse(
                    request_id=request_id, status=DiscoveryStatus.OK, results=(to_result(stream),)
                )
                responses.offer(response.encode())
            return len(messages)

        turns.enter_context(Turns(answer))
        return client

    return run


# --- what a client validates


@pytest.mark.requirement("discovery-2.3-2", "discovery-7-1")
def test_result_of_another_epoch_is_not_consumed(
    local_context: tp.Context,
    free_stream_id: int,
    answered_by: Callable[[DiscoveredStream], tp.Context],
    wait_until: Callable[..., Any],
) -> None:
    with local_context.producer(free_stream_id, name="camera-1", **POOL) as camera:
        (stream,) = local_context.discover(name="camera-1")
        client = answered_by(replace(stream, epoch=stream.epoch + 1))
        message = f"was found in epoch {stream.epoch + 1}, and its driver has {camera.epoch}"
        with pytest.raises(tp.StreamNotFound, match=message):
            client.consumer(name="camera-1", find_timeout=UNMET_S)
        wait_until(lambda: [lease["role"] for lease in leases(local_context)] == ["producer"])


@pytest.mark.requirement("discovery-2.3-2", "discovery-7-1")
def test_result_of_another_layout_version_is_not_attached(
    local_context: tp.Context, free_stream_id: int, answered_by: Callable[[DiscoveredStream], tp.Context]
) -> None:
    with local_context.producer(free_stream_id, name="camera-1", **POOL):
        (stream,) = local_context.discover(name="camera-1")
        client = answered_by(replace(stream, layout_version=2))
        with pytest.raises(DiscoveryError, match="has layout version 2; this version reads 1"):
            client.consumer(name="camera-1", find_timeout=UNMET_S)
        assert [lease["role"] for lease in leases(local_context)] == ["producer"]


@pytest.mark.requirement("discovery-2.3-2", "discovery-7-1")
def test_discovered_stream_with_an_invalid_superblock_is_rejected(
    open_context: Callable[..., tp.Context], shm_base: Path, free_stream_id: int
) -> None:
    # The consumer is the first to look at the damaged region.
    local_context, remote_context = (
        open_context(mode, announce_period=SLOW_PERIOD_S) for mode in ("embedded", "driver")
    )
    with local_context.producer(free_stream_id, name="camera-1", **POOL) as camera:
        (ring,) = shm_base.glob(f"**/{free_stream_id}/{camera.epoch}/header.ring")
        before = len(mapped(free_stream_id))
        with ring.open("r+b") as file:
            file.write(b"not ours")
        with pytest.raises(tp.RegionRejected) as rejected:
            remote_context.consumer(name="camera-1", find_timeout=UNMET_S)
        assert rejected.value.reason == "magic"
        assert len(mapped(free_stream_id)) == before


@pytest.mark.requirement("discovery-5.1-11", "discovery-12-1")
def test_client_id_is_no_proof_of_who_asks(
    open_context: Callable[..., tp.Context], tmp_path: Path, free_stream_id: int
) -> None:
    """Any client can use an id that sees a stream, and a client whose id sees nothing can attach: the driver
    does not take the id of a request for the right to a lease."""
    config = tmp_path / "driver.toml"
    config.write_text('[[discovery.provider.rules]]\nclients = ["7"]\nnames = ["camera-1"]\n')
    local_context = open_context("embedded", config=config)
    with local_context.producer(free_stream_id, name="camera-1", **POOL) as camera:
        contexts = {}
        for client_id in (7, 8):
            own = tmp_path / f"client-{client_id}.toml"
            own.write_text(f"[discovery]\nclient_id = {client_id}\n")
            contexts[client_id] = open_context("driver", config=own)
        # Two clients use the id at once, and both see the stream.
        for context in (contexts[7], open_context("driver", config=tmp_path / "client-7.toml")):
            assert [stream.stream_id for stream in context.discover()] == [free_stream_id]
        assert contexts[8].discover() == []
        with contexts[8].consumer(free_stream_id) as frames:
            camera.wait_for_consumer(60)
            camera.offer(np.arange(3))
            assert frames.receive(60).copy().tolist() == [0, 1, 2]


# --- where the attach goes


def kind_of(message: bytes) -> tuple[int, int]:
    template_id, schema_id = struct.unpack_from("<HH", message, 2)
    return schema_id, template_id


TO_DRIVER = {
    (layout.schema_id, layout.template_id)
    for layout in (kind.layout() for kind in (ShmAttachRequest, ShmDetachRequest, ShmLeaseKeepalive))
}


@pytest.fixture
def shared_network(media_driver: tp.MediaDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One media driver for UDP: both sides of the test listen on the same endpoint."""
    with tp.MediaDriver(f"{media_driver.aeron_dir}-network", udp=True) as network:
        monkeypatch.setenv("TENSORPOOL_AERON__NETWORK_DIR", network.aeron_dir)
        yield


@pytest.fixture
def relayed_control(
    local_context: tp.Context,
    publication: Callable[..., _native.Publication],
    subscription: Callable[..., _native.Subscription],
    turns: ExitStack,
) -> tuple[str, list[bytes]]:
    """A UDP channel on which the driver takes requests too, and the requests that came that way."""
    channel, control = f"aeron:udp?endpoint=127.0.0.1:{free_port()}", local_context.stream_ids.control
    outside = subscription(local_context, control, channel)
    inside = subscription(local_context, control)
    to_driver = publication(local_context, control)
    to_clients = publication(local_context, control, channel)
    requests: list[bytes] = []

    def forward() -> int:
        messages = outside.poll()
        for message in messages:
            if kind_of(message) in TO_DRIVER:
                requests.append(message)
                to_driver.offer(message)
        for message in inside.poll():
            if (
                kind_of(message)[0] == ShmAttachRequest.layout().schema_id
                and kind_of(message) not in TO_DRIVER
            ):
                to_clients.offer(message)
        return len(messages)

    turns.enter_context(Turns(forward))
    return channel, requests


@pytest.mark.requirement("discovery-5.2-3", "discovery-7-1")
def test_attach_goes_to_the_control_endpoint_of_the_result(
    shared_network: None,
    local_context: tp.Context,
    free_stream_id: int,
    relayed_control: tuple[str, list[bytes]],
    answered_by: Callable[[DiscoveredStream], tp.Context],
) -> None:
    channel, requests = relayed_control
    with local_context.producer(free_stream_id, name="camera-1", **POOL) as camera:
        (stream,) = local_context.discover(name="camera-1")
        client = answered_by(replace(stream, control_channel=channel))
        with client.consumer(name="camera-1", find_timeout=60) as frames:
            camera.offer(np.arange(3))
            assert frames.epoch == camera.epoch
            attached = [ShmAttachRequest.decode(m) for m in requests if kind_of(m) == (901, 1)]
            assert {request.stream_id for request in attached} == {free_stream_id}


@pytest.mark.parametrize(
    "channel", ["aeron:udp?endpoint=127.0.0.1:9|term-length=1g", "aeron:udp?control=127.0.0.1:9", "nonsense"]
)
def test_control_endpoint_with_other_parameters_is_not_used(
    local_context: tp.Context,
    free_stream_id: int,
    answered_by: Callable[[DiscoveredStream], tp.Context],
    channel: str,
) -> None:
    with local_context.producer(free_stream_id, name="camera-1", **POOL):
        (stream,) = local_context.discover(name="camera-1")
        client = answered_by(replace(stream, control_channel=channel))
        with pytest.raises(tp.StreamNotLocal):
            client.consumer(name="camera-1", find_timeout=UNMET_S)


# --- malformed requests


def test_driver_answers_a_request_without_a_trailing_name(
    local_context: tp.Context,
    publication: Callable[..., _native.Publication],
    subscription: Callable[..., _native.Subscription],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    received = subscription(local_context, free_stream_id)
    requests = publication(local_context, local_context.stream_ids.control)
    message = request(request_id=77, response_stream_id=free_stream_id).encode()[:-4]
    wait_until(lambda: requests.offer(message) == "sent")
    (response,) = map(DiscoveryResponse.decode, wait_until(received.poll))
    assert (response.request_id, response.status) == (77, DiscoveryStatus.ERROR)
    assert "a name of length 0" in response.error_message
