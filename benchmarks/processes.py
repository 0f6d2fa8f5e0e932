"""Child processes of one measurement: start, results, end, and removal of their files."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from .library import Plan, load

_SHM = Path("/dev/shm")
_TIMEOUT_S = 20.0
_START_DELAY_NS = 100_000_000
_TERMINATE_TIMEOUT_S = 5.0


class MeasurementFailed(Exception):
    """A child process ended early or printed no result."""


@contextmanager
def private_directory() -> Iterator[str]:
    """A private directory in shared memory, where every library keeps its payloads."""
    before = set(_SHM.glob("*.zenoh"))
    directory = tempfile.mkdtemp(prefix=f"tensorpool-bench-{os.getpid()}-", dir=_SHM)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        # iceoryx2 leaves one file for later nodes, under the prefix of this measurement.
        for name in (Path(directory).name, f"{directory[-8:]}-"):
            for path in _SHM.glob(f"{name}*"):
                path.unlink(missing_ok=True)
        _remove_zenoh_files(before)


def _remove_zenoh_files(before: set[Path]) -> None:
    """Removes files that a killed child process left. zenoh's names are random: new and unmapped files are
    ours."""
    new = set(_SHM.glob("*.zenoh")) - before
    if not new:
        return
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped += maps.read_text()
    for path in new:
        if str(path) not in mapped:
            path.unlink(missing_ok=True)


class ChildProcess:
    """A child process that prints lines and reads lines."""

    def __init__(self, module: str, *arguments: str, state: str) -> None:
        self._name = " ".join((module, *arguments[:-1]))
        # Epoch marks and locks of a measurement go into its own directory.
        environment = os.environ | {"XDG_STATE_HOME": state}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @property
    def _stdout(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def expect_ready(self) -> None:
        """Waits for the line `ready`."""
        if (line := self._read_line(_TIMEOUT_S)) != "ready":
            raise MeasurementFailed(f"{self._name} printed {line!r} instead of 'ready'")

    def start(self, at_ns: int) -> None:
        """Sends the start time."""
        self._write_line(str(at_ns))

    def request_status(self) -> dict[str, Any]:
        """Status of a child process that answers every line with one."""
        self._write_line("")
        status: dict[str, Any] = json.loads(self._read_line(_TIMEOUT_S))
        return status

    def _write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise MeasurementFailed(f"{self._name} ended early") from None

    def result(self, within_s: float) -> dict[str, Any]:
        """The last line, decoded, once the process has ended."""
        result: dict[str, Any] = json.loads(self._read_line(within_s + _TIMEOUT_S))
        self._process.wait(_TIMEOUT_S)
        return result

    def _read_line(self, timeout: float) -> str:
        # A library may block forever when its peer has ended; the run continues without that measurement.
        if not select.select([self._stdout], [], [], timeout)[0]:
            raise MeasurementFailed(f"{self._name} printed nothing for {timeout:.0f} s")
        line = self._stdout.readline()
        if not line:
            raise MeasurementFailed(f"{self._name} ended with status {self._process.wait(_TIMEOUT_S)}")
        return line.strip()

    def end(self) -> None:
        """Terminates the process, kills it after a while, and reaps it."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_TERMINATE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def measure_pair(plan: Plan) -> dict[str, Any]:
    """Measures a producer process and a consumer process."""
    with ExitStack() as stack:
        stack.enter_context(load(plan.library).beside(plan))

        def child(role: str) -> ChildProcess:
            process = ChildProcess("benchmarks.endpoint_process", role, plan.to_json(), state=plan.directory)
            stack.callback(process.end)
            return process

        producer, consumer = child("producer"), child("consumer")
        producer.expect_ready()
        consumer.expect_ready()
        at_ns = time.monotonic_ns() + _START_DELAY_NS
        consumer.start(at_ns)
        producer.start(at_ns)
        sent, received = producer.result(plan.duration_s), consumer.result(plan.duration_s)
    torn = received.pop("torn") + received.pop("torn_rate")
    return sent | received | {"torn": torn}


def measure_one_process(plan: Plan) -> dict[str, Any]:
    """Measures producer and consumer in one process."""
    with ExitStack() as stack:
        stack.enter_context(load(plan.library).beside(plan))
        child = ChildProcess("benchmarks.one_process", plan.to_json(), state=plan.directory)
        stack.callback(child.end)
        return child.result(plan.duration_s)
