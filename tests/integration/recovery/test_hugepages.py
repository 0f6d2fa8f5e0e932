"""Huge pages where there are some, and the reason why not where there are none."""

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
    """Lets the kernel make a few huge pages for us while the test runs."""
    before = SPARE.read_text()
    try:
        SPARE.write_text(str(int(before) + PAGES))
    except OSError as error:
        pytest.skip(f"huge pages cannot be had here (it takes root): {error}")
    yield
    SPARE.write_text(before)


class Asker:
    """Attaches by hand, for what no program of ours asks for."""

    def __init__(self, fleet: Deployment, context: tp.Context) -> None:
        self._fleet = fleet
        control = context.stream_ids.control
        self._requests = _native.Publication(context.connection.conductor, "aeron:ipc", control)
        self._answers = _native.Subscription(context.connection.conductor, "aeron:ipc?tether=false", control)
        self._numbers = itertools.count(1)
        fleet.until(lambda: self._requests.is_connected and self._answers.is_ready)

    def attach(self, *, require_hugepages: bool) -> messages.ShmAttachResponse:
        client_id = next(self._numbers)
        request = messages.ShmAttachRequest(
            correlation_id=client_id << 32,
            stream_id=self._fleet.stream_id,
            client_id=client_id,
            role=messages.Role.CONSUMER,
            publish_mode=messages.PublishMode.EXISTING_OR_CREATE,
            require_hugepages=require_hugepages,
        )
        found: list[messages.ShmAttachResponse] = []

        def has_answer() -> bool:
            # Said again until it is answered: the driver gives the same answer to it.
            self._requests.offer(request.encode())
            for message in self._answers.poll(256):
                try:
                    answer = messages.ShmAttachResponse.decode(message)
                except tp.CodecError:
                    continue
                if answer.correlation_id == request.correlation_id:
                    found.append(answer)
            return bool(found)

        self._fleet.until(has_answer)
        return found[0]

    def close(self) -> None:
        self._requests.close()
        self._answers.close()


@pytest.mark.requirement("driver-4.3-5", "driver-9-1")
def test_without_huge_pages_who_requires_them_is_refused_and_nothing_is_made(fleet: Deployment) -> None:
    fleet.configure(Periods(), driver="hugepages = true")
    fleet.driver()
    fleet.service()
    worker = fleet.worker()
    with pytest.raises(RemoteError, match=r"AttachError: .*REJECTED: .*not on hugetlbfs"):
        worker.call("produce", stream_id=fleet.stream_id)
    for _ in range(ROUNDS):
        # A consumer is told, and goes on asking: files may come.
        worker.call("consume", stream_id=fleet.stream_id)
        refusal = worker.call("lease", of="consumer")
        assert refusal["code"] == "REJECTED"
        assert "not on hugetlbfs" in refusal["message"]
        assert fleet.epochs() == set()
        assert fleet.leases() == []
        worker.call("close_consumer")


@pytest.mark.requirement("driver-4.3-5", "driver-4.2-6")
def test_a_request_for_huge_pages_is_rejected_where_the_stream_has_none(fleet: Deployment) -> None:
    fleet.driver()
    fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    epoch = fleet.flow(consumer)
    with tp.open(**{**fleet.options, "mode": "standalone"}) as context:
        asker = Asker(fleet, context)
        for _ in range(ROUNDS):
            no = asker.attach(require_hugepages=True)
            assert (no.code, no.lease_id, no.epoch) == (ResponseCode.REJECTED, None, None)
            assert no.error_message == "hugepages are required, and the base directory is not on hugetlbfs"
            yes = asker.attach(require_hugepages=False)
            assert (yes.code, yes.epoch) == (ResponseCode.OK, epoch)
        asker.close()
    fleet.accounts(producer, [consumer])


@pytest.mark.requirement("driver-4.3-5", "driver-9-1", "driver-9-2")
def test_on_huge_pages_producers_come_and_go_as_everywhere(
    fleet: Deployment, mount: Mount, spare_hugepages: None
) -> None:
    mount("hugetlbfs", "pagesize=2M")
    fleet.configure(Periods(), driver="hugepages = true")
    fleet.driver()
    fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    epoch = fleet.flow(consumer)
    for turn in range(ROUNDS):
        (directory,) = fleet.base.glob(f"tensorpool-*/default/*/{epoch}")
        assert {path.stat().st_size for path in directory.iterdir()} == {2 << 20}
        if turn % 2:
            producer.kill()
            producer = fleet.streaming()
        else:
            fleet.ask("revoke", stream_id=fleet.stream_id)
        epoch = fleet.flow(consumer, after=epoch)
        assert fleet.agreed(producer, [consumer]) == epoch
    with tp.open(**{**fleet.options, "mode": "standalone"}) as context:
        asker = Asker(fleet, context)
        assert asker.attach(require_hugepages=True).code is ResponseCode.OK
        asker.close()
    fleet.accounts(producer, [consumer])
