"""Region files that are truncated or overwritten while every role uses them: no process ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from .deployment import Deployment
from .recorder_process import RecorderProcess


def regions_of(deployment: Deployment, epoch: int) -> dict[str, Path]:
    """The header ring and the pool of an epoch."""
    (directory,) = deployment.base.glob(f"tensorpool-*/*/{deployment.stream_id}/{epoch}")
    return {"header ring": directory / "header.ring", "pool": directory / "1.pool"}


def truncate_all(path: Path) -> None:
    os.truncate(path, 0)


def truncate_second_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zero(path: Path) -> None:
    """Leaves a file of the same length that is all zeros."""
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


def overwrite_superblock(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(8))


@pytest.mark.parametrize(
    ("region", "damage"),
    [
        ("header ring", truncate_all),
        ("pool", truncate_all),
        ("pool", truncate_second_half),
        ("header ring", zero),
        ("pool", overwrite_superblock),
    ],
)
def test_damaged_region_costs_its_epoch_and_no_process(
    deployment: Deployment, tmp_path: Path, region: str, damage: Callable[[Path], None]
) -> None:
    media_driver, service = deployment.driver(), deployment.service()
    consumer = deployment.consumer()
    worker = deployment.worker()
    # Several pages, so that half a pool is a whole number of them.
    worker.call("produce", stream_id=deployment.stream_id, nslots=64)
    worker.call("offer_always", per_second=500)
    with ExitStack() as stack:
        recorder = stack.enter_context(RecorderProcess(deployment, tmp_path / "recording"))
        deployment.until(lambda: recorder.ready)
        epoch = deployment.wait_epoch(consumer)
        deployment.wait_received(consumer)
        damage(regions_of(deployment, epoch)[region])
        assert deployment.wait_epoch(consumer, after=epoch) > epoch
        deployment.wait_received(consumer)
        assert all((media_driver.alive, service.alive, worker.alive, consumer.alive, recorder.alive))
        details = " ".join(str(event["detail"]) for event in worker.call("events") + consumer.call("events"))
        reasons = (
            "was truncated" if "truncate" in damage.__name__ else "truncated|overwritten|superblock|epoch"
        )
        assert any(word in details for word in reasons.split("|")), details
        # The ledgers say what became of every frame.
        recorder.end()
        deployment.assert_balanced(worker, [consumer], files=False)


def test_truncated_region_without_a_producer_is_replaced(deployment: Deployment) -> None:
    """Only the driver has mapped these regions: it notices by itself."""
    deployment.driver()
    service = deployment.service()
    producer = deployment.producer()
    consumer = deployment.consumer()
    producer.call("close_producer")
    deployment.until(lambda: deployment.stream()["state"] == "clean")
    epoch = int(deployment.stream()["epoch"])
    truncate_all(regions_of(deployment, epoch)["pool"])
    deployment.until(lambda: int(deployment.stream()["epoch"] or 0) > epoch)
    assert deployment.call_driver("status")["counters"]["damaged"] == 1
    assert "pool 1 was truncated" in service.log.read_text()
    producer.call("produce", stream_id=deployment.stream_id)
    deployment.until(lambda: producer.call("offer") == "published" and consumer.call("received_count"))
