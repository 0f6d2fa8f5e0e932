"""The camera process: writes frames into their slots at a steady rate, then reports its ledger."""

from __future__ import annotations

import os
import sys
import time

from ..client import Producer
from .processes import (
    DTYPE,
    NAME,
    NSLOTS,
    POOL,
    SHAPE,
    DemoOptions,
    ReportWriter,
    fill_pattern,
    has_command,
    parse_options,
)
from .reports import CameraLedger, CameraReady, ProcessSample


def run_camera(options: DemoOptions, reports: ReportWriter) -> None:
    """Publishes frames for the time in the options, or until the parent stops it."""
    # The parent sends the first line when the driver runs.
    sys.stdin.readline()
    with (
        options.attach() as ctx,
        ctx.producer(options.stream_id, pools=[POOL], nslots=NSLOTS, name=NAME) as camera,
    ):
        reports.send(CameraReady(pid=os.getpid(), lease=_lease(camera), epoch=_text(camera.epoch)))
        # The parent sends the second line when all consumers have mapped the epoch; a third stops the camera.
        sys.stdin.readline()
        start, frames = time.monotonic(), max(1, round(options.seconds * options.fps))
        for number in range(frames):
            if (ahead := start + number / options.fps - time.monotonic()) > 0:
                time.sleep(ahead)
            with camera.claim(SHAPE, DTYPE) as slot:
                fill_pattern(slot.array, number)
            if reports.is_due():
                if has_command():
                    sys.stdin.readline()
                    break
                sent = camera.ledger().bytes
                epoch = _text(camera.epoch)
                reports.send(ProcessSample(frames=number + 1, bytes=sent, lease=_lease(camera), epoch=epoch))
        ledger = camera.ledger()
        reports.send(
            CameraLedger(
                committed=ledger.committed,
                published=ledger.published,
                unpublished={reason: n for reason, n in ledger.unpublished.items() if n},
                balanced=ledger.balanced,
            )
        )
        # The regions have to exist until the consumers have drained the stream.
        sys.stdin.readline()


def _lease(camera: Producer) -> str | None:
    lease = camera.lease()
    return _text(None if lease is None else lease.lease_id)


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


if __name__ == "__main__":
    run_camera(parse_options(), ReportWriter())
