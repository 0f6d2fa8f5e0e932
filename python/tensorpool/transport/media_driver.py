"""Aeron's media driver inside this process."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from .. import _native
from ..errors import ForkedError
from ..state_dir import state_dir


def default_aeron_dir() -> str:
    """`$AERON_DIR` as everywhere in Aeron, else Aeron's own default for this user."""
    return os.environ.get("AERON_DIR") or _native.default_aeron_dir()


def embed_lock_path(aeron_dir: str) -> Path:
    """The lock that the process embedding a driver in `aeron_dir` holds."""
    digest = hashlib.sha256(str(Path(aeron_dir).absolute()).encode()).hexdigest()[:16]
    return state_dir("locks") / f"media-driver-{digest}.lock"


class MediaDriver(_native.MediaDriver):
    """A media driver that runs in this process until closed.

    with tp.MediaDriver("/dev/shm/aeron-lab") as driver:
        ...                                   # others attach with aeron_dir=driver.aeron_dir

    Its directory is private to the user, and gone after the close. A driver that is running there already
    is an error that says who runs it; what a dead one left is removed.
    """

    def __new__(
        cls,
        aeron_dir: str | Path | None = None,
        *,
        dedicated_threads: bool = False,
        idle_strategy: str = "backoff",
        ipc_term_length: int = 4 << 20,
        dir_mode: int = 0o700,
        driver_timeout: float = 5.0,
    ) -> Self:
        directory = str(aeron_dir or default_aeron_dir())
        return super().__new__(
            cls,
            aeron_dir=directory,
            lock_path=embed_lock_path(directory),
            dedicated_threads=dedicated_threads,
            idle_strategy=idle_strategy,
            ipc_term_length=ipc_term_length,
            dir_mode=dir_mode,
            driver_timeout_ms=int(driver_timeout * 1000),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the block belongs to the parent: there is nothing to close.
        with suppress(ForkedError):
            self.close()
