"""Signals of a process, as requests to its loop: a handler only sets a flag."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class Signals:
    """Inside the `with` block SIGTERM and SIGINT call `stop`, SIGHUP calls `hangup` where given.

    A second SIGINT does what it did before the block (it interrupts): the way out if an orderly stop
    takes too long. Does nothing outside the main thread, where Python allows no handlers.
    """

    def __init__(self, *, stop: Callable[[], None], hangup: Callable[[], None] | None = None) -> None:
        self._stop = stop
        self._hangup = hangup
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._take(signal.SIGTERM, self._on_stop)
            self._take(signal.SIGINT, self._on_stop)
            if self._hangup is not None:
                self._take(signal.SIGHUP, self._on_hangup)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _take(self, number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> None:
        before = signal.signal(number, handler)
        # None stands for a handler that was not set from Python, and cannot be put back.
        self._before[number] = signal.SIG_DFL if before is None else before

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        self._stop()
        if number == signal.SIGINT:
            signal.signal(number, self._before[signal.SIGINT])

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        if self._hangup is not None:
            self._hangup()
