"""Many restarts of a producer: one epoch directory remains, and the driver's memory does not grow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .deployment import LONG, Deployment, Periods

RESTARTS = 1000 if LONG else 60
MEBIBYTE = 1 << 20
# The first restarts fill caches and the allocator's pools.
WARM_UP = RESTARTS // 4


def memory_bytes(pid: int) -> int:
    """Anonymous memory of a process; shared memory is checked by the directories."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def open_descriptors(pid: int) -> int:
    """Number of open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.requirement("driver-6-1", "driver-4.9-3", "driver-4.8-1")
def test_producer_restarts_leave_one_epoch_and_no_memory(deployment: Deployment) -> None:
    # A client whose lease is lost on a busy machine detaches it too, so it must last longer than a delay.
    deployment.configure(Periods(keepalive=0.25, grace=8, announce=1.0))
    deployment.driver()
    service = deployment.service()
    consumer, worker = deployment.consumer(), deployment.worker()
    first = worker.call("restart_producer", stream_id=deployment.stream_id, times=WARM_UP)
    before = memory_bytes(service.pid), open_descriptors(service.pid)
    rest = worker.call(
        "restart_producer", stream_id=deployment.stream_id, times=RESTARTS - WARM_UP, reply_timeout=1500
    )
    epochs = first["epochs"] + rest["epochs"]
    assert epochs == sorted(set(epochs)), "each attach has a new, larger epoch"
    assert len(epochs) == RESTARTS
    leases = first["leases"] + rest["leases"]
    assert len(set(leases)) == RESTARTS

    worker.call("produce", stream_id=deployment.stream_id)
    worker.call("offer_always", per_second=500)
    assert deployment.wait_epoch(consumer, after=epochs[-1]) > epochs[-1]
    deployment.wait_settled(worker, [consumer])
    grown = memory_bytes(service.pid) - before[0]
    print(f"\n{RESTARTS} restarts: the driver's memory grew by {grown / MEBIBYTE:.2f} MiB after the first")
    # The driver keeps a bounded number of ended leases and responses.
    assert grown < 4 * MEBIBYTE
    assert open_descriptors(service.pid) <= before[1] + 2
    counters = deployment.call_driver("status")["counters"]
    assert counters["detached"] == RESTARTS
    assert counters["expired"] == counters["dead_producers"] == counters["failures"] == 0
    deployment.assert_balanced(worker, [consumer])
