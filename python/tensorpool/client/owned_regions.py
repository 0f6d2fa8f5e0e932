"""A producer that owns its regions: no SHM driver, one process makes, announces and removes them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Self

from .. import _native
from ..shm import EpochFiles, create_epoch, remove_leftovers
from ..shm.epoch_files import stream_dir
from ..shm.ownership import PoolSpec, epoch_mark, lock_stream, stream_state
from .options import PerConsumerStreams
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
        pools: list[PoolSpec],
        descriptor_channel: str,
        descriptor_stream_id: int,
        announce_period_ns: int,
        streams: PerConsumerStreams,
        publish_timestamps: bool,
        prefault: bool,
    ) -> Self:
        state = stream_state(base, namespace)
        lock = lock_stream(state, namespace, stream_id)
        files = None
        try:
            remove_leftovers(stream_dir(base, namespace, stream_id), stale_after_ns=3 * announce_period_ns)
            epoch = epoch_mark(state, stream_id).next()
            files = create_epoch(
                base=base, namespace=namespace, stream_id=stream_id, epoch=epoch, nslots=nslots, pools=pools
            )
            self = cls.__new__(
                cls,
                conductor,
                stream_id=stream_id,
                descriptor_channel=descriptor_channel,
                descriptor_stream_id=descriptor_stream_id,
                publish_timestamps=publish_timestamps,
                prefault=prefault,
                announce_period_ns=announce_period_ns,
                qos_period_ns=streams.period_ns,
                grants=streams.grants,
                own={
                    "producer_id": secrets.randbelow(0xFFFF_FFFE) + 1,
                    "epoch": epoch,
                    "nslots": nslots,
                    "header_uri": files.header_uri,
                    "pools": files.pools,
                    "base_dirs": [str(base)],
                },
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
