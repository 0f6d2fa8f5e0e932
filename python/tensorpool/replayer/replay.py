"""`replay()` and `Replay`, the handle of a running replay.

A replay runs on its own thread; any thread may control it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..context import open as open_context
from ..errors import ClosedError, ConfigError
from ..recording import RecordedFrame, Recording
from ..recording.recording import Time
from .agent import ReplayAgent
from .options import ReplayOptions, Speed, TimeBase, parse_speed
from .stats import ReplayStats, State, StreamStats, recorded_time_range

T = TypeVar("T")
_IDLE_S: Final = 0.01
_STATS_PERIOD_S: Final = 0.5


class _PendingCall(NamedTuple):
    """A function to run on the replay's thread, and its result."""

    function: Callable[[], Any]
    result: Future[Any]


def replay(
    root: str | os.PathLike[str],
    *,
    context: Context | None = None,
    speed: Speed = 1.0,
    start: Time | None = None,
    end: Time | None = None,
    seq: tuple[int | None, int | None] | None = None,
    epoch: int | None = None,
    streams: Sequence[int | str] | None = None,
    mapping: Mapping[int | str, int] | None = None,
    loop: bool = False,
    paused: bool = False,
    time_base: TimeBase = "receive",
    rate_hz: float | None = None,
    max_pause: float | None = None,
    wait: float = 0.0,
    linger: float = 1.0,
    nslots: int | None = None,
    check: bool | None = None,
    skip_damage: bool = False,
    metadata: bool = True,
) -> Replay:
    """Publish a recording again, through producers of this process.

    `speed` is a factor to the recorded speed, or "max". `start` and `end` select frames by time of receipt,
    `seq` by sequence, `streams` by id or recorded name. `mapping` publishes a stream under another id
    (`{10000: 10050}`, `{"camera-1": 10050}`). `loop` starts over at the end. `paused` waits for `resume()` or
    `step()`.

    `time_base` chooses the times whose spacing is kept: time of receipt, time of publication, or the source's
    timestamp. `rate_hz` publishes at a fixed rate instead. `max_pause` shortens longer pauses (seconds).
    `wait` is the longest time to wait for a consumer of each stream before the first frame. `linger` is the
    time for which consumers can read the last frames after the end. `nslots` is the number of slots of the
    header rings; by default as recorded.

    Payloads are compared with their checksums before they are published, except at speed "max", where that
    would take longer than the replay; `check` decides either way. Damage ends the replay with
    CorruptRecording after all frames before it; with `skip_damage` damaged frames are skipped and counted.
    `metadata=False` publishes no metadata. Without a `context` the replay opens and closes its own.
    """
    options = ReplayOptions(
        speed=speed, start=start, end=end, seq=seq, epoch=epoch, loop=loop, paused=paused,
        time_base=time_base, rate_hz=rate_hz, max_pause=max_pause, wait=wait, linger=linger, nslots=nslots,
        check=check, skip_damage=skip_damage, metadata=metadata,
    )  # fmt: skip
    recording = Recording(root)
    with ExitStack() as undo:
        undo.callback(recording.close)
        options = replace(
            options,
            streams=None if streams is None else [recording.find_stream(stream) for stream in streams],
            mapping={recording.find_stream(stream): target for stream, target in (mapping or {}).items()},
        )
        if context is None:
            context = undo.enter_context(open_context())
            owned_context: Context | None = context
        else:
            owned_context = None
        result = Replay(context, recording, options, owned_context=owned_context)
        undo.pop_all()
    return result


class Replay:
    """A running replay. Close it, or use it in a `with` block.

    Iteration yields a ReplayStats every half second until the end. All methods may be called from any thread.
    """

    def __init__(
        self,
        context: Context,
        recording: Recording,
        options: ReplayOptions,
        *,
        owned_context: Context | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`owned_context`: closed together with the replay."""
        self._owned_context = owned_context
        self._recording = recording
        self._linger_ns = round(options.linger * 1e9)
        self._clock = clock
        self._agent = ReplayAgent(context, recording, options, clock)
        try:
            self._agent.on_start()
        except BaseException:
            self._agent.on_close()
            raise
        stream_ids = [stream.reader.stream_id for stream in self._agent.streams]
        self._time_range = recorded_time_range(recording, stream_ids)
        self._calls: deque[_PendingCall] = deque()
        self._condition = threading.Condition()
        self._stop = False
        self._error: BaseException | None = None
        self._played_ns = 0
        self._last_frame_ns: int | None = None
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        stats = self.stats()
        return f"<Replay {self.root} {stats.state} frames={stats.frames}>"

    @property
    def root(self) -> Path:
        """The directory of the recording."""
        return self._recording.root

    # --- the thread

    def _run(self) -> None:
        last_ns = self._clock.monotonic_ns()
        try:
            while not self._stop:
                self._run_calls()
                was_ended, frames_before = self._agent.is_ended, self._agent.totals.frames
                work = 0 if was_ended else self._agent.do_work()
                now_ns = self._clock.monotonic_ns()
                if self._agent.totals.frames != frames_before:
                    self._last_frame_ns = now_ns
                # Also the time in which it waits for the next frame.
                if self._state() == "playing" and self._agent.position_ns is not None:
                    self._played_ns += now_ns - last_ns
                last_ns = now_ns
                with self._condition:
                    if self._agent.is_ended and not was_ended:
                        self._condition.notify_all()
                    if not work and not self._calls and not self._stop:
                        self._condition.wait(_IDLE_S)
        except BaseException as error:
            self._error = error
        finally:
            with self._condition:
                self._stop = True
                self._condition.notify_all()
            self._run_calls()

    def _run_calls(self) -> None:
        while self._calls:
            function, result = self._calls.popleft()
            if self._stop:
                result.set_exception(self._error or ClosedError("this replay is closed"))
                continue
            try:
                result.set_result(function())
            except Exception as error:
                result.set_exception(error)

    def _call(self, function: Callable[[], T]) -> T:
        """Run `function` between two duty cycles and return its result."""
        result: Future[T] = Future()
        with self._condition:
            if self._stop:
                raise self._error or ClosedError("this replay is closed")
            self._calls.append(_PendingCall(function, result))
            self._condition.notify_all()
        return result.result()

    # --- control

    def pause(self) -> None:
        """Pause the replay. No frame is published after this returns."""
        self._call(lambda: self._agent.playhead.pause(self._clock.monotonic_ns()))

    def resume(self) -> None:
        """Continue after a pause, at the same position or at that of a seek."""
        self._call(lambda: self._agent.playhead.resume(self._clock.monotonic_ns()))

    def step(self) -> RecordedFrame | None:
        """Pause, publish the next frame and return it as recorded; None at the end."""

        def pause_and_step() -> RecordedFrame | None:
            self._agent.playhead.pause(self._clock.monotonic_ns())
            return self._agent.step()

        return self._call(pause_and_step)

    def seek(
        self,
        time: Time | None = None,
        *,
        seq: int | None = None,
        stream_id: int | None = None,
        epoch: int | None = None,
    ) -> None:
        """Continue with the first frames received at `time` or later, or with the frame `seq`.

        `stream_id` is the recorded id, required if there are several streams; the other streams continue at
        that frame's time. A paused replay stays paused.
        """
        if (time is None) == (seq is None):
            raise ConfigError("seek needs a time or a sequence: seek(time), or seek(seq=1000)")
        if seq is None:
            target_time = time
            assert target_time is not None, "time or seq is given"
            self._call(lambda: self._agent.seek_time(target_time))
            return
        stream_ids = [stream.reader.stream_id for stream in self._agent.streams]
        if stream_id is None and len(stream_ids) > 1:
            raise ConfigError(
                f"the replay has several streams; name one: seek(seq={seq}, stream_id={stream_ids[0]})"
            )
        target_seq, target_stream = seq, stream_ids[0] if stream_id is None else stream_id
        self._call(lambda: self._agent.seek_frame(target_stream, target_seq, epoch))

    def set_speed(self, speed: Speed) -> None:
        """Change the speed from the next frame on."""
        factor = parse_speed(speed)
        self._call(lambda: self._agent.set_speed(factor))

    # --- state

    def _state(self) -> State:
        agent = self._agent
        if self._error is not None:
            return "failed"
        if self._stop:
            return "closed"
        if agent.is_ended:
            return "ended"
        if agent.playhead.is_paused:
            return "paused"
        if agent.is_disconnected:
            return "disconnected"
        return "waiting" if agent.is_waiting else "playing"

    def stats(self) -> ReplayStats:
        """State and counts at this moment."""
        agent, totals = self._agent, self._agent.totals
        return ReplayStats(
            state=self._state(), speed=agent.playhead.speed, position_ns=agent.position_ns,
            first_ns=self._time_range.first_ns, last_ns=self._time_range.last_ns, passes=totals.passes,
            elapsed_s=self._played_ns / 1e9, frames=totals.frames, nbytes=totals.nbytes, gaps=totals.gaps,
            missing=totals.missing, unfit=totals.unfit, damaged=totals.damaged, late=totals.late,
            late_max_s=totals.late_max_ns / 1e9, stalls=totals.stalls,
            streams=tuple(map(StreamStats.from_stream, agent.streams)),
        )  # fmt: skip

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; False after `timeout` seconds. Raises the error that ended the replay."""
        with self._condition:
            self._condition.wait_for(lambda: self._agent.is_ended or self._stop, timeout)
        if self._error is not None:
            raise self._error
        return self._agent.is_ended

    def __iter__(self) -> Iterator[ReplayStats]:
        """Stats every half second, and once at the end."""
        while not self.wait(_STATS_PERIOD_S) and not self._stop:
            yield self.stats()
        yield self.stats()

    # --- close

    def close(self) -> None:
        """Stop the replay and close its producers, up to `linger` seconds after the last frame."""
        if self._agent.is_ended and not self._stop:
            self._linger()
        with self._condition:
            self._stop = True
            self._condition.notify_all()
        self._thread.join()
        self._agent.on_close()
        if self._owned_context is not None:
            self._owned_context.close()

    def _linger(self) -> None:
        """Wait while consumers may read the last frames: closing a producer ends its epoch."""
        has_consumers = any(stream.producer.is_connected for stream in self._agent.streams)
        if has_consumers and self._last_frame_ns is not None:
            left_ns = self._last_frame_ns + self._linger_ns - self._clock.monotonic_ns()
            with self._condition:
                self._condition.wait_for(lambda: self._stop, max(0, left_ns) / 1e9)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
