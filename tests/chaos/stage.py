"""The stage of a scenario: private directories, a media driver, an SHM driver, and the programs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorpool as tp
from tests.chaos.checker import Checker

END_TIMEOUT_S = 60.0
# Short periods: a lost lease is noticed in half a second, so a run has many of them.
SETTINGS = """
[service]
token = "chaos"
[aeron]
announce_period = "100ms"
[context]
keepalive = "100ms"
attach_retry = "100ms"
[driver]
keepalive = "100ms"
grace = 5
any_stream = true
"""
GRACE_S = 0.5


@dataclass
class Program:
    """One child process of a role."""

    role: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(END_TIMEOUT_S)
        self.close()

    def pause(self, seconds: float) -> None:
        """Stops the process for a time, as a debugger or a busy machine would."""
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> dict[str, Any] | None:
        """Asks it to end; what it says then, or None if it says nothing."""
        self.process.terminate()
        try:
            output, _ = self.process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return {"balanced": False, "role": self.role, "error": "does not end"}
        lines = [line for line in output.splitlines() if line.startswith("{")]
        report: dict[str, Any] | None = json.loads(lines[-1]) if lines else None
        return report

    def close(self) -> None:
        """Closes its pipe."""
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass
class Stage:
    """Everything a scenario uses."""

    rng: random.Random
    checker: Checker
    seconds: float
    """How long the scenario should take."""
    work: Path
    aeron_dir: Path
    base: Path
    stream_id: int
    programs: list[Program] = field(default_factory=list)
    driver: Program | None = None

    def __post_init__(self) -> None:
        self.config = self.work / "tensorpool.toml"
        self.config.write_text(SETTINGS)
        self.deadline = time.monotonic() + self.seconds

    def restart_clock(self) -> None:
        """The time begins now: a busy machine may take long to start the programs."""
        self.deadline = time.monotonic() + self.seconds

    @property
    def has_time(self) -> bool:
        """Whether the scenario should go on."""
        return time.monotonic() < self.deadline

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `tp.open`."""
        return {
            "mode": "driver", "config": str(self.config), "aeron_dir": str(self.aeron_dir),
            "shm_base_dir": str(self.base), "connect_timeout": 60,
        }  # fmt: skip

    def start_driver(self) -> None:
        """Starts the SHM driver, and does not wait for it."""
        settings = {
            "aeron.dir": self.aeron_dir, "aeron.media_driver": "external", "shm.base_dir": self.base,
        }  # fmt: skip
        arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "tensorpool", "driver", "run", "--config", str(self.config)]
        log = (self.work / "driver.log").open("ab")
        with log:
            process = subprocess.Popen(
                [*command, *arguments], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self.driver = Program("driver", process)

    def start(self, role: str, **options: Any) -> Program:
        """Starts a program of a role."""
        merged = json.dumps({"stream_id": self.stream_id, "options": self.options, **options})
        with (self.work / f"{role}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.programs", role, merged],
                stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        program = Program(role, process)
        self.programs.append(program)
        self.checker.count(f"{role} started")
        return program

    def kill(self, program: Program) -> None:
        """kill -9, counted."""
        program.kill()
        self.programs.remove(program)
        self.checker.count(f"{program.role} killed")

    def restart_driver(self) -> None:
        """kill -9 of the SHM driver, and a new one."""
        assert self.driver is not None
        self.driver.kill()
        self.checker.count("driver killed")
        self.start_driver()

    def frames_flow(self, timeout: float = END_TIMEOUT_S) -> bool:
        """Whether a new consumer receives frames within a time: the system has recovered."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            # A driver that is still starting, or was killed meanwhile, does not answer: then once more.
            with (
                contextlib.suppress(tp.TensorPoolError),
                tp.open(**self.options) as context,
                context.consumer(self.stream_id) as consumer,
            ):
                while time.monotonic() < deadline:
                    if consumer.poll(8):
                        return True
                    time.sleep(0.01)
            self.checker.count("attach repeated")
        return False

    def epochs(self) -> list[Path]:
        """Directories of epochs of the stream that exist now."""
        return sorted(self.base.glob(f"tensorpool-*/*/{self.stream_id}/[0-9]*"))

    def end_programs(self) -> None:
        """Ends all programs, and checks what they say."""
        for program in self.programs:
            self.checker.report(program.role, program.end())
        self.programs.clear()


@contextmanager
def stage(checker: Checker, seed: int, seconds: float) -> Iterator[Stage]:
    """A stage with a media driver and an SHM driver; both are ended and their directories removed."""
    name = f"chaos-{os.getpid()}-{secrets.token_hex(3)}"
    base = Path("/dev/shm") / f"tensorpool-{name}"
    aeron_dir = Path("/dev/shm") / f"aeron-{name}"
    work = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    base.mkdir(mode=0o700)
    rng = random.Random(seed)
    try:
        with tp.MediaDriver(str(aeron_dir)):
            on_stage = Stage(rng, checker, seconds, work, aeron_dir, base, 20_000 + rng.randrange(1000))
            on_stage.start_driver()
            try:
                yield on_stage
            finally:
                on_stage.end_programs()
                if on_stage.driver is not None:
                    on_stage.driver.end()
    finally:
        left = [path for path in base.rglob("*") if path.is_file()]
        checker.expect(not left, f"regions are left: {[str(path) for path in left[:3]]}")
        checker.expect(not aeron_dir.exists(), "the media driver's directory is left")
        if checker.verdict.findings:
            for log in sorted(work.glob("*.log")):
                checker.verdict.logs[log.stem] = log.read_text(errors="replace")[-2000:]
        for directory in (base, aeron_dir, work):
            shutil.rmtree(directory, ignore_errors=True)
