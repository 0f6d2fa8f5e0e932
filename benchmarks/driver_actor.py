"""A producer or a consumer on a driver, until it is ended: `python -m benchmarks.driver_actor ROLE PLAN`.

Says `ready` when it is attached. Each line on stdin is answered with a line of JSON: how it stands by now.
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
from .plan_text import PlanText
from .role import obey_the_parent, say

STREAM_ID = 20_000
FRAME_BYTES = 64 << 10
NSLOTS = 8
GAP_NS = 50_000_000
"""Shorter ones are the pauses of a busy machine."""
_SHORT_GAP_NS = 15_000_000
_WAIT_S = 0.005
_LOOK_NS = 5_000_000

clock = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class ActorPlan(PlanText):
    directory: str
    pace_hz: int | None
    """None: as fast as it goes."""


class Parent:
    """Asks now and then; its end is ours."""

    def __init__(self, answer: Callable[[], dict[str, Any]]) -> None:
        self._answer = answer
        self._next_look = 0

    def attend(self, now: int) -> None:
        """Cheap enough for every frame."""
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_NS
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                raise SystemExit(1)
            say(json.dumps(self._answer()))


def _open(plan: ActorPlan) -> tp.Context:
    return tp.open(
        "driver",
        aeron_dir=media_driver_dir(plan.directory),
        media_driver="external",
        shm_base_dir=plan.directory,
    )


def produce(plan: ActorPlan) -> None:
    frame, outcomes = np.zeros(FRAME_BYTES, np.uint8), Counter[str]()
    period = 0 if plan.pace_hz is None else 1_000_000_000 // plan.pace_hz
    with _open(plan) as ctx, ctx.producer(STREAM_ID, pools=[FRAME_BYTES], nslots=NSLOTS) as producer:
        parent = Parent(lambda: {"outcomes": outcomes})
        say("ready")
        due = clock()
        while True:
            outcomes[producer.offer(frame).outcome] += 1
            now = clock()
            parent.attend(now)
            if period:
                # Behind time it does not hurry after: a burst would not be the pace.
                due = max(due + period, now)
                time.sleep((due - now) / 1e9)


def consume(plan: ActorPlan) -> None:
    received, epoch, last = 0, 0, 0
    gaps: list[tuple[int, int]] = []

    def answer() -> dict[str, Any]:
        # Gaps are told once.
        told = gaps.copy()
        gaps.clear()
        return {"epoch": epoch, "received": received, "gaps": told}

    with _open(plan) as ctx, ctx.consumer(STREAM_ID) as consumer:
        parent = Parent(answer)
        say("ready")
        while True:
            frame = consumer.receive_or_none(_WAIT_S)
            now = clock()
            if frame is not None:
                if last and now - last > _SHORT_GAP_NS:
                    gaps.append((last, now))
                received, epoch, last = received + 1, frame.epoch, now
            parent.attend(now)


ROLES = {"producer": produce, "consumer": consume}


if __name__ == "__main__":
    obey_the_parent()
    role, text = sys.argv[1:]
    ROLES[role](ActorPlan.from_json(text))
