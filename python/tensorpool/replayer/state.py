"""The order in which frames of several streams go out, and when each is due. No clock, no files.

`Merge` makes one order of many streams' rows. `Playhead` turns their times into times of this machine's
monotonic clock, through pauses, changes of speed, jumps and steps. Both belong to the replayer's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
_LONELY_NS: Final = 1_000_000_000
"""How far apart passes are where the recording has but one moment."""


@dataclass(frozen=True, slots=True)
class Window:
    """Rows in the order in which they go out. Each lane's are of the block it had when they were taken."""

    lane: npt.NDArray[np.uint16]
    row: npt.NDArray[np.uint32]
    time_ns: Times

    def __len__(self) -> int:
        return len(self.lane)


class Merge:
    """Rows of several lanes in the order of time, then of lanes, then of rows.

    A lane is fed blocks of times that do not go back. What comes out does not depend on where blocks end.
    """

    def __init__(self, lanes: int) -> None:
        self._blocks: list[Times | None] = [None] * lanes
        self._at = [0] * lanes
        self._ended = [False] * lanes

    def wants(self) -> list[int]:
        """Lanes that have nothing left: each needs `put` or `end` before the next `take`."""
        return [
            lane
            for lane, block in enumerate(self._blocks)
            if block is None and not self._ended[lane]
        ]  # fmt: skip

    def put(self, lane: int, times: Times) -> None:
        assert self._blocks[lane] is None, "the block before is not used up"
        if len(times):
            self._blocks[lane], self._at[lane] = times, 0

    def end(self, lane: int) -> None:
        """There is no further block in this lane."""
        self._ended[lane] = True

    def take(self) -> Window | None:
        """As many rows as are certain to be next; None if there are none left at all."""
        assert not self.wants(), "a lane without rows could be the next"
        held = [(lane, block) for lane, block in enumerate(self._blocks) if block is not None]
        if not held:
            return None
        # The first lane to run out: whatever is behind its last row may come after its next block.
        until, first = min((int(block[-1]), lane) for lane, block in held)
        lanes, rows, times = [], [], []
        for lane, block in held:
            begin = self._at[lane]
            end = int(np.searchsorted(block, until, "right" if lane <= first else "left"))
            end = max(begin, end)
            rows.append(np.arange(begin, end, dtype=np.uint32))
            lanes.append(np.full(end - begin, lane, np.uint16))
            times.append(block[begin:end])
            self._at[lane] = end
            if end == len(block):
                self._blocks[lane] = None
        if len(held) == 1:
            return Window(lanes[0], rows[0], times[0])
        every = np.concatenate(times)
        order = np.argsort(every, kind="stable")
        return Window(np.concatenate(lanes)[order], np.concatenate(rows)[order], every[order])


class Playhead:
    """Where a replay stands. Playing time is the recording's without long pauses; it only ever grows.

    `speed` is how many times as fast, None for as fast as it goes. `every_ns` puts frames that far apart,
    whatever the recording says. `max_pause_ns` shortens what is longer.
    """

    def __init__(
        self,
        now_ns: int,
        *,
        speed: float | None,
        every_ns: int | None = None,
        max_pause_ns: int | None = None,
    ) -> None:
        self.speed = speed
        self._every_ns = every_ns
        self._max_pause_ns = max_pause_ns
        self._anchor_ns, self._anchor_play = now_ns, 0
        self._paused_ns: int | None = None
        self._last_time: int | None = None
        self.last_play = 0
        # Of the pass that is going on, for the time from its last frame to the first of the next.
        self._pass_play, self._pass_moments = 0, 0
        self.lead_ns = 0
        """How long after the frame before it the first one of a pass comes."""

    # --- from the recording's time to playing time

    def place(self, times: Times) -> Times:
        """The playing times of the next rows, whose times do not go back."""
        if not len(times):
            return times
        before = times[0] if self._last_time is None else self._last_time
        steps = np.diff(times, prepend=before)
        moments = int(np.count_nonzero(steps)) + (self._last_time is None)
        if self._max_pause_ns is not None:
            steps = np.minimum(steps, self._max_pause_ns)
        if self._every_ns is not None:
            steps = np.full(len(times), self._every_ns, np.int64)
            moments = len(times)
        if self._last_time is None:
            steps[0] = self.lead_ns
            self._pass_play = self.last_play + self.lead_ns
            self._pass_moments = 0
        plays: Times = self.last_play + np.cumsum(steps)
        self._last_time, self.last_play = int(times[-1]), int(plays[-1])
        self._pass_moments += moments
        return plays

    def begin_pass(self) -> None:
        """The recording starts over: its first frame follows the last as frames follow each other."""
        between = self._pass_moments - 1
        spent = self.last_play - self._pass_play
        self.lead_ns = spent // between if between > 0 and spent > 0 else _LONELY_NS
        if self._every_ns is not None:
            self.lead_ns = self._every_ns
        self._last_time = None

    def jump(self, now_ns: int) -> None:
        """Another place of the recording comes next, and it comes now."""
        self._last_time, self.lead_ns = None, 0
        self._anchor_ns, self._anchor_play = now_ns, self.last_play
        if self._paused_ns is not None:
            self._paused_ns = now_ns

    # --- from playing time to this machine's

    def due(self, plays: Times) -> npt.NDArray[np.int64] | None:
        """When rows are due; None for at once."""
        if self.speed is None:
            return None
        offsets: npt.NDArray[Any] = plays - self._anchor_play
        if self.speed != 1:
            offsets = np.rint(offsets / self.speed).astype(np.int64)
        found: npt.NDArray[np.int64] = offsets + self._anchor_ns
        return found

    def due_at(self, play: int) -> int:
        due = self.due(np.array([play], np.int64))
        return self._anchor_ns if due is None else int(due[0])

    def delay(self, ns: int) -> None:
        """Everything that is left comes later by this."""
        self._anchor_ns += ns

    @property
    def is_paused(self) -> bool:
        return self._paused_ns is not None

    def pause(self, now_ns: int) -> None:
        if self._paused_ns is None:
            self._paused_ns = now_ns

    def resume(self, now_ns: int) -> None:
        if self._paused_ns is not None:
            self._anchor_ns += now_ns - self._paused_ns
            self._paused_ns = None

    def stepped(self, play: int) -> None:
        """A row was played while paused: what follows is due as long after it as it was recorded."""
        assert self._paused_ns is not None, "steps are for pauses"
        self._anchor_ns, self._anchor_play = self._paused_ns, play

    def change_speed(self, speed: float | None, now_ns: int, next_play: int) -> None:
        """Another speed from here on; `next_play` is the playing time of what comes next."""
        at_ns = now_ns if self._paused_ns is None else self._paused_ns
        # What was due in a second at the old speed is due in half of it at twice the speed.
        if self.speed is not None and speed is not None:
            left = max(0, self.due_at(next_play) - at_ns)
            self._anchor_ns = at_ns + round(left * self.speed / speed)
        else:
            self._anchor_ns = at_ns
        self._anchor_play = next_play
        self.speed = speed
