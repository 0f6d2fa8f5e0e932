"""The processes of the demo: their options, reports and pattern, and the environment that starts them.

The parent starts each process with options as arguments, sends it commands as lines on stdin, and reads its
reports as JSON lines on stdout. `DemoEnvironment` owns the directories and processes of one demo and removes
all of them at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from .. import context
from ..errors import TensorPoolError
from .reports import (
    CameraLedger,
    CameraReady,
    FinalReport,
    Mapped,
    ProcessReport,
    ProcessSample,
    Ready,
    RecorderBalance,
    RecorderReady,
    ViewerReport,
    parse_line,
)

R = TypeVar("R", bound=ProcessReport)
# What a process does until it sends a report.
_STEPS: Final[Mapping[type[ProcessReport], str]] = {
    Ready: "start",
    CameraReady: "attach",
    RecorderReady: "continue the recording",
    Mapped: "map the regions of the camera",
    CameraLedger: "publish its last frame",
    ViewerReport: "count its frames",
    RecorderBalance: "write its last frames",
}

SHAPE: Final = (480, 640)
DTYPE: Final = np.dtype("uint16")
FRAME_BYTES: Final = SHAPE[0] * SHAPE[1] * DTYPE.itemsize
NSLOTS: Final = 8
NAME: Final = "camera"
POOL: Final = "1MiB"
TIMEOUT_S: Final = 60.0
"""Longest wait for one step of a process, unless the user chose another."""

_STREAM_ID: Final = 10_000
_REPORT_PERIOD_S: Final = 0.25
_END_TIMEOUT_S: Final = 10
_SPARE_S: Final = 600.0
"""Added to the time of a camera that will be killed: on a slow machine it must not end before."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the demo early. SIGHUP too: a closed terminal must not leave memory behind."""
_BACKGROUND: Final = (np.add.outer(np.arange(SHAPE[0]), np.arange(SHAPE[1])) * 7).astype(DTYPE)


class DemoFailed(TensorPoolError):
    """A process of the demo ended early or did not answer."""


class DemoTimeout(DemoFailed):
    """A step took too long: the machine is slow, or something hangs. The ledger can still be read."""

    def __init__(self, what: str, timeout_s: float, options: str = "") -> None:
        super().__init__(
            f"{what} took longer than {timeout_s:g} s: a slow machine needs tensorpool demo "
            f"{options or f'--timeout {2 * timeout_s:g}'}"
        )


# --- the pattern of a frame: every pixel depends on its number, so that a torn frame is detected


def fill_pattern(image: npt.NDArray[Any], number: int) -> None:
    """Writes the pattern of frame `number` into `image`."""
    np.add(_BACKGROUND, DTYPE.type(number & 0xFFFF), out=image)


def matches_pattern(image: npt.NDArray[Any], number: int) -> bool:
    """Whether every pixel is that of frame `number`."""
    return bool(np.array_equal(image, _BACKGROUND + DTYPE.type(number & 0xFFFF)))


# --- in a child process


class ProcessArguments(Protocol):
    """Options of a process that can be passed on its command line."""

    def arguments(self) -> list[str]:
        """The command line."""
        ...


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of a process of the demo on one host."""

    aeron_dir: str
    base: Path
    recording: Path
    stream_id: int
    seconds: float
    fps: int
    work_s: float = 0.0
    policy: Literal["stream", "latest"] = "stream"

    def arguments(self) -> list[str]:
        """The command line that `parse_options` reads."""
        return [f"--{name}={value}" for name, value in asdict(self).items()]

    def attach(self) -> context.Context:
        """A context on the demo's own driver."""
        return context.open(
            "driver", aeron_dir=self.aeron_dir, media_driver="external", shm_base_dir=self.base
        )


def parse_options() -> DemoOptions:
    """The options from the command line of this process."""
    parser = argparse.ArgumentParser()
    for name, kind in (
        ("aeron_dir", str), ("base", Path), ("recording", Path), ("stream_id", int), ("seconds", float),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--fps", type=int, required=True)
    parser.add_argument("--work_s", type=float, default=0.0)
    parser.add_argument("--policy", default="stream")
    return DemoOptions(**vars(parser.parse_args()))


def has_command() -> bool:
    """Whether the parent has sent a line, or has ended."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


class ReportWriter:
    """Writes reports as JSON lines to stdout; samples are due once a period."""

    def __init__(self) -> None:
        self._next_s = time.monotonic()

    def is_due(self) -> bool:
        """Whether the next sample is due."""
        now = time.monotonic()
        if now < self._next_s:
            return False
        self._next_s = now + _REPORT_PERIOD_S
        return True

    def send(self, report: ProcessReport) -> None:
        """Writes a report, with the time."""
        sys.stdout.write(replace(report, at_ns=time.monotonic_ns()).to_line())
        sys.stdout.flush()


# --- in the parent


class ChildProcess:
    """A child process and its latest report of each class and key."""

    def __init__(
        self,
        name: str,
        module: str,
        options: ProcessArguments,
        environment: Mapping[str, str],
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._reports: dict[tuple[type[ProcessReport], str], ProcessReport] = {}
        self._previous_sample: ProcessSample | None = None
        self._has_ended = False
        self._changed = threading.Condition()
        command = [*prefix, sys.executable, "-m", f"tensorpool.demo.{module}", *options.arguments()]
        # A session of its own: Ctrl-C reaches the parent alone, which then collects the ledgers.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"demo-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                report = parse_line(line)
            except ValueError:
                # Half a line: the process was killed.
                break
            with self._changed:
                if isinstance(report, ProcessSample):
                    self._previous_sample = self._find(ProcessSample)
                self._reports[type(report), report.key] = report
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _find(self, kind: type[R], key: str = "") -> R | None:
        reports = self._reports.values()
        return next((report for report in reports if isinstance(report, kind) and report.key == key), None)

    def send(self, command: str = "go") -> None:
        """Writes a line to its stdin; each process knows what its next line means."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DemoFailed(f"the {self.name} ended early; its output is above") from None

    def wait_for(self, kind: type[R], timeout: float, *, key: str = "") -> R:
        """The latest report of a class; waits for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or self._find(kind, key) is not None, timeout)
            report = self._find(kind, key)
        if report is not None:
            return report
        if self._process.poll() is not None:
            raise DemoFailed(f"the {self.name} ended early; its output is above")
        raise DemoTimeout(f"the {self.name}, asked to {_STEPS.get(kind, 'answer')},", timeout)

    def check_alive(self) -> None:
        """Raises DemoFailed if the process ended before it reported its ledger."""
        with self._changed:
            if self._has_ended and self._find(FinalReport) is None:
                raise DemoFailed(f"the {self.name} ended early; its output is above")

    def report(self, kind: type[R], *, key: str = "") -> R | None:
        """The latest report of a class, if there is one."""
        with self._changed:
            return self._find(kind, key)

    def sample(self) -> ProcessSample:
        """The latest sample; without counts before the first."""
        return self.report(ProcessSample) or ProcessSample()

    def rates(self) -> tuple[float, float]:
        """Frames and bytes a second between its last two samples."""
        with self._changed:
            now, before = self._find(ProcessSample), self._previous_sample
        if now is None or before is None or now.at_ns <= before.at_ns:
            return 0.0, 0.0
        elapsed = (now.at_ns - before.at_ns) / 1e9
        return (now.frames - before.frames) / elapsed, (now.bytes - before.bytes) / elapsed

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Closes its stdin, which ends the process; kills it if it takes too long."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


class EarlyStop:
    """Whether a signal has asked for the end; a second signal interrupts the demo at once."""

    def __init__(self) -> None:
        self._is_requested = False
        self._is_closing = False

    def __bool__(self) -> bool:
        return self._is_requested

    def on_signal(self, *_: Any) -> None:
        """Handles a signal."""
        # The removal of processes and directories is short, and must not be interrupted.
        if self._is_closing:
            return
        if self._is_requested:
            raise KeyboardInterrupt
        self._is_requested = True

    def closing(self) -> None:
        """Ignores all further signals."""
        self._is_closing = True


@contextmanager
def early_stop() -> Iterator[EarlyStop]:
    """Handles the signals that end programs; those that are ignored, as under nohup, stay ignored."""
    stop = EarlyStop()
    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop.on_signal) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class DemoEnvironment:
    """The directories and processes of the demo on one host.

    The driver owns the regions; camera, viewers and recorder attach to it.
    """

    def __init__(
        self, seconds: float, fps: int, stop: EarlyStop, *, kill: bool, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.timeout_s = timeout_s
        """Longest wait for one step of a process."""
        self._stop = stop
        self._kill = kill
        self._stack = ExitStack()
        self._seconds, self._fps = seconds, fps

    def __enter__(self) -> Self:
        with self._stack as stack:
            temporary = tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-", dir="/dev/shm")
            self.base = Path(stack.enter_context(temporary))
            self.aeron_dir = f"/dev/shm/aeron-demo-{os.getpid()}"
            # The media driver removes it itself, unless its process is killed.
            stack.callback(shutil.rmtree, self.aeron_dir, ignore_errors=True)
            # On disk, as a recording should be, not in shared memory.
            disk = tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-")
            self.recording = Path(stack.enter_context(disk)) / "recording"
            # Locks and epoch marks are temporary too: the demo changes no file of the user.
            self.variables = {**os.environ, "XDG_STATE_HOME": str(self.base / "state")}
            options = DemoOptions(
                self.aeron_dir, self.base, self.recording, _STREAM_ID, self._seconds, self._fps
            )
            self.options = options
            self.driver = self._start("driver", "driver", options)
            # The model takes longer for a frame than the camera: it reads the newest and skips the others,
            # and slows no other process down.
            slow = replace(options, work_s=3.0 / self._fps, policy="latest")
            self.viewers = [
                self._start("viewer", "viewer", options),
                self._start("slow model", "viewer", slow),
            ]
            self.recorder = self._start("recorder", "recorder", options)
            camera = replace(options, seconds=options.seconds + _SPARE_S) if self._kill else options
            self.camera = self._start("camera", "camera", camera)
            # All processes load at the same time; then each begins when the previous one is ready.
            for process in self.processes():
                process.send()
                process.wait_for(Ready, self.timeout_s)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self, name: str, module: str, options: DemoOptions) -> ChildProcess:
        process = ChildProcess(name, module, options, self.variables)
        self._stack.callback(process.end)
        # Callbacks run in reverse order: signals are ignored before the process is ended.
        self._stack.callback(self._stop.closing)
        return process

    @property
    def stream_id(self) -> int:
        """The camera's stream."""
        return _STREAM_ID

    def processes(self) -> list[ChildProcess]:
        """All processes, in the order in which they begin."""
        return [self.driver, self.camera, *self.viewers, self.recorder]

    def start_publishing(self) -> str:
        """Starts the camera's frames once all consumers have mapped its epoch. Returns that epoch."""
        epoch = str(self.camera.wait_for(CameraReady, self.timeout_s).epoch)
        for process in (*self.viewers, self.recorder):
            process.wait_for(Mapped, self.timeout_s, key=epoch)
        self.camera.send()
        return epoch

    def restart_recorder(self) -> list[str]:
        """Starts a recorder in place of the killed one. Returns the segments that it recovered."""
        self.recorder = self._start("recorder", "recorder", self.options)
        self.recorder.send()
        return self.recorder.wait_for(RecorderReady, self.timeout_s).recovered

    def restart_camera(self, seconds: float) -> None:
        """Starts a camera in place of the killed one."""
        self.camera = self._start("camera", "camera", replace(self.options, seconds=seconds))
        self.camera.send()

    def start_replayer(self) -> ChildProcess:
        """Starts a process that replays the recording."""
        return self._start("replayer", "replayer", self.options)


@contextmanager
def console_process(demo: DemoEnvironment) -> Iterator[str]:
    """Runs `tensorpool console` on the demo, opens it on a desktop, and yields its address."""
    command = [sys.executable, "-m", "tensorpool", "console", "--port", "0", "--json"]
    command += ["--aeron-dir", demo.aeron_dir, "--recordings", str(demo.recording.parent)]
    # Elsewhere `--open` would start a browser for terminals, over the output of the demo.
    command += ["--open"] if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") else []
    variables = {**demo.variables, "TENSORPOOL_SHM__BASE_DIR": str(demo.base)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=variables, start_new_session=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise DemoFailed("the console ended early; its output is above")
        address: str = json.loads(line)["url"]
        yield address
    finally:
        process.terminate()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
