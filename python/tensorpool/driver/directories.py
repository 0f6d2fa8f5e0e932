"""The directories above a stream's regions: made with the rights that its users need, gone when empty.

`<base>/tensorpool-<user>/<namespace>/<stream>`; the epochs below are made natively.
"""

from __future__ import annotations

import grp
import os
import pwd
import threading
from contextlib import suppress
from pathlib import Path

from ..errors import ConfigError, RegionCreateError
from ..shm.epoch_files import user_name
from .access import Access

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def group_id(access: Access) -> int | None:
    """Raises ConfigError for a group that this machine does not know."""
    if access.group is None:
        return None
    try:
        return int(access.group) if access.group.isdecimal() else grp.getgrnam(access.group).gr_gid
    except KeyError:
        raise ConfigError(f"group {access.group!r}: there is no such group on this machine") from None


def owner_id(access: Access) -> int | None:
    """Raises ConfigError for a user that this machine does not know."""
    if access.owner is None:
        return None
    try:
        return int(access.owner) if access.owner.isdecimal() else pwd.getpwnam(access.owner).pw_uid
    except KeyError:
        raise ConfigError(f"owner {access.owner!r}: there is no such user on this machine") from None


class Directories:
    """The tree of one namespace. Safe to use from several threads."""

    def __init__(self, base: Path, place: str) -> None:
        self._base = base
        self.root = base / f"tensorpool-{user_name()}" / place
        # A directory that one stream leaves empty must not vanish while another stream's is made in it.
        self._lock = threading.Lock()

    def stream(self, stream_id: int) -> Path:
        return self.root / str(stream_id)

    def make(self, stream_id: int, access: Access) -> None:
        """Makes what is missing. Raises RegionCreateError."""
        group = group_id(access)
        if not self._base.is_dir():
            message = f"there is no base directory {self._base}; make it, or set another [shm] base_dir"
            raise RegionCreateError(message, reason="io")
        with self._lock:
            for directory in (self.root.parent, self.root):
                _ensure(directory, access.parent_mode, None, is_shared=True)
            _ensure(self.stream(stream_id), access.dir_mode, group, is_shared=False)

    def remove_if_empty(self, stream_id: int) -> None:
        with self._lock, suppress(OSError):
            for directory in (self.stream(stream_id), self.root, self.root.parent):
                directory.rmdir()

    def streams(self) -> list[int]:
        """Ids of the streams that have a directory, whoever made it."""
        with suppress(OSError):
            return sorted(
                int(entry.name)
                for entry in os.scandir(self.root)
                if entry.name.isascii() and entry.name.isdecimal() and entry.is_dir(follow_symlinks=False)
            )
        return []


def _ensure(directory: Path, mode: int, group: int | None, *, is_shared: bool) -> None:
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            # A strict umask may have left us out of our own directory.
            directory.chmod(0o700)
        descriptor = os.open(directory, _DIRECTORY)
    except OSError as error:
        raise RegionCreateError(f"{directory}: {error.strerror}", reason="io") from None
    try:
        found = os.fstat(descriptor)
        # Someone who may write in the base could have made this directory first, as a trap.
        if found.st_uid != os.geteuid():
            raise RegionCreateError(
                f"{directory} belongs to user id {found.st_uid}, not to this process; remove it or choose "
                "another base directory",
                reason="foreign_owner",
            )
        if group is not None and found.st_gid != group:
            os.fchown(descriptor, -1, group)
        # A shared one is only ever widened: other streams, or another namespace, may need what it has.
        wanted = found.st_mode & 0o7777 | mode if is_shared else mode
        # After a change of group, which clears the setgid bit.
        os.fchmod(descriptor, wanted)
    except OSError as error:
        if isinstance(error, RegionCreateError):
            raise
        raise RegionCreateError(f"{directory}: {error.strerror}", reason="io") from None
    finally:
        os.close(descriptor)
