"""A filesystem that is full, read-only or removed: rejections with a reason, no partial files, recovery."""

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
    """A file that takes all free space."""

    def __init__(self, base: Path) -> None:
        self._path = base / "filler"

    def fill(self, *, leave: int = 0) -> None:
        """Takes all free space but `leave` bytes."""
        with self._path.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(file.tell() - leave)

    def free(self) -> None:
        """Releases the space."""
        self._path.unlink(missing_ok=True)


@pytest.fixture
def filler(shm_base: Path) -> Iterator[Filler]:
    filler = Filler(shm_base)
    yield filler
    filler.free()


def rejection(remote: RemoteProcess, stream_id: int) -> str:
    """Text of the error of a rejected producer."""
    with pytest.raises(RemoteError) as caught:
        remote.call("produce", stream_id=stream_id)
    assert caught.value.kind == "AttachError"
    return caught.value.text


def is_about_space(text: str) -> bool:
    """Whether an error says that there is no space."""
    # The second text appears if not even a directory fits, the third beyond the share that regions may have.
    return any(part in text for part in ("no room for", "No space left on device", "of a quota of"))


def files_of(deployment: Deployment, stream_id: int) -> list[Path]:
    """Files of a stream."""
    return list(deployment.base.glob(f"tensorpool-*/{deployment.namespace}/{stream_id}/**"))


@pytest.mark.requirement("driver-4.6-1", "driver-4.2-4")
def test_full_filesystem_rejects_attach_and_leaves_no_files(
    deployment: Deployment, mount: Mount, filler: Filler, free_stream_ids: Callable[[], int]
) -> None:
    mount("tmpfs", "size=8m")
    deployment.driver()
    deployment.service()
    consumer, producer, worker = deployment.consumer(), deployment.streaming_producer(), deployment.worker()
    epoch = deployment.wait_epoch(consumer)
    for _ in range(ROUNDS):
        other = free_stream_ids()
        filler.fill()
        text = rejection(worker, other)
        assert text.startswith(f"stream {other}: INTERNAL_ERROR: ")
        assert is_about_space(text)
        assert "`tensorpool doctor`" in text
        assert files_of(deployment, other) == []
        assert deployment.call_driver("leases", stream_id=other) == []
        filler.free()
        worker.call("consume", stream_id=other)
        deployment.until(worker.call, "mapped")
        worker.call("close_consumer")
        # Other streams are not affected.
        assert deployment.wait_epoch(consumer) == epoch
    deployment.assert_balanced(producer, [consumer])


@pytest.mark.requirement("driver-4.7-2", "driver-6-1")
def test_producer_reattaches_when_the_filesystem_has_space_again(
    deployment: Deployment, mount: Mount, filler: Filler
) -> None:
    mount("tmpfs", "size=512k")
    deployment.driver()
    deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    for _ in range(ROUNDS):
        epoch = deployment.wait_epoch(consumer)
        filler.fill()
        deployment.call_driver("revoke", stream_id=deployment.stream_id)
        deployment.until(lambda: producer.call("lease")["code"] == "INTERNAL_ERROR")
        assert producer.call("offer") == "detached"
        filler.free()
        assert deployment.wait_epoch(consumer, after=epoch) > epoch
        # Wait until the old epoch is removed: its space would be free in the next round.
        deployment.wait_settled(producer, [consumer])
    deployment.assert_balanced(producer, [consumer])
    refusals = [event["detail"] for event in producer.call("events") if event["kind"] == "attach_refused"]
    assert len(refusals) >= ROUNDS
    assert all(is_about_space(detail) for detail in refusals)


@pytest.mark.requirement("driver-4.6-1", "driver-4.2-4")
def test_read_only_base_directory_rejects_attach(deployment: Deployment, mount: Mount) -> None:
    is_root = os.geteuid() == 0
    if is_root:
        # Permission bits do not stop root.
        mount("tmpfs", "size=1m")

    def set_writable(writable: bool) -> None:
        if is_root:
            mount("tmpfs", f"remount,{'rw' if writable else 'ro'}")
        else:
            deployment.base.chmod(0o700 if writable else 0o500)

    deployment.driver()
    worker = deployment.worker()
    for _ in range(ROUNDS):
        set_writable(False)
        service = deployment.service()
        text = rejection(worker, deployment.stream_id)
        assert text.startswith(f"stream {deployment.stream_id}: INTERNAL_ERROR: ")
        assert "Read-only file system" in text or "Permission denied" in text
        assert list(deployment.base.iterdir()) == []
        set_writable(True)
        assert worker.call("produce", stream_id=deployment.stream_id) > 0
        worker.call("close_producer")
        deployment.until(lambda: deployment.call_driver("status")["leases"] == 0)
        # The kernel does not remount it read-only while files are open.
        assert service.end() == 0
        assert list(deployment.base.iterdir()) == []


@pytest.mark.requirement("driver-4.6-1", "driver-4.12-4")
def test_removed_base_directory_rejects_attach_until_it_exists_again(deployment: Deployment) -> None:
    """Mappings of a running driver stay valid without the directory; new files need it."""
    deployment.driver()
    deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    deployment.wait_settled(producer, [consumer])
    for _ in range(ROUNDS):
        epoch = deployment.wait_epoch(consumer)
        shutil.rmtree(deployment.base)
        deployment.wait_received(consumer)
        deployment.call_driver("revoke", stream_id=deployment.stream_id)
        deployment.until(lambda: producer.call("lease")["code"] == "INTERNAL_ERROR")
        assert "there is no base directory" in producer.call("lease")["message"]
        assert producer.call("offer") == "detached"
        deployment.base.mkdir(mode=0o700)
        assert deployment.wait_epoch(consumer, after=epoch) > epoch
        deployment.wait_agreed(producer, [consumer])
    deployment.assert_balanced(producer, [consumer])
