"""The processes of one measurement: started, heard, and ended whatever happens."""

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
_PATIENCE_S = 20.0
_START_AHEAD_NS = 100_000_000
_TERMINATE_S = 5.0


class MeasurementFailed(Exception):
    """A child ended early, or said nothing."""


@contextmanager
def private_directory() -> Iterator[str]:
    """In shared memory, where every library puts its payloads."""
    before = set(_SHM.glob("*.zenoh"))
    directory = tempfile.mkdtemp(prefix=f"tensorpool-bench-{os.getpid()}-", dir=_SHM)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        # iceoryx2 keeps one file for the nodes to come, under the prefix that it was given.
        for left in _SHM.glob(f"{Path(directory).name}*"):
            left.unlink(missing_ok=True)
        _remove_zenoh_files(before)


def _remove_zenoh_files(before: set[Path]) -> None:
    """zenoh names its files by chance: new ones that no process maps are ours, of a child that was killed."""
    new = set(_SHM.glob("*.zenoh")) - before
    if not new:
        return
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped += maps.read_text()
    for left in new:
        if str(left) not in mapped:
            left.unlink(missing_ok=True)


class Child:
    def __init__(self, module: str, *arguments: str, state: str) -> None:
        self._name = " ".join((module, *arguments[:-1]))
        # Marks and locks of a measurement go where the rest of it goes.
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
        if (line := self._line(_PATIENCE_S)) != "ready":
            raise MeasurementFailed(f"{self._name} said {line!r}")

    def start(self, at_ns: int) -> None:
        self._say(str(at_ns))

    def ask(self) -> dict[str, Any]:
        """How it stands with a child that answers every line."""
        self._say("")
        answer: dict[str, Any] = json.loads(self._line(_PATIENCE_S))
        return answer

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise MeasurementFailed(f"{self._name} ended early") from None

    def result(self, within_s: float) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self._line(within_s + _PATIENCE_S))
        self._process.wait(_PATIENCE_S)
        return result

    def _line(self, timeout: float) -> str:
        # A library may block for good when its other side is gone; the run goes on without it.
        if not select.select([self._stdout], [], [], timeout)[0]:
            raise MeasurementFailed(f"{self._name} said nothing for {timeout:.0f} s")
        line = self._stdout.readline()
        if not line:
            raise MeasurementFailed(f"{self._name} ended with status {self._process.wait(_PATIENCE_S)}")
        return line.strip()

    def end(self) -> None:
        """Asks, then kills; reaps in any case."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_TERMINATE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def measure_pair(plan: Plan) -> dict[str, Any]:
    """A producer and a consumer, from nothing to figures."""
    with ExitStack() as stack:
        stack.enter_context(load(plan.library).beside(plan))

        def child(role: str) -> Child:
            made = Child("benchmarks.role", role, plan.to_json(), state=plan.directory)
            stack.callback(made.end)
            return made

        producer, consumer = child("producer"), child("consumer")
        producer.expect_ready()
        consumer.expect_ready()
        at_ns = time.monotonic_ns() + _START_AHEAD_NS
        consumer.start(at_ns)
        producer.start(at_ns)
        made, got = producer.result(plan.duration_s), consumer.result(plan.duration_s)
    torn = got.pop("torn") + got.pop("torn_rate")
    return made | got | {"torn": torn}


def measure_one_process(plan: Plan) -> dict[str, Any]:
    """Everything in one process, beside the media driver."""
    with ExitStack() as stack:
        stack.enter_context(load(plan.library).beside(plan))
        child = Child("benchmarks.one_process", plan.to_json(), state=plan.directory)
        stack.callback(child.end)
        return child.result(plan.duration_s)
