"""The directories: may this user write there, and may nobody else who should not."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ..shm.epoch_files import user_name
from ..shm.inspect import user_of
from ..state_dir import state_path
from .check import Check, fail, ok, warn


@dataclass(frozen=True, slots=True)
class Place:
    """A directory as the kernel has it; for one that is missing, the nearest above it that is there."""

    path: Path
    there: Path
    uid: int
    mode: int
    is_writable: bool

    @classmethod
    def of(cls, path: Path) -> Place:
        there = path
        while not there.is_dir() and there != there.parent:
            there = there.parent
        status = there.stat()
        return cls(
            path, there, status.st_uid, stat.S_IMODE(status.st_mode), os.access(there, os.W_OK | os.X_OK)
        )

    @property
    def exists(self) -> bool:
        return self.path == self.there

    def words(self) -> str:
        return (
            f"{self.path}, {user_of(self.uid)} {self.mode:04o}"
            if self.exists
            else f"{self.path}, not there yet"
        )


def check_base(base: Place, own: Place, me: int) -> Check:
    """The base directory and, in it, this user's own directory."""
    name = "base directory"
    if own.exists and own.uid != me:
        return fail(
            name,
            own.words(),
            f"Another user made a directory with the name of yours: regions of user id {me} are refused.",
            f"Remove {own.path} (as {user_of(own.uid)} or root), or set [shm] base_dir to another place.",
        )
    where = own if own.exists else base
    if not where.is_writable:
        return fail(
            name, where.words(), "No region can be made.",
            f"Make {where.there} writable for you, or set [shm] base_dir to another place.",
        )  # fmt: skip
    if base.mode & stat.S_IWOTH and not base.mode & stat.S_ISVTX:
        return warn(
            name,
            base.words(),
            "Everybody may rename and remove what others made there.",
            f"chmod +t {base.path}",
        )
    if own.exists and own.mode & 0o022:
        return warn(
            name, own.words(), "Others may make directories among your regions.", f"chmod go-w {own.path}"
        )
    return ok(name, where.words())


def check_state(state: Place, me: int) -> Check:
    """Where epoch marks and locks live."""
    name = "state directory"
    if not state.is_writable:
        return fail(
            name, state.words(), "Epoch marks and locks cannot be kept, so no producer and no driver starts.",
            f"Make {state.there} writable for you, or set XDG_STATE_HOME.",
        )  # fmt: skip
    if state.exists and state.uid != me:
        return warn(
            name,
            state.words(),
            "It belongs to another user, who can change your locks.",
            "Set XDG_STATE_HOME.",
        )
    if state.exists and state.mode & 0o022:
        return warn(
            name, state.words(), "Others can change your locks and epoch marks.", f"chmod go-w {state.path}"
        )
    return ok(name, state.words())


def place_checks(base: Path) -> list[Check]:
    """All of them, on the machine as it is."""
    me = os.geteuid()
    own = base / f"tensorpool-{user_name()}"
    return [
        check_base(Place.of(base), Place.of(own), me),
        check_state(Place.of(state_path()), me),
    ]
