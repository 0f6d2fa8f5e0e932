"""The replayer's process: plays the recording into a stream of its own. `tensorpool replay` does the same."""

from __future__ import annotations

import sys

from .played import NSLOTS, PLAYED_ID, SPEED
from .reports import Reports, Role, role_arguments

_WAIT_S = 10.0


def play(role: Role, reports: Reports) -> None:
    sys.stdin.readline()
    with (
        role.attach() as ctx,
        ctx.replay(
            role.recording,
            speed=SPEED,
            streams=[role.stream_id],
            mapping={role.stream_id: PLAYED_ID},
            nslots=NSLOTS,
            max_pause=0.5,
            wait=_WAIT_S,
        ) as replay,
    ):
        replay.wait()
        reports.say("ledger", frames=replay.stats().frames)
        # The last frames stay until they have been looked at.
        sys.stdin.readline()


if __name__ == "__main__":
    play(role_arguments(), Reports())
