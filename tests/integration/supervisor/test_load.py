"""A thousand streams with four consumers each, reporting once a second: what it costs to watch them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

import tensorpool as tp
from tests.integration.supervisor.load import Crowd, Listener
from tests.remote import Remote

STREAMS, CONSUMERS = 1000, 4
HOUR_S = 3600.0


@pytest.mark.long
@pytest.mark.timeout(HOUR_S + 600)
def test_a_thousand_streams_take_little_time_and_no_more_memory_as_time_goes_by(
    aeron_dir: Any, shm_base: Any, wait_until: Callable[..., Any]
) -> None:
    seconds = float(os.environ.get("TENSORPOOL_SUPERVISOR_SECONDS", HOUR_S))
    options: dict[str, Any] = {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base)}
    with tp.open("embedded", **options), Remote(Crowd) as crowd, Remote(Listener) as listener:
        listener.call("run", options=options)
        crowd.call("speak", options=options, streams=STREAMS, consumers=CONSUMERS)

        def sees_all() -> bool:
            found = listener.call("standing")
            return (found["streams"], found["consumers"]) == (STREAMS, STREAMS * CONSUMERS)

        wait_until(sees_all, timeout=60)
        # What is allocated at first is not growth: figures and names of everybody are there after a while.
        time.sleep(min(20.0, seconds / 3))
        before = listener.call("standing")
        time.sleep(seconds)
        after = listener.call("standing")
        share = (after["cpu_s"] - before["cpu_s"]) / (after["wall_s"] - before["wall_s"])
        grown = after["bytes"] - before["bytes"]
        heard = (after["heard"] - before["heard"]) / (after["wall_s"] - before["wall_s"])
        print(f"cpu {share:.1%} of a core, {heard:,.0f} messages/s, memory {after['bytes']:,} (+{grown:,})")
        assert sees_all()
        assert heard > 5 * STREAMS
        assert share < 0.20
        assert grown < 16 << 20
        crowd.call("close")
        listener.call("close")
