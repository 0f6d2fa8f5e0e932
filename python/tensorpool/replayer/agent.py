"""Plays a recording through producers, a short turn at a time. Owned by the replayer's thread.

Reading, waiting and publishing happen here; what comes next and when is `state`'s to say. The waiting and
the publishing are native: most of a turn is one call that has no use for the interpreter.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from .. import _native
from ..clock import Clock
from ..context import Context
from ..errors import ClosedError, FrameNotRecorded
from ..recording import Cursor, RecordedFrame, Recording
from ..recording.recording import Time
from ..recording.retention import LeaseKeeper
from .metadata import RecordedMetadata, read_metadata
from .options import ReplayOptions, speed_of
from .reader import ReplayReader
from .schedule import Schedule, find_stops
from .state import Merge, Playhead, Times, Window
from .stream import ReplayStream, pools_for, recorded_layouts, slots_for

TURN_NS: Final = 20_000_000
"""How long a turn lasts at most: so soon a pause begins."""
_STALL_NS: Final = 100_000_000
"""Who is later than this goes on from here instead of catching up in a burst."""
_IDLE_NS: Final = 5_000_000


@dataclass(slots=True)
class Totals:
    """What was played so far, all streams together."""

    frames: int = 0
    nbytes: int = 0
    unfit: int = 0
    damaged: int = 0
    gaps: int = 0
    missing: int = 0
    passes: int = 0
    late: int = 0
    late_max_ns: int = 0
    stalls: int = 0


class ReplayAgent:
    """Plays what the options choose. `do_work` until `is_ended`; then it may be sent elsewhere."""

    def __init__(self, ctx: Context, recording: Recording, options: ReplayOptions, clock: Clock) -> None:
        self.lanes: list[ReplayStream] = []
        self.totals = Totals()
        self.is_ended = False
        self.is_waiting = options.wait > 0
        """Whether it waits for somebody to listen."""
        self.position_ns: int | None = None
        """The recorder's time of the frame that was played last."""
        self._ctx, self._recording, self._options, self._clock = ctx, recording, options, clock
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="replay-reader")
        self._claim: LeaseKeeper | None = None
        self._control: _native.Publication | None = None
        self._score: Schedule | None = None
        self._ahead: Schedule | None = None
        self._has_frames = False
        self._is_new_pass = True
        self._away_ns: int | None = None
        self._wait_until_ns = 0

    # --- the beginning and the end

    def on_start(self) -> None:
        options, recording = self._options, self._recording
        chosen = tuple(options.streams) if options.streams is not None else recording.streams
        if not chosen:
            raise FrameNotRecorded(f"{recording.root} has no frames", path=recording.root)
        self._claim = LeaseKeeper(
            recording.root, holder="replay", clock=self._clock, missing_level=logging.INFO
        )
        self._claim.hold(chosen)
        words = read_metadata(recording, chosen) if options.metadata else {}
        layouts = recorded_layouts(recording, chosen)
        sources = {one: self._source(one, words.setdefault(one, RecordedMetadata())) for one in chosen}
        firsts = {one: self._reader.submit(source.next_block) for one, source in sources.items()}
        if all(first.result() is None for first in firsts.values()):
            raise FrameNotRecorded("no frame was recorded there", path=recording.root)
        for one, first in firsts.items():
            block = first.result()
            largest = 0 if block is None else block.largest_bytes
            records = recording.segments[recording.segments["stream_id"] == one]
            pools = pools_for(layouts.get(one), records, largest)
            slots = slots_for(layouts.get(one), options.nslots)
            target = options.target(one)
            producer = self._ctx.producer(target, pools=pools, nslots=slots, publish_timestamps=True)
            self.lanes.append(
                ReplayStream(
                    sources[one], words[one], target, producer, pools, slots, self._reader, deque([first])
                )
            )
        if any(lane.words.parents for lane in self.lanes):
            self._control = self._ctx._control_publication()
        for lane in self.lanes:
            # Said now: who comes to listen knows what it will hear before the first frame.
            block = lane.ahead[0].result()
            if block is not None:
                lane.say(block, 0)
                lane.version = int(block.versions[0])
        self._begin()

    def _source(self, stream_id: int, words: RecordedMetadata) -> ReplayReader:
        options = self._options
        return ReplayReader(
            self._recording, stream_id, versions=words.numbers, time_base=options.time_base,
            epoch=options.epoch, seq=options.seq, time=(options.start, options.end), check=options.checks,
            skip_damage=options.skip_damage,
        )  # fmt: skip

    def _begin(self) -> None:
        options, now_ns = self._options, self._clock.monotonic_ns()
        every_ns = None if options.rate_hz is None else round(1e9 / options.rate_hz)
        pause_ns = None if options.max_pause is None else round(options.max_pause * 1e9)
        self.playhead = Playhead(
            now_ns, speed=speed_of(options.speed), every_ns=every_ns, max_pause_ns=pause_ns
        )
        self._merge = Merge(len(self.lanes))
        if options.paused:
            self.playhead.pause(now_ns)
        self._wait_until_ns = now_ns + round(options.wait * 1e9)

    def on_close(self) -> None:
        for lane in self.lanes:
            lane.producer.close()
        if self._control is not None:
            self._control.close()
        if self._claim is not None:
            self._claim.release()
        self._reader.shutdown(cancel_futures=True)
        self._recording.close()

    # --- turns

    def do_work(self) -> int:
        """One turn, of `TURN_NS` at most; how many frames went out."""
        now_ns = self._clock.monotonic_ns()
        if self._claim is not None:
            played = [lane.last for lane in self.lanes if lane.last is not None]
            self._claim.poll(now_ns, [] if self._options.loop else played)
        if self.playhead.is_paused or self._is_held(now_ns):
            return 0
        score = self._fill()
        if score is None:
            return 0
        late_ns = now_ns - self._due_ns(score, now_ns)
        if self.position_ns is None and late_ns > 0:
            # Whatever came before the first frame is no time of the recording's.
            self.playhead.delay(late_ns)
        elif late_ns > _STALL_NS:
            self.totals.stalls += 1
            self.playhead.delay(late_ns)
        elif -late_ns > _IDLE_NS and self._ahead is None:
            # There is time: what comes after this window is read now, and not when it is due.
            self._ahead = self._next_score()
        return self._turn(score, now_ns + TURN_NS)

    def _is_held(self, now_ns: int) -> bool:
        """Whether something outside has to happen first. That takes no time of the recording."""
        if self.is_waiting:
            is_heard = all(lane.producer.readers() > 0 for lane in self.lanes)
            if not is_heard and now_ns < self._wait_until_ns:
                return True
            self.is_waiting = False
        if self._away_ns is not None:
            if not all(lane.producer.attached and lane.producer.is_ready for lane in self.lanes):
                return True
            self.playhead.delay(now_ns - self._away_ns)
            self._away_ns = None
        return False

    @property
    def is_away(self) -> bool:
        """Whether there is no driver, or no media driver, at the moment."""
        return self._away_ns is not None

    def _due_ns(self, score: Schedule, now_ns: int) -> int:
        if self.playhead.speed is None or score.at == len(score.window):
            return now_ns
        return self.playhead.due_at(int(score.plays[score.at]))

    def _turn(self, score: Schedule, until_ns: int) -> int:
        due, began = self.playhead.due(score.plays), score.at
        while not score.is_over:
            self._speak(score)
            end = score.end
            if score.at < end:
                self._play(score, end, due, until_ns)
            if score.at < end or self._clock.monotonic_ns() >= until_ns:
                break
        return score.at - began

    def step(self) -> RecordedFrame | None:
        """Plays the next frame, whenever it is due. None at the end, or while nothing can go out."""
        now_ns = self._clock.monotonic_ns()
        score = None if self._is_held(now_ns) else self._fill()
        if score is None:
            return None
        self._speak(score)
        at = score.at
        while score.at == at and self._away_ns is None:
            self._play(score, at + 1, None, self._clock.monotonic_ns() + TURN_NS)
        if score.at == at:
            return None
        if score.at == len(score.window):
            self._speak(score)
        if self.playhead.is_paused:
            self.playhead.stepped(int(score.plays[at]))
        _, block, row = score.place(at)
        return block.frame(row)

    def _speak(self, score: Schedule) -> None:
        """Says what is due before the next entry."""
        while score.stops and score.stops[0].entry == score.at:
            entry, what, number = score.stops.popleft()
            lane = self.lanes[number]
            if what == "say":
                _, block, row = score.place(entry)
                lane.say(block, row)
            elif self._control is not None:
                _, block, row = score.place(entry - 1)
                lane.link(int(block.trace_ids[row]), self._control)

    def _play(self, score: Schedule, end: int, due: Times | None, until_ns: int) -> None:
        """Entries up to `end`, until it is `until_ns` or something is in the way."""
        window, start, totals = score.window, score.at, self.totals
        score.at, stop, at, nbytes, unfit, late, late_max_ns = _native.play_rows(
            score.native(self.lanes),
            lane=window.lane[:end],
            row=window.row[:end],
            due_ns=None if due is None else due[:end],
            start=start,
            until_ns=until_ns,
        )
        if score.at > start:
            totals.frames += score.at - start - unfit
            totals.nbytes += nbytes
            totals.unfit += unfit
            totals.late += late
            totals.late_max_ns = max(totals.late_max_ns, late_max_ns)
            if start == 0 and score.is_first_of_pass:
                totals.passes += 1
            self.position_ns = int(window.time_ns[score.at - 1])
            self._count(score, start)
        if stop not in ("done", "time"):
            self._overcome(stop, score, self.lanes[at])

    def _count(self, score: Schedule, start: int) -> None:
        played = score.window.lane[start : score.at]
        for number in np.unique(played).tolist():
            of_lane = np.flatnonzero(played == number)
            row = int(score.window.row[start + int(of_lane[-1])])
            lane = self.lanes[number]
            lane.frames += len(of_lane)
            lane.last = score.block(number).frame(row).cursor

    def _overcome(self, stop: str, score: Schedule, lane: ReplayStream) -> None:
        _, block, row = score.place(score.at)
        frame = block.frame(row)
        match stop:
            case "away":
                self._away_ns = self._clock.monotonic_ns()
            case "no_pool":
                began_ns = self._clock.monotonic_ns()
                lane.reopen(self._ctx, frame.nbytes)
                lane.say(block, row)
                self.playhead.delay(self._clock.monotonic_ns() - began_ns)
            case _:
                raise ClosedError(f"the producer of stream {lane.target} was closed during the replay")

    # --- what comes next

    def _fill(self) -> Schedule | None:
        """What is to be played; None at the end."""
        while self._score is None or self._score.is_over:
            self._score, self._ahead = self._ahead or self._next_score(), None
            if self._score is None:
                self.is_ended = True
                return None
        return self._score

    def _next_score(self) -> Schedule | None:
        window = self._next_window()
        if window is None and self._options.loop and self._has_frames:
            for lane in self.lanes:
                lane.rewind()
            self.playhead.begin_pass()
            self._merge = Merge(len(self.lanes))
            self._has_frames, self._is_new_pass = False, True
            window = self._next_window()
        if window is None:
            return None
        self._has_frames = True
        parts = [(lane.block, lane.shift_ns) for lane in self.lanes]
        stops = find_stops(window, parts, self.lanes)
        is_first, self._is_new_pass = self._is_new_pass, False
        score = Schedule(window, self.playhead.place(window.time_ns), parts, stops, is_first)
        for lane in self.lanes:
            lane.read_on()
        return score

    def _next_window(self) -> Window | None:
        merge, totals = self._merge, self.totals
        for number in merge.wants():
            lane = self.lanes[number]
            block = lane.next_block(self.playhead.lead_ns)
            if block is None:
                merge.end(number)
            else:
                merge.put(number, block.times)
                totals.gaps += block.gaps
                totals.missing += block.missing
                totals.damaged += block.damaged
        return merge.take()

    # --- elsewhere

    def seek_time(self, when: Time) -> None:
        """Goes on with the first frames that were received then or later."""
        self._leap({lane.source.stream_id: (None, when) for lane in self.lanes})

    def seek_frame(self, stream_id: int, seq: int, epoch: int | None) -> None:
        """Goes on with this frame, and with what other streams had from its time on."""
        lane = next((one for one in self.lanes if one.source.stream_id == stream_id), None)
        if lane is None:
            raise FrameNotRecorded(f"stream {stream_id} is not among those that are played")
        for one in self.lanes:
            # A recording is for one thread at a time.
            one.settle()
        frame = self._recording.frame(stream_id, seq, epoch=epoch)
        places: dict[int, tuple[Cursor | None, Time | None]] = {
            one.source.stream_id: (None, frame.receive_time_ns) for one in self.lanes
        }
        places[stream_id] = _before(frame.cursor), None
        self._leap(places)

    def _leap(self, places: dict[int, tuple[Cursor | None, Time | None]]) -> None:
        for lane in self.lanes:
            after, since = places[lane.source.stream_id]
            lane.rewind(after=after, since=since)
        self._score = self._ahead = None
        self._merge = Merge(len(self.lanes))
        self.playhead.jump(self._clock.monotonic_ns())
        self.is_ended = False

    def change_speed(self, speed: float | None) -> None:
        score = self._score
        is_left = score is not None and score.at < len(score.window)
        play = int(score.plays[score.at]) if score is not None and is_left else self.playhead.last_play
        self.playhead.change_speed(speed, self._clock.monotonic_ns(), play)


def _before(cursor: Cursor) -> Cursor | None:
    """The place in front of a frame."""
    if cursor.seq > 0:
        return Cursor(cursor.stream_id, cursor.epoch, cursor.seq - 1)
    return Cursor(cursor.stream_id, cursor.epoch - 1, (1 << 64) - 1) if cursor.epoch > 0 else None
