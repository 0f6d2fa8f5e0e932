"""The camera's process: writes frames into their slots at a steady pace, then gives its ledger."""

from __future__ import annotations

import sys
import time

from .. import context
from .reports import Reports, Role, role_arguments, was_told
from .scene import DTYPE, SHAPE, draw


def film(role: Role, reports: Reports) -> None:
    with (
        context.open(aeron_dir=role.aeron_dir, media_driver="external", shm_base_dir=role.base) as ctx,
        ctx.producer(role.stream_id, pools=["1MiB"], nslots=8) as camera,
    ):
        reports.say("ready")
        # The others have mapped the stream when the director says so; a second word ends it early.
        sys.stdin.readline()
        start, frames = time.monotonic(), round(role.seconds * role.fps)
        for number in range(frames):
            if (ahead := start + number / role.fps - time.monotonic()) > 0:
                time.sleep(ahead)
            with camera.claim(SHAPE, DTYPE) as slot:
                draw(slot.array, number)
            if reports.due():
                if was_told():
                    sys.stdin.readline()
                    break
                reports.say("sample", frames=number + 1, bytes=camera.ledger().bytes)
        ledger = camera.ledger()
        reports.say(
            "ledger",
            committed=ledger.committed,
            published=ledger.published,
            unpublished=ledger.unpublished,
            balanced=ledger.balanced,
        )
        # The regions stay until the consumers have drained the stream.
        sys.stdin.readline()


if __name__ == "__main__":
    film(role_arguments(), Reports())
