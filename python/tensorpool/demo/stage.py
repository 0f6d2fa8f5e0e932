"""The places and processes of one demo. At the end nothing of them is left."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from .cast import Player
from .hurry import Hurry
from .reports import Role

TIMEOUT_S = 30.0
_STREAM_ID = 10_000
_SPARE_S = 600.0


class Stage:
    """The driver owns the memory; the camera and its viewers are attached to it by leases."""

    def __init__(self, seconds: float, fps: int, hurry: Hurry, *, kill: bool) -> None:
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

    def _start(self, name: str, module: str, role: Role) -> Player:
        player = Player(name, module, role, self.environment)
        self._stack.callback(player.end)
        # Runs first: from then on no Ctrl-C gets in the way of the ends.
        self._stack.callback(self._hurry.closing)
        return player

    def everyone(self) -> list[Player]:
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

    def start_player(self) -> Player:
        """A process that plays the recording back."""
        return self._start("replayer", "player", self.role)

    def restart_camera(self, seconds: float) -> None:
        """Another process in the place of the killed one."""
        self.camera = self._start("camera", "camera", replace(self.role, seconds=seconds))
        self.camera.tell()
