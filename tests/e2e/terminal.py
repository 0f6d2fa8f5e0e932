"""A pseudo-terminal that runs a command: keyboard input and the content of the screen."""

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

TIMEOUT_S = 60


class Terminal:
    """A terminal of 80 x 24 characters by default."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        """Changes the size."""
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def send(self, keys: bytes) -> None:
        """Types keys."""
        os.write(self.master, keys)

    @property
    def text(self) -> str:
        """Content of the screen."""
        return "\n".join(self.screen.display)

    def read(self, seconds: float = 0.05) -> None:
        """Reads the output of the command, waiting at most this long."""
        while select.select([self.master], [], [], seconds)[0]:
            try:
                received = os.read(self.master, 65536)
            except OSError:
                return
            self.raw += received
            self._stream.feed(received)
            seconds = 0.0

    def wait_for(self, shown: str | Callable[[str], object]) -> str:
        """Waits until the screen shows a text or satisfies a predicate; returns its content."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            self.read()
            if shown(self.text) if callable(shown) else shown in self.text:
                return self.text
        raise AssertionError(f"the screen did not show {shown!r}:\n{self.text}")

    def attributes(self) -> list[int]:
        """Mode flags of the terminal: echo, canonical input, …"""
        attributes = termios.tcgetattr(self.slave)
        return [flag for flag in attributes[:4] if isinstance(flag, int)]

    def close(self) -> None:
        """Closes both ends."""
        os.close(self.master)
        os.close(self.slave)


@contextmanager
def in_terminal(
    *arguments: str, env: dict[str, str], columns: int = 80, lines: int = 24
) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    """Runs `tensorpool …` in a terminal and kills it at the end of the block."""
    terminal = Terminal(columns, lines)
    environment = {**env, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "COLORTERM"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorpool", *arguments],
        stdin=terminal.slave,
        stdout=terminal.slave,
        stderr=terminal.slave,
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
    """Waits for the end and returns the exit status. Reads the output, which could block the command."""
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        terminal.read()
    terminal.read()
    assert process.returncode is not None, terminal.text
    return process.returncode


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGINT, as Ctrl-C in a shell does."""
    process.send_signal(signal.SIGINT)
