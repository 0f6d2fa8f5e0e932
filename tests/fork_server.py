"""A fork server: a process that has imported the modules of test processes and forks them on request.

A forked process has the imported modules and nothing else of the test, like `python -m …` but without the
third of a second that imports take. Tests that kill many processes need it.
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
PRELOADED = ("numpy", "tensorpool", "tensorpool.cli.driver", "tests.remote_process")
_MAX_REQUEST_BYTES = 1 << 20


class ForkedProcess:
    """A process of the fork server, with the interface of `subprocess.Popen`."""

    def __init__(
        self, fork_server: ForkServer, pid: int, stdin: IO[bytes] | None, stdout: IO[bytes] | None
    ) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._server = fork_server
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Exit status; None while the process runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end; returns the exit status."""
        status = self._wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._pidfd], [], [], timeout)[0]:
            self.returncode = self._server.request({"reap": self.pid})
            os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal unless the process has ended."""
        # Until it is reaped, the process id is not reused.
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)


class ForkServer:
    """The test's side of the fork server."""

    def __init__(self, *modules: str, env: dict[str, str] | None = None) -> None:
        """Imports `modules` in addition to PRELOADED. `env` is that of the server (for the dynamic linker);
        each forked process has its own environment."""
        # The socket carries one request and its reply at a time.
        self._lock = threading.Lock()
        self._socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_socket:
            command = [
                sys.executable,
                "-m",
                "tests.fork_server",
                str(server_socket.fileno()),
                *PRELOADED,
                *modules,
            ]
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[server_socket.fileno()],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **(env or {})},
            )

    def request(self, request: dict[str, Any], descriptors: list[int] | None = None) -> int:
        """Sends a request with file descriptors; returns the reply."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors or [])
            reply = self._socket.recv(64)
        if not reply:
            raise RuntimeError(f"the fork server has ended with status {self._process.wait()}")
        return int(reply)

    def start(
        self,
        main: str,
        *arguments: str,
        env: dict[str, str] | None = None,
        pipes: bool = True,
        log: IO[bytes] | None = None,
    ) -> ForkedProcess:
        """Runs `module:function` with these arguments, with pipes for stdin and stdout or with output in a
        log."""
        devnull = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        ends: list[int] = []
        if pipes:
            (child_in, our_in), (our_out, child_out) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
            ends = [child_in, child_out]
        stderr = 2 if log is None else log.fileno()
        standard = [*ends, stderr] if pipes else [devnull, stderr, stderr]
        request = {"main": main, "arguments": arguments, "env": {**os.environ, **(env or {})}}
        try:
            pid = self.request(request, standard)
        finally:
            for descriptor in (*ends, devnull):
                os.close(descriptor)
        if not pipes:
            return ForkedProcess(self, pid, None, None)
        return ForkedProcess(self, pid, os.fdopen(our_in, "wb"), os.fdopen(our_out, "rb"))

    def run(
        self, module: str, *arguments: str, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs `python -m module …` to its end, like `subprocess.run`, in exactly this environment."""
        request = {"module": module, "arguments": arguments, "env": env, "cwd": os.getcwd()}
        devnull = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = ForkedProcess(
                    self, self.request(request, [devnull, out.fileno(), err.fileno()]), None, None
                )
            finally:
                os.close(devnull)
            try:
                status = process.wait(timeout)
            finally:
                process.kill()
                process.wait()
            out.seek(0)
            err.seek(0)
            stdout, stderr = out.read().decode(), err.read().decode()
        return subprocess.CompletedProcess([module, *arguments], status, stdout, stderr)

    def close(self) -> None:
        """Ends the server."""
        self._socket.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(descriptor: int) -> None:
    """Main loop of the server process: forks and reaps on request until the test closes the socket."""
    with socket.socket(fileno=descriptor) as control:
        gc.collect()
        gc.freeze()
        while True:
            message, standard, _, _ = socket.recv_fds(control, _MAX_REQUEST_BYTES, 3)
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
                run_request(request, standard)
            control.send(str(pid).encode())
            for opened in standard:
                os.close(opened)


def run_request(request: dict[str, Any], standard: list[int]) -> None:
    """Runs a request in the forked process. Does not return."""
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    for opened in standard:
        os.close(opened)
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
