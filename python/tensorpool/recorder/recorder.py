"""`Recorder`: the handle of a running recording, for programs and for the command line."""

from __future__ import annotations

import atexit
import logging
import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from ..context import Context
from ..errors import ClosedError, ForkedError
from ..recording import RecordingLedger, RecoveredSegment
from ..runtime.agent import IdleStrategy
from ..runtime.runner import Readiness, Runner
from .agent import RecorderAgent
from .config import RecorderSettings
from .service import RecorderService
from .state import RecorderStats

__all__ = ["Recorder", "RecorderStats"]

_LOG = logging.getLogger(__name__)
_open_recorders: set[Recorder] = set()


class _NoIdle(IdleStrategy):
    """No wait between duty cycles: the agent waits for arenas inside of them."""

    def idle(self, work: int) -> None:
        """Return at once."""


class Recorder:
    """A running recorder.

    Create it with `tensorpool.record(...)` or `context.record(...)`:

        with tp.record("recording", streams=[10000]) as recorder:
            ...
            recorder.mark("light on")
        print(recorder.ledger())
    """

    def __init__(
        self,
        context: Context,
        settings: RecorderSettings,
        *,
        frames: int | None = None,
        serve: bool = True,
        owns_context: bool = False,
        readiness: Readiness | None = None,
    ) -> None:
        """`serve`: publish `service:recorder`, through which other programs can control the recorder."""
        self._closing = ExitStack()
        if owns_context:
            self._closing.callback(context.close)
        self._is_closed = False
        try:
            ids = tuple(context.find_stream(stream) for stream in settings.streams)
            self._agent = RecorderAgent(context, replace(settings, streams=ids), frames=frames)
            self._runner = Runner(self._agent, idle=_NoIdle(), readiness=readiness)
            try:
                self._runner.start()
            except BaseException:
                self._agent.on_close()
                raise
            # Closed in reverse order: the service, then the recording, then the context.
            self._closing.callback(self._runner.close)
            if serve:
                service = RecorderService(self._agent, instance=settings.instance or None)
                self._closing.enter_context(context.serve(service))
        except BaseException:
            self._closing.close()
            raise
        _open_recorders.add(self)

    def __repr__(self) -> str:
        if self._is_closed:
            return f"<Recorder {self.root} closed>"
        stats = self._agent.stats
        streams = ", ".join(map(str, stats.streams))
        return f"<Recorder {self.root} {stats.state} streams=[{streams}] frames={stats.rows}>"

    @property
    def root(self) -> str:
        """The directory of the recording."""
        return str(self._agent.root)

    @property
    def is_finished(self) -> bool:
        """Whether the requested number of frames is written."""
        return self._agent.is_finished

    def mapped(self) -> dict[int, int | None]:
        """The mapped epoch of each recorded stream; None while no announce of its producer was received."""
        return self._agent.mapped()

    @property
    def recovered(self) -> list[RecoveredSegment]:
        """Segments that an earlier recorder left open, and the bytes of them that were torn."""
        return self._agent.recovered

    def start(self) -> None:
        """Continue after `stop`; frames published in between are a gap with the reason `not_recording`.

        Not those of them that the stream's ring still holds and a reader has yet to take: they may be rows.
        """
        self._agent.call(self._agent.start)

    def stop(self) -> None:
        """Write all received frames, seal the segments and close the streams until `start`."""
        self._agent.call(self._agent.stop)

    def rotate(self) -> None:
        """Seal the open segments; the next frame of each stream begins a new segment."""
        self._agent.call(self._agent.rotate)

    def mark(self, label: str, *, stream_id: int | None = None) -> None:
        """Write a label with the current time, for one stream or for all."""
        self._agent.call(lambda: self._agent.mark(label, stream_id))

    def trigger(self, seconds: float | None = None) -> None:
        """Write the pre-trigger buffer and all frames from now on, for `seconds` or without end."""
        for_ns = None if seconds is None else int(seconds * 1e9)
        self._agent.call(lambda: self._agent.trigger(for_ns))

    def stats(self) -> RecorderStats:
        """State, counts and rates; at most a quarter of a second old."""
        self._agent.check_process()
        return self._agent.stats

    def ledger(self) -> list[RecordingLedger]:
        """The ledger since the start, by stream and epoch: span = rows + gaps."""
        if self._is_closed:
            return self._agent.ledgers()
        try:
            return self._agent.call(self._agent.ledgers)
        except ClosedError:
            return self._agent.ledgers()

    def close(self) -> None:
        """Write all received frames, seal the segments, close the streams. Raises a failed write."""
        if self._is_closed:
            return
        self._agent.check_process()
        self._is_closed = True
        _open_recorders.discard(self)
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the recorder belongs to the parent: there is nothing to close.
        with suppress(ForkedError):
            try:
                self.close()
            except Exception:
                # The error that ended the block is the cause; an error of closing would hide it.
                if exc is None:
                    raise
                _LOG.exception("closing the recorder failed")


@atexit.register
def _close_all() -> None:
    """Close recorders at exit, so that their segments are sealed.

    Contexts register earlier and are therefore closed later.
    """
    for recorder in list(_open_recorders):
        try:
            recorder.close()
        except Exception:
            _LOG.exception("closing the recorder failed")


# A forked child has nothing to close at its exit: all recorders belong to the parent.
os.register_at_fork(after_in_child=_open_recorders.clear)
