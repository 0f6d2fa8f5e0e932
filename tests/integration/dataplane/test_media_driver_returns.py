"""A media driver that ends and starts again: producers and consumers reconnect by themselves."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests import leaks

DEADLINE_S = 60.0


@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "polling all the time"])
def test_stream_continues_after_a_media_driver_restart(aeron_dir, shm_base, free_stream_id, busy) -> None:
    settings: dict[str, Any] = {
        "aeron_dir": str(aeron_dir),
        "media_driver": "external",
        "shm_base_dir": shm_base,
    }

    def frame_is_received() -> bool:
        """Offers frames until one is received; polls without a pause if `busy`."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            producer.offer(np.zeros(1))
            if busy and any(consumer.poll() for _ in range(10_000)):
                return True
            if not busy and consumer.receive_or_none(0.05) is not None:
                return True
        return False

    with ExitStack() as stack:
        driver = tp.MediaDriver(str(aeron_dir), driver_timeout=1.0)
        context = stack.enter_context(tp.open(**settings, driver_timeout=1.0, announce_period=0.2))
        consumer = context.consumer(free_stream_id)
        producer = context.producer(free_stream_id, pools=[64])
        assert frame_is_received()
        driver.close()
        assert leaks.wait_for(lambda: not context.connected, timeout=DEADLINE_S)
        stack.enter_context(tp.MediaDriver(str(aeron_dir), driver_timeout=1.0))
        epoch = producer.epoch
        assert frame_is_received()
        assert (producer.epoch, consumer.ledger().balanced) == (epoch, True)
        kinds = [event.kind for event in context.events(0.0)]
        assert kinds.index("media_driver_lost") < len(kinds) - 1 - kinds[::-1].index("media_driver_connected")
