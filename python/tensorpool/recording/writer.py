"""Writes a recording: several streams, rotation, regular syncs, tables, clock anchors.

`RecordingWriter` may be used from several threads. Its own thread syncs and seals, so that frames do not
wait for the disk; without it (`background=False`) the caller's `tick` does both.

Anchors: what the time of day and the monotonic clock showed at one moment.
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
from ..sbe import decode as decode_message
from ..sbe import json_form
from . import layout, manifest, manifest_store
from .batch import FrameBatch
from .gaps import Gap
from .layout import create_root
from .manifest import Kind
from .segment_writer import SegmentWriter
from .stream_writer import RecoveredSegment, StreamWriter
from .tables import TableWriter

_EVERY_NS: Final = 10_000_000_000
# A clock that was set, or is being slewed hard: worth an anchor of its own.
_DRIFT_NS: Final = 1_000_000


class ClockAnchors:
    """Says when one is due."""

    def __init__(self) -> None:
        self._offset_ns: int | None = None
        self._last_ns = 0

    def due(self, clock: Clock) -> dict[str, Any] | None:
        """The row of an anchor, if it is time for one."""
        wall, monotonic = clock.wall_ns(), clock.monotonic_ns()
        offset = wall - monotonic
        is_due = (
            self._offset_ns is None
            or monotonic - self._last_ns >= _EVERY_NS
            or abs(offset - self._offset_ns) >= _DRIFT_NS
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
    """When a batch, a segment and a sync are due."""

    segment_bytes: int = 256 << 20
    segment_ns: int = 60_000_000_000
    batch_bytes: int = 8 << 20
    batch_rows: int = 16_384
    sync_ns: int = 200_000_000


class RecordingWriter:
    """Adds to the recording at `root`, which is made if it is not there.

    What an earlier writer left open is recovered when its stream is first used: see `recovered`.
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
        """What was found unsealed, in the order in which streams were first used."""
        self._clock = clock
        self._holder = holder
        create_root(self.root, created_ns=clock.wall_ns())
        self._session = f"{clock.wall_ns():020}-{os.getpid()}-{secrets.token_hex(4)}"
        self._tables = TableWriter(self.root, self._session)
        self._told: set[Gap] = set()
        self._streams: dict[int, StreamWriter] = {}
        self._to_seal: deque[SegmentWriter] = deque()
        self._to_list: deque[manifest.Records] = deque()
        self._lock = threading.RLock()
        # One at a time syncs and seals; writing goes on meanwhile.
        self._disk_lock = threading.Lock()
        self._failure: RecordingError | None = None
        self._closed = False
        self._anchors = ClockAnchors()
        self._anchor()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._run, name="recording-sync", daemon=True)
            self._thread.start()

    # --- frames

    def position(self, stream_id: int) -> tuple[int, int] | None:
        """The last epoch of a stream, and the last of its sequences that is accounted for; None for neither.

        Takes the stream's lock, and recovers what an earlier writer left.
        """
        with self._lock:
            return self._stream(stream_id).position

    def write_batch(self, frames: FrameBatch, gaps: Sequence[Gap] = ()) -> None:
        """Writes frames of one stream, and gaps that became known with them. Payloads are not copied.

        Either all is written, or the error says why, and no frame is: the same batch may be offered again.
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
        """Adds one frame. It is copied, and written with others: at the latest when a sync is due."""
        tensor = np.asarray(array)
        with self._lock:
            stream = self._stream(stream_id)
            pending = stream.pending
            if len(pending) and (pending.epoch != epoch or not pending.has_room(tensor.nbytes)):
                self._flush(stream)
            wall_ns = self._clock.wall_ns()
            pending.add(
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
        """Epoch and sequence of the last frame that earlier writers left; the stream is held from now on."""
        with self._lock:
            return self._stream(stream_id).found

    def gap(self, *, stream_id: int, epoch: int, first_seq: int, count: int, reason: str) -> None:
        """Says that sequences are missing, and why. Undeclared ones are noticed, without a reason."""
        with self._lock:
            stream = self._stream(stream_id)
            self._flush(stream)
            gap = Gap(stream_id, epoch, first_seq, count, reason)
            stream.declare(gap)
            self._note_gap(gap)

    def _note_gap(self, gap: Gap) -> None:
        self._tables.add(
            "gaps",
            {
                "time_ns": self._clock.wall_ns(),
                "stream_id": gap.stream_id,
                "epoch": layout.signed(gap.epoch),
                "first_seq": layout.signed(gap.first_seq),
                "count": layout.signed(gap.count),
                "reason": gap.reason,
            },
        )

    def _write(self, stream: StreamWriter, frames: FrameBatch, gaps: Sequence[Gap] = ()) -> None:
        book = stream.book(frames.epoch)
        drafts = book.drafts()
        now = self._clock.monotonic_ns()
        limits = self.limits
        try:
            for gap in gaps:
                if (gap.stream_id, gap.epoch) != (frames.stream_id, frames.epoch):
                    raise InvalidFrames("a gap of another stream or epoch among these frames", path=self.root)
                stream.declare(gap)
            stream.check(frames)
            if stream.wants_new_segment(
                frames, segment_bytes=limits.segment_bytes, opened_before_ns=now - limits.segment_ns
            ):
                self._end_segment(stream)
                stream.open_segment(frames, now)
            # Before the rows: a kill in between would leave a hole that nobody explains. What is missing
            # stays missing, also if the rows cannot be written now, so it is said once.
            for gap in gaps:
                if gap not in self._told:
                    self._told.add(gap)
                    self._note_gap(gap)
            if self._tables.waits("gaps"):
                self._tables.flush()
            noticed = stream.write(frames, book)
        except BaseException:
            book.undo(drafts)
            raise
        self._told.clear()
        for gap in noticed:
            self._note_gap(gap)

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
        if len(stream.pending):
            frames = stream.pending.batch()
            try:
                self._write(stream, frames)
            except InvalidFrames:
                # They would not fit the next time either, and would keep all others out.
                stream.pending.clear()
                raise
            stream.pending.clear()

    # --- words beside the frames

    def note(
        self, table: str, message: bytes, *, stream_id: int, epoch: int | None = None,
        meta_version: int | None = None,
    ) -> None:  # fmt: skip
        """Keeps a message about a stream in `metadata`, `qos` or `announces`, as it came and as JSON."""
        if table not in ("metadata", "qos", "announces"):
            raise KeyError(f"{table!r} is no table of messages")
        kind, text = "unknown", None
        try:
            decoded = decode_message(message)
            kind, text = type(decoded).__name__, json.dumps(json_form.to_json(decoded))
        except ValueError:
            pass
        row = {
            "receive_time_ns": self._clock.wall_ns(), "stream_id": stream_id,
            "epoch": None if epoch is None else layout.signed(epoch), "meta_version": meta_version,
            "kind": kind, "message": message, "json": text,
        }  # fmt: skip
        with self._lock:
            self._check_open()
            self._tables.add(table, row)

    def mark(self, label: str, *, stream_id: int | None = None) -> None:
        """Puts a label at this moment."""
        with self._lock:
            self._check_open()
            self._tables.add(
                "marks", {"time_ns": self._clock.wall_ns(), "stream_id": stream_id, "label": label}
            )

    def _anchor(self) -> None:
        if (row := self._anchors.due(self._clock)) is not None:
            self._tables.add("anchors", row)

    # --- the disk

    def flush(self) -> None:
        """Hands everything to the operating system: it survives this process from here on."""
        with self._lock:
            for stream in self._streams.values():
                self._flush(stream)
            self._tables.flush()

    def sync(self) -> None:
        """Returns when everything before the call is on the disk."""
        self.flush()
        self._sync_segments()

    def rotate(self, stream_id: int | None = None) -> None:
        """Ends the open segment of a stream, or of all; the next frame begins a new one."""
        with self._lock:
            for stream in self._streams.values():
                if stream_id in (None, stream.stream_id):
                    self._flush(stream)
                    self._end_segment(stream)

    def tick(self) -> None:
        """What is due by the clock: batches that waited, segments that are old, anchors, sync, sealing."""
        now, limits = self._clock.monotonic_ns(), self.limits
        with self._lock:
            self._anchor()
            for stream in self._streams.values():
                if len(stream.pending) and now - stream.pending.since_ns >= limits.sync_ns // 2:
                    self._flush(stream)
                if stream.segment is not None and now - stream.opened_ns >= limits.segment_ns:
                    self._end_segment(stream)
            self._tables.flush()
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
                kind = Kind.SEALED if segment.stats.rows else Kind.REMOVED
                self._to_list.append(manifest.record(kind, segment.name, segment.stats))
            while self._to_list:
                # Stays in line if the disk is full: the file itself is sealed, and readers find it.
                manifest_store.append(self.root, self._to_list[0])
                self._to_list.popleft()

    def _run(self) -> None:
        while not self._stop.wait(self.limits.sync_ns / 2e9):
            try:
                self.tick()
            except RecordingError as error:
                self._failure = error
            except Exception as error:
                # Whatever it is, the next caller has to know, and syncing has to go on.
                self._failure = RecordingError(f"{self.root}: {error!r}", path=self.root)
            else:
                # What failed before was made up for: nothing is lost, so there is nothing to say.
                self._failure = None

    def close(self) -> None:
        """Writes what waits, seals every segment, lets go of the streams. The first error is raised last."""
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
            # The error that ended the block says more than what closing made of it.
            if exc is None:
                raise


def _attempt(step: Any, errors: list[Exception]) -> None:
    try:
        step()
    except (RecordingError, OSError) as error:
        errors.append(error)
