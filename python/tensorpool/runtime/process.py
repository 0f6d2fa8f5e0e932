"""Telling the outside that a role is up: a file, and systemd's notifications where it listens.

Belongs to the thread that runs the role. Nothing here ever ends it: who cannot be told is not told.

Signals of a process, as requests to its loop: a handler only sets a flag.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..durable import replace_file
from ..errors import ConfigError

_LOG = logging.getLogger(__name__)


class Readiness:
    """`ready()` once the role can be used, `alive()` between its turns, `stopping()` when it ends.

    The file holds the process id, appears whole, and goes when the role stops. What a killed
    predecessor left is removed at `starting()`; the file of a living one is left alone.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._path = path
        self._clock = clock
        self._notify = _Notifier(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog_ns = _watchdog_period_ns(environ)
        self._next_alive_ns = 0
        self.is_ready = False

    def starting(self) -> None:
        """Before the role starts. Raises ConfigError where the file could never be written."""
        if self._path is None:
            return
        if not self._path.parent.is_dir():
            raise ConfigError(f"ready file {self._path}: there is no directory {self._path.parent}")
        holder = _pid_in(self._path)
        if holder is None or holder == os.getpid() or not is_alive(holder):
            self._path.unlink(missing_ok=True)

    def ready(self, status: str = "") -> None:
        if self.is_ready:
            return
        self.is_ready = True
        if self._path is not None:
            self._write(self._path)
        self._notify("READY=1", *([f"STATUS={status}"] if status else []))

    def reloading(self) -> None:
        """Follow it with `reloaded()`: systemd waits for that."""
        self._notify("RELOADING=1", f"MONOTONIC_USEC={self._clock.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        self._notify("READY=1")

    def alive(self) -> None:
        """Feeds systemd's watchdog, at twice the pace that it asks for. Cheap to call every turn."""
        if self._watchdog_ns and (now := self._clock.monotonic_ns()) >= self._next_alive_ns:
            self._next_alive_ns = now + self._watchdog_ns // 2
            self._notify("WATCHDOG=1", patience=0)

    def stopping(self) -> None:
        self._notify("STOPPING=1")
        # Only what we wrote ourselves: the file may be someone else's by now.
        if self._path is not None and self.is_ready and _pid_in(self._path) == os.getpid():
            self._path.unlink(missing_ok=True)
        self.is_ready = False

    def _write(self, path: Path) -> None:
        # A reader must never see it half-written. Not synced: it means nothing after a restart of the host.
        try:
            replace_file(path, f"{os.getpid()}\n".encode(), sync=False)
        except OSError as error:
            _LOG.error("cannot write the ready file %s: %s", path, error.strerror or error)


class _Notifier:
    def __init__(self, address: str) -> None:
        # A leading @ stands for the NUL of Linux's abstract namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_usable = address.startswith(("/", "@"))

    def __call__(self, *lines: str, patience: float = 1.0) -> None:
        if not self._is_usable:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                # A full queue of a stuck listener must not hold the role up for long.
                out.settimeout(patience)
                out.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _LOG.warning("cannot notify %r: %s", self._address, error.strerror or error)


def _watchdog_period_ns(environ: Mapping[str, str]) -> int:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0
    period = environ.get("WATCHDOG_USEC", "")
    return int(period) * 1000 if period.isdecimal() else 0


def _pid_in(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) else None


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


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
