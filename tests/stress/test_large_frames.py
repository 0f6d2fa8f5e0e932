"""The conductor's duty cycle while a thread offers large frames without a pause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorpool as tp
from tests.remote_process import Background, RemoteProcess

from .roles import Listener


def test_producer_of_large_frames_at_full_speed_stays_fresh(
    aeron_dir: Path, shm_base: Path, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    """Each offer holds the producer's lock for milliseconds, and the next follows at once."""
    options = {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base), "announce_period": 0.3}
    frame = np.ones(16 << 20, np.uint8)
    with tp.open(**options) as context, RemoteProcess(Listener, options, free_stream_id) as listener:  # type: ignore[arg-type]
        producer = context.producer(free_stream_id, pools=["16MiB"], nslots=2)
        wait_until(lambda: listener.call("epoch") == producer.epoch)

        def offer(stop: Any) -> None:
            while not stop.is_set():
                producer.offer(frame)

        offering = Background(offer)
        # For seconds: a consumer takes the producer for stale after 0.9 s.
        wait_until(lambda: producer.ledger().committed > 3000, timeout=100)
        offering.stop()
        assert listener.call("kinds") == ["media_driver_connected", "mapped"]
