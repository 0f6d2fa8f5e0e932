"""Every role beside a peer with other habits: no lease is lost, no storm, no error, nothing missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.monitor.listener import SystemMonitor
from tests.integration.peers.foreign_peer import ForeignPeer

PERIOD_S = 0.2
SECONDS = 4.0


def lease_ids(*endpoints: tp.Producer | tp.Consumer) -> list[int | None]:
    leases = [endpoint.lease() for endpoint in endpoints]
    return [None if lease is None else lease.lease_id for lease in leases]


def test_roles_keep_working_beside_a_foreign_peer(
    aeron_dir: Path,
    shm_base: Path,
    free_stream_id: int,
    wait_until: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    options: dict[str, Any] = {
        "aeron_dir": aeron_dir,
        "shm_base_dir": shm_base,
        "announce_period": PERIOD_S,
    }
    with (
        caplog.at_level(logging.WARNING),
        tp.open("embedded", **options) as hub,
        tp.open("driver", **options) as other,
        hub.producer(free_stream_id, name="camera-1", pools=["4KiB"], nslots=64) as camera,
        other.consumer(free_stream_id) as frames,
        hub.service("driver", timeout=60) as driver,
    ):
        monitor = SystemMonitor(other.connection)
        try:
            camera.wait_for_consumer(60)
            wait_until(lambda: frames.epoch == camera.epoch)
            before = lease_ids(camera, frames)
            started = time.monotonic()
            received = offered = answers = 0
            with ForeignPeer(other, free_stream_id) as peer:
                while (elapsed := time.monotonic() - started) < SECONDS or peer.sent < 40:
                    assert elapsed < 60
                    camera.offer(np.full(16, offered, np.int64))
                    offered += 1
                    received += len(frames.poll())
                    monitor.poll()
                    found = other.discover(name="camera-1", timeout=60)
                    answers += len(found)
                    driver.ping()
                    frames.wait(0.01)
                announces, seconds = peer.announces, time.monotonic() - started
            received += len(frames.poll())
            # Leases are the same ones, and nothing was lost.
            assert lease_ids(camera, frames) == before
            assert camera.attached
            ledger = frames.ledger()
            assert received == offered
            assert ledger.balanced
            assert answers == offered
            # One announce a period, and at most ten a second for hellos of new consumers.
            assert announces <= seconds * (1 / PERIOD_S + 10) + 5
            status: Any = driver.call("status")
            assert status["discovery"]["invalid"]["malformed"] >= 1
            view = monitor.snapshot()
            assert free_stream_id in {stream.stream_id for stream in view.streams}
        finally:
            monitor.close()
    assert [record for record in caplog.records if record.exc_info] == []
