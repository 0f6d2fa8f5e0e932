"""Processes for tests of the SHM driver."""

from __future__ import annotations

import fcntl
import os
import resource
import struct
from pathlib import Path

from tensorpool import _native, errors
from tensorpool.driver.agent import AnnouncerOptions
from tensorpool.shm import EpochSpec, PoolSpec, create_epoch
from tests.integration.conductors import open_conductor

UNPRIVILEGED_UID = 65534


class LockHolder:
    """Holds the lock of a header ring, as a producer does, and can be killed.

    Uses plain system calls, so that the test does not depend on the code under test.
    """

    def lock(self, path: str) -> None:
        # Never closed: the lock ends with the process.
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whole)


class UnprivilegedDriver:
    """A driver that may not lock memory. It needs no media driver."""

    def __init__(self, base: str) -> None:
        # The limits do not apply to root.
        if os.geteuid() == 0:
            os.chown(base, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
            os.setgroups([])
            os.setresgid(UNPRIVILEGED_UID, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
            os.setresuid(UNPRIVILEGED_UID, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        self._base = base

    def put(self, aeron_dir: str, lock: str) -> tuple[int | None, str, int]:
        """Errno and text of the error, and the number of streams in the announcer after it."""
        base = Path(self._base)
        files = create_epoch(EpochSpec(base, "n", 1, 1, 8, [PoolSpec(1, 4096)], user="me"))
        opened = open_conductor(aeron_dir, base_dir=str(self._base), announce=1, lock=lock)
        announcer = _native.StreamAnnouncer(opened, AnnouncerOptions(10**9, 10**9, [base], lock_memory=True))
        try:
            announcer.announce(1, files, 0)
        except errors.TensorPoolError:
            raise
        except OSError as error:
            return error.errno, str(error), len(announcer)
        finally:
            opened.close()
            _native.remove_epoch(files.directory)
        raise AssertionError("memory was locked")
