"""Ownership of a stream's regions: lock, epoch mark, pools, and the regions of a standalone producer.

A stream has one owner at a time: a standalone producer or the SHM driver. The owner holds the stream's lock
and takes epochs from the stream's mark. Both files are in the state directory, at one path for both kinds
of owner. So the two kinds exclude each other, and epochs grow from one owner to the next (wire §15.2).
`OwnedRegions` are the regions that a standalone producer creates, locks and removes itself (wire §15.21a).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .. import _native
from ..durable import replace_file, state_dir
from ..errors import ConfigError, LockHeld, StreamBusy
from ..units import parse_size
from .epoch_files import (
    PRIVATE,
    EpochFiles,
    EpochSpec,
    PoolSpec,
    RegionAccess,
    create_epoch,
    remove_leftovers,
    stream_dir,
)

DEFAULT_POOLS: Final[tuple[str, ...]] = ("64KiB", "1MiB", "4MiB")
_MIN_STRIDE: Final = 64
_MAX_STRIDE: Final = 1 << 31


def parse_pools(sizes: Sequence[str | int] | str | int | None) -> list[PoolSpec]:
    """One pool per distinct size, smallest first, with ids from 1. None gives the default pools."""
    if isinstance(sizes, str | int):
        sizes = [sizes]
    strides = sorted({_parse_stride(size) for size in (sizes if sizes is not None else DEFAULT_POOLS)})
    if not strides:
        raise ConfigError("pools is empty; a stream needs at least one, as in pools=['1MiB']")
    return [PoolSpec(pool_id, stride) for pool_id, stride in enumerate(strides, start=1)]


def _parse_stride(size: str | int) -> int:
    stride = parse_size(size)
    if _MIN_STRIDE <= stride <= _MAX_STRIDE and stride & (stride - 1) == 0:
        return stride
    fit = min(_MAX_STRIDE, max(_MIN_STRIDE, 1 << max(0, stride - 1).bit_length()))
    raise ConfigError(
        f"pool size {size!r} must be a power of two from 64 bytes on; the next that fits is {fit}"
    )


class EpochMark:
    """The highest epoch assigned so far, in a small file that is replaced atomically.

    Epochs grow across restarts, wiped directories and clocks that were set back.
    """

    def __init__(self, path: Path, *, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._wall_clock_ns = wall_clock_ns

    def last(self) -> int:
        """The last assigned epoch; 0 where the file is missing or not a number."""
        with suppress(FileNotFoundError, ValueError):
            return int(self._path.read_text("ascii"))
        return 0

    def next(self, *, after: int = 0) -> int:
        """A new epoch, above `after` too. It is on disk before it is returned."""
        epoch = max(self.last() + 1, after + 1, self._wall_clock_ns())
        self.record(epoch)
        return epoch

    def record(self, epoch: int) -> None:
        """Notes an epoch that was assigned by another mark of the stream."""
        replace_file(self._path, str(epoch).encode())


def base_digest(base: Path) -> str:
    """A short digest of a base directory, used in the names of state directories."""
    return hashlib.sha256(str(base.resolve()).encode()).hexdigest()[:16]


def stream_state(base: Path, namespace: str) -> Path:
    """The directory of a namespace's marks and locks. Each base directory has streams of its own."""
    return state_dir("streams", base_digest(base), namespace)


def epoch_mark(state: Path, stream_id: int) -> EpochMark:
    """The epoch mark of one stream."""
    return EpochMark(state / f"{stream_id}.epoch")


def lock_stream(
    state: Path, namespace: str, stream_id: int, *, holder: str | None = None
) -> _native.FileLock:
    """Makes this process the stream's owner. Raises StreamBusy if another process owns it."""
    path = state / f"{stream_id}.lock"
    try:
        return _native.FileLock(path, holder or f"process {os.getpid()}")
    except LockHeld as error:
        message = (
            f"stream {stream_id} in namespace {namespace!r} has a producer already ({error.holder}); "
            "close that producer, or choose another stream id or namespace"
        )
        raise StreamBusy(message, stream_id=stream_id, holder=error.holder) from None


@dataclass(frozen=True, slots=True)
class OwnedRegions:
    """The regions of one new epoch, and the lock that makes this process the owner of the stream."""

    base_dir: Path
    files: EpochFiles
    lock: _native.FileLock

    @classmethod
    def create(
        cls,
        stream_id: int,
        *,
        base_dir: Path,
        namespace: str,
        nslots: int,
        pools: list[PoolSpec],
        stale_after_ns: int,
        access: RegionAccess = PRIVATE,
    ) -> OwnedRegions:
        """Locks the stream, removes what dead owners left, and allocates the regions of the next epoch.

        Raises StreamBusy if another process owns the stream, RegionCreateError if the regions cannot be made.
        """
        state = stream_state(base_dir, namespace)
        lock = lock_stream(state, namespace, stream_id)
        try:
            remove_leftovers(stream_dir(base_dir, namespace, stream_id), stale_after_ns=stale_after_ns)
            epoch = epoch_mark(state, stream_id).next()
            files = create_epoch(EpochSpec(base_dir, namespace, stream_id, epoch, nslots, pools, access))
        except BaseException:
            lock.release()
            raise
        return cls(base_dir, files, lock)

    def remove(self) -> None:
        """Removes the regions and unlocks the stream. Consumers can still read what they have mapped."""
        self.files.remove()
        self.lock.release()
