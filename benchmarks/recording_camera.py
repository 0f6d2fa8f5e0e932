"""A producer of large frames at a given pace: `python -m benchmarks.recording_camera PLAN`.

Says `ready` when it is attached, begins with the first line on stdin, and ends with its parent, or when the
line `stop` comes; its last line is JSON: what it wrote.
"""

from __future__ import annotations

import json
import select
import sys
import time
from dataclasses import dataclass

import numpy as np

import tensorpool as tp

from .driver_process import media_driver_dir
from .plan_text import PlanText
from .role import obey_the_parent, say

STREAM_ID = 20_000
FRAME_BYTES = 640 << 10
NSLOTS = 64
_LOOK_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class CameraPlan(PlanText):
    directory: str
    pace_hz: float


def main() -> None:
    obey_the_parent()
    plan = CameraPlan.from_json(sys.argv[1])
    image = np.random.default_rng(1).integers(0, 256, FRAME_BYTES, np.uint8)
    with (
        tp.open(
            mode="driver",
            aeron_dir=media_driver_dir(plan.directory),
            shm_base_dir=plan.directory,
            media_driver="external",
        ) as context,
        context.producer(STREAM_ID, pools=["1MiB"], nslots=NSLOTS) as producer,
    ):
        say("ready")
        sys.stdin.readline()
        film(producer, image, plan.pace_hz)
        say(json.dumps({"next_seq": producer.next_seq, "epoch": producer.epoch}))


def film(producer: tp.Producer, image: np.typing.NDArray[np.uint8], pace_hz: float) -> None:
    """Each frame at its time; one that is late comes at once, and the pace is kept on average."""
    words = image.view(np.uint64)
    step_ns = int(1e9 / pace_hz)
    due = time.monotonic_ns()
    next_look = due
    while True:
        now = time.monotonic_ns()
        if now >= next_look:
            next_look = now + _LOOK_NS
            if select.select([sys.stdin], [], [], 0)[0] and sys.stdin.readline() in ("stop\n", ""):
                return
        if now < due:
            time.sleep((due - now) / 1e9)
        words[0] = producer.next_seq
        producer.offer(image)
        due += step_ns
        # After a pause of the machine it does not race to catch up: no disk could follow.
        due = max(due, now - 50_000_000)


if __name__ == "__main__":
    main()
