"""A producer or consumer process on a driver: `python -m benchmarks.driver_client ROLE PLAN`.

Prints `ready` when it is attached, then answers each line on stdin with a line of JSON: its status.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorpool as tp

from .driver_process import media_driver_dir
from .endpoint_process import exit_with_parent, write_line
from .plan import JsonPlan

STREAM_ID = 20_000
FRAME_BYTES = 64 << 10
NSLOTS = 8
GAP_NS = 50_000_000
"""Shorter gaps come from a busy machine."""
_SHORT_GAP_NS = 15_000_000
_WAIT_S = 0.005
_REQUEST_POLL_NS = 5_000_000

clock = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class DriverClientPlan(JsonPlan):
    """Plan of one client."""

    directory: str
    pace_hz: int | None
    """None: full speed."""


class ParentRequests:
    """Requests of the parent process. The process exits when the parent closes the pipe."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status
        self._next_poll_ns = 0

    def poll(self, now: int) -> None:
        """Answers a pending request. Cheap enough to call for every frame."""
        if now < self._next_poll_ns:
            return
        self._next_poll_ns = now + _REQUEST_POLL_NS
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                raise SystemExit(1)
            write_line(json.dumps(self._status()))


def _open(plan: DriverClientPlan) -> tp.Context:
    return tp.open(
        "driver",
        aeron_dir=media_driver_dir(plan.directory),
        media_driver="external",
        shm_base_dir=plan.directory,
    )


def produce(plan: DriverClientPlan) -> None:
    """Offers frames until the process is ended."""
    frame, outcomes = np.zeros(FRAME_BYTES, np.uint8), Counter[str]()
    period = 0 if plan.pace_hz is None else 1_000_000_000 // plan.pace_hz
    with _open(plan) as ctx, ctx.producer(STREAM_ID, pools=[FRAME_BYTES], nslots=NSLOTS) as producer:
        parent = ParentRequests(lambda: {"outcomes": outcomes})
        write_line("ready")
        due = clock()
        while True:
            outcomes[producer.offer(frame).outcome] += 1
            now = clock()
            parent.poll(now)
            if period:
                # A delay is not made up for: a burst would change the pace.
                due = max(due + period, now)
                time.sleep((due - now) / 1e9)


def consume(plan: DriverClientPlan) -> None:
    """Receives frames until the process is ended, and notes the gaps between them."""
    received, epoch, last = 0, 0, 0
    gaps: list[tuple[int, int]] = []

    def status() -> dict[str, Any]:
        # Each gap is reported once.
        new_gaps = gaps.copy()
        gaps.clear()
        return {"epoch": epoch, "received": received, "gaps": new_gaps}

    with _open(plan) as ctx, ctx.consumer(STREAM_ID) as consumer:
        parent = ParentRequests(status)
        write_line("ready")
        while True:
            frame = consumer.receive_or_none(_WAIT_S)
            now = clock()
            if frame is not None:
                if last and now - last > _SHORT_GAP_NS:
                    gaps.append((last, now))
                received, epoch, last = received + 1, frame.epoch, now
            parent.poll(now)


ROLES = {"producer": produce, "consumer": consume}


if __name__ == "__main__":
    exit_with_parent()
    role, text = sys.argv[1:]
    ROLES[role](DriverClientPlan.from_json(text))
