"""A `tensorpool driver run` process: start, end, and its use of memory and processor time."""

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

from .processes import MeasurementFailed

_TIMEOUT_S = 60.0
_READY_POLL_S = 0.001
# `clock_getcpuclockid` in the kernel's encoding: all threads of a process, in nanoseconds.
_CPU_CLOCK_ID = 2


def media_driver_dir(directory: str) -> str:
    """Directory of the media driver within that of the measurement."""
    return f"{directory}/aeron"


def media_driver(directory: str) -> tp.MediaDriver:
    """A media driver outside the driver's process, so that the figures and the end are the driver's alone."""
    return tp.MediaDriver(media_driver_dir(directory))


class DriverProcess:
    """The driver of one measurement. Ends with the `with` block, and can be restarted within it."""

    def __init__(
        self, directory: str, *, role: str = "driver", config: Path | None = None, **settings: str
    ) -> None:
        """Starts the process; `wait_ready` waits for it. `settings` are named like `driver__nslots`. `role`
        is the command, `registry` for example."""
        self._directory = directory
        self._ready_file = Path(directory, "driver.ready")
        self._log_file = Path(directory, "driver.log")
        paths = {
            "aeron.dir": media_driver_dir(directory),
            "aeron.media_driver": "external",
            "shm.base_dir": directory,
        }
        chosen = paths | {name.replace("__", "."): value for name, value in settings.items()}
        options = [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
        options += [] if config is None else ["--config", str(config)]
        self._command = [sys.executable, "-m", "tensorpool", role, "run", *options]
        self._command += ["--ready-file", str(self._ready_file)]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                self._command,
                # Epoch marks and locks of a measurement go into its own directory.
                env=os.environ | {"XDG_STATE_HOME": self._directory},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def wait_ready(self) -> int:
        """Waits until the driver is ready; returns the monotonic time in nanoseconds."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise MeasurementFailed(f"the driver did not start: {self._last_log_line()}")
            time.sleep(_READY_POLL_S)
        return time.monotonic_ns()

    def _is_ready(self) -> bool:
        # A killed driver leaves its ready file.
        try:
            return self._ready_file.read_text("ascii").strip() == str(self.pid)
        except FileNotFoundError:
            return False

    def _last_log_line(self) -> str:
        return (self._log_file.read_text("utf-8", errors="replace").splitlines() or ["it logged nothing"])[-1]

    def restart(self, number: signal.Signals) -> None:
        """Ends the driver with a signal and starts it again; `wait_ready` waits for it."""
        self.end(number)
        self._process = self._start()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends the driver with a signal and waits. After SIGTERM the exit status has to be 0."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            status = self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise MeasurementFailed(f"the driver did not end after {number.name}") from None
        if number is signal.SIGTERM and status != 0:
            raise MeasurementFailed(f"the driver ended with status {status}: {self._last_log_line()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # An error in the block is not replaced by one of the end.
        with contextlib.nullcontext() if exc is None else contextlib.suppress(MeasurementFailed):
            self.end()


@contextlib.contextmanager
def running(directory: str, **settings: str) -> Iterator[DriverProcess]:
    """Runs a driver and its media driver; yields when the driver is ready."""
    with media_driver(directory), DriverProcess(directory, config=None, **settings) as driver:
        driver.wait_ready()
        yield driver


# --- resources of a process


def cpu_ns(pid: int) -> int:
    """Processor time of a process so far."""
    return time.clock_gettime_ns((~pid << 3) | _CPU_CLOCK_ID)


def resident_bytes(pid: int, directory: str) -> int:
    """Resident memory without the media driver's log buffers, whose pages stay resident once used."""
    logs, counts, total = media_driver_dir(directory), True, 0
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as file:
        for line in file:
            name, *rest = line.split()
            if not name.endswith(":"):
                # The line of an address range and its file.
                counts = logs not in line
            elif name == "Rss:" and counts:
                total += int(rest[0]) * 1024
    return total


def open_descriptors(pid: int) -> int:
    """Number of open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))
