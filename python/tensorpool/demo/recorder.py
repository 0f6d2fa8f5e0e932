"""The recorder process: records the camera's stream until the parent ends or kills it.

`tensorpool record` does the same. This process also reports its progress.
"""

from __future__ import annotations

import logging
import os
import sys
import time

from .processes import DemoOptions, ReportWriter, has_command, parse_options
from .reports import Mapped, ProcessSample, RecorderBalance, RecorderReady

_POLL_S = 0.01
_BUFFER = "64MiB"
_RETAIN = "4GiB"
"""A demo that runs for hours must not fill the disk."""


def run_recorder(options: DemoOptions, reports: ReportWriter) -> None:
    """Records until the parent sends a line."""
    # The parent prints what the recorder recovers: its warnings would repeat that.
    logging.getLogger("tensorpool").setLevel(logging.ERROR)
    # The parent sends the first line when the driver runs.
    sys.stdin.readline()
    with options.attach() as ctx:
        recorder = ctx.record(
            options.recording,
            streams=[options.stream_id],
            buffer=_BUFFER,
            retain_bytes=_RETAIN,
            keep_free="256MiB",
        )
        with recorder:
            recovered = [str(segment) for segment in recorder.recovered]
            reports.send(RecorderReady(pid=os.getpid(), recovered=recovered))
            reported: set[int] = set()
            while not has_command():
                epoch = recorder.mapped()[options.stream_id]
                if epoch is not None and epoch not in reported:
                    reported.add(epoch)
                    reports.send(Mapped(key=str(epoch)))
                if reports.is_due():
                    stats = recorder.stats()
                    reports.send(
                        ProcessSample(
                            epoch=None if epoch is None else str(epoch),
                            frames=stats.rows,
                            bytes=stats.payload_bytes,
                            dropped=stats.gaps,
                        )
                    )
                time.sleep(_POLL_S)
        reports.send(RecorderBalance(balanced=all(ledger.balanced for ledger in recorder.ledger())))


if __name__ == "__main__":
    run_recorder(parse_options(), ReportWriter())
