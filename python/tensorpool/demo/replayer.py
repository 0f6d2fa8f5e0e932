"""The replayer process: replays the recording into another stream, as `tensorpool replay` does."""

from __future__ import annotations

import sys

from .checks import REPLAY_NSLOTS, REPLAY_SPEED, REPLAY_STREAM_ID
from .processes import DemoOptions, ReportWriter, parse_options
from .reports import ReplayLedger

_WAIT_S = 10.0


def run_replayer(options: DemoOptions, reports: ReportWriter) -> None:
    """Replays the recording once, and reports the number of frames."""
    sys.stdin.readline()
    with (
        options.attach() as ctx,
        ctx.replay(
            options.recording,
            speed=REPLAY_SPEED,
            streams=[options.stream_id],
            mapping={options.stream_id: REPLAY_STREAM_ID},
            nslots=REPLAY_NSLOTS,
            max_pause=0.5,
            wait=_WAIT_S,
        ) as replay,
    ):
        replay.wait()
        reports.send(ReplayLedger(frames=replay.stats().frames))
        # The regions have to exist until the consumer has checked the last frames.
        sys.stdin.readline()


if __name__ == "__main__":
    run_replayer(parse_options(), ReportWriter())
