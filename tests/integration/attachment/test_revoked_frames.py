"""Frames that a consumer handed out before a lease was revoked: readable, and `valid()` says what is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.client.lease import lease_status

NSLOTS = 4


@pytest.mark.requirement("driver-4.7-1", "driver-4.9-6")
@pytest.mark.parametrize("role", ["consumer", "producer"])
def test_frames_received_before_a_revocation_stay_valid_until_overwritten(
    open_context: Callable[..., tp.Context],
    free_stream_id: int,
    wait_until: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    role: str,
) -> None:
    monkeypatch.setenv("TENSORPOOL_SERVICE__TOKEN", "open sesame")
    ctx = open_context("embedded")
    producer = ctx.producer(free_stream_id, pools=["4KiB"], nslots=NSLOTS)
    consumer = ctx.consumer(free_stream_id, timeout=60)
    assert consumer.wait_for_producer(60)
    assert producer.wait_for_consumer(60)

    def receive(value: int) -> tp.Frame:
        assert producer.offer(np.full(16, value, np.uint8))
        return consumer.receive(60)

    overwritten = receive(1)
    held = [receive(value) for value in range(2, 2 + NSLOTS)]
    assert [frame.valid() for frame in (overwritten, *held)] == [False] + NSLOTS * [True]
    epoch, endpoint = consumer.epoch, producer if role == "producer" else consumer
    with ctx.service("driver") as driver:
        (lease_id,) = (lease["lease_id"] for lease in driver.call("leases") if lease["role"] == role)
        driver.call("revoke", {"lease_id": lease_id})
    wait_until(lambda: lease_status(endpoint).ended == 1, timeout=60)
    assert [frame.valid() for frame in (overwritten, *held)] == [False] + NSLOTS * [True]
    assert [frame.copy()[0] for frame in held] == list(range(2, 2 + NSLOTS))
    with pytest.raises(tp.FrameOverwritten):
        overwritten.copy()
    # Both attach again, and frames flow.
    wait_until(lambda: lease_status(endpoint).granted == 2 and consumer.epoch is not None, timeout=60)

    def arrived() -> tp.Frame | None:
        producer.offer(np.full(16, 99, np.uint8))
        return next(iter(consumer.poll()), None)

    later = wait_until(arrived, timeout=60)
    for _ in range(2 * NSLOTS):
        producer.offer(np.full(16, 100, np.uint8))
    if role == "producer":
        # The next epoch has regions of its own: no producer writes into the earlier ones.
        assert later.epoch > epoch
        assert all(frame.valid() for frame in held)
    else:
        assert later.epoch == epoch
        assert not any(frame.valid() for frame in held), "the producer went on in the same ring"
