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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tensorpool as tp
from tensorpool.driver.client import driver_leases
from tests.chaos.checker import Checker
from tests.chaos.tally import Counts, read_counts
from tests.leaks import wait_for

END_TIMEOUT_S = 60.0
SETTINGS = """
[service]
token = "chaos"
[aeron]
announce_period = "{keepalive_ms}ms"
[context]
keepalive = "{keepalive_ms}ms"
attach_retry = "100ms"
[driver]
keepalive = "{keepalive_ms}ms"
grace = {grace}
any_stream = true
"""
GRACE = 5
# Short periods: a lost lease is noticed in half a second, so a run has many of them.
GRACE_S = 0.5
# What a driver may hold beyond what it had at its start: a stream's files, and caches.
_MORE_DESCRIPTORS, _MORE_THREADS, _MORE_BYTES = 8, 2, 64 << 20
DEST_STREAM = 30_000
"""The stream of the second host."""


class NotPossible(Exception):
    """Why a scenario cannot run on this machine."""


@dataclass
class Program:
    """One child process of a role."""

    role: str
    process: subprocess.Popen[str]
    log_start: int = 0
    """Where the lines of this process begin in the log of its role."""
    tally: Path | None = None
    """The file of its counts; None for a role of the command line."""
    is_exposed: bool = False
    """Whether a stray writer may change the frames it receives: then they are counted, and not a finding."""

    @property
    def counts(self) -> Counts:
        """What it has done so far; also after it was killed."""
        return Counts() if self.tally is None else read_counts(self.tally)

    @property
    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self.process.poll() is not None

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


class Footprint(NamedTuple):
    """What a process holds."""

    descriptors: int
    threads: int
    anonymous_bytes: int

    @classmethod
    def of(cls, pid: int) -> Footprint | None:
        """That of a process; None if it has ended."""
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            return cls(descriptors, int(fields["Threads"]), int(fields["RssAnon"].split()[0]) << 10)
        except (OSError, KeyError):
            return None

    def exceeds(self, idle: Footprint) -> bool:
        """Whether this is more than an idle driver may hold at the end."""
        return (
            self.descriptors > idle.descriptors + _MORE_DESCRIPTORS
            or self.threads > idle.threads + _MORE_THREADS
            or self.anonymous_bytes > idle.anonymous_bytes + _MORE_BYTES
        )


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
    grace_s: float = GRACE_S
    """How long a lease lives without keepalives."""
    programs: list[Program] = field(default_factory=list)
    driver: Program | None = None
    _idle_driver: Footprint | None = None
    _started: int = 0

    def __post_init__(self) -> None:
        self.config = self.work / "tensorpool.toml"
        self.settings = SETTINGS.format(keepalive_ms=round(1000 * self.grace_s / GRACE), grace=GRACE)
        self.config.write_text(self.settings)
        self.deadline = time.monotonic() + self.seconds

    def restart_clock(self) -> None:
        """The time begins now: a busy machine may take long to start the programs."""
        self.deadline = time.monotonic() + self.seconds

    @property
    def has_time(self) -> bool:
        """Whether the scenario should continue."""
        return time.monotonic() < self.deadline

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `tp.open`."""
        return {
            "mode": "driver", "config": str(self.config), "aeron_dir": str(self.aeron_dir),
            "shm_base_dir": str(self.base), "connect_timeout": 60,
        }  # fmt: skip

    def second_host(self) -> Stage:
        """Another host: directories of its own, which are not there yet, and the same checker."""
        work = self.work / "there"
        work.mkdir()
        base, aeron_dir = (path.with_name(f"{path.name}-there") for path in (self.base, self.aeron_dir))
        return Stage(self.rng, self.checker, self.seconds, work, aeron_dir, base, DEST_STREAM, self.grace_s)

    @contextmanager
    def started(self) -> Iterator[None]:
        """The media driver and the SHM driver of the host; at the end nothing of it may be left."""
        self.base.mkdir(mode=0o700)
        try:
            with tp.MediaDriver(str(self.aeron_dir)):
                self.start_driver()
                self.checker.expect(self.driver_answers(), "the driver does not answer at its start")
                self._idle_driver = Footprint.of(self.driver_pid)
                try:
                    yield
                finally:
                    self.end_programs()
                    self.check_nothing_is_held()
                    self.end_driver()
        finally:
            left = [path for path in self.base.rglob("*") if path.is_file()]
            self.checker.expect(not left, f"regions are left: {[str(path) for path in left[:3]]}")
            self.checker.expect(not self.aeron_dir.exists(), "the media driver's directory is left")
            for directory in (self.base, self.aeron_dir):
                shutil.rmtree(directory, ignore_errors=True)

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

    @property
    def driver_pid(self) -> int:
        """The process of the SHM driver."""
        assert self.driver is not None
        return self.driver.process.pid

    def end_driver(self) -> None:
        """SIGTERM, on which a driver ends in time and with exit status 0, whatever happened to it before."""
        if self.driver is None:
            return
        self.driver.end()
        status = self.driver.process.returncode
        self.checker.expect(status == 0, f"the driver was asked to end, and ended with {status}")
        self.driver = None

    def driver_answers(self, timeout: float = END_TIMEOUT_S) -> bool:
        """Whether the SHM driver answers within a time."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with contextlib.suppress(tp.TensorPoolError), tp.open(**self.options) as context:
                if driver_leases(context, self.stream_id, timeout=5) is not None:
                    return True
            time.sleep(0.1)
        return False

    def start(self, role: str, *, is_exposed: bool = False, **options: Any) -> Program:
        """Starts a program of a role."""
        self._started += 1
        tally = self.work / f"{role}-{self._started}.tally"
        own = {"stream_id": self.stream_id, "options": self.options, "tally": str(tally)}
        merged = json.dumps({**own, **options})
        with (self.work / f"{role}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.programs", role, merged],
                stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        program = Program(role, process, tally=tally, is_exposed=is_exposed)
        self.programs.append(program)
        self.checker.count(f"{role} started")
        return program

    def end(self, program: Program) -> dict[str, Any]:
        """Asks one program to end; checks and counts what it did, and returns what it says."""
        report = program.end()
        self.programs.remove(program)
        self.checker.program(program.role, program.counts, report, is_exposed=program.is_exposed)
        return report or {}

    def start_role(self, role: str, text: str = "") -> Program:
        """Starts a role of the command line, with more lines in its configuration. The caller ends it."""
        config = self.work / f"{role}.toml"
        config.write_text(self.settings + text)
        settings = {
            "aeron.dir": self.aeron_dir, "aeron.media_driver": "external", "shm.base_dir": self.base,
            "context.mode": "driver",
        }  # fmt: skip
        arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "tensorpool", role, "run", "--config", str(config), *arguments]
        with (self.work / f"{role}.log").open("ab") as log:
            log_start = log.tell()
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        return Program(role, process, log_start)

    def role_is_ready(self, program: Program, timeout: float = END_TIMEOUT_S) -> bool:
        """Whether a role logs within a time that it is ready."""
        log, deadline = self.work / f"{program.role}.log", time.monotonic() + timeout
        while time.monotonic() < deadline and program.process.poll() is None:
            if b"is ready" in log.read_bytes()[program.log_start :]:
                return True
            time.sleep(0.05)
        return False

    def end_role(self, program: Program) -> None:
        """Asks a role of the command line to end, which it does in time and with exit status 0."""
        program.end()
        status = program.process.returncode
        self.checker.expect(status == 0, f"the {program.role} was asked to end, and ended with {status}")

    def kill(self, program: Program) -> None:
        """kill -9, counted, with what the program did until then."""
        program.kill()
        self.programs.remove(program)
        self.checker.count(f"{program.role} killed")
        self.checker.program(program.role, program.counts, None, is_exposed=program.is_exposed)

    def advances(self, program: Program, field: str, by: int, timeout: float = END_TIMEOUT_S) -> bool:
        """Whether a count of a program grows by a number within a time. One that has ended does not."""
        goal = getattr(program.counts, field) + by
        wait_for(lambda: getattr(program.counts, field) >= goal or program.has_ended, timeout=timeout)
        return bool(getattr(program.counts, field) >= goal)

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

    def programs_live(self, what: str, *, except_for: Sequence[Program] = ()) -> None:
        """Adds a finding for each program, and for the driver, that has ended by itself."""
        for program in [*self.programs, *([self.driver] if self.driver else [])]:
            status = None if program in except_for else program.process.poll()
            self.checker.expect(status is None, f"a {program.role} has ended with {status} {what}")

    def check_nothing_is_held(self) -> None:
        """After the programs: the driver has no lease, the stream at most one epoch, and the driver no more
        descriptors, threads and memory than at its start."""
        deadline = time.monotonic() + END_TIMEOUT_S
        leases: list[Any] | None = None
        holds_more = True
        while time.monotonic() < deadline:
            # A driver that was killed last may still be starting.
            with contextlib.suppress(tp.TensorPoolError), tp.open(**self.options) as context:
                leases = driver_leases(context, self.stream_id, timeout=5)
            held, idle = Footprint.of(self.driver_pid), self._idle_driver
            holds_more = held is not None and idle is not None and held.exceeds(idle)
            if leases == [] and len(self.epochs()) <= 1 and not holds_more:
                return
            time.sleep(0.1)
        self.checker.expect(leases == [], f"leases are left: {leases}")
        self.checker.expect(len(self.epochs()) <= 1, f"more than one epoch is left: {self.epochs()}")
        self.checker.expect(not holds_more, f"the driver holds {held}, and {idle} at its start")

    def end_programs(self) -> None:
        """Ends all programs, and checks what they did and what they say."""
        for program in list(self.programs):
            self.end(program)


@contextmanager
def mounted(directory: Path, size_bytes: int) -> Iterator[None]:
    """A small memory filesystem. Raises NotPossible where it cannot be mounted."""
    directory.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        directory.rmdir()
        raise NotPossible("file systems cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=False, capture_output=True)
        with contextlib.suppress(OSError):
            directory.rmdir()


@contextmanager
def stage(
    checker: Checker,
    seed: int,
    seconds: float,
    memory_bytes: int | None = None,
    grace_s: float = GRACE_S,
) -> Iterator[Stage]:
    """A stage with a media driver and an SHM driver; both are ended and their directories removed.

    `memory_bytes`: regions and media driver share a filesystem of this size, which a scenario may fill.
    """
    name = f"chaos-{os.getpid()}-{secrets.token_hex(3)}"
    with contextlib.ExitStack() as stack:
        memory = Path("/dev/shm")
        if memory_bytes is not None:
            memory /= name
            stack.enter_context(mounted(memory, memory_bytes))
        yield from _stage(name, memory, checker, seed, seconds, grace_s)


def _stage(
    name: str, memory: Path, checker: Checker, seed: int, seconds: float, grace_s: float
) -> Iterator[Stage]:
    base = memory / f"tensorpool-{name}"
    aeron_dir = memory / f"aeron-{name}"
    work = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    rng = random.Random(seed)
    stream_id = 20_000 + rng.randrange(1000)
    on_stage = Stage(rng, checker, seconds, work, aeron_dir, base, stream_id, grace_s)
    try:
        with on_stage.started():
            yield on_stage
    finally:
        if checker.verdict.findings:
            for log in sorted(work.rglob("*.log")):
                checker.verdict.logs[log.stem] = log.read_text(errors="replace")[-2000:]
        shutil.rmtree(work, ignore_errors=True)
