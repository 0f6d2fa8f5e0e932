"""An epoch has one owner: regions that change hands in the middle of it are let go (wire §15.14)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

PID_OFFSET = 40
DEADLINE_S = 60.0


@pytest.mark.requirement("wire-15.14-1")
def test_regions_whose_pid_changes_are_unmapped_until_a_new_epoch(
    open_context, shm_base: Path, free_stream_id, wait_until
) -> None:
    # A short window, since the owner is looked at a few times in each.
    ctx = open_context(announce_period=0.3)
    consumer = ctx.consumer(free_stream_id)
    with ctx.producer(free_stream_id, pools=["64KiB"]) as producer:
        wait_until(lambda: consumer.epoch == producer.epoch)
        (ring,) = shm_base.rglob("header.ring")
        with ring.open("r+b") as file:
            file.seek(PID_OFFSET)
            file.write((os.getpid() + 1).to_bytes(8, "little"))
        wait_until(lambda: consumer.epoch is None)
        # The same epoch goes on being announced, and is not believed again.
        refused = consumer.counters()["announces_ignored"]["older_epoch"]
        wait_until(lambda: consumer.counters()["announces_ignored"]["older_epoch"] > refused + 1)
        assert consumer.epoch is None
    with ctx.producer(free_stream_id, pools=["64KiB"]) as fresh:
        wait_until(lambda: consumer.epoch == fresh.epoch)
        fresh.offer(np.arange(3))
        assert consumer.receive(DEADLINE_S).array.tolist() == [0, 1, 2]
