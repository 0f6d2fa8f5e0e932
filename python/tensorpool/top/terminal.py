"""The keyboard of a terminal: every key at once, none of them shown."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Final, Self

from .keys import KeyDecoder

_SETTLE_S: Final = 0.05
_MOST: Final = 1024


class Keyboard:
    """Reads keys while it is open; puts the terminal back as it was."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._fd = sys.stdin.fileno() if descriptor is None else descriptor
        self._decoder = KeyDecoder()
        self._before = termios.tcgetattr(self._fd)
        self.is_gone = False

    def keys(self, timeout: float) -> list[str]:
        """What was pressed; waits at most so long for the first one."""
        if not self._is_ready(max(0.0, timeout)):
            return []
        found = self._read()
        # An arrow begins with the byte of the key ESC: only what follows, or does not, tells them apart.
        while self._decoder.is_waiting and not self.is_gone:
            if not self._is_ready(_SETTLE_S):
                return found + self._decoder.settle()
            found += self._read()
        return found

    def _is_ready(self, timeout: float) -> bool:
        return bool(select.select([self._fd], [], [], timeout)[0])

    def _read(self) -> list[str]:
        try:
            received = os.read(self._fd, _MOST)
        except OSError:
            received = b""
        # The line was cut: nobody will ever press anything again.
        self.is_gone = not received
        return self._decoder.feed(received)

    def __enter__(self) -> Self:
        # Ctrl-C stays a signal: it works however busy the page is.
        tty.setcbreak(self._fd, termios.TCSANOW)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A terminal that is gone has no state to put back.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
