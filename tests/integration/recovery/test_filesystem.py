"""A filesystem that is full, read-only or gone: a reason for whoever asks, nothing half made, and an end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remote_process import RemoteError, RemoteProcess

from .deployment import ROUNDS, Deployment

Mount = Callable[..., None]


class Filler:
    """Takes all room there is."""

    def __init__(self, base: Path) -> None:
        self._path = base / "filler"

    def fill(self) -> None:
        with self._path.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def free(self) -> None:
        self._path.unlink(missing_ok=True)


@pytest.fixture
def filler(shm_base: Path) -> Iterator[Filler]:
    filler = Filler(shm_base)
    yield filler
    filler.free()


def refused(remote: RemoteProcess, stream_id: int) -> str:
    with pytest.raises(RemoteError) as caught:
        remote.call("produce", stream_id=stream_id)
    assert caught.value.kind == "AttachError"
    return caught.value.text


def is_about_room(text: str) -> bool:
    # The second where not even a directory fits.
    return "no room for" in text or "No space left on device" in text


def files_of(fleet: Deployment, stream_id: int) -> list[Path]:
    return list(fleet.base.glob(f"tensorpool-*/{fleet.namespace}/{stream_id}/**"))


@pytest.mark.requirement("driver-4.6-1", "driver-4.2-4")
def test_a_full_filesystem_is_a_reason_and_leaves_nothing_half_made(
    fleet: Deployment, mount: Mount, filler: Filler, free_stream_ids: Callable[[], int]
) -> None:
    mount("tmpfs", "size=8m")
    fleet.driver()
    fleet.service()
    consumer, producer, worker = fleet.consumer(), fleet.streaming(), fleet.worker()
    epoch = fleet.flow(consumer)
    for _ in range(ROUNDS):
        other = free_stream_ids()
        filler.fill()
        text = refused(worker, other)
        assert text.startswith(f"stream {other}: INTERNAL_ERROR: ")
        assert is_about_room(text)
        assert "`tensorpool doctor`" in text
        assert files_of(fleet, other) == []
        assert fleet.ask("leases", stream_id=other) == []
        filler.free()
        worker.call("consume", stream_id=other)
        fleet.until(worker.call, "mapped")
        worker.call("close_consumer")
        # The others were not even touched.
        assert fleet.flow(consumer) == epoch
    fleet.accounts(producer, [consumer])


@pytest.mark.requirement("driver-4.7-2", "driver-6-1")
def test_a_producer_that_finds_no_room_comes_back_by_itself_when_there_is_some(
    fleet: Deployment, mount: Mount, filler: Filler
) -> None:
    mount("tmpfs", "size=512k")
    fleet.driver()
    fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    for _ in range(ROUNDS):
        epoch = fleet.flow(consumer)
        filler.fill()
        fleet.ask("revoke", stream_id=fleet.stream_id)
        fleet.until(lambda: producer.call("lease")["code"] == "INTERNAL_ERROR")
        assert producer.call("offer") == "detached"
        filler.free()
        assert fleet.flow(consumer, after=epoch) > epoch
        # Until the old memory is gone too: it would make room in the next round.
        fleet.settled(producer, [consumer])
    fleet.accounts(producer, [consumer])
    story = producer.call("events")
    refusals = [event["detail"] for event in story if event["kind"] == "attach_refused"]
    assert len(refusals) >= ROUNDS
    assert all(is_about_room(detail) for detail in refusals)


@pytest.mark.requirement("driver-4.6-1", "driver-4.2-4")
def test_a_base_directory_that_is_not_writable_is_a_reason(fleet: Deployment, mount: Mount) -> None:
    is_root = os.geteuid() == 0
    if is_root:
        # Permission bits do not stop root.
        mount("tmpfs", "size=1m")

    def allow(writing: bool) -> None:
        if is_root:
            mount("tmpfs", f"remount,{'rw' if writing else 'ro'}")
        else:
            fleet.base.chmod(0o700 if writing else 0o500)

    fleet.driver()
    worker = fleet.worker()
    for _ in range(ROUNDS):
        allow(False)
        service = fleet.service()
        text = refused(worker, fleet.stream_id)
        assert text.startswith(f"stream {fleet.stream_id}: INTERNAL_ERROR: ")
        assert "Read-only file system" in text or "Permission denied" in text
        assert list(fleet.base.iterdir()) == []
        allow(True)
        assert worker.call("produce", stream_id=fleet.stream_id) > 0
        worker.call("close_producer")
        fleet.until(lambda: fleet.ask("status")["leases"] == 0)
        # It would not be made read-only while there are files in it.
        assert service.end() == 0
        assert list(fleet.base.iterdir()) == []


@pytest.mark.requirement("driver-4.6-1", "driver-4.12-4")
def test_a_base_directory_that_was_removed_is_a_reason_until_it_is_back(fleet: Deployment) -> None:
    """Someone tidies up under a running driver. Mappings live on; new files need the directory."""
    fleet.driver()
    fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    fleet.settled(producer, [consumer])
    for _ in range(ROUNDS):
        epoch = fleet.flow(consumer)
        shutil.rmtree(fleet.base)
        fleet.receives(consumer)
        fleet.ask("revoke", stream_id=fleet.stream_id)
        fleet.until(lambda: producer.call("lease")["code"] == "INTERNAL_ERROR")
        assert "there is no base directory" in producer.call("lease")["message"]
        assert producer.call("offer") == "detached"
        fleet.base.mkdir(mode=0o700)
        assert fleet.flow(consumer, after=epoch) > epoch
        fleet.agreed(producer, [consumer])
    fleet.accounts(producer, [consumer])
