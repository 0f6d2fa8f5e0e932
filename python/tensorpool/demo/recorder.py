"""The recorder's process: takes the camera's stream to disk until it is told to end, or killed.

`tensorpool record` does the same. Here it reports how it stands.
"""

from __future__ import annotations

import logging
import os
import sys
import time

from .processes import Reports, Role, role_arguments, was_told

_LOOK_S = 0.01
_BUFFER = "64MiB"
# A demo that runs for hours does not fill the disk.
_RETAIN = "4GiB"


def run_recorder(role: Role, reports: Reports) -> None:
    # What it finds unfinished is told by the director.
    logging.getLogger("tensorpool").setLevel(logging.ERROR)
    # The driver is there when the director says so.
    sys.stdin.readline()
    with role.attach() as ctx:
        recorder = ctx.record(
            role.recording, streams=[role.stream_id], buffer=_BUFFER, retain_bytes=_RETAIN, keep_free="256MiB"
        )
        with recorder:
            reports.say("ready", pid=os.getpid(), recovered=[str(one) for one in recorder.recovered])
            told: set[int] = set()
            while not was_told():
                epoch = recorder.mapped()[role.stream_id]
                if epoch is not None and epoch not in told:
                    told.add(epoch)
                    reports.say(f"mapped-{epoch}")
                if reports.due():
                    stats = recorder.stats()
                    reports.say(
                        "sample", epoch=None if epoch is None else str(epoch), frames=stats.rows,
                        bytes=stats.payload_bytes, dropped=stats.gaps,
                    )  # fmt: skip
                time.sleep(_LOOK_S)
        reports.say("ledger", balanced=all(one.balanced for one in recorder.ledger()))


if __name__ == "__main__":
    run_recorder(role_arguments(), Reports())
