"""The replayer's process: plays the recording into a stream of its own. `tensorpool replay` does the same."""

from __future__ import annotations

import sys

from .checks import REPLAY_NSLOTS, REPLAY_SPEED, REPLAY_STREAM_ID
from .processes import Reports, Role, role_arguments

_WAIT_S = 10.0


def play(role: Role, reports: Reports) -> None:
    sys.stdin.readline()
    with (
        role.attach() as ctx,
        ctx.replay(
            role.recording,
            speed=REPLAY_SPEED,
            streams=[role.stream_id],
            mapping={role.stream_id: REPLAY_STREAM_ID},
            nslots=REPLAY_NSLOTS,
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
