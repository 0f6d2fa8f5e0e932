"""The playhead of a replay: the order of the frames of several streams, and when each is due. Pure.

`StreamMerge` merges the rows of several streams into one order. `Playhead` converts their recorded times
into times of this machine's monotonic clock, through pauses, changes of speed, seeks and steps. The
replayer's thread owns both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
_DEFAULT_LEAD_NS: Final = 1_000_000_000
"""Time between two passes if the recording has a single moment."""


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of several streams in publication order.

    `stream` is the number of a stream within the replay, `row` the number of a row within the block that the
    stream had when the window was taken.
    """

    stream: npt.NDArray[np.uint16]
    row: npt.NDArray[np.uint32]
    time_ns: Times

    def __len__(self) -> int:
        return len(self.stream)


class StreamMerge:
    """Merges rows of several streams in the order of time, then stream, then row.

    Each stream gets blocks of times that do not decrease. The order does not depend on where blocks end.
    """

    def __init__(self, streams: int) -> None:
        self._blocks: list[Times | None] = [None] * streams
        self._next_row = [0] * streams
        self._has_ended = [False] * streams

    def without_block(self) -> list[int]:
        """Streams without rows: each needs `add_block` or `end_stream` before the next `take_window`."""
        return [
            stream
            for stream, block in enumerate(self._blocks)
            if block is None and not self._has_ended[stream]
        ]  # fmt: skip

    def add_block(self, stream: int, times: Times) -> None:
        """Add the next rows of a stream."""
        assert self._blocks[stream] is None, "the previous block still has rows"
        if len(times):
            self._blocks[stream], self._next_row[stream] = times, 0

    def end_stream(self, stream: int) -> None:
        """Mark a stream that has no further block."""
        self._has_ended[stream] = True

    def take_window(self) -> Window | None:
        """All rows whose order is certain; None if all streams have ended."""
        assert not self.without_block(), "the next row could belong to a stream without a block"
        blocks = [(stream, block) for stream, block in enumerate(self._blocks) if block is not None]
        if not blocks:
            return None
        # The stream whose block ends first: later rows of the others may follow rows of its next block.
        until, first = min((int(block[-1]), stream) for stream, block in blocks)
        streams, rows, times = [], [], []
        for stream, block in blocks:
            begin = self._next_row[stream]
            end = int(np.searchsorted(block, until, "right" if stream <= first else "left"))
            end = max(begin, end)
            rows.append(np.arange(begin, end, dtype=np.uint32))
            streams.append(np.full(end - begin, stream, np.uint16))
            times.append(block[begin:end])
            self._next_row[stream] = end
            if end == len(block):
                self._blocks[stream] = None
        if len(blocks) == 1:
            return Window(streams[0], rows[0], times[0])
        all_times = np.concatenate(times)
        order = np.argsort(all_times, kind="stable")
        return Window(np.concatenate(streams)[order], np.concatenate(rows)[order], all_times[order])


class Playhead:
    """The position and speed of a replay.

    Play time is recorded time without long pauses; it never decreases. `speed` is the factor to recorded
    time, None for no waiting at all. `every_ns` replaces all recorded intervals. `max_pause_ns` limits them.
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
        # A row with play time `_anchor_play_ns` is due at `_anchor_ns`.
        self._anchor_ns, self._anchor_play_ns = now_ns, 0
        self._paused_ns: int | None = None
        self._last_time_ns: int | None = None
        self.last_play_ns = 0
        # Of the current pass: they give the time from its last frame to the first of the next pass.
        self._pass_start_ns, self._pass_moments = 0, 0
        self.lead_ns = 0
        """Time from the previous frame to the first frame of a pass."""

    # --- recorded time to play time

    def schedule(self, times: Times) -> Times:
        """The play times of the next rows, whose recorded times do not decrease."""
        if not len(times):
            return times
        previous = times[0] if self._last_time_ns is None else self._last_time_ns
        steps = np.diff(times, prepend=previous)
        moments = int(np.count_nonzero(steps)) + (self._last_time_ns is None)
        if self._max_pause_ns is not None:
            steps = np.minimum(steps, self._max_pause_ns)
        if self._every_ns is not None:
            steps = np.full(len(times), self._every_ns, np.int64)
            moments = len(times)
        if self._last_time_ns is None:
            steps[0] = self.lead_ns
            self._pass_start_ns = self.last_play_ns + self.lead_ns
            self._pass_moments = 0
        play_times: Times = self.last_play_ns + np.cumsum(steps)
        self._last_time_ns, self.last_play_ns = int(times[-1]), int(play_times[-1])
        self._pass_moments += moments
        return play_times

    def begin_pass(self) -> None:
        """Start over: the first frame follows the last frame after the average interval of the pass."""
        intervals = self._pass_moments - 1
        pass_ns = self.last_play_ns - self._pass_start_ns
        self.lead_ns = pass_ns // intervals if intervals > 0 and pass_ns > 0 else _DEFAULT_LEAD_NS
        if self._every_ns is not None:
            self.lead_ns = self._every_ns
        self._last_time_ns = None

    def seek(self, now_ns: int) -> None:
        """Continue at another position of the recording; its first frame is due now."""
        self._last_time_ns, self.lead_ns = None, 0
        self._anchor_ns, self._anchor_play_ns = now_ns, self.last_play_ns
        if self._paused_ns is not None:
            self._paused_ns = now_ns

    # --- play time to monotonic time

    def due(self, play_times: Times) -> Times | None:
        """When rows are due; None for at once."""
        if self.speed is None:
            return None
        offsets: npt.NDArray[Any] = play_times - self._anchor_play_ns
        if self.speed != 1:
            offsets = np.rint(offsets / self.speed).astype(np.int64)
        due: Times = offsets + self._anchor_ns
        return due

    def due_at(self, play_ns: int) -> int:
        """When a row with this play time is due."""
        due = self.due(np.array([play_ns], np.int64))
        return self._anchor_ns if due is None else int(due[0])

    def delay(self, ns: int) -> None:
        """Delay all remaining rows."""
        self._anchor_ns += ns

    @property
    def is_paused(self) -> bool:
        """Whether the time stands still."""
        return self._paused_ns is not None

    def pause(self, now_ns: int) -> None:
        """Stop the time; without effect while it is stopped."""
        if self._paused_ns is None:
            self._paused_ns = now_ns

    def resume(self, now_ns: int) -> None:
        """Continue after a pause; without effect otherwise."""
        if self._paused_ns is not None:
            self._anchor_ns += now_ns - self._paused_ns
            self._paused_ns = None

    def on_step(self, play_ns: int) -> None:
        """Account for a row that was published during a pause: the next rows keep their distance to it."""
        assert self._paused_ns is not None, "steps are only taken during a pause"
        self._anchor_ns, self._anchor_play_ns = self._paused_ns, play_ns

    def set_speed(self, speed: float | None, now_ns: int, next_play_ns: int) -> None:
        """Change the speed; `next_play_ns` is the play time of the next row."""
        start_ns = now_ns if self._paused_ns is None else self._paused_ns
        # At twice the speed a row that was due in a second is due in half a second.
        if self.speed is not None and speed is not None:
            left_ns = max(0, self.due_at(next_play_ns) - start_ns)
            self._anchor_ns = start_ns + round(left_ns * self.speed / speed)
        else:
            self._anchor_ns = start_ns
        self._anchor_play_ns = next_play_ns
        self.speed = speed
