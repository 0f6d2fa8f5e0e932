"""The recorder's duty cycle: arenas from the native loop to the disk, words beside them, commands in between.

One thread takes the turns (the runner's); `ask` is how others have something done in them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..errors import ClosedError, RecordingError
from ..recording import RecordingLedger, RecoveredSegment, WriterLimits, retain
from .arena import ArenaRows, rows_from_arena
from .config import RecorderSettings
from .messages import MessageListener, MessageRow
from .sink import Sink
from .state import NOT_TRIGGERED, PreTriggerBuffer, RateMeter, RecorderStats, State, TriggerGate
from .streams import RecordedStreams

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

_ROWS: Final = 4096
_LARGEST_CHUNK: Final = 8 << 20
_SMALLEST_CHUNK: Final = 64 << 10
_WAIT_S: Final = 0.02
_FLUSH_S: Final = 10.0
_PIECES_A_TURN: Final = 16
_LISTEN_NS: Final = 50_000_000
_FIGURES_NS: Final = 250_000_000
_RETAIN_NS: Final = 5_000_000_000
# Memory that the past of a shut gate leaves to what comes in.
_RESERVE: Final = 0.125


class RecorderAgent:
    """Records streams of a context into a directory."""

    name = "recorder"

    def __init__(
        self,
        context: Context,
        settings: RecorderSettings,
        *,
        frames: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`frames`: how many it writes at most, of all streams together; then `is_finished`."""
        if settings.out is None:
            raise ValueError("a recorder needs a directory: out")
        self.settings = settings
        self.root: Path = settings.out
        self.is_finished = False
        self._context = context
        self._clock = clock
        self._frames_left = frames
        self._gate = TriggerGate(settings.pre_trigger_ns)
        self._ring = PreTriggerBuffer(settings.pre_trigger_ns or 0)
        self._speed = RateMeter()
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # What is asked before the end is answered at the end; nothing is asked after it.
        self._asking = threading.Lock()
        self._is_active = True
        self._is_closed = False
        self._next_listen_ns = self._next_figures_ns = 0
        self._next_retain_ns = 0
        self._begun_ns = clock.monotonic_ns()
        limits = WriterLimits(
            segment_bytes=settings.rotate_bytes,
            segment_ns=settings.rotate_time_ns,
            sync_ns=settings.sync_ns,
        )
        self._sink = Sink(
            self.root, limits=limits, keep_free_bytes=settings.keep_free_bytes, clock=clock,
            on_disk=self._on_disk,
        )  # fmt: skip
        try:
            chunk = min(max(settings.buffer_bytes // 32, _SMALLEST_CHUNK), _LARGEST_CHUNK)
            self._native = _native.Recorder(
                buffer_bytes=settings.buffer_bytes,
                chunk_bytes=chunk,
                rows=_ROWS,
                age_ns=self._age_ns,
                idle="backoff",
            )
        except BaseException:
            self._sink.writer.close()
            raise
        self._lanes = RecordedStreams(context, self._native, self._sink)
        self._ears: MessageListener | None = None
        self._stats = self._figures()

    @property
    def _age_ns(self) -> int:
        """While the gate is shut only full arenas are handed over: the past takes less memory so."""
        return max(self.settings.sync_ns // 2, 1) if self._gate.is_open else 0

    def _on_disk(self, is_good: bool) -> None:
        self._native.set_disk_is_full(not is_good)

    # --- the agent

    def on_start(self) -> None:
        self._ears = MessageListener(self._context)
        for stream_id in self.settings.streams:
            self._lanes.open(stream_id)

    def is_ready(self) -> bool:
        return True

    def do_work(self) -> int:
        self._run_asked()
        now_ns = self._clock.monotonic_ns()
        if self._gate.shut_if_over(now_ns):
            self._shut()
        work = self._take(_WAIT_S)
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_listen_ns:
            self._next_listen_ns = now_ns + _LISTEN_NS
            self._listen()
            if self._is_active:
                self._lanes.join(now_ns)
        if now_ns >= self._next_retain_ns:
            self._next_retain_ns = now_ns + _RETAIN_NS
            self._retain()
        if now_ns >= self._next_figures_ns:
            self._next_figures_ns = now_ns + _FIGURES_NS
            self._speed.add(now_ns, self._sink.rows, self._sink.payload_bytes)
            self._stats = self._figures()
        return work

    def on_close(self) -> None:
        """Everything that is there is written and sealed. The first error is raised last."""
        with self._asking:
            if self._is_closed:
                return
            self._is_closed = True
        self._native.close()
        self._lanes.close()
        if self._ears is not None:
            self._ears.close()
        try:
            self._drain()
            self._sink.close()
        finally:
            self._stats = self._figures()
            self._run_asked()

    # --- for other threads

    def check_home(self) -> None:
        """Raises ForkedError in a forked child, where nobody would take the turns."""
        self._native.stats()

    def ask(self, what: Callable[[], T], timeout: float | None = 60.0) -> T:
        """Has something done in the agent's next turn, and gives what it gave."""
        answer: Future[T] = Future()

        def do() -> None:
            try:
                answer.set_result(what())
            except BaseException as error:
                answer.set_exception(error)

        self.check_home()
        with self._asking:
            if self._is_closed:
                raise ClosedError("the recorder is closed")
            self._asked.put(do)
        return answer.result(timeout)

    def _run_asked(self) -> None:
        while True:
            try:
                do = self._asked.get_nowait()
            except Empty:
                return
            do()

    @property
    def stats(self) -> RecorderStats:
        return self._stats

    @property
    def recovered(self) -> list[RecoveredSegment]:
        return list(self._sink.recovered)

    def mapped(self) -> dict[int, int | None]:
        return self._lanes.mapped()

    def ledgers(self) -> list[RecordingLedger]:
        return self._sink.ledgers()

    # --- commands: in a turn

    def start(self) -> None:
        """Goes on after `stop`. What came meanwhile is a gap."""
        if self._is_active:
            return
        self._is_active = True
        for stream_id in self.settings.streams:
            self._lanes.open(stream_id)

    def stop(self) -> None:
        """Writes what is there, seals it, and lets go of the streams."""
        if not self._is_active:
            return
        self._is_active = False
        self._lanes.let_go()
        self._drain()
        self._seal()
        self._stats = self._figures()

    def rotate(self) -> None:
        """Writes what is there, and ends the open segments."""
        self._native.flush(_FLUSH_S)
        self._drain()
        self._seal()

    def _seal(self) -> None:
        self._sink.writer.rotate()
        # Sealed when it returns, and not a moment later.
        self._sink.writer.sync()

    def mark(self, label: str, stream_id: int | None = None) -> None:
        self._sink.writer.mark(label, stream_id=stream_id)

    def trigger(self, for_ns: int | None = None) -> None:
        """Writes what is kept of the past, and what comes."""
        was_shut = not self._gate.is_open
        if was_shut:
            self._native.flush(_FLUSH_S)
            while (arena := self._native.take(0.0)) is not None:
                self._ring.add(rows_from_arena(arena))
                del arena
        self._gate.trigger(self._clock.monotonic_ns(), for_ns)
        if was_shut:
            self._native.set_age_ns(self._age_ns)
            for piece in self._ring.drain(self._clock.wall_ns()):
                self._put(piece)
        self._stats = self._figures()

    def _shut(self) -> None:
        self._native.flush(_FLUSH_S)
        while (arena := self._native.take(0.0)) is not None:
            self._put(rows_from_arena(arena))
            del arena
        self._native.set_age_ns(self._age_ns)

    # --- frames

    def _take(self, wait_s: float) -> int:
        """Arenas to the disk, or to the ring of the past."""
        if not self._sink.work():
            # The disk takes nothing: what comes stays in the native buffer, and is lost there, counted.
            self._clock.sleep(wait_s)
            return 0
        taken = 0
        for _ in range(_PIECES_A_TURN):
            arena = self._native.take(0.0 if taken else wait_s)
            if arena is None:
                break
            taken += 1
            self._on_piece(rows_from_arena(arena))
            del arena
            if not self._sink.work():
                break
        return taken

    def _on_piece(self, piece: ArenaRows) -> None:
        if self._gate.is_open:
            self._put(piece)
            return
        self._ring.add(piece)
        del piece
        self._ring.forget(self._clock.wall_ns())
        stats = self._native.stats()
        free = stats["total_bytes"] - stats["used_bytes"]
        while free < stats["total_bytes"] * _RESERVE and self._ring.forget_oldest():
            stats = self._native.stats()
            free = stats["total_bytes"] - stats["used_bytes"]

    def _put(self, piece: ArenaRows) -> None:
        if self.is_finished:
            return
        if self._frames_left is not None:
            last = piece.rows >= self._frames_left
            cut = piece.up_to_row(self._frames_left) if last else piece
            self._frames_left -= 0 if cut is None else cut.rows
            self.is_finished = last
            if cut is None:
                return
            piece = cut
        self._sink.put(piece, hole_reason=None if self._gate.keep_ns is None else NOT_TRIGGERED)

    def _drain(self) -> None:
        """Whatever the native loop has handed over, to the disk."""
        while True:
            self._sink.work()
            arena = self._native.take(0.0)
            if arena is None:
                return
            if self._gate.is_open:
                self._put(rows_from_arena(arena))
            del arena

    # --- words

    def _wants(self, note: MessageRow) -> bool:
        """Where all streams are wanted, an announce is how we hear of one."""
        if self.settings.all and note.is_announce:
            self._lanes.hear_of(note.stream_id)
        return note.stream_id in self._lanes

    def _listen(self) -> None:
        if self._ears is None:
            return
        for note in self._ears.poll(wants=self._wants):
            self._sink.note(note)

    def _retain(self) -> None:
        settings = self.settings
        if settings.retain_bytes is None and settings.retain_age_ns is None:
            return
        try:
            done = retain(
                self.root, max_bytes=settings.retain_bytes, max_age_ns=settings.retain_age_ns,
                clock=self._clock,
            )  # fmt: skip
        except (RecordingError, OSError) as error:
            _LOG.error("old segments could not be removed: %s", error)
            return
        if done.removed:
            _LOG.info("%d old segments were removed, %d bytes", len(done.removed), done.removed_bytes)

    # --- figures

    @property
    def state(self) -> State:
        if self._is_closed:
            return "closed"
        if not self._is_active:
            return "stopped"
        if not self._sink.disk.is_good:
            return "disk_full"
        return "recording" if self._gate.is_open else "armed"

    def _figures(self) -> RecorderStats:
        native: dict[str, Any] = self._native.stats()
        rows_per_s, bytes_per_s = self._speed.per_second()
        return RecorderStats(
            state=self.state,
            problem=self._sink.disk.problem,
            seconds=(self._clock.monotonic_ns() - self._begun_ns) / 1e9,
            streams=self._lanes.ids,
            rows=self._sink.rows,
            payload_bytes=self._sink.payload_bytes,
            gaps=dict(self._sink.gaps()),
            rows_per_s=rows_per_s,
            bytes_per_s=bytes_per_s,
            backlog_bytes=native["used_bytes"],
            buffer_bytes=native["total_bytes"],
            disk_free_bytes=self._sink.free_bytes,
            strays=self._lanes.strays,
        )
