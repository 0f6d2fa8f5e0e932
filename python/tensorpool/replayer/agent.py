"""The replayer's duty cycle: publishes the frames of a recording through producers, in short turns.

The replayer's thread owns the agent. It reads, waits and publishes; `state` decides what comes next and when.
Waiting and publishing are native: most of a duty cycle is one call without the interpreter.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from .. import _native
from ..clock import Clock
from ..context import Context
from ..errors import ClosedError, FrameNotRecorded
from ..recording import Cursor, RecordedFrame, Recording
from ..recording.recording import Time
from ..recording.retention import LeaseKeeper
from .metadata import RecordedMetadata, read_metadata
from .options import ReplayOptions, parse_speed
from .playhead import Playhead, StreamMerge, Times, Window
from .reader import ReplayReader
from .schedule import Schedule, ScheduledBlock, find_message_points
from .stream import ReplayStream, pools_for, recorded_layouts, slots_for

CYCLE_NS: Final = 20_000_000
"""Longest duty cycle: within this time a pause takes effect."""
# A replay that is later than this continues from now on, instead of publishing a burst to catch up.
_MAX_LATE_NS: Final = 100_000_000
# With at least this much time before the next frame, the next window is read ahead.
_MIN_IDLE_NS: Final = 5_000_000


@dataclass(slots=True)
class Totals:
    """Counts of a replay, over all streams."""

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


class _StartPosition(NamedTuple):
    """Where a stream continues after a seek: behind a frame, or from a time on."""

    after: Cursor | None = None
    since: Time | None = None


class ReplayAgent:
    """Publishes the frames that the options select. After `is_ended` a seek continues the replay."""

    def __init__(self, context: Context, recording: Recording, options: ReplayOptions, clock: Clock) -> None:
        self.streams: list[ReplayStream] = []
        self.totals = Totals()
        self.is_ended = False
        self.is_waiting = options.wait > 0
        """Whether the first frame waits for consumers."""
        self.position_ns: int | None = None
        """Recorded time of the frame that was published last."""
        self._context, self._recording, self._options, self._clock = context, recording, options, clock
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="replay-reader")
        self._lease: LeaseKeeper | None = None
        self._control: _native.Publication | None = None
        self._schedule: Schedule | None = None
        self._next_schedule: Schedule | None = None
        self._has_frames = False
        self._is_new_pass = True
        self._disconnected_ns: int | None = None
        self._wait_until_ns = 0

    # --- start and close

    def on_start(self) -> None:
        """Open the streams and their producers, and publish the metadata of the first frames."""
        options, recording = self._options, self._recording
        stream_ids = tuple(options.streams) if options.streams is not None else recording.streams
        if not stream_ids:
            raise FrameNotRecorded(f"{recording.location} has no frames", path=recording.location)
        if recording.remote is None:
            # No retention removes what is in a store.
            self._lease = LeaseKeeper(
                recording.root, holder="replay", clock=self._clock, missing_level=logging.INFO
            )
            self._lease.hold(stream_ids)
        metadata = read_metadata(recording, stream_ids) if options.metadata else {}
        layouts = recorded_layouts(recording, stream_ids)
        readers = {
            stream_id: self._open_reader(stream_id, metadata.setdefault(stream_id, RecordedMetadata()))
            for stream_id in stream_ids
        }
        first_blocks = {
            stream_id: self._executor.submit(reader.next_block) for stream_id, reader in readers.items()
        }
        if all(first.result() is None for first in first_blocks.values()):
            raise FrameNotRecorded("no frame was recorded there", path=recording.location)
        for stream_id, first in first_blocks.items():
            block = first.result()
            max_bytes = 0 if block is None else block.max_payload_bytes
            records = recording.segments[recording.segments["stream_id"] == stream_id]
            pools = pools_for(layouts.get(stream_id), records, max_bytes)
            nslots = slots_for(layouts.get(stream_id), options.nslots)
            target = options.target(stream_id)
            producer = self._context.producer(target, pools=pools, nslots=nslots, publish_timestamps=True)
            self.streams.append(
                ReplayStream(
                    readers[stream_id], metadata[stream_id], target, producer, pools, nslots,
                    self._executor, deque([first]),
                )
            )  # fmt: skip
        if any(stream.metadata.parents for stream in self.streams):
            self._control = self._context.connection.publication(self._context.stream_ids.control_address)
        for stream in self.streams:
            # Published now, so that consumers have the metadata before the first frame.
            block = stream.next_blocks[0].result()
            if block is not None:
                stream.publish_metadata(block, 0)
                stream.version = int(block.versions[0])
        self._begin()

    def _open_reader(self, stream_id: int, metadata: RecordedMetadata) -> ReplayReader:
        options = self._options
        return ReplayReader(
            self._recording, stream_id, versions=metadata.numbers, time_base=options.time_base,
            epoch=options.epoch, seq=options.seq, time=(options.start, options.end),
            check=options.checks_payloads, skip_damage=options.skip_damage,
        )  # fmt: skip

    def _begin(self) -> None:
        options, now_ns = self._options, self._clock.monotonic_ns()
        every_ns = None if options.rate_hz is None else round(1e9 / options.rate_hz)
        max_pause_ns = None if options.max_pause is None else round(options.max_pause * 1e9)
        self.playhead = Playhead(
            now_ns, speed=parse_speed(options.speed), every_ns=every_ns, max_pause_ns=max_pause_ns
        )
        self._merge = StreamMerge(len(self.streams))
        if options.paused:
            self.playhead.pause(now_ns)
        self._wait_until_ns = now_ns + round(options.wait * 1e9)

    def on_close(self) -> None:
        """Close the producers and the recording."""
        for stream in self.streams:
            stream.producer.close()
        if self._control is not None:
            self._control.close()
        if self._lease is not None:
            self._lease.release()
        self._executor.shutdown(cancel_futures=True)
        self._recording.close()

    # --- duty cycles

    def do_work(self) -> int:
        """Publish what is due within `CYCLE_NS`; returns the number of frames."""
        now_ns = self._clock.monotonic_ns()
        if self._lease is not None:
            published = [stream.last for stream in self.streams if stream.last is not None]
            self._lease.poll(now_ns, [] if self._options.loop else published)
        if self.playhead.is_paused or self._must_wait(now_ns):
            return 0
        schedule = self._current_schedule()
        if schedule is None:
            return 0
        late_ns = now_ns - self._due_ns(schedule, now_ns)
        if self.position_ns is None and late_ns > 0:
            # Time before the first frame does not count as recorded time.
            self.playhead.delay(late_ns)
        elif late_ns > _MAX_LATE_NS:
            self.totals.stalls += 1
            self.playhead.delay(late_ns)
        elif -late_ns > _MIN_IDLE_NS and self._next_schedule is None:
            # There is time to read the next window before it is due.
            self._next_schedule = self._make_schedule()
        return self._publish(schedule, now_ns + CYCLE_NS)

    def _must_wait(self, now_ns: int) -> bool:
        """Whether consumers or the driver are missing. The replay does not advance meanwhile."""
        if self.is_waiting:
            has_readers = all(stream.producer.readers() > 0 for stream in self.streams)
            if not has_readers and now_ns < self._wait_until_ns:
                return True
            self.is_waiting = False
        if self._disconnected_ns is not None:
            if not all(stream.producer.attached and stream.producer.is_ready for stream in self.streams):
                return True
            self.playhead.delay(now_ns - self._disconnected_ns)
            self._disconnected_ns = None
        return False

    @property
    def is_disconnected(self) -> bool:
        """Whether the driver or the media driver is not running."""
        return self._disconnected_ns is not None

    def _due_ns(self, schedule: Schedule, now_ns: int) -> int:
        if self.playhead.speed is None or schedule.position == len(schedule.window):
            return now_ns
        return self.playhead.due_at(int(schedule.play_times[schedule.position]))

    def _publish(self, schedule: Schedule, until_ns: int) -> int:
        due, start = self.playhead.due(schedule.play_times), schedule.position
        while not schedule.is_done:
            self._publish_messages(schedule)
            end = schedule.next_point
            if schedule.position < end:
                self._publish_rows(schedule, end, due, until_ns)
            if schedule.position < end or self._clock.monotonic_ns() >= until_ns:
                break
        return schedule.position - start

    def step(self) -> RecordedFrame | None:
        """Publish the next frame now. None at the end, and while consumers or the driver are missing."""
        now_ns = self._clock.monotonic_ns()
        schedule = None if self._must_wait(now_ns) else self._current_schedule()
        if schedule is None:
            return None
        self._publish_messages(schedule)
        entry = schedule.position
        while schedule.position == entry and self._disconnected_ns is None:
            self._publish_rows(schedule, entry + 1, None, self._clock.monotonic_ns() + CYCLE_NS)
        if schedule.position == entry:
            return None
        if schedule.position == len(schedule.window):
            self._publish_messages(schedule)
        if self.playhead.is_paused:
            self.playhead.on_step(int(schedule.play_times[entry]))
        block, row = schedule.locate(entry)
        return block.frame(row)

    def _publish_messages(self, schedule: Schedule) -> None:
        """Publish the messages that are due before the next entry."""
        while schedule.points and schedule.points[0].entry == schedule.position:
            entry, kind, number = schedule.points.popleft()
            stream = self.streams[number]
            if kind == "metadata":
                block, row = schedule.locate(entry)
                stream.publish_metadata(block, row)
            elif self._control is not None:
                block, row = schedule.locate(entry - 1)
                stream.publish_links(int(block.trace_ids[row]), self._control)

    def _publish_rows(self, schedule: Schedule, end: int, due: Times | None, until_ns: int) -> None:
        """Publish entries up to `end`, until `until_ns` or an obstacle."""
        window, start, totals = schedule.window, schedule.position, self.totals
        result = _native.replay_rows(
            schedule.native_streams(self.streams),
            stream=window.stream[:end],
            row=window.row[:end],
            due_ns=None if due is None else due[:end],
            start=start,
            until_ns=until_ns,
        )
        schedule.position = result.position
        if schedule.position > start:
            totals.frames += schedule.position - start - result.unfit
            totals.nbytes += result.nbytes
            totals.unfit += result.unfit
            totals.late += result.late
            totals.late_max_ns = max(totals.late_max_ns, result.late_max_ns)
            if start == 0 and schedule.is_first_of_pass:
                totals.passes += 1
            self.position_ns = int(window.time_ns[schedule.position - 1])
            self._count_rows(schedule, start)
        if result.stop not in ("done", "time"):
            self._handle_obstacle(result.stop, schedule, self.streams[result.stream])

    def _count_rows(self, schedule: Schedule, start: int) -> None:
        published = schedule.window.stream[start : schedule.position]
        for number in np.unique(published).tolist():
            entries = np.flatnonzero(published == number)
            last_row = int(schedule.window.row[start + int(entries[-1])])
            stream = self.streams[number]
            stream.frames += len(entries)
            stream.last = schedule.block(number).frame(last_row).cursor

    def _handle_obstacle(self, stop: str, schedule: Schedule, stream: ReplayStream) -> None:
        block, row = schedule.locate(schedule.position)
        match stop:
            case "not_ready":
                self._disconnected_ns = self._clock.monotonic_ns()
            case "no_pool":
                start_ns = self._clock.monotonic_ns()
                stream.reopen(self._context, block.frame(row).nbytes)
                stream.publish_metadata(block, row)
                self.playhead.delay(self._clock.monotonic_ns() - start_ns)
            case _:
                raise ClosedError(f"the producer of stream {stream.target} was closed during the replay")

    # --- windows

    def _current_schedule(self) -> Schedule | None:
        """The window that is being published; None at the end."""
        while self._schedule is None or self._schedule.is_done:
            self._schedule, self._next_schedule = self._next_schedule or self._make_schedule(), None
            if self._schedule is None:
                self.is_ended = True
                return None
        return self._schedule

    def _make_schedule(self) -> Schedule | None:
        window = self._next_window()
        if window is None and self._options.loop and self._has_frames:
            for stream in self.streams:
                stream.rewind()
            self.playhead.begin_pass()
            self._merge = StreamMerge(len(self.streams))
            self._has_frames, self._is_new_pass = False, True
            window = self._next_window()
        if window is None:
            return None
        self._has_frames = True
        blocks = [ScheduledBlock(stream.block, stream.shift_ns) for stream in self.streams]
        points = find_message_points(window, blocks, self.streams)
        is_first, self._is_new_pass = self._is_new_pass, False
        schedule = Schedule(window, self.playhead.schedule(window.time_ns), blocks, points, is_first)
        for stream in self.streams:
            stream.read_ahead()
        return schedule

    def _next_window(self) -> Window | None:
        merge, totals = self._merge, self.totals
        for number in merge.without_block():
            block = self.streams[number].next_block(self.playhead.lead_ns)
            if block is None:
                merge.end_stream(number)
            else:
                merge.add_block(number, block.times)
                totals.gaps += block.gaps
                totals.missing += block.missing
                totals.damaged += block.damaged
        return merge.take_window()

    # --- control

    def seek_time(self, time: Time) -> None:
        """Continue with the first frames that were received at that time or later."""
        self._seek({stream.reader.stream_id: _StartPosition(since=time) for stream in self.streams})

    def seek_frame(self, stream_id: int, seq: int, epoch: int | None) -> None:
        """Continue with this frame, and with the frames of other streams from its time on."""
        if stream_id not in (stream.reader.stream_id for stream in self.streams):
            raise FrameNotRecorded(f"stream {stream_id} is not part of this replay")
        for stream in self.streams:
            # Only one thread at a time may use a recording.
            stream.wait_idle()
        frame = self._recording.frame(stream_id, seq, epoch=epoch)
        starts = {
            stream.reader.stream_id: _StartPosition(since=frame.receive_time_ns) for stream in self.streams
        }
        starts[stream_id] = _StartPosition(after=Cursor.before(stream_id, frame.epoch, frame.seq))
        self._seek(starts)

    def _seek(self, starts: dict[int, _StartPosition]) -> None:
        for stream in self.streams:
            start = starts[stream.reader.stream_id]
            stream.rewind(after=start.after, since=start.since)
        self._schedule = self._next_schedule = None
        self._merge = StreamMerge(len(self.streams))
        self.playhead.seek(self._clock.monotonic_ns())
        self.is_ended = False

    def set_speed(self, speed: float | None) -> None:
        """Change the speed from the next frame on."""
        schedule = self._schedule
        if schedule is not None and schedule.position < len(schedule.window):
            next_play_ns = int(schedule.play_times[schedule.position])
        else:
            next_play_ns = self.playhead.last_play_ns
        self.playhead.set_speed(speed, self._clock.monotonic_ns(), next_play_ns)
