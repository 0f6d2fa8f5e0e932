"""The recorder's duty cycle: writes arenas of the native loop and messages about their streams to the disk.

The runner's thread owns the agent. Other threads use `call`, which runs a function in the next duty cycle.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..errors import ClosedError, RecordingError
from ..monitor.listener import SystemListener
from ..recording import RecordingLedger, RecoveredSegment, WriterLimits, apply_retention
from ..recording.archive import Archiver
from .arena_rows import ArenaRows
from .config import RecorderSettings
from .messages import OBSERVED_STREAMS, MessageObserver, ServiceEvents
from .sink import Sink
from .state import NOT_TRIGGERED, PreTriggerBuffer, RecorderStats, State, ThroughputMeter, TriggerGate
from .streams import RecordedStreams

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_ARENA_ROWS: Final = 4096
_MAX_CHUNK_BYTES: Final = 8 << 20
_MIN_CHUNK_BYTES: Final = 64 << 10
_ARENA_WAIT_S: Final = 0.02
_FLUSH_TIMEOUT_S: Final = 10.0
_MAX_ARENAS_PER_CYCLE: Final = 16
_MESSAGE_PERIOD_NS: Final = 50_000_000
# Frames must not wait for a flood of messages: after this many of one stream, arenas are written first.
_MAX_MESSAGES_PER_CYCLE: Final = 1024
# Messages that are read at the end: more than a second of a busy system, and a bound against a flood.
_MAX_LAST_POLLS: Final = 32
_STATS_PERIOD_NS: Final = 250_000_000
_RETENTION_PERIOD_NS: Final = 5_000_000_000
# Part of the buffer that the pre-trigger buffer leaves free for new frames.
_FREE_BUFFER_SHARE: Final = 0.125


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
        """`frames`: number of frames, over all streams, after which the agent sets `is_finished`."""
        if settings.out is None:
            raise ValueError("a recorder needs a directory: set out")
        self.settings = settings
        self.root: Path = settings.out
        self.is_finished = False
        self._context = context
        self._clock = clock
        self._frames_left = frames
        self._gate = TriggerGate(settings.pre_trigger_ns)
        self._pre_trigger = PreTriggerBuffer(settings.pre_trigger_ns or 0)
        self._rates = ThroughputMeter()
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # Held while a call is queued and while the agent closes: every queued call gets its result.
        self._calls_lock = threading.Lock()
        self._is_active = True
        self._is_closed = False
        self._next_messages_ns = self._next_stats_ns = 0
        self._next_retention_ns = 0
        self._start_ns = clock.monotonic_ns()
        limits = WriterLimits(
            segment_bytes=settings.rotate_bytes,
            segment_ns=settings.rotate_time_ns,
            sync_ns=settings.sync_ns,
        )
        self._sink = Sink(
            self.root, limits=limits, keep_free_bytes=settings.keep_free_bytes, clock=clock,
            on_disk_change=self._on_disk_change,
        )  # fmt: skip
        try:
            chunk_bytes = min(max(settings.buffer_bytes // 32, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)
            self._native = _native.Recorder(
                buffer_bytes=settings.buffer_bytes,
                chunk_bytes=chunk_bytes,
                rows=_MAX_ARENA_ROWS,
                age_ns=self._max_arena_age_ns,
                idle="backoff",
            )
        except BaseException:
            self._sink.writer.close()
            raise
        self._streams = RecordedStreams(context, self._native, self._sink)
        self._archiver: Archiver | None = None
        self._messages = MessageObserver(
            is_recorded=lambda stream_id: stream_id in self._streams,
            on_announce=self._streams.discover if settings.all else None,
        )
        self._listener: SystemListener | None = None
        self._events: ServiceEvents | None = None
        self._has_messages_left = False
        self._stats = self._collect_stats()

    @property
    def _max_arena_age_ns(self) -> int:
        """0 while the gate is closed: only full arenas are handed over, so that frames waste less memory."""
        return max(self.settings.sync_ns // 2, 1) if self._gate.is_open else 0

    def _on_disk_change(self, is_writable: bool) -> None:
        self._native.set_disk_is_full(not is_writable)

    # --- the agent

    def on_start(self) -> None:
        """Subscribe to messages and open the streams of the settings."""
        if self.settings.archive is not None:
            self._archiver = Archiver(self.root, self.settings.archive)
        # The media driver registers in order: a consumer that is connected implies that no message about its
        # frames is missed.
        self._listener = SystemListener(
            self._context.connection, raw_observers=(self._messages,), streams=OBSERVED_STREAMS,
            max_messages=_MAX_MESSAGES_PER_CYCLE, clock=self._clock,
        )  # fmt: skip
        if self.settings.services:
            # The caller that started the recorder relies on the commands from then on.
            self._events = ServiceEvents(self._context.connection)
            self._context.connection.wait_ready(self._events)
        for stream in self.settings.streams:
            self._streams.open(self._context.find_stream(stream))

    def is_ready(self) -> bool:
        """True: a recorder waits for producers as part of its work."""
        return True

    def do_work(self) -> int:
        """Run calls, write arenas, and do what is due: messages, discovered streams, retention, stats."""
        self._run_calls()
        if self._gate.close_if_expired(self._clock.monotonic_ns()):
            self._on_gate_closed()
        work = self._take_arenas(0.0 if self._has_messages_left else _ARENA_WAIT_S)
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_messages_ns:
            self._has_messages_left = self._write_messages() >= _MAX_MESSAGES_PER_CYCLE
            self._next_messages_ns = now_ns + (0 if self._has_messages_left else _MESSAGE_PERIOD_NS)
            if self._is_active:
                self._streams.open_discovered(now_ns)
        if now_ns >= self._next_retention_ns:
            self._next_retention_ns = now_ns + _RETENTION_PERIOD_NS
            self._apply_retention()
        if now_ns >= self._next_stats_ns:
            self._next_stats_ns = now_ns + _STATS_PERIOD_NS
            self._rates.add(now_ns, self._sink.rows, self._sink.payload_bytes)
            self._stats = self._collect_stats()
        return work

    def on_close(self) -> None:
        """Write all received frames, seal the segments, run queued calls. A writer's error is raised last."""
        with self._calls_lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._native.close()
        self._write_last_messages()
        self._streams.close()
        if self._listener is not None:
            self._listener.close()
        if self._events is not None:
            self._events.close()
        try:
            self._drain()
            self._sink.close()
        finally:
            if self._archiver is not None:
                # Last, so that it finds every segment sealed.
                self._archiver.close()
            self._stats = self._collect_stats()
            self._run_calls()

    # --- for other threads

    def check_process(self) -> None:
        """Raise ForkedError in a forked child, where no thread runs the duty cycle."""
        self._native.buffer()

    def call(self, function: Callable[[], T], timeout: float | None = 60.0) -> T:
        """Run `function` in the next duty cycle and return its result."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        self.check_process()
        with self._calls_lock:
            if self._is_closed:
                raise ClosedError("the recorder is closed")
            self._calls.put(run)
        return result.result(timeout)

    def _run_calls(self) -> None:
        while True:
            try:
                run = self._calls.get_nowait()
            except Empty:
                return
            run()

    @property
    def stats(self) -> RecorderStats:
        """The newest stats; at most a quarter of a second old while the agent runs."""
        return self._stats

    @property
    def recovered(self) -> list[RecoveredSegment]:
        """Segments that an earlier recorder left open and that this recorder has sealed."""
        return list(self._sink.recovered)

    def mapped(self) -> dict[int, int | None]:
        """The mapped epoch of each stream; None for a stream without a mapped epoch."""
        return self._streams.mapped()

    def ledgers(self) -> list[RecordingLedger]:
        """The ledger of each stream and epoch since the start."""
        return self._sink.ledgers()

    # --- commands: run them with `call`

    def start(self) -> None:
        """Read the streams again after `stop`. Frames published in between are a gap."""
        if self._is_active:
            return
        self._is_active = True
        for stream in self.settings.streams:
            self._streams.open(self._context.find_stream(stream))

    def stop(self) -> None:
        """Close the streams, write all received frames and seal the segments."""
        if not self._is_active:
            return
        self._is_active = False
        self._write_last_messages()
        self._streams.close_streams()
        self._drain()
        self._seal()
        self._stats = self._collect_stats()

    def rotate(self) -> None:
        """Write all received frames and seal the open segments."""
        self._native.flush(_FLUSH_TIMEOUT_S)
        self._drain()
        self._seal()

    def _seal(self) -> None:
        self._sink.writer.rotate()
        # Rotation is asynchronous; the caller may read the sealed segments when this returns.
        self._sink.writer.sync()

    def mark(self, label: str, stream_id: int | None = None) -> None:
        """Write a label with the current time, for one stream or for all."""
        self._sink.writer.mark(label, stream_id=stream_id)

    def trigger(self, for_ns: int | None = None) -> None:
        """Write the pre-trigger buffer and all frames from now on, for `for_ns` or without end."""
        was_closed = not self._gate.is_open
        if was_closed:
            self._native.flush(_FLUSH_TIMEOUT_S)
            while (arena := self._native.take(0.0)) is not None:
                self._pre_trigger.add(ArenaRows.from_arena(arena))
                del arena
        self._gate.trigger(self._clock.monotonic_ns(), for_ns)
        if was_closed:
            self._native.set_age_ns(self._max_arena_age_ns)
            for arena_rows in self._pre_trigger.drain(self._clock.wall_ns()):
                self._write_rows(arena_rows)
        self._stats = self._collect_stats()

    def _on_gate_closed(self) -> None:
        self._native.flush(_FLUSH_TIMEOUT_S)
        while (arena := self._native.take(0.0)) is not None:
            self._write_rows(ArenaRows.from_arena(arena))
            del arena
        self._native.set_age_ns(self._max_arena_age_ns)

    # --- frames

    def _take_arenas(self, wait_s: float) -> int:
        """Pass arenas to the sink or to the pre-trigger buffer; returns their number."""
        if not self._sink.write_pending():
            # The disk is full: frames stay in the native buffer, which drops and counts what does not fit.
            self._clock.sleep(wait_s)
            return 0
        arenas = 0
        for _ in range(_MAX_ARENAS_PER_CYCLE):
            arena = self._native.take(0.0 if arenas else wait_s)
            if arena is None:
                break
            arenas += 1
            self._on_rows(ArenaRows.from_arena(arena))
            del arena
            if not self._sink.write_pending():
                break
        return arenas

    def _on_rows(self, arena_rows: ArenaRows) -> None:
        if self._gate.is_open:
            self._write_rows(arena_rows)
            return
        self._pre_trigger.add(arena_rows)
        # The buffer must hold the only reference: evicting an arena has to free its memory.
        del arena_rows
        self._pre_trigger.evict_expired(self._clock.wall_ns())
        buffer = self._native.buffer()
        free = buffer.total_bytes - buffer.used_bytes
        while free < buffer.total_bytes * _FREE_BUFFER_SHARE and self._pre_trigger.evict_oldest():
            buffer = self._native.buffer()
            free = buffer.total_bytes - buffer.used_bytes

    def _write_rows(self, arena_rows: ArenaRows) -> None:
        if self.is_finished:
            return
        if self._frames_left is not None:
            is_last = arena_rows.row_count >= self._frames_left
            kept = arena_rows.up_to_row(self._frames_left) if is_last else arena_rows
            self._frames_left -= 0 if kept is None else kept.row_count
            self.is_finished = is_last
            if kept is None:
                return
            arena_rows = kept
        self._sink.enqueue(arena_rows, gap_reason=None if self._gate.keep_ns is None else NOT_TRIGGERED)

    def _drain(self) -> None:
        """Write every arena that the native loop has handed over."""
        while True:
            self._sink.write_pending()
            arena = self._native.take(0.0)
            if arena is None:
                return
            if self._gate.is_open:
                self._write_rows(ArenaRows.from_arena(arena))
            del arena

    # --- messages and retention

    def _write_messages(self) -> int:
        """Write the received messages; returns how many were received, recorded or not."""
        received = 0 if self._listener is None else self._listener.poll()
        rows = self._messages.rows
        while rows:
            # Removed when written: an error of the writer costs no message.
            self._sink.write_message(rows[0])
            rows.popleft()
        if self._events is not None:
            for message, kind in self._events.take():
                self._sink.write_event(message, kind)
                received += 1
        return received

    def _write_last_messages(self) -> None:
        """Write the messages that wait, before the streams that they are about are closed."""
        for _ in range(_MAX_LAST_POLLS):
            if not self._write_messages():
                return

    def _apply_retention(self) -> None:
        settings = self.settings
        if settings.retain_bytes is None and settings.retain_age_ns is None:
            return
        try:
            result = apply_retention(
                self.root, max_bytes=settings.retain_bytes, max_age_ns=settings.retain_age_ns,
                clock=self._clock,
            )  # fmt: skip
        except (RecordingError, OSError) as error:
            _LOG.error("old segments could not be removed: %s", error)
            return
        if result.removed:
            _LOG.info("removed %d old segments, %d bytes", len(result.removed), result.removed_bytes)

    # --- stats

    @property
    def state(self) -> State:
        """The recorder's state; may be read from any thread."""
        if self._is_closed:
            return "closed"
        if not self._is_active:
            return "stopped"
        if not self._sink.disk.is_writable:
            return "disk_full"
        return "recording" if self._gate.is_open else "armed"

    def _collect_stats(self) -> RecorderStats:
        buffer = self._native.buffer()
        rows_per_s, bytes_per_s = self._rates.per_second()
        return RecorderStats(
            state=self.state,
            problem=self._sink.disk.problem,
            seconds=(self._clock.monotonic_ns() - self._start_ns) / 1e9,
            streams=self._streams.ids,
            rows=self._sink.rows,
            payload_bytes=self._sink.payload_bytes,
            gaps=dict(self._sink.gaps()),
            rows_per_s=rows_per_s,
            bytes_per_s=bytes_per_s,
            backlog_bytes=buffer.used_bytes,
            buffer_bytes=buffer.total_bytes,
            disk_free_bytes=self._sink.free_bytes,
            strays=self._streams.strays,
            lost_messages=self._sink.lost_messages,
        )
