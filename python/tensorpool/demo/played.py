"""The recording played back by another process, and each frame held against its checksum on disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from .. import _native, recording
from .stage import TIMEOUT_S, Stage

SPEED: Final = 4.0
NSLOTS: Final = 32
"""Deep enough that a viewer which is held up for a moment misses nothing."""
PLAYED_ID: Final = 10_001


@dataclass(slots=True)
class Played:
    """What came out of the replay."""

    played: int = 0
    equal: int = 0
    wrong: int = 0
    missed: int = 0
    """Overwritten before they were looked at."""

    def faults(self) -> list[str]:
        found = []
        if self.wrong:
            found.append(f"the replay has {self.wrong} frames that are not what was recorded")
        if self.equal + self.wrong + self.missed != self.played:
            seen = self.equal + self.wrong + self.missed
            found.append(f"the replay's viewer accounts for {seen} of {self.played} frames")
        return found

    def as_json(self) -> dict[str, Any]:
        return {"played": self.played, "equal": self.equal, "wrong": self.wrong, "missed": self.missed}


def play(stage: Stage) -> Played:
    """Replays the recording into another stream, and compares."""
    found = Played()
    with recording.open(stage.recording) as opened:
        if stage.stream_id not in opened.streams:
            return found
        sums = [frame.crc32c for frame in opened.frames(stage.stream_id)]
    if not sums:
        return found
    role = replace(stage.role, stream_id=PLAYED_ID)
    with role.attach() as ctx, ctx.consumer(PLAYED_ID) as viewer:
        player = stage.start_player()
        player.tell()
        while (frame := viewer.receive_or_none(0.05)) is not None or player.heard("ledger") is None:
            player.check_alive()
            if frame is None:
                continue
            # A replay numbers its frames from 0, in the order of the recording.
            is_equal = _native.crc32c(frame.array.reshape(-1).view("uint8")) == sums[frame.seq]
            if frame.valid():
                found.equal += is_equal
                found.wrong += not is_equal
        ledger = viewer.ledger()
        found.played = player.wait_for("ledger", TIMEOUT_S)["frames"]
        found.missed = ledger.span - found.equal - found.wrong
        player.tell()
    return found
