"""A real process at the end of a pipe: a test tells it what to do, it answers in JSON lines.

`Remote(Role, ...)` starts a fresh interpreter (no fork: it would inherit what the test holds), makes a
`Role` there and calls its methods. What a method returns comes back, what it raises is raised here as
`RemoteError`. The process ends by itself when its pipe is closed, so none outlives the test run.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.fork_server import ForkedProcess, ForkServer

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 60.0


class RemoteError(Exception):
    """The method raised. `kind` is the class over there."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class RemoteDied(Exception):
    """The process ended without an answer."""


class RemoteProcess:
    """The test's end of the pipe."""

    def __init__(
        self,
        role: Callable[..., object],
        *args: Any,
        env: dict[str, str] | None = None,
        fork_server: ForkServer | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """In a fresh interpreter, or in one that a nursery has ready. `prefix` is a command that runs it
        elsewhere, in another namespace say."""
        arguments = (f"{role.__module__}:{role.__qualname__}", json.dumps(args))
        self._process: subprocess.Popen[bytes] | ForkedProcess
        if fork_server is not None:
            self._process = fork_server.start("tests.remote_process:main", *arguments, env=env)
        else:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "tests.remote_process", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, **(env or {})},
            )
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, method: str, /, **arguments: Any) -> None:
        """Asks without waiting for the answer, which `answer` fetches later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
        self._process.stdin.flush()

    def receive(self, timeout: float = TIMEOUT_S) -> Any:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._rest:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise TimeoutError(f"process {self.pid} gave no answer within {timeout:g} s")
            got = os.read(self._process.stdout.fileno(), 1 << 16)
            if not got:
                raise RemoteDied(f"process {self.pid} ended with {self._process.wait(TIMEOUT_S)}")
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise RemoteError(*answer["error"])
        return answer["value"]

    def call(self, method: str, /, *, reply_timeout: float = TIMEOUT_S, **arguments: Any) -> Any:
        self.send(method, **arguments)
        return self.receive(reply_timeout)

    def kill(self) -> None:
        """kill -9, and the process is reaped: its number belongs to nobody afterwards."""
        self._process.kill()
        self._process.wait(TIMEOUT_S)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """Closes the pipe and waits; the status it ended with."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            return self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if self.alive:
            # A test that failed may have left it stopped.
            self.resume()
            if exc_type is not None:
                self.kill()
        self.end()


def serve(role: object) -> None:
    """The other end: one line in, one line out, until the pipe closes."""
    # Whatever else the process prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = {"value": getattr(role, method)(**arguments)}
        except Exception as error:
            answer = {"error": [type(error).__name__, str(error)]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Background:
    """A loop on a thread of its own that runs until told to stop; an error in it comes out at the stop."""

    def __init__(self, loop: Callable[[threading.Event], None]) -> None:
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(loop,), daemon=True)
        self._thread.start()

    def _run(self, loop: Callable[[threading.Event], None]) -> None:
        try:
            loop(self._stop)
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def check(self) -> None:
        """Raises what the loop has died of, if it has."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        self.check()


def main() -> None:
    """The process: makes its role and does what it is told."""
    module, _, name = sys.argv[1].partition(":")
    serve(getattr(importlib.import_module(module), name)(*json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
