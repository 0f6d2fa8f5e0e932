"""The writer of a recording: several streams, rotation, regular syncs, tables, clock anchors.

`RecordingWriter` is thread-safe. Its own thread syncs and seals, so that frames do not wait for the disk;
without that thread (`background=False`) the caller's `tick` does both.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ClosedError, InvalidFrames, RecordingError
from ..sbe import EventMessage, json_form
from ..sbe import decode as decode_message
from . import layout, manifest, manifest_store
from .arrow_format import AnchorTableRow, EventTableRow, MessageTableRow
from .batch import FrameBatch
from .gaps import Gap
from .layout import create_root
from .manifest import RecordKind
from .segment_writer import SegmentWriter
from .stream_writer import RecoveredSegment, StreamWriter
from .tables import TableWriter

_ANCHOR_PERIOD_NS: Final = 10_000_000_000
# A wall clock that moved this far against the monotonic clock was set: it needs a new anchor.
_MAX_DRIFT_NS: Final = 1_000_000
_MESSAGE_TABLES: Final = ("metadata", "qos", "announces")


class ClockAnchors:
    """Produces clock anchors: simultaneous readings of the wall clock and the monotonic clock."""

    def __init__(self) -> None:
        self._offset_ns: int | None = None
        self._last_ns = 0

    def next_row(self, clock: Clock) -> AnchorTableRow | None:
        """The row of a new anchor if one is due: periodically, and after the wall clock was set."""
        wall, monotonic = clock.wall_ns(), clock.monotonic_ns()
        offset = wall - monotonic
        is_due = (
            self._offset_ns is None
            or monotonic - self._last_ns >= _ANCHOR_PERIOD_NS
            or abs(offset - self._offset_ns) >= _MAX_DRIFT_NS
        )
        if not is_due:
            return None
        self._offset_ns, self._last_ns = offset, monotonic
        return {
            "wall_ns": wall, "monotonic_ns": monotonic, "host": socket.gethostname(), "boot_id": _boot_id(),
        }  # fmt: skip


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Limits of size and time at which a batch is written, a segment rotated and a sync done."""

    segment_bytes: int = 256 << 20
    """A segment of this size is closed, and another begun."""
    segment_ns: int = 60_000_000_000
    """A segment of this age is closed, and another begun."""
    batch_bytes: int = 8 << 20
    """A batch of this size is written."""
    batch_rows: int = 16_384
    """A batch of so many frames is written."""
    sync_ns: int = 200_000_000
    """How often written batches are made durable. A crash of the machine loses at most what came since."""


class RecordingWriter:
    """Appends to the recording at `root`, which is created if it does not exist.

    Segments that an earlier writer left open are recovered when their stream is first used: see `recovered`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        limits: WriterLimits | None = None,
        holder: str = "writer",
        background: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.root = Path(root)
        self.limits = limits or WriterLimits()
        self.recovered: list[RecoveredSegment] = []
        """Recovered segments, in the order in which their streams were first used."""
        self.holds_messages = False
        """While true, messages about streams wait in memory, so that they take no space on a full disk."""
        self._clock = clock
        self._holder = holder
        create_root(self.root, created_ns=clock.wall_ns())
        self._session = f"{clock.wall_ns():020}-{os.getpid()}-{secrets.token_hex(4)}"
        self._tables = TableWriter(self.root, self._session)
        self._added_gaps: set[Gap] = set()
        """Gaps of the batch being written that are in the table already, if its rows failed to be written."""
        self._streams: dict[int, StreamWriter] = {}
        self._to_seal: deque[SegmentWriter] = deque()
        self._to_list: deque[manifest.Records] = deque()
        self._lock = threading.RLock()
        # Held while syncing or sealing; writing continues meanwhile.
        self._disk_lock = threading.Lock()
        self._failure: RecordingError | None = None
        self._closed = False
        self._anchors = ClockAnchors()
        self._add_anchor()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._run, name="recording-sync", daemon=True)
            self._thread.start()

    # --- frames

    def position(self, stream_id: int) -> tuple[int, int] | None:
        """The last epoch of a stream and its last sequence that is a row or in a gap; None if there is none.

        Takes the stream's lock, and recovers segments that an earlier writer left open.
        """
        with self._lock:
            return self._stream(stream_id).position

    def write_batch(self, frames: FrameBatch, gaps: Sequence[Gap] = ()) -> None:
        """Writes frames of one stream, and the gaps before and between them. Payloads are not copied.

        Writes all frames or raises an error and writes none: the same batch can be passed again.
        """
        if len(frames) == 0:
            return
        with self._lock:
            stream = self._stream(frames.stream_id)
            self._flush(stream)
            self._write(stream, frames, gaps)

    def append(
        self,
        array: npt.ArrayLike,
        *,
        stream_id: int,
        epoch: int,
        seq: int,
        timestamp_ns: int | None = None,
        publish_timestamp_ns: int | None = None,
        receive_time_ns: int | None = None,
        meta_version: int = 0,
        trace_id: int | None = None,
        element_type: str | None = None,
    ) -> None:
        """Adds one frame. Copies it; it is written together with others, at the next sync at the latest."""
        tensor = np.asarray(array)
        with self._lock:
            stream = self._stream(stream_id)
            builder = stream.builder
            if len(builder) and (builder.epoch != epoch or not builder.has_room(tensor.nbytes)):
                self._flush(stream)
            wall_ns = self._clock.wall_ns()
            builder.add(
                tensor,
                epoch=epoch,
                seq=seq,
                timestamp_ns=wall_ns if timestamp_ns is None else timestamp_ns,
                publish_timestamp_ns=publish_timestamp_ns,
                receive_time_ns=wall_ns if receive_time_ns is None else receive_time_ns,
                meta_version=meta_version,
                trace_id=trace_id,
                element_type=element_type,
                now_ns=self._clock.monotonic_ns(),
            )

    def last(self, stream_id: int) -> tuple[int, int] | None:
        """Epoch and sequence of the last frame of earlier writers. Takes the stream's lock."""
        with self._lock:
            return self._stream(stream_id).recorded_end

    def gap(self, *, stream_id: int, epoch: int, first_seq: int, count: int, reason: str) -> None:
        """Declares missing sequences with their reason. Undeclared gaps are found without a reason."""
        with self._lock:
            stream = self._stream(stream_id)
            self._flush(stream)
            gap = Gap(stream_id, epoch, first_seq, count, reason)
            stream.declare(gap)
            self._tables.add_gap(gap, self._clock.wall_ns())

    def _write(self, stream: StreamWriter, frames: FrameBatch, gaps: Sequence[Gap] = ()) -> None:
        tracker = stream.tracker(frames.epoch)
        declared = tracker.declared()
        now = self._clock.monotonic_ns()
        limits = self.limits
        try:
            for gap in gaps:
                if (gap.stream_id, gap.epoch) != (frames.stream_id, frames.epoch):
                    raise InvalidFrames("a gap is of another stream or epoch than its frames", path=self.root)
                stream.declare(gap)
            stream.check(frames)
            if stream.needs_new_segment(
                frames, segment_bytes=limits.segment_bytes, opened_before_ns=now - limits.segment_ns
            ):
                self._end_segment(stream)
                stream.open_segment(frames, now)
            # Before the rows: a crash in between would leave a hole without a reason. The gaps remain valid
            # if the rows cannot be written now, so a second attempt must not add them again.
            for gap in gaps:
                if gap not in self._added_gaps:
                    self._added_gaps.add(gap)
                    self._tables.add_gap(gap, self._clock.wall_ns())
            if self._tables.has_waiting("gaps"):
                self._flush_tables()
            undeclared = stream.write(frames, tracker)
        except BaseException:
            tracker.restore(declared)
            raise
        self._added_gaps.clear()
        for gap in undeclared:
            self._tables.add_gap(gap, self._clock.wall_ns())

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the writer is closed")

    def _stream(self, stream_id: int) -> StreamWriter:
        self._check_open()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if stream_id not in self._streams:
            limits = self.limits
            stream = StreamWriter(
                self.root, stream_id, holder=self._holder,
                batch_bytes=limits.batch_bytes, batch_rows=limits.batch_rows,
            )  # fmt: skip
            self.recovered += stream.recovered
            self._streams[stream_id] = stream
        return self._streams[stream_id]

    def _flush(self, stream: StreamWriter) -> None:
        if len(stream.builder):
            frames = stream.builder.build()
            try:
                self._write(stream, frames)
            except InvalidFrames:
                # They will never be valid, and would block all later frames.
                stream.builder.clear()
                raise
            stream.builder.clear()

    # --- tables

    def add_message(
        self, table: str, message: bytes, *, stream_id: int, epoch: int | None = None,
        meta_version: int | None = None,
    ) -> None:  # fmt: skip
        """Adds a message about a stream to `metadata`, `qos` or `announces`, as bytes and as JSON."""
        if table not in _MESSAGE_TABLES:
            raise KeyError(f"{table!r} is not a table of messages; they are {', '.join(_MESSAGE_TABLES)}")
        kind, text = "unknown", None
        try:
            decoded = decode_message(message)
            kind, text = type(decoded).__name__, json.dumps(json_form.to_json(decoded))
        except ValueError:
            pass
        row: MessageTableRow = {
            "receive_time_ns": self._clock.wall_ns(), "stream_id": stream_id,
            "epoch": None if epoch is None else layout.signed(epoch), "meta_version": meta_version,
            "kind": kind, "message": message, "json": text,
        }  # fmt: skip
        with self._lock:
            self._check_open()
            self._tables.add(table, row)

    def discard_messages(self) -> int:
        """Forgets the messages that were not written yet; returns their number."""
        with self._lock:
            return self._tables.discard((*_MESSAGE_TABLES, "events"))

    def add_event(self, message: bytes, kind: str) -> None:
        """Adds an event of the services' status stream to `events`, as bytes and as JSON. `kind` says what it
        is in the record of accepted commands. Raises CodecError for any other message."""
        event = EventMessage.decode(message)
        row: EventTableRow = {
            "receive_time_ns": self._clock.wall_ns(), "time_ns": layout.signed(event.timestamp_ns),
            "tag": event.tag, "key": event.key, "kind": kind, "correlation_id": event.correlation_id,
            "trace_id": None if event.trace_id is None else layout.signed(event.trace_id),
            "message": message, "json": json.dumps(json_form.to_json(event)),
        }  # fmt: skip
        with self._lock:
            self._check_open()
            self._tables.add("events", row)

    def mark(self, label: str, *, stream_id: int | None = None) -> None:
        """Adds a label with the present time."""
        with self._lock:
            self._check_open()
            self._tables.add(
                "marks", {"time_ns": self._clock.wall_ns(), "stream_id": stream_id, "label": label}
            )

    def _add_anchor(self) -> None:
        if (row := self._anchors.next_row(self._clock)) is not None:
            self._tables.add("anchors", row)

    # --- flush, sync, seal

    def flush(self) -> None:
        """Writes all frames and rows to the files: they survive a crash of this process."""
        with self._lock:
            for stream in self._streams.values():
                self._flush(stream)
            self._flush_tables()

    def _flush_tables(self) -> None:
        self._tables.flush(skip=_MESSAGE_TABLES if self.holds_messages else ())

    def sync(self) -> None:
        """Makes everything before the call durable."""
        self.flush()
        self._sync_segments()

    def rotate(self, stream_id: int | None = None) -> None:
        """Ends the open segment of a stream, or of all streams. The next frame begins a new segment."""
        with self._lock:
            for stream in self._streams.values():
                if stream_id in (None, stream.stream_id):
                    self._flush(stream)
                    self._end_segment(stream)

    def tick(self) -> None:
        """Does what is due: writes waiting frames, ends old segments, adds anchors, syncs, seals."""
        now, limits = self._clock.monotonic_ns(), self.limits
        with self._lock:
            self._add_anchor()
            for stream in self._streams.values():
                if len(stream.builder) and now - stream.builder.oldest_ns >= limits.sync_ns // 2:
                    self._flush(stream)
                if stream.segment is not None and now - stream.opened_ns >= limits.segment_ns:
                    self._end_segment(stream)
            self._flush_tables()
        self._sync_segments()

    def _end_segment(self, stream: StreamWriter) -> None:
        if stream.segment is None:
            return
        segment, stream.segment = stream.segment, None
        self._to_seal.append(segment)
        if self._thread is None:
            self._seal_ended()

    def _sync_segments(self) -> None:
        with self._lock:
            open_segments = [stream.segment for stream in self._streams.values() if stream.segment]
        with self._disk_lock:
            for segment in open_segments:
                segment.sync()
            self._tables.sync()
        self._seal_ended()

    def _seal_ended(self) -> None:
        with self._disk_lock:
            while self._to_seal:
                segment = self._to_seal.popleft()
                try:
                    segment.seal()
                except BaseException:
                    segment.abandon()
                    raise
                kind = RecordKind.SEALED if segment.stats.rows else RecordKind.REMOVED
                self._to_list.append(manifest.make_record(kind, segment.name, segment.stats))
            while self._to_list:
                # Stays queued if the disk is full: the file is sealed already, and readers find it.
                manifest_store.append(self.root, self._to_list[0])
                self._to_list.popleft()

    def _run(self) -> None:
        while not self._stop.wait(self.limits.sync_ns / 2e9):
            try:
                self.tick()
            except RecordingError as error:
                self._failure = error
            except Exception as error:
                # Raised by the next call of the writer. This thread must continue to sync.
                self._failure = RecordingError(f"{self.root}: {error!r}", path=self.root)
            else:
                # The failed work succeeded this time: nothing is lost, so nothing is raised.
                self._failure = None

    def close(self) -> None:
        """Writes waiting frames, seals all segments, releases all streams. Then raises the first error."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        errors: list[Exception] = [self._failure] if self._failure is not None else []
        for stream in self._streams.values():
            for step in (lambda: self._flush(stream), lambda: self._end_segment(stream)):  # noqa: B023
                _attempt(step, errors)
        _attempt(self._seal_ended, errors)
        _attempt(self._tables.close, errors)
        for segment in self._to_seal:
            segment.abandon()
        for stream in self._streams.values():
            if stream.segment is not None:
                stream.segment.abandon()
            stream.release()
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except (RecordingError, OSError):
            # An error that ended the block is the cause of this one, and is raised instead.
            if exc is None:
                raise


def _attempt(step: Any, errors: list[Exception]) -> None:
    try:
        step()
    except (RecordingError, OSError) as error:
        errors.append(error)
