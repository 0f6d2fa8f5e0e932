"""A producer that owns its regions: no SHM driver, one process makes, announces and removes them."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Self

from .. import _native
from ..errors import LockHeld, StreamBusy
from ..shm import EpochFiles, EpochMark, create_epoch, remove_leftovers
from ..shm.files import stream_dir
from ..state import state_dir
from .producer import Producer


class StandaloneProducer(Producer):
    """The owner of a stream's memory: takes the stream's lock, makes the regions, announces them."""

    _files: EpochFiles
    _lock: _native.FileLock

    @classmethod
    def create(
        cls,
        conductor: _native.Conductor,
        stream_id: int,
        *,
        base: Path,
        namespace: str,
        nslots: int,
        pools: list[tuple[int, int]],
        descriptor_channel: str,
        descriptor_stream_id: int,
        announce_period_ns: int,
        publish_timestamps: bool,
        prefault: bool,
    ) -> Self:
        state = _stream_state(base, namespace)
        lock = _lock_stream(state, namespace, stream_id)
        files = None
        try:
            remove_leftovers(stream_dir(base, namespace, stream_id), stale_after_ns=3 * announce_period_ns)
            epoch = EpochMark(state / f"{stream_id}.epoch").next()
            files = create_epoch(
                base=base, namespace=namespace, stream_id=stream_id, epoch=epoch, nslots=nslots, pools=pools
            )
            self = cls.__new__(
                cls,
                conductor,
                stream_id=stream_id,
                producer_id=secrets.randbelow(0xFFFF_FFFE) + 1,
                epoch=epoch,
                nslots=nslots,
                header_uri=files.header_uri,
                pools=files.pools,
                base_dirs=[str(base)],
                descriptor_channel=descriptor_channel,
                descriptor_stream_id=descriptor_stream_id,
                publish_timestamps=publish_timestamps,
                announce=True,
                announce_period_ns=announce_period_ns,
                prefault=prefault,
            )
        except BaseException:
            if files is not None:
                files.remove()
            lock.release()
            raise
        self._files, self._lock = files, lock
        return self

    def close(self) -> None:
        """Stops announcing and removes the regions; views that consumers hold stay readable."""
        super().close()
        self._files.remove()
        self._lock.release()


def _stream_state(base: Path, namespace: str) -> Path:
    """Where marks and locks of a namespace live. Each base directory has streams of its own."""
    place = hashlib.sha256(str(base.resolve()).encode()).hexdigest()[:16]
    return state_dir("streams", place, namespace)


def _lock_stream(state: Path, namespace: str, stream_id: int) -> _native.FileLock:
    path = state / f"{stream_id}.lock"
    try:
        return _native.FileLock(path, f"process {os.getpid()}")
    except LockHeld as error:
        message = (
            f"stream {stream_id} in namespace {namespace!r} has a producer already ({error.holder}); "
            "close that one, or choose another stream id or namespace"
        )
        raise StreamBusy(message, stream_id=stream_id, holder=error.holder) from None
