"""`tensorpool driver run` in a process of its own: started, ended, and looked at from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import tensorpool as tp

from .pair import MeasurementFailed

_PATIENCE_S = 60.0
_LOOK_S = 0.001
# `clock_getcpuclockid` in the kernel's own encoding: all threads of a process, in nanoseconds.
_CPU_CLOCK = 2


def media_driver_dir(directory: str) -> str:
    return f"{directory}/aeron"


def media_driver(directory: str) -> tp.MediaDriver:
    """Beside the driver: what is measured of that is its own work, and the two end separately."""
    return tp.MediaDriver(media_driver_dir(directory))


class DriverProcess:
    """The driver of one measurement. Ends with the block, and can be started again within it."""

    def __init__(
        self, directory: str, *, role: str = "driver", config: Path | None = None, **settings: str
    ) -> None:
        """Starts it; `wait_ready` says when it is there. Settings by their names: `driver__nslots`. Another
        role than the driver, a registry say, is handled in the same way."""
        self._directory = directory
        self._ready_file = Path(directory, "driver.ready")
        self._log_file = Path(directory, "driver.log")
        places = {
            "aeron.dir": media_driver_dir(directory),
            "aeron.media_driver": "external",
            "shm.base_dir": directory,
        }
        chosen = places | {name.replace("__", "."): value for name, value in settings.items()}
        options = [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
        options += [] if config is None else ["--config", str(config)]
        self._command = [sys.executable, "-m", "tensorpool", role, "run", *options]
        self._command += ["--ready-file", str(self._ready_file)]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                self._command,
                # Marks and locks of a measurement go where the rest of it goes.
                env=os.environ | {"XDG_STATE_HOME": self._directory},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> int:
        """When it was, in nanoseconds of the monotonic clock."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise MeasurementFailed(f"the driver did not start: {self._last_words()}")
            time.sleep(_LOOK_S)
        return time.monotonic_ns()

    def _is_ready(self) -> bool:
        # A killed one leaves its file behind.
        try:
            return self._ready_file.read_text("ascii").strip() == str(self.pid)
        except FileNotFoundError:
            return False

    def _last_words(self) -> str:
        return (self._log_file.read_text("utf-8", errors="replace").splitlines() or ["it said nothing"])[-1]

    def restart(self, how: signal.Signals) -> None:
        """Ends it and starts it again at once; `wait_ready` says when it is back."""
        self.end(how)
        self._process = self._start()

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends it and waits until it is gone. An orderly end has to succeed."""
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            status = self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise MeasurementFailed(f"the driver did not end after {how.name}") from None
        if how is signal.SIGTERM and status != 0:
            raise MeasurementFailed(f"the driver ended with status {status}: {self._last_words()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What went wrong before is not hidden by what goes wrong now.
        with contextlib.nullcontext() if exc is None else contextlib.suppress(MeasurementFailed):
            self.end()


@contextlib.contextmanager
def running(directory: str, **settings: str) -> Iterator[DriverProcess]:
    """A driver that is ready, on a media driver of its own."""
    with media_driver(directory), DriverProcess(directory, config=None, **settings) as driver:
        driver.wait_ready()
        yield driver


# --- seen from outside


def cpu_ns(pid: int) -> int:
    """Processor time that a process has used so far."""
    return time.clock_gettime_ns((~pid << 3) | _CPU_CLOCK)


def resident_bytes(pid: int, directory: str) -> int:
    """Without the media driver's logs: of those, every page that a message went through stays resident."""
    logs, counts, total = media_driver_dir(directory), True, 0
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as file:
        for line in file:
            name, *rest = line.split()
            if not name.endswith(":"):
                # A range of addresses, and what is mapped there.
                counts = logs not in line
            elif name == "Rss:" and counts:
                total += int(rest[0]) * 1024
    return total


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
