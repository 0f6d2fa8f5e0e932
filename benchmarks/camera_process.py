"""A producer process of large frames at a given pace: `python -m benchmarks.camera_process PLAN`.

Prints `ready` when it is attached, starts at the first line on stdin, and ends with its parent process or at
the line `stop`. Its last line is JSON: epoch and next sequence.
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
from .endpoint_process import exit_with_parent, write_line
from .plan import JsonPlan

STREAM_ID = 20_000
FRAME_BYTES = 640 << 10
NSLOTS = 64
_STDIN_POLL_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class CameraPlan(JsonPlan):
    """Plan of the camera."""

    directory: str
    pace_hz: float


def main() -> None:
    """Runs the plan of the command line."""
    exit_with_parent()
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
        write_line("ready")
        sys.stdin.readline()
        publish_at_pace(producer, image, plan.pace_hz)
        write_line(json.dumps({"next_seq": producer.next_seq, "epoch": producer.epoch}))


def publish_at_pace(producer: tp.Producer, image: np.typing.NDArray[np.uint8], pace_hz: float) -> None:
    """Publishes until the end. A late frame is published at once, so that the average pace is kept."""
    values = image.view(np.uint64)
    step_ns = int(1e9 / pace_hz)
    due = time.monotonic_ns()
    next_poll = due
    while True:
        now = time.monotonic_ns()
        if now >= next_poll:
            next_poll = now + _STDIN_POLL_NS
            if select.select([sys.stdin], [], [], 0)[0] and sys.stdin.readline() in ("stop\n", ""):
                return
        if now < due:
            time.sleep((due - now) / 1e9)
        values[0] = producer.next_seq
        producer.offer(image)
        due += step_ns
        # A long pause of the machine is not made up for: no disk could keep up.
        due = max(due, now - 50_000_000)


if __name__ == "__main__":
    main()
