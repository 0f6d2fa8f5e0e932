"""The camera's process: writes frames into their slots at a steady pace, then gives its ledger."""

from __future__ import annotations

import os
import sys
import time

from ..client import Producer
from .processes import DTYPE, NAME, NSLOTS, POOL, SHAPE, Reports, Role, fill_pattern, role_arguments, was_told


def run_camera(role: Role, reports: Reports) -> None:
    # The driver is there when the director says so.
    sys.stdin.readline()
    with role.attach() as ctx, ctx.producer(role.stream_id, pools=[POOL], nslots=NSLOTS, name=NAME) as camera:
        reports.say("ready", pid=os.getpid(), **_standing(camera))
        # The others have mapped the stream at the next word; one more ends it early.
        sys.stdin.readline()
        start, frames = time.monotonic(), max(1, round(role.seconds * role.fps))
        for number in range(frames):
            if (ahead := start + number / role.fps - time.monotonic()) > 0:
                time.sleep(ahead)
            with camera.claim(SHAPE, DTYPE) as slot:
                fill_pattern(slot.array, number)
            if reports.due():
                if was_told():
                    sys.stdin.readline()
                    break
                reports.say("sample", frames=number + 1, bytes=camera.ledger().bytes, **_standing(camera))
        ledger = camera.ledger()
        reports.say(
            "ledger",
            committed=ledger.committed,
            published=ledger.published,
            unpublished={reason: n for reason, n in ledger.unpublished.items() if n},
            balanced=ledger.balanced,
        )
        # The memory stays until the consumers have drained the stream.
        sys.stdin.readline()


def _standing(camera: Producer) -> dict[str, str | None]:
    """Its lease and the epoch that it writes. 64-bit numbers are text in JSON."""
    lease = camera.lease() or {}
    return {"lease": _text(lease.get("lease_id")), "epoch": _text(camera.epoch)}


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


if __name__ == "__main__":
    run_camera(role_arguments(), Reports())
