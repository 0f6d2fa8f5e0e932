"""A process of the demo as the director sees it.

Ctrl-C in the demo: the first one asks for an early end with the ledger, a second one breaks off.

How the demo's processes speak to their director: arguments and words down, JSON lines up.

What the camera films: a pattern in which every pixel depends on the frame, so that a torn frame shows.

The places and processes of one demo. At the end nothing of them is left.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from .. import context
from ..errors import TensorPoolError


class DemoFailed(TensorPoolError):
    """A process of the demo ended early or did not answer."""


class ProcessArguments(Protocol):
    """What a process is told when it starts."""

    def arguments(self) -> list[str]: ...


class ChildProcess:
    """A child process and the last thing it said of each kind."""

    def __init__(
        self,
        name: str,
        module: str,
        role: ProcessArguments,
        environment: Mapping[str, str],
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._said: dict[str, dict[str, Any]] = {}
        self._before: dict[str, Any] | None = None
        self._changed = threading.Condition()
        command = [*prefix, sys.executable, "-m", f"tensorpool.demo.{module}", *role.arguments()]
        # Its own session: a Ctrl-C is the director's to handle, so that the ledger is still told.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"demo-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                report = json.loads(line)
            except ValueError:
                # Cut off in the middle: it was killed.
                break
            with self._changed:
                if report["kind"] == "sample":
                    self._before = self._said.get("sample")
                self._said[report["kind"]] = report
                self._changed.notify_all()
        with self._changed:
            self._said.setdefault("end", {})
            self._changed.notify_all()

    def tell(self, word: str = "go") -> None:
        """A line on its stdin; what it means is the process's own affair."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DemoFailed(f"the {self.name} ended early; its words are above") from None

    def wait_for(self, kind: str, timeout: float) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: kind in self._said or "end" in self._said, timeout)
            if kind in self._said:
                return self._said[kind]
        state = "ended early; its words are above" if self._process.poll() is not None else "does not answer"
        raise DemoFailed(f"the {self.name} {state}")

    def check_alive(self) -> None:
        """Raises if it ended before it gave its ledger."""
        with self._changed:
            if "end" in self._said and "ledger" not in self._said:
                raise DemoFailed(f"the {self.name} ended early; its words are above")

    def heard(self, kind: str) -> dict[str, Any] | None:
        with self._changed:
            return self._said.get(kind)

    def sample(self) -> dict[str, Any]:
        """How it stood a moment ago; empty before its first word."""
        return self.heard("sample") or {}

    def rates(self) -> tuple[float, float]:
        """Frames and bytes a second between its last two samples."""
        with self._changed:
            now, before = self._said.get("sample"), self._before
        if now is None or before is None or now["at_ns"] <= before["at_ns"]:
            return 0.0, 0.0
        elapsed = (now["at_ns"] - before["at_ns"]) / 1e9
        return (now["frames"] - before["frames"]) / elapsed, (now["bytes"] - before["bytes"]) / elapsed

    def kill(self) -> None:
        """SIGKILL: it gets no chance to say or do anything more."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Lets it finish, and does not wait for ever."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


# A closed terminal too: it must not leave memory behind.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EarlyStop:
    """Whether somebody wants the end."""

    def __init__(self) -> None:
        self.asked = False
        self._is_closing = False

    def __bool__(self) -> bool:
        return self.asked

    def on_signal(self, *_: Any) -> None:
        # Cleaning up is not broken off: it takes a moment, and leaves nothing behind.
        if self._is_closing:
            return
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def closing(self) -> None:
        """From here on nothing is interrupted."""
        self._is_closing = True


@contextmanager
def early_stop() -> Iterator[EarlyStop]:
    """Handles signals that end programs, for the block; what nohup has turned off stays off."""
    asked = EarlyStop()
    wanted = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, asked.on_signal) for number in wanted}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_PERIOD_S = 0.25


@dataclass(frozen=True, slots=True)
class Role:
    """What a process is told when it starts."""

    aeron_dir: str
    base: Path
    recording: Path
    stream_id: int
    seconds: float
    fps: int
    work_s: float = 0.0
    policy: Literal["stream", "latest"] = "stream"

    def arguments(self) -> list[str]:
        return [f"--{name}={value}" for name, value in asdict(self).items()]

    def attach(self) -> context.Context:
        """A connection to the demo's own driver, and to no other."""
        return context.open(
            "driver", aeron_dir=self.aeron_dir, media_driver="external", shm_base_dir=self.base
        )


def role_arguments() -> Role:
    parser = argparse.ArgumentParser()
    for name, kind in (
        ("aeron_dir", str), ("base", Path), ("recording", Path), ("stream_id", int), ("seconds", float),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--fps", type=int, required=True)
    parser.add_argument("--work_s", type=float, default=0.0)
    parser.add_argument("--policy", default="stream")
    return Role(**vars(parser.parse_args()))


def was_told() -> bool:
    """Whether the director has said another word, or is gone."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


class Reports:
    """Writes JSON lines to stdout; tells when the next sample is due."""

    def __init__(self) -> None:
        self._next = time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _PERIOD_S
        return True

    def say(self, kind: str, **fields: Any) -> None:
        """`at_ns` is on the clock that all processes of a machine share."""
        sys.stdout.write(json.dumps({"kind": kind, "at_ns": time.monotonic_ns(), **fields}) + "\n")
        sys.stdout.flush()


SHAPE = (480, 640)
DTYPE = np.dtype("uint16")
FRAME_BYTES = SHAPE[0] * SHAPE[1] * DTYPE.itemsize
NSLOTS = 8
NAME = "camera"
POOL = "1MiB"

_BACKGROUND = (np.add.outer(np.arange(SHAPE[0]), np.arange(SHAPE[1])) * 7).astype(DTYPE)


def fill_pattern(into: npt.NDArray[Any], number: int) -> None:
    """Fills `into` with frame `number`."""
    np.add(_BACKGROUND, DTYPE.type(number & 0xFFFF), out=into)


def matches_pattern(image: npt.NDArray[Any], number: int) -> bool:
    """Whether every pixel belongs to frame `number`."""
    return bool(np.array_equal(image, _BACKGROUND + DTYPE.type(number & 0xFFFF)))


TIMEOUT_S = 30.0
_STREAM_ID = 10_000
_SPARE_S = 600.0


class DemoEnvironment:
    """The driver owns the memory; the camera and its viewers are attached to it by leases."""

    def __init__(self, seconds: float, fps: int, hurry: EarlyStop, *, kill: bool) -> None:
        self._hurry = hurry
        self._kill = kill
        self._stack = ExitStack()
        self._seconds, self._fps = seconds, fps

    def __enter__(self) -> Self:
        with self._stack as stack:
            temporary = tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-", dir="/dev/shm")
            self.base = Path(stack.enter_context(temporary))
            self.aeron_dir = f"/dev/shm/aeron-demo-{os.getpid()}"
            # The media driver's own affair, unless its process is killed.
            stack.callback(shutil.rmtree, self.aeron_dir, ignore_errors=True)
            # Not in memory: that is what recording is for.
            disk = tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-")
            self.recording = Path(stack.enter_context(disk)) / "recording"
            # Locks and epoch marks go there too: the demo touches nothing of the user's.
            self.environment = {**os.environ, "XDG_STATE_HOME": str(self.base / "state")}
            role = Role(self.aeron_dir, self.base, self.recording, _STREAM_ID, self._seconds, self._fps)
            self.role = role
            self.driver = self._start("driver", "driver", role)
            # The model takes longer for a frame than the camera does: it asks for the newest, and misses
            # the others, without holding anyone up.
            slow = replace(role, work_s=3.0 / self._fps, policy="latest")
            self.viewers = [self._start("viewer", "viewer", role), self._start("slow model", "viewer", slow)]
            self.tape = self._start("recorder", "tape", role)
            # One that is to be killed does not end before that, however slow the machine is.
            doomed = replace(role, seconds=role.seconds + _SPARE_S) if self._kill else role
            self.camera = self._start("camera", "camera", doomed)
            # Started all at once, let loose one after the other: nobody asks before there is an answer.
            for player in self.everyone():
                player.tell()
                player.wait_for("ready", TIMEOUT_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self, name: str, module: str, role: Role) -> ChildProcess:
        player = ChildProcess(name, module, role, self.environment)
        self._stack.callback(player.end)
        # Runs first: from then on no Ctrl-C gets in the way of the ends.
        self._stack.callback(self._hurry.closing)
        return player

    def everyone(self) -> list[ChildProcess]:
        return [self.driver, self.camera, *self.viewers, self.tape]

    def roll(self) -> str:
        """Lets the camera film once all viewers have mapped its epoch. Returns that epoch."""
        epoch = str(self.camera.wait_for("ready", TIMEOUT_S)["epoch"])
        for viewer in (*self.viewers, self.tape):
            viewer.wait_for(f"mapped-{epoch}", TIMEOUT_S)
        self.camera.tell()
        return epoch

    @property
    def stream_id(self) -> int:
        return _STREAM_ID

    def restart_tape(self) -> list[str]:
        """Another recorder in the place of the killed one. Gives what it found unfinished."""
        self.tape = self._start("recorder", "tape", self.role)
        self.tape.tell()
        found: list[str] = self.tape.wait_for("ready", TIMEOUT_S)["recovered"]
        return found

    def start_player(self) -> ChildProcess:
        """A process that plays the recording back."""
        return self._start("replayer", "player", self.role)

    def restart_camera(self, seconds: float) -> None:
        """Another process in the place of the killed one."""
        self.camera = self._start("camera", "camera", replace(self.role, seconds=seconds))
        self.camera.tell()
