"""Keys of a terminal: the decoder of their byte sequences (pure), and the keyboard that reads them.

A key is the character itself, or one of the names below. Sequences may arrive in parts.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Final, Self

UP, DOWN, PAGE_UP, PAGE_DOWN, TO_START, TO_END = "up", "down", "page up", "page down", "home", "end"
ENTER, ESCAPE, BACKSPACE, TAB, BACK_TAB, INTERRUPT = (
    "enter",
    "escape",
    "backspace",
    "tab",
    "back tab",
    "interrupt",
)

_ESC, _CR, _LF, _DEL, _BS, _HT, _ETX, _SPACE = b"\x1b\r\n\x7f\b\t\x03 "
_SINGLE: Final = {_CR: ENTER, _LF: ENTER, _DEL: BACKSPACE, _BS: BACKSPACE, _HT: TAB, _ETX: INTERRUPT}
# What follows ESC in the sequence of a key (ECMA-48): a control sequence with parameters and a final byte, or
# one character.
_CONTROL_SEQUENCE, _SINGLE_SHIFT = b"[O"
_FINAL_BYTES: Final = range(0x40, 0x7F)
_PARAMETER_BYTES: Final = range(0x20, 0x40)
# The first bytes of UTF-8 characters of two, three and four bytes.
_UTF8_LEADS: Final = {2: range(0xC2, 0xE0), 3: range(0xE0, 0xF0), 4: range(0xF0, 0xF5)}
_FIRST_NOT_ASCII: Final = 0x80
_SEQUENCES: Final = {
    b"[A": UP, b"[B": DOWN, b"[5~": PAGE_UP, b"[6~": PAGE_DOWN, b"[H": TO_START, b"[F": TO_END,
    b"[1~": TO_START,
    b"[4~": TO_END, b"[Z": BACK_TAB, b"OA": UP, b"OB": DOWN, b"OH": TO_START, b"OF": TO_END, b"OM": ENTER,
}  # fmt: skip
_MAX_SEQUENCE: Final = 32
_MAX_READ: Final = 1024
_SETTLE_S: Final = 0.05
"""How long the rest of a sequence may take."""


class KeyDecoder:
    """Turns the bytes of a terminal into keys."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[str]:
        """The keys that are complete with these bytes."""
        self._rest += received
        keys: list[str] = []
        while self._rest:
            length, key = _first(self._rest)
            if length == 0:
                break
            self._rest = self._rest[length:]
            if key:
                keys.append(key)
        return keys

    @property
    def is_waiting(self) -> bool:
        """Whether a sequence is incomplete."""
        return bool(self._rest)

    @property
    def waiting_bytes(self) -> int:
        """Length of the incomplete sequence."""
        return len(self._rest)

    def settle(self) -> list[str]:
        """Ends an incomplete sequence: a lone ESC is the key itself, anything else is discarded."""
        was_escape, self._rest = self._rest == bytes([_ESC]), b""
        return [ESCAPE] if was_escape else []


def _first(received: bytes) -> tuple[int, str]:
    """Length and name of the first key; no name for unknown bytes, length 0 if more bytes are needed."""
    first = received[0]
    if first == _ESC:
        return _sequence(received)
    if first in _SINGLE:
        return 1, _SINGLE[first]
    if first < _SPACE:
        return 1, ""
    if first < _FIRST_NOT_ASCII:
        length = 1
    else:
        length = next((size for size, leads in _UTF8_LEADS.items() if first in leads), 0)
    if length == 0:
        # Not the first byte of a character.
        return 1, ""
    if len(received) < length:
        return 0, ""
    try:
        return length, received[:length].decode()
    except UnicodeDecodeError:
        return 1, ""


def _sequence(received: bytes) -> tuple[int, str]:
    if len(received) < 2:
        return 0, ""
    kind = received[1]
    if kind == _ESC:
        return 1, ESCAPE
    if kind not in (_CONTROL_SEQUENCE, _SINGLE_SHIFT):
        # Alt and a key, which is not the key alone.
        return 2, ""
    if kind == _SINGLE_SHIFT:
        return (0, "") if len(received) < 3 else (3, _SEQUENCES.get(received[1:3], ""))
    for index, byte in enumerate(received[2:_MAX_SEQUENCE], start=2):
        if byte in _FINAL_BYTES:
            return index + 1, _SEQUENCES.get(received[1 : index + 1], "")
        if byte not in _PARAMETER_BYTES:
            return index, ""
    return (0, "") if len(received) < _MAX_SEQUENCE else (_MAX_SEQUENCE, "")


class Keyboard:
    """Reads the keys of a terminal without echo; restores the terminal's settings at the end."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._fd = sys.stdin.fileno() if descriptor is None else descriptor
        self._decoder = KeyDecoder()
        self._before = termios.tcgetattr(self._fd)
        self.is_gone = False

    def keys(self, timeout: float) -> list[str]:
        """The keys pressed; waits at most `timeout` seconds for the first."""
        if not self._is_ready(max(0.0, timeout)):
            return []
        keys = self._read()
        # The sequence of an arrow key begins with ESC: only the following bytes distinguish the two.
        while self._decoder.is_waiting and not self.is_gone:
            if not self._is_ready(_SETTLE_S):
                return keys + self._decoder.settle()
            keys += self._read()
        return keys

    def _is_ready(self, timeout: float) -> bool:
        return bool(select.select([self._fd], [], [], timeout)[0])

    def _read(self) -> list[str]:
        try:
            received = os.read(self._fd, _MAX_READ)
        except OSError:
            received = b""
        # No bytes: the terminal has gone.
        self.is_gone = not received
        return self._decoder.feed(received)

    def __enter__(self) -> Self:
        # Ctrl-C stays a signal: it works however busy the loop is.
        tty.setcbreak(self._fd, termios.TCSANOW)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A terminal that has gone has no settings to restore.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
