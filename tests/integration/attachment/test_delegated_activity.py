"""A leased producer refreshes the activity timestamps of its regions (driver §3, wire §7.1)."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp

from .delegating_driver import DelegatingDriver

DEADLINE_S = 60.0
PERIOD_S = 0.5
# Consumers take a producer for dead after three periods without a refresh.
FRESHNESS_S = 3 * PERIOD_S


@pytest.mark.requirement("wire-15.1-3")
def test_consumer_stays_mapped_on_a_driver_that_delegates_the_refresh(
    options, open_context, free_stream_id, shm_base: Path, wait_until
) -> None:
    with tp.MediaDriver(options["aeron_dir"]):
        peer = open_context("standalone", media_driver="external", announce_period=PERIOD_S)
        with DelegatingDriver(peer, shm_base, free_stream_id, epoch=7, nslots=1024):
            ctx = open_context("driver", media_driver="external", announce_period=PERIOD_S)
            producer, consumer = ctx.producer(free_stream_id), ctx.consumer(free_stream_id)
            wait_until(lambda: producer.epoch == 7 and consumer.epoch == 7)
            started, received = time.monotonic(), 0

            # No driver refreshes the regions: only their producer can keep them fresh for this long.
            def sends_for_three_windows() -> bool:
                nonlocal received
                assert producer.offer(np.arange(4)).outcome == "published"
                frame = consumer.receive_or_none(DEADLINE_S if consumer.epoch else 0.1)
                received += frame is not None
                return time.monotonic() > started + 3 * FRESHNESS_S

            wait_until(sends_for_three_windows)
            assert received == producer.next_seq
            assert consumer.counters().mapped == 1
            assert not any(event.kind in ("unmapped", "driver_lost") for event in ctx.events(0.0))
            ctx.close()
            peer.close()
