"""Streams on huge pages, and the rejection of attaches where there are none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.sbe import driver as messages
from tensorpool.sbe.wire import ResponseCode
from tests.remote_process import RemoteError

from .deployment import ROUNDS, Deployment, Periods

Mount = Callable[..., None]
# Header ring and one pool: a page each, for the live, the superseded and the next epoch.
PAGES = 8
SPARE = Path("/proc/sys/vm/nr_overcommit_hugepages")


@pytest.fixture
def spare_hugepages() -> Iterator[None]:
    """Allows the kernel to allocate a few huge pages during the test."""
    before = SPARE.read_text()
    try:
        SPARE.write_text(str(int(before) + PAGES))
    except OSError as error:
        pytest.skip(f"cannot allow huge pages (needs root): {error}")
    yield
    SPARE.write_text(before)


class RawClient:
    """Sends attach requests that the client library does not send."""

    def __init__(self, deployment: Deployment, context: tp.Context) -> None:
        self._deployment = deployment
        control = context.stream_ids.control
        self._requests = _native.Publication(context.connection.conductor, "aeron:ipc", control)
        self._responses = _native.Subscription(
            context.connection.conductor, "aeron:ipc?tether=false", control
        )
        self._numbers = itertools.count(1)
        deployment.until(lambda: self._requests.is_connected and self._responses.is_ready)

    def attach(self, *, require_hugepages: bool) -> messages.ShmAttachResponse:
        """Sends an attach request; returns the response."""
        client_id = next(self._numbers)
        request = messages.ShmAttachRequest(
            correlation_id=client_id << 32,
            stream_id=self._deployment.stream_id,
            client_id=client_id,
            role=messages.Role.CONSUMER,
            publish_mode=messages.PublishMode.EXISTING_OR_CREATE,
            require_hugepages=require_hugepages,
        )
        responses: list[messages.ShmAttachResponse] = []

        def has_response() -> bool:
            # Repeat the request until there is a response: the driver responds to a duplicate alike.
            self._requests.offer(request.encode())
            for message in self._responses.poll(256):
                try:
                    response = messages.ShmAttachResponse.decode(message)
                except tp.CodecError:
                    continue
                if response.correlation_id == request.correlation_id:
                    responses.append(response)
            return bool(responses)

        self._deployment.until(has_response)
        return responses[0]

    def close(self) -> None:
        """Closes both streams."""
        self._requests.close()
        self._responses.close()


@pytest.mark.requirement("driver-4.3-5", "driver-9-1")
def test_attach_without_available_huge_pages_is_rejected(deployment: Deployment) -> None:
    deployment.configure(Periods(), driver="hugepages = true")
    deployment.driver()
    deployment.service()
    worker = deployment.worker()
    with pytest.raises(RemoteError, match=r"AttachError: .*REJECTED: .*not on hugetlbfs"):
        worker.call("produce", stream_id=deployment.stream_id)
    for _ in range(ROUNDS):
        # A consumer reports the rejection and repeats its request.
        worker.call("consume", stream_id=deployment.stream_id)
        rejection = worker.call("lease", of="consumer")
        assert rejection["code"] == "REJECTED"
        assert "not on hugetlbfs" in rejection["message"]
        assert deployment.epochs() == set()
        assert deployment.leases() == []
        worker.call("close_consumer")


@pytest.mark.requirement("driver-4.3-5", "driver-4.2-6")
def test_request_for_huge_pages_of_a_normal_stream_is_rejected(deployment: Deployment) -> None:
    deployment.driver()
    deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    epoch = deployment.wait_epoch(consumer)
    with tp.open(**{**deployment.options, "mode": "standalone"}) as context:
        raw_client = RawClient(deployment, context)
        for _ in range(ROUNDS):
            rejected = raw_client.attach(require_hugepages=True)
            assert (rejected.code, rejected.lease_id, rejected.epoch) == (ResponseCode.REJECTED, None, None)
            assert rejected.error_message.startswith("hugepages are required, but ")
            assert rejected.error_message.endswith(
                " is not on hugetlbfs; set driver.hugepages_dir to a directory that is"
            )
            granted = raw_client.attach(require_hugepages=False)
            assert (granted.code, granted.epoch) == (ResponseCode.OK, epoch)
        raw_client.close()
    deployment.assert_balanced(producer, [consumer])


@pytest.mark.requirement("driver-4.3-5", "driver-9-1", "driver-9-2")
def test_producers_restart_on_huge_pages(deployment: Deployment, mount: Mount, spare_hugepages: None) -> None:
    mount("hugetlbfs", "pagesize=2M")
    deployment.configure(Periods(), driver="hugepages = true")
    deployment.driver()
    deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    epoch = deployment.wait_epoch(consumer)
    for turn in range(ROUNDS):
        (directory,) = deployment.base.glob(f"tensorpool-*/default/*/{epoch}")
        assert {path.stat().st_size for path in directory.iterdir()} == {2 << 20}
        if turn % 2:
            producer.kill()
            producer = deployment.streaming_producer()
        else:
            deployment.call_driver("revoke", stream_id=deployment.stream_id)
        epoch = deployment.wait_epoch(consumer, after=epoch)
        assert deployment.wait_agreed(producer, [consumer]) == epoch
    with tp.open(**{**deployment.options, "mode": "standalone"}) as context:
        raw_client = RawClient(deployment, context)
        assert raw_client.attach(require_hugepages=True).code is ResponseCode.OK
        raw_client.close()
    deployment.assert_balanced(producer, [consumer])
