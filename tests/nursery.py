"""A process that has imported everything and has begun nothing: it forks others, which start in no time.

What a forked one inherits is a fresh interpreter with its modules, nothing of the test's. So it is like
`python -m …`, without the third of a second that imports take; a test that kills processes all the time needs
many.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from pathlib import Path
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parent.parent
PRELOADED = ("numpy", "tensorpool", "tensorpool.cli.driver", "tests.remote")
_MAX_BYTES = 1 << 20


class Child:
    """A forked process, as `subprocess.Popen` would show it."""

    def __init__(self, nursery: Nursery, pid: int, stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._nursery = nursery
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], timeout)[0]:
            self.returncode = self._nursery.ask({"reap": self.pid})
            os.close(self._end)
        return self.returncode

    def send_signal(self, number: int) -> None:
        # Not reaped, its number is still its own.
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Nursery:
    """The test's end."""

    def __init__(self, *modules: str, env: dict[str, str] | None = None) -> None:
        """`env`: what the dynamic linker has to find, say; each child has an environment of its own."""
        # Each answer is to the last question.
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.nursery", str(theirs.fileno()), *PRELOADED, *modules]
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **(env or {})},
            )

    def ask(self, request: dict[str, Any], descriptors: list[int] | None = None) -> int:
        with self._asking:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors or [])
            answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError(f"the nursery has ended with {self._process.wait()}")
        return int(answer)

    def start(
        self,
        main: str,
        *arguments: str,
        env: dict[str, str] | None = None,
        pipes: bool = True,
        log: IO[bytes] | None = None,
    ) -> Child:
        """Runs `module:function` with these arguments, with pipes at both ends or its output in a log."""
        nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        ends: list[int] = []
        if pipes:
            (their_in, our_in), (our_out, their_out) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
            ends = [their_in, their_out]
        error = 2 if log is None else log.fileno()
        standard = [*ends, error] if pipes else [nowhere, error, error]
        request = {"main": main, "arguments": arguments, "env": {**os.environ, **(env or {})}}
        try:
            pid = self.ask(request, standard)
        finally:
            for end in (*ends, nowhere):
                os.close(end)
        if not pipes:
            return Child(self, pid, None, None)
        return Child(self, pid, os.fdopen(our_in, "wb"), os.fdopen(our_out, "rb"))

    def run(
        self, module: str, *arguments: str, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """`python -m module …` until its end, as `subprocess.run` would, in exactly this environment."""
        request = {"module": module, "arguments": arguments, "env": env, "cwd": os.getcwd()}
        nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                child = Child(self, self.ask(request, [nowhere, out.fileno(), err.fileno()]), None, None)
            finally:
                os.close(nowhere)
            try:
                status = child.wait(timeout)
            finally:
                child.kill()
                child.wait()
            out.seek(0)
            err.seek(0)
            printed, said = out.read().decode(), err.read().decode()
        return subprocess.CompletedProcess([module, *arguments], status, printed, said)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(descriptor: int) -> None:
    """The nursery itself: forks and reaps as it is told, until the test has closed its end."""
    with socket.socket(fileno=descriptor) as control:
        gc.collect()
        gc.freeze()
        while True:
            message, standard, _, _ = socket.recv_fds(control, _MAX_BYTES, 3)
            if not message:
                return
            request = json.loads(message)
            if "reap" in request:
                _, status = os.waitpid(request["reap"], 0)
                control.send(str(os.waitstatus_to_exitcode(status)).encode())
                continue
            pid = os.fork()
            if pid == 0:
                control.close()
                begin(request, standard)
            control.send(str(pid).encode())
            for one in standard:
                os.close(one)


def begin(request: dict[str, Any], standard: list[int]) -> None:
    """In the child: becomes the process that was asked for. Does not return."""
    for number, one in enumerate(standard):
        os.dup2(one, number)
    for one in standard:
        os.close(one)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(request["env"])
    if os.environ.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    try:
        if "module" in request:
            os.chdir(request["cwd"])
            sys.argv = [request["module"], *request["arguments"]]
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        else:
            module, _, function = request["main"].partition(":")
            sys.argv = [module, *request["arguments"]]
            getattr(importlib.import_module(module), function)()
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    with contextlib.suppress(KeyboardInterrupt):
        serve(int(sys.argv[1]))
