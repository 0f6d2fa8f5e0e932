"""Processes for tests: a holder of the driver's lock, and another user."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

from tensorpool.driver.lock import DriverLock, Holder, read_holder


def holder(namespace: str = "default", aeron_dir: str = "/dev/shm/aeron-x", control: int = 1000) -> Holder:
    return Holder.for_this_process(
        namespace=namespace, aeron_dir=aeron_dir, control_stream_id=control, embedded=False
    )


class LockHolder:
    """Holds the driver's lock until it releases it or ends."""

    def __init__(self, base: str, embedded: bool = False) -> None:
        identity = Holder.for_this_process(
            namespace="default", aeron_dir="/dev/shm/aeron-x", control_stream_id=1000, embedded=embedded
        )
        self._lock = DriverLock(Path(base), "default", identity)

    def pid(self) -> int:
        return os.getpid()

    def read(self, base: str) -> str:
        return str(read_holder(Path(base), "default"))

    def release(self) -> None:
        self._lock.release()


class OtherUser:
    """An unprivileged user that attempts permitted and forbidden operations."""

    def __init__(self, uid: int, gid: int, groups: list[int]) -> None:
        os.setgroups(groups)
        os.setegid(gid)
        os.seteuid(uid)

    def tries(self, directory: str) -> dict[str, str]:
        """The result of each attempt: "ok", or the name of the error."""
        path = Path(directory)
        ring = path / "header.ring"
        return {
            "read": self._map(ring, os.O_RDONLY),
            "write": self._map(ring, os.O_RDWR),
            "rename": self._result(lambda: self._rename(ring)),
            "create": self._result(lambda: self._create(path / "9.pool")),
            "list": self._result(lambda: os.listdir(path)),
            "list streams": self._result(lambda: os.listdir(path.parent.parent)),
        }

    def _map(self, path: Path, flags: int) -> str:
        def attempt() -> None:
            descriptor = os.open(path, flags | os.O_NOFOLLOW)
            try:
                access = mmap.ACCESS_WRITE if flags == os.O_RDWR else mmap.ACCESS_READ
                mmap.mmap(descriptor, 0, access=access).close()
            finally:
                os.close(descriptor)

        return self._result(attempt)

    def _rename(self, path: Path) -> None:
        path.rename(path.with_suffix(".moved")).rename(path)

    def _create(self, path: Path) -> None:
        path.touch(exist_ok=False)
        path.unlink()

    def _result(self, attempt: Any) -> str:
        try:
            attempt()
        except OSError as error:
            return type(error).__name__
        return "ok"
