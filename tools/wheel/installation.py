"""An installed package, tried as a user would: import, commands, codecs, rings, and two processes.

The interpreter is that of an empty virtual environment, or one of another architecture under emulation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from .build import ROOT, WheelError

PROGRAM: Final = Path(__file__).with_name("exchange.py")
CONSTRAINTS: Final = ROOT / "requirements" / "constraints.txt"
TIMEOUT_S: Final = 600


class Interpreter(Protocol):
    """A Python that has the package."""

    def command(self, *arguments: str) -> list[str]:
        """The command that runs the interpreter."""

    def environment(self) -> dict[str, str]:
        """Variables that it needs."""


@dataclass(frozen=True, slots=True)
class VirtualEnvironment:
    """A virtual environment of this machine."""

    directory: Path

    def command(self, *arguments: str) -> list[str]:
        """The command that runs the interpreter. It sees nothing of the checkout."""
        return [str(self.directory / "bin" / "python"), "-P", *arguments]

    def environment(self) -> dict[str, str]:
        """No variable is needed."""
        return {}


def install(distribution: Path, directory: Path) -> VirtualEnvironment:
    """Installs a wheel or a source distribution into an empty environment with pip.

    A source distribution is built by the tools that it names, in an environment that pip makes for them.
    """
    venv.create(directory, symlinks=True, with_pip=False)
    command = [sys.executable, "-m", "pip", "--python", str(directory), "install", "--quiet", "--no-compile"]
    command += ["--no-cache-dir", "--constraint", str(CONSTRAINTS), str(distribution.absolute())]
    # From an empty directory: nothing of the checkout may help.
    with tempfile.TemporaryDirectory() as empty:
        if subprocess.run(command, check=False, cwd=empty).returncode:
            raise WheelError(f"{distribution.name} cannot be installed into an empty environment")
    return VirtualEnvironment(directory)


def try_package(python: Interpreter) -> str:
    """Runs a command, tries codecs and rings, and exchanges frames between two processes.

    Returns what the programs print. Raises WheelError if one fails.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tensorpool-wheel-") as directory:
        environment = _variables(Path(directory)) | python.environment()
        report = _run_to_end(python.command("-m", "tensorpool", "--version"), environment)
        report += _run_to_end(python.command(str(PROGRAM), "alone"), environment)
        command = python.command(str(PROGRAM), "produce")
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as producer:
            try:
                # Its process has the driver that the consumer is to find.
                assert producer.stdout is not None, "a pipe was asked for"
                producer.stdout.readline()
                report += _run_to_end(python.command(str(PROGRAM), "consume"), environment)
                # The producer ends when its input does.
                producer.communicate(timeout=TIMEOUT_S)
            finally:
                producer.kill()
        if producer.returncode:
            raise WheelError(f"the producer failed with exit status {producer.returncode}")
        return report


def _variables(shm: Path) -> dict[str, str]:
    """Private directories, and few variables of this process."""
    (shm / "regions").mkdir()
    return {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "PYTHONDONTWRITEBYTECODE": "1",
        "AERON_DIR": str(shm / "aeron"),
        "TENSORPOOL_SHM__BASE_DIR": str(shm / "regions"),
        "XDG_STATE_HOME": str(shm / "state"),
    }


def _run_to_end(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=TIMEOUT_S
    )
    if done.returncode:
        raise WheelError(f"{' '.join(command[-2:])} failed with exit status {done.returncode}")
    return done.stdout
