"""Ctrl-C in the demo: the first one asks for an early end with the ledger, a second one breaks off."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# A closed terminal too: it must not leave memory behind.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Hurry:
    """Whether somebody wants the end."""

    def __init__(self) -> None:
        self.asked = False
        self._is_closing = False

    def __bool__(self) -> bool:
        return self.asked

    def on_signal(self, *_: Any) -> None:
        # Cleaning up is not broken off: it takes a moment, and leaves nothing behind.
        if self._is_closing:
            return
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def closing(self) -> None:
        """From here on nothing is interrupted."""
        self._is_closing = True


@contextmanager
def hurry() -> Iterator[Hurry]:
    """Handles signals that end programs, for the block; what nohup has turned off stays off."""
    asked = Hurry()
    wanted = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, asked.on_signal) for number in wanted}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
