"""A child process that a test controls by method calls: JSON lines over pipes.

`RemoteProcess(Role, ...)` starts a new interpreter (a fork would inherit the test's resources), creates a
`Role` there and calls its methods. The test gets the return value; an exception is raised in the test as
`RemoteError`. The process ends when its pipe is closed, so none outlives the test run.
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
    """An exception of the called method. `kind` is the name of its class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class RemoteDied(Exception):
    """The process ended without a reply."""


class RemoteProcess:
    """The test's side of the pipes."""

    def __init__(
        self,
        role: Callable[..., object],
        *args: Any,
        env: dict[str, str] | None = None,
        fork_server: ForkServer | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Starts a new interpreter, or a process of the fork server. `prefix` is a command that runs the
        interpreter elsewhere, for example in another network namespace."""
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
        self._buffer = b""

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def send(self, method: str, /, **arguments: Any) -> None:
        """Sends a call without waiting; `receive` returns its reply."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
        self._process.stdin.flush()

    def receive(self, timeout: float = TIMEOUT_S) -> Any:
        """Waits for the reply of the last call; returns its value or raises its error."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise TimeoutError(f"process {self.pid} sent no reply within {timeout:g} s")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise RemoteDied(f"process {self.pid} ended with {self._process.wait(TIMEOUT_S)}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if "error" in reply:
            raise RemoteError(*reply["error"])
        return reply["value"]

    def call(self, method: str, /, *, reply_timeout: float = TIMEOUT_S, **arguments: Any) -> Any:
        """Calls a method and waits for its reply."""
        self.send(method, **arguments)
        return self.receive(reply_timeout)

    def kill(self) -> None:
        """Sends SIGKILL and reaps the process, so its id may be reused afterwards."""
        self._process.kill()
        self._process.wait(TIMEOUT_S)

    def stop(self) -> None:
        """Sends SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Sends SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """Closes the pipe and waits; returns the exit status."""
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
            # A failed test may have left the process stopped.
            self.resume()
            if exc_type is not None:
                self.kill()
        self.end()


def serve(role: object) -> None:
    """Main loop of the process: one call per line, one reply per line, until the pipe closes."""
    # Other output of the process must not mix with the replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            reply = {"value": getattr(role, method)(**arguments)}
        except Exception as error:
            reply = {"error": [type(error).__name__, str(error)]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


class Background:
    """A loop on its own thread that runs until `stop`, which raises an error of the loop."""

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
        """Whether the loop has not ended."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raises the error of the loop, if it failed."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stops the loop and raises its error, if it failed."""
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        self.check()


def main() -> None:
    """Creates the role of the command line and serves calls to it."""
    module, _, name = sys.argv[1].partition(":")
    serve(getattr(importlib.import_module(module), name)(*json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
