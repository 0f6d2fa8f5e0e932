"""Processes of their own for tests of the SHM driver."""

from __future__ import annotations

import fcntl
import os
import resource
import struct
from typing import Any

from tensorpool import _native, errors

NOBODY = 65534


class LockHolder:
    """Holds the lock of a header ring, as a producer does, and can be killed.

    With plain system calls: what counts is what the kernel says, not our own code.
    """

    def lock(self, path: str) -> None:
        # Never closed: the lock ends with the process.
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whole)


class PoorDriver:
    """A driver that may keep nothing in memory. It needs no media driver to find that out."""

    def __init__(self, base: str) -> None:
        # The root user is refused nothing.
        if os.geteuid() == 0:
            os.chown(base, NOBODY, NOBODY)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        self._base = base

    def put(self, conductor: dict[str, Any]) -> tuple[int | None, str, int]:
        """Number and words of the refusal, and how many streams the beacons have after it."""
        made = _native.create_epoch(
            base=self._base,
            user="me",
            namespace="n",
            stream_id=1,
            epoch=1,
            nslots=8,
            pools=[(1, 4096)],
        )
        conducting = _native.Conductor(**conductor)
        beacons = _native.Beacons(conducting, period_ns=10**9, stall_ns=10**9)
        words: dict[str, Any] = {
            "stream_id": 1,
            "epoch": 1,
            "producer_id": 0,
            "nslots": 8,
            "header_uri": made[1],
            "pools": made[2],
            "base_dirs": [self._base],
        }
        try:
            beacons.put(**words)
            beacons.put(**words, lock_memory=True)
        except errors.TensorPoolError:
            raise
        except OSError as error:
            return error.errno, str(error), len(beacons)
        finally:
            conducting.close()
            _native.remove_epoch(made[0])
        raise AssertionError("memory was locked")
