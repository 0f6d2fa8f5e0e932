"""Producers that come and go for ever: one live epoch directory, and memory that does not grow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .deployment import LONG, Deployment

RESTARTS = 1000 if LONG else 60
MEBIBYTE = 1 << 20
# The first ones fill caches and pools of the allocator.
WARM_UP = RESTARTS // 4


def memory_bytes(pid: int) -> int:
    """Anonymous memory: what is shared is accounted for by the directories."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.requirement("driver-6-1", "driver-4.9-3", "driver-4.8-1")
def test_many_producer_restarts_leave_one_epoch_and_no_memory_behind(fleet: Deployment) -> None:
    fleet.driver()
    service = fleet.service()
    consumer, worker = fleet.consumer(), fleet.worker()
    warm = worker.call("restart_producer", stream_id=fleet.stream_id, times=WARM_UP)
    before = memory_bytes(service.pid), descriptors(service.pid)
    rest = worker.call(
        "restart_producer", stream_id=fleet.stream_id, times=RESTARTS - WARM_UP, reply_timeout=1500
    )
    epochs = warm["epochs"] + rest["epochs"]
    assert epochs == sorted(set(epochs)), "every attach has an epoch of its own, above all before"
    assert len(epochs) == RESTARTS
    leases = warm["leases"] + rest["leases"]
    assert len(set(leases)) == RESTARTS

    worker.call("produce", stream_id=fleet.stream_id)
    worker.call("offer_always", per_second=500)
    assert fleet.flow(consumer, after=epochs[-1]) > epochs[-1]
    fleet.settled(worker, [consumer])
    grown = memory_bytes(service.pid) - before[0]
    print(f"\n{RESTARTS} restarts: the driver's memory grew by {grown / MEBIBYTE:.2f} MiB after the first")
    # Ended leases and answers are remembered, a bounded number of each.
    assert grown < 4 * MEBIBYTE
    assert descriptors(service.pid) <= before[1] + 2
    counters = fleet.ask("status")["counters"]
    assert counters["detached"] == RESTARTS
    assert counters["expired"] == counters["deaths"] == counters["failures"] == 0
    fleet.accounts(worker, [consumer])
