"""A replay as a program has it: it runs on a thread of its own, and is steered from any other."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..context import open as open_context
from ..errors import ClosedError, ConfigError
from ..recording import RecordedFrame, Recording
from ..recording.recording import Time
from .agent import ReplayAgent
from .options import ReplayOptions, Speed, TimeBase, speed_of
from .stats import ReplayStats, State, bounds_of, stream_stats

T = TypeVar("T")
_IDLE_S: Final = 0.01
_REPORT_S: Final = 0.5


def replay(
    root: str | os.PathLike[str],
    *,
    context: Context | None = None,
    speed: Speed = 1.0,
    start: Time | None = None,
    end: Time | None = None,
    seq: tuple[int | None, int | None] | None = None,
    epoch: int | None = None,
    streams: Sequence[int] | None = None,
    mapping: Mapping[int, int] | None = None,
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
    """Plays a recording through producers of this process, as if its sources were there again.

    `speed` is how many times as fast as recorded, or "max". `start` and `end` choose by the time of receipt,
    `seq` by sequence, `streams` by stream id; `mapping` plays a stream as another one (`{10000: 10050}`).
    `loop` begins again at the end. `paused` waits for `resume()` or `step()`.

    `time_base` says which times the spacing is kept of: of receipt, of publication, or the source's own.
    `rate_hz` puts frames evenly apart instead, `max_pause` shortens longer silence (seconds). `wait` is how
    long to wait for a consumer of each stream before the first frame, `linger` how long the last frames stay
    for those who are still reading. `nslots` is the length of the rings; if not given, as the sources had it.

    Payloads are compared with their checksums before they go out, except at full speed, where that would take
    longer than the playing; `check` decides either way. Damage ends the replay with CorruptRecording, after
    what comes before it; with `skip_damage` it is left out and counted. `metadata=False` says nothing of the
    sources. Without a `context` one is opened, and closed with the replay.
    """
    options = ReplayOptions(
        speed=speed, start=start, end=end, seq=seq, epoch=epoch, streams=streams,
        mapping=dict(mapping or {}), loop=loop, paused=paused, time_base=time_base, rate_hz=rate_hz,
        max_pause=max_pause, wait=wait, linger=linger, nslots=nslots, check=check, skip_damage=skip_damage,
        metadata=metadata,
    )  # fmt: skip
    recording = Recording(root)
    with ExitStack() as undo:
        undo.callback(recording.close)
        if context is None:
            context = undo.enter_context(open_context())
            made: Context | None = context
        else:
            made = None
        found = Replay(context, recording, options, closes=made)
        undo.pop_all()
    return found


class Replay:
    """A recording that is being played. Close it, or use it in a `with` block.

    Iterating gives a ReplayStats every half second until the end. All methods may be called from any thread.
    """

    def __init__(
        self,
        context: Context,
        recording: Recording,
        options: ReplayOptions,
        *,
        closes: Context | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._context = closes
        self._recording = recording
        self._linger_ns = round(options.linger * 1e9)
        self._clock = clock
        self._agent = ReplayAgent(context, recording, options, clock)
        try:
            self._agent.on_start()
        except BaseException:
            self._agent.on_close()
            raise
        self._bounds = bounds_of(recording, self._agent)
        self._asked: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._turn = threading.Condition()
        self._stop = False
        self._error: BaseException | None = None
        self._played_ns = 0
        self._last_frame_ns: int | None = None
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)
        self._thread.start()

    @property
    def root(self) -> Path:
        return self._recording.root

    # --- the thread

    def _run(self) -> None:
        try:
            while not self._stop:
                self._answer()
                began_ns = self._clock.monotonic_ns()
                was_ended, before = self._agent.is_ended, self._agent.totals.frames
                work = 0 if was_ended else self._agent.do_work()
                now_ns = self._clock.monotonic_ns()
                if self._agent.totals.frames != before:
                    self._last_frame_ns = now_ns
                if self._state() == "playing" and self._agent.position_ns is not None:
                    self._played_ns += now_ns - began_ns
                with self._turn:
                    if self._agent.is_ended and not was_ended:
                        self._turn.notify_all()
                    if not work and not self._asked and not self._stop:
                        self._turn.wait(_IDLE_S)
        except BaseException as error:
            self._error = error
        finally:
            with self._turn:
                self._stop = True
                self._turn.notify_all()
            self._answer()

    def _answer(self) -> None:
        while self._asked:
            what, answer = self._asked.popleft()
            if self._stop:
                answer.set_exception(self._error or ClosedError("this replay is closed"))
                continue
            try:
                answer.set_result(what())
            except Exception as error:
                answer.set_exception(error)

    def _ask(self, what: Callable[[], T]) -> T:
        """Has something done between two turns."""
        answer: Future[T] = Future()
        with self._turn:
            if self._stop:
                raise self._error or ClosedError("this replay is closed")
            self._asked.append((what, answer))
            self._turn.notify_all()
        return answer.result()

    # --- steering

    def pause(self) -> None:
        """Stops the time. No frame goes out after this returns."""
        self._ask(lambda: self._agent.playhead.pause(self._clock.monotonic_ns()))

    def resume(self) -> None:
        """Goes on where it was paused, or from where it was sent to."""
        self._ask(lambda: self._agent.playhead.resume(self._clock.monotonic_ns()))

    def step(self) -> RecordedFrame | None:
        """Pauses, and plays the next frame. It is returned as it was recorded; None at the end."""

        def one() -> RecordedFrame | None:
            self._agent.playhead.pause(self._clock.monotonic_ns())
            return self._agent.step()

        return self._ask(one)

    def seek(
        self,
        time: Time | None = None,
        *,
        seq: int | None = None,
        stream_id: int | None = None,
        epoch: int | None = None,
    ) -> None:
        """Goes on from another place: the first frames received at `time` or later, or the frame `seq`.

        `stream_id` is the recorded one, and needed if there are several; the others go on from that frame's
        time. A paused replay stays paused.
        """
        if (time is None) == (seq is None):
            raise ConfigError("seek to a time or to a sequence: seek(when), or seek(seq=1000)")
        if seq is None:
            when = time
            assert when is not None, "one of the two is given"
            self._ask(lambda: self._agent.seek_time(when))
            return
        known = [lane.source.stream_id for lane in self._agent.lanes]
        if stream_id is None and len(known) > 1:
            raise ConfigError(f"say of which stream: seek(seq={seq}, stream_id={known[0]})")
        number, of = seq, known[0] if stream_id is None else stream_id
        self._ask(lambda: self._agent.seek_frame(of, number, epoch))

    def set_speed(self, speed: Speed) -> None:
        """Another speed from here on."""
        factor = speed_of(speed)
        self._ask(lambda: self._agent.change_speed(factor))

    # --- watching

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
        if agent.is_away:
            return "away"
        return "waiting" if agent.is_waiting else "playing"

    def stats(self) -> ReplayStats:
        """How it stands."""
        agent, totals = self._agent, self._agent.totals
        return ReplayStats(
            state=self._state(), speed=agent.playhead.speed, position_ns=agent.position_ns,
            first_ns=self._bounds[0], last_ns=self._bounds[1], passes=totals.passes,
            elapsed_s=self._played_ns / 1e9, frames=totals.frames, nbytes=totals.nbytes, gaps=totals.gaps,
            missing=totals.missing, unfit=totals.unfit, damaged=totals.damaged, late=totals.late,
            late_max_s=totals.late_max_ns / 1e9, stalls=totals.stalls,
            streams=tuple(stream_stats(lane) for lane in agent.lanes),
        )  # fmt: skip

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end; False if it did not come in time. Raises what ended the replay, if that did."""
        with self._turn:
            self._turn.wait_for(lambda: self._agent.is_ended or self._stop, timeout)
        if self._error is not None:
            raise self._error
        return self._agent.is_ended

    def __iter__(self) -> Iterator[ReplayStats]:
        while not self.wait(_REPORT_S) and not self._stop:
            yield self.stats()
        yield self.stats()

    # --- the end

    def close(self) -> None:
        """Ends it; at the end of the recording, after those who are still reading had their time."""
        if self._agent.is_ended and not self._stop:
            self._let_read()
        with self._turn:
            self._stop = True
            self._turn.notify_all()
        self._thread.join()
        self._agent.on_close()
        if self._context is not None:
            self._context.close()

    def _let_read(self) -> None:
        """The ring goes with the producer, and its last frames with it."""
        is_heard = any(lane.producer.is_connected for lane in self._agent.lanes)
        if is_heard and self._last_frame_ns is not None:
            left_ns = self._last_frame_ns + self._linger_ns - self._clock.monotonic_ns()
            with self._turn:
                self._turn.wait_for(lambda: self._stop, max(0, left_ns) / 1e9)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
