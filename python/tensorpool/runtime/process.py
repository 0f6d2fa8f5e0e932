"""Readiness of a role (ready file and systemd notifications), and the signals of its process.

Belongs to the thread that runs the role. Errors of a notification are logged and never end the role. Signal
handlers only set a flag for the runner's loop.
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
from ..shm.epoch_files import is_alive

_LOG = logging.getLogger(__name__)


class Readiness:
    """Reports the state of a role: `ready()`, then `alive()` between its duty cycles, then `stopping()`.

    The file has the process id. It is created atomically and removed when the role stops. `starting()`
    removes the file of a dead process and keeps the file of a live one.
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
        """Prepares the file before the role starts. Raises ConfigError if its directory is missing."""
        if self._path is None:
            return
        if not self._path.parent.is_dir():
            raise ConfigError(
                f"ready file {self._path}: there is no directory {self._path.parent}; create it, or change "
                "runtime.ready_file"
            )
        holder = _pid_in(self._path)
        if holder is None or holder == os.getpid() or not is_alive(holder):
            self._path.unlink(missing_ok=True)

    def ready(self, status: str = "") -> None:
        """Writes the file and notifies systemd, once."""
        if self.is_ready:
            return
        self.is_ready = True
        if self._path is not None:
            self._write(self._path)
        self._notify("READY=1", *([f"STATUS={status}"] if status else []))

    def reloading(self) -> None:
        """Reports the start of a reload. systemd waits for `reloaded()`."""
        self._notify("RELOADING=1", f"MONOTONIC_USEC={self._clock.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """Reports the end of a reload."""
        self._notify("READY=1")

    def alive(self) -> None:
        """Notifies systemd's watchdog twice per watchdog period. Cheap enough for every duty cycle."""
        if self._watchdog_ns and (now := self._clock.monotonic_ns()) >= self._next_alive_ns:
            self._next_alive_ns = now + self._watchdog_ns // 2
            self._notify("WATCHDOG=1", timeout_s=0)

    def stopping(self) -> None:
        """Notifies systemd and removes the file."""
        self._notify("STOPPING=1")
        # Another process may have replaced the file: only a file with our process id is removed.
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
    """Sends state changes to systemd's notification socket, where there is one."""

    def __init__(self, address: str) -> None:
        # A leading @ is the NUL of Linux's abstract socket namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_usable = address.startswith(("/", "@"))

    def __call__(self, *lines: str, timeout_s: float = 1.0) -> None:
        if not self._is_usable:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                # A full socket queue must not block the role for long.
                out.settimeout(timeout_s)
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


class Signals:
    """Signal handlers of a `with` block: SIGTERM and SIGINT call `stop`, SIGHUP calls `hangup` if given.

    A second SIGINT has the effect from before the block (it interrupts), for an orderly stop that takes too
    long. Outside the main thread, where Python allows no handlers, the block changes nothing.
    """

    def __init__(self, *, stop: Callable[[], None], hangup: Callable[[], None] | None = None) -> None:
        self._stop = stop
        self._hangup = hangup
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._install(signal.SIGTERM, self._on_stop)
            self._install(signal.SIGINT, self._on_stop)
            if self._hangup is not None:
                self._install(signal.SIGHUP, self._on_hangup)
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

    def _install(self, number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> None:
        before = signal.signal(number, handler)
        # None is a handler that was not set from Python; Python cannot restore it.
        self._before[number] = signal.SIG_DFL if before is None else before

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        self._stop()
        if number == signal.SIGINT:
            signal.signal(number, self._before[signal.SIGINT])

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        if self._hangup is not None:
            self._hangup()
