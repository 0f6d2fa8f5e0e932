"""`tensorpool` commands as processes, on a private media driver and base directory."""

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
"""Runs short commands without the half second of imports. Set by the conftest."""


@dataclass(frozen=True)
class CommandLine:
    """Runs `tensorpool` on a private media driver and base directory."""

    aeron_dir: Path
    shm_base: Path
    more: dict[str, str] = field(default_factory=dict)

    def environment(self, **changes: str) -> dict[str, str]:
        """Environment variables of the commands."""
        paths = {"AERON_DIR": str(self.aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(self.shm_base)}
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "TENSORPOOL_TOKEN")
        }
        return {**inherited, **paths, **self.more, **changes}

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        assert fork_server is not None, "the conftest has to set it"
        return fork_server.run(
            "tensorpool", *arguments, env=self.environment(**environment), timeout=TIMEOUT_S
        )

    def json(self, *arguments: str) -> Any:
        """JSON output of a command that has to succeed."""
        result = self.run(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def start(self, *arguments: str, **streams: Any) -> subprocess.Popen[str]:
        """Starts a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "tensorpool", *arguments],
            env=self.environment(),
            stdout=subprocess.PIPE,
            text=True,
            **streams,
        )


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kills the process at the end of the block."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def offering(producer: tp.Producer, array: npt.NDArray[Any], hz: float = 100) -> Iterator[None]:
    """Offers the array repeatedly on another thread; its first element counts up."""
    stop = threading.Event()

    def offer_frames() -> None:
        count = 0
        while not stop.wait(1 / hz):
            frame = np.array(array)
            frame.flat[0] = count % 200
            producer.offer(frame)
            count += 1

    thread = threading.Thread(target=offer_frames)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
