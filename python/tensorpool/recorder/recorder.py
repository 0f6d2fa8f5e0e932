"""`Recorder`: a recording that is being made, as programs and the command line hold it."""

from __future__ import annotations

import atexit
import logging
import os
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from ..context import Context
from ..errors import ClosedError, ForkedError
from ..recording import RecordingLedger, RecoveredSegment
from ..runtime.idle import IdleStrategy
from ..runtime.process import Readiness
from ..runtime.runner import Runner
from .agent import RecorderAgent
from .config import RecorderSettings
from .service import RecorderService
from .state import RecorderStats

_LOG = logging.getLogger(__name__)
_recording: set[Recorder] = set()


class _NoIdle(IdleStrategy):
    """A turn waits for arenas itself."""

    def idle(self, work: int) -> None:
        pass


class Recorder:
    """Records until closed. Make one with `tensorpool.record(...)` or `context.record(...)`.

    with tp.record("recording", streams=[10000]) as recorder:
        ...
        recorder.mark("the light goes on")
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
        """`serve`: others can steer it as `service:recorder`."""
        self._closing = ExitStack()
        if owns_context:
            self._closing.callback(context.close)
        self._is_closed = False
        try:
            self._agent = RecorderAgent(context, settings, frames=frames)
            self._runner = Runner(self._agent, idle=_NoIdle(), readiness=readiness)
            try:
                self._runner.start()
            except BaseException:
                self._agent.on_close()
                raise
            # Last in, first out: the service, then the recording, then the connection.
            self._closing.callback(self._runner.close)
            if serve:
                service = RecorderService(self._agent, instance=settings.instance or None)
                self._closing.enter_context(context.serve(service))
        except BaseException:
            self._closing.close()
            raise
        _recording.add(self)

    @property
    def root(self) -> str:
        """The directory of the recording."""
        return str(self._agent.root)

    @property
    def is_finished(self) -> bool:
        """Whether the number of frames that was asked for is written."""
        return self._agent.is_finished

    def mapped(self) -> dict[int, int | None]:
        """The epoch of each stream that it reads at the moment; None while its producer was not heard."""
        return self._agent.mapped()

    @property
    def recovered(self) -> list[RecoveredSegment]:
        """What an earlier recorder had left open, and what of it was torn."""
        return self._agent.recovered

    def start(self) -> None:
        """Goes on after `stop`; what came meanwhile is a gap of the reason `not_recording`."""
        self._agent.ask(self._agent.start)

    def stop(self) -> None:
        """Writes and seals what is there, and lets go of the streams until `start`."""
        self._agent.ask(self._agent.stop)

    def rotate(self) -> None:
        """Ends the open segments; the next frame of each stream begins a new one."""
        self._agent.ask(self._agent.rotate)

    def mark(self, label: str, *, stream_id: int | None = None) -> None:
        """Puts a label at this moment."""
        self._agent.ask(lambda: self._agent.mark(label, stream_id))

    def trigger(self, seconds: float | None = None) -> None:
        """Writes what is kept of the past and what comes, for `seconds` or for good."""
        for_ns = None if seconds is None else int(seconds * 1e9)
        self._agent.ask(lambda: self._agent.trigger(for_ns))

    def stats(self) -> RecorderStats:
        """How it is doing, a quarter of a second ago at most."""
        self._agent.check_home()
        return self._agent.stats

    def ledger(self) -> list[RecordingLedger]:
        """What was written since the start, by stream and epoch: span = rows + gaps."""
        if self._is_closed:
            return self._agent.ledgers()
        try:
            return self._agent.ask(self._agent.ledgers)
        except ClosedError:
            return self._agent.ledgers()

    def close(self) -> None:
        """Writes everything that is there, seals it, and lets go. Raises what the disk said, if it did."""
        if self._is_closed:
            return
        self._agent.check_home()
        self._is_closed = True
        _recording.discard(self)
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the block belongs to the parent: there is nothing to close.
        with suppress(ForkedError):
            try:
                self.close()
            except Exception:
                # The error that ended the block says more than what closing made of it.
                if exc is None:
                    raise
                _LOG.exception("the recorder could not be closed in good order")


@atexit.register
def _close_all() -> None:
    """A program that ends without closing seals what it has: before its contexts are closed, which were there
    first."""
    for recorder in list(_recording):
        try:
            recorder.close()
        except Exception:
            _LOG.exception("the recorder could not be closed in good order")


# A forked child has nothing to close at its exit: all of it is the parent's.
os.register_at_fork(after_in_child=_recording.clear)
