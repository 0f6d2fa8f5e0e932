"""An epoch has one owner: a consumer unmaps regions whose owner changes (wire §15.14)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

PID_OFFSET = 40
DEADLINE_S = 60.0


@pytest.mark.requirement("wire-15.14-1")
def test_regions_with_a_changed_pid_stay_unmapped_until_a_new_epoch(
    open_context, shm_base: Path, free_stream_id, wait_until
) -> None:
    # A short period: the consumer checks the owner a few times in each.
    ctx = open_context(announce_period=0.3)
    consumer = ctx.consumer(free_stream_id)
    with ctx.producer(free_stream_id, pools=["64KiB"]) as producer:
        wait_until(lambda: consumer.epoch == producer.epoch)
        (ring,) = shm_base.rglob("header.ring")
        with ring.open("r+b") as file:
            file.seek(PID_OFFSET)
            file.write((os.getpid() + 1).to_bytes(8, "little"))
        wait_until(lambda: consumer.epoch is None)
        # Further announces of the same epoch are ignored.
        count = consumer.counters().announces_ignored["older_epoch"]
        wait_until(lambda: consumer.counters().announces_ignored["older_epoch"] > count + 1)
        assert consumer.epoch is None
    with ctx.producer(free_stream_id, pools=["64KiB"]) as successor:
        wait_until(lambda: consumer.epoch == successor.epoch)
        successor.offer(np.arange(3))
        assert consumer.receive(DEADLINE_S).array.tolist() == [0, 1, 2]
