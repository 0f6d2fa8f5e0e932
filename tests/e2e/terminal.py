"""A terminal of the test's own: a command in it, keys to it, the screen as a person would see it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyte

PATIENCE_S = 60


class Terminal:
    """80 x 24, unless it is made another size."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.end, self.theirs = pty.openpty()
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def send(self, keys: bytes) -> None:
        os.write(self.end, keys)

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def read(self, seconds: float = 0.05) -> None:
        while select.select([self.end], [], [], seconds)[0]:
            try:
                received = os.read(self.end, 65536)
            except OSError:
                return
            self.raw += received
            self._stream.feed(received)
            seconds = 0.0

    def wait_for(self, shown: str | Callable[[str], object]) -> str:
        """The screen, once it shows these words."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.read()
            if shown(self.text) if callable(shown) else shown in self.text:
                return self.text
        raise AssertionError(f"{shown!r} was not shown:\n{self.text}")

    def attributes(self) -> list[int]:
        """How the terminal is set: echo, line by line, …"""
        found = termios.tcgetattr(self.theirs)
        return [flag for flag in found[:4] if isinstance(flag, int)]

    def close(self) -> None:
        os.close(self.end)
        os.close(self.theirs)


@contextmanager
def in_terminal(
    *arguments: str, env: dict[str, str], columns: int = 80, lines: int = 24
) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    """`tensorpool …` in a terminal; it is gone at the end, whatever happens."""
    terminal = Terminal(columns, lines)
    environment = {**env, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "COLORTERM"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorpool", *arguments],
        stdin=terminal.theirs,
        stdout=terminal.theirs,
        stderr=terminal.theirs,
        env=environment,
        start_new_session=True,
    )
    try:
        yield terminal, process
    finally:
        process.kill()
        process.wait()
        terminal.close()


def ended(terminal: Terminal, process: subprocess.Popen[bytes]) -> int:
    """Its exit status; what it still prints is read, lest it waits for that."""
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        terminal.read()
    terminal.read()
    assert process.returncode is not None, terminal.text
    return process.returncode


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, as the terminal of a shell would send it."""
    process.send_signal(signal.SIGINT)
