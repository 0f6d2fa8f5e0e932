"""Regions that a producer without an SHM driver creates, locks and removes itself (wire §15.21a)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import _native
from ..shm import EpochFiles, create_epoch, remove_leftovers
from ..shm.epoch_files import PRIVATE, RegionAccess, stream_dir
from ..shm.ownership import PoolSpec, epoch_mark, lock_stream, stream_state


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
            files = create_epoch(
                base=base_dir,
                namespace=namespace,
                stream_id=stream_id,
                epoch=epoch_mark(state, stream_id).next(),
                nslots=nslots,
                pools=pools,
                access=access,
            )
        except BaseException:
            lock.release()
            raise
        return cls(base_dir, files, lock)

    def remove(self) -> None:
        """Removes the regions and unlocks the stream. Consumers can still read what they have mapped."""
        self.files.remove()
        self.lock.release()
