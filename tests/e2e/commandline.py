"""Commands as people run them: a process each, with a private system around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorpool as tp
from tests.fork_server import ForkServer

TIMEOUT_S = 60

fork_server: ForkServer | None = None
"""Where commands are started that end by themselves: without the half second that imports take (conftest)."""


@dataclass(frozen=True)
class CommandLine:
    """Runs `tensorpool` on a media driver and below a base directory of the test's own."""

    aeron_dir: Path
    shm_base: Path
    more: dict[str, str] = field(default_factory=dict)

    def environment(self, **changes: str) -> dict[str, str]:
        places = {"AERON_DIR": str(self.aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(self.shm_base)}
        kept = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "TENSORPOOL_TOKEN")
        }
        return {**kept, **places, **self.more, **changes}

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        assert fork_server is not None, "the conftest has made it"
        return fork_server.run(
            "tensorpool", *arguments, env=self.environment(**environment), timeout=TIMEOUT_S
        )

    def json(self, *arguments: str) -> Any:
        """The answer of a command that has to succeed."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self, *arguments: str, **streams: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tensorpool", *arguments],
            env=self.environment(),
            stdout=subprocess.PIPE,
            text=True,
            **streams,
        )


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Whatever happens, the process is gone at the end."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def filming(producer: tp.Producer, array: npt.NDArray[Any], hz: float = 100) -> Iterator[None]:
    """Offers the array again and again, on a thread; its first element counts up."""
    stop = threading.Event()

    def film() -> None:
        count = 0
        while not stop.wait(1 / hz):
            frame = np.array(array)
            frame.flat[0] = count % 200
            producer.offer(frame)
            count += 1

    thread = threading.Thread(target=film)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
