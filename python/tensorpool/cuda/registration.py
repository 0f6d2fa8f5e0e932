"""Which mapped memory is registered with CUDA: the pools of the newest epoch, once.

An epoch is registered with its first frame and unregistered before it is unmapped: the entry keeps the pools
mapped. What the system refuses to register is reported once, and is copied by way of CUDA's own buffers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from .. import _native
from ..errors import DeviceError
from .api import CudaApi

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Epoch:
    pools: _native.MappedPools | None
    """Keeps the memory mapped; None: its registration was refused."""
    addresses: list[int] = field(default_factory=list)


class Registrations:
    """The registered pools of one stream on one device. The caller serializes the calls."""

    def __init__(self, api: CudaApi, *, read_only: bool) -> None:
        self._api = api
        self._read_only = read_only
        self._epochs: dict[int, _Epoch] = {}
        self._newest = -1
        self._was_refused = False

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs whose pools are registered."""
        return tuple(epoch for epoch, entry in self._epochs.items() if entry.pools is not None)

    def ensure(
        self, epoch: int, pools: Callable[[], _native.MappedPools], finish: Callable[[], None]
    ) -> bool:
        """Whether the pools of `epoch` are registered; registers them if the epoch is new.

        `finish` waits for copies that are under way: those of an older epoch end before its pools are
        unregistered.
        """
        if (entry := self._epochs.get(epoch)) is not None:
            return entry.pools is not None
        if epoch < self._newest:
            # A frame of an epoch that has ended: its memory is about to be unmapped.
            return False
        self.retire(finish)
        self._newest = epoch
        entry = self._epochs[epoch] = self._register(pools())
        return entry.pools is not None

    def _register(self, pools: _native.MappedPools) -> _Epoch:
        done: list[int] = []
        try:
            for memory in pools.ranges():
                self._api.register(memory.address, memory.nbytes, read_only=self._read_only)
                done.append(memory.address)
        except DeviceError as error:
            self._unregister(done)
            self._report(pools, error)
            return _Epoch(None)
        except BaseException:
            self._unregister(done)
            raise
        return _Epoch(pools, done)

    def _unregister(self, addresses: list[int]) -> None:
        """Each of them, also where CUDA refuses one: memory that is unmapped while it is registered would be
        taken for whatever is mapped at its address next."""
        while addresses:
            with suppress(DeviceError):
                self._api.unregister(addresses[-1])
            addresses.pop()

    def _report(self, pools: _native.MappedPools, error: DeviceError) -> None:
        if self._was_refused:
            return
        self._was_refused = True
        nbytes = sum(memory.nbytes for memory in pools.ranges())
        _LOG.warning(
            "stream %d: %d bytes of its pools could not be registered on cuda:%d (%s); frames are copied by "
            "way of CUDA's own buffers, which is several times slower. Raise the limit of locked memory "
            "(ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit), or use fewer or smaller slots",
            pools.stream_id,
            nbytes,
            self._api.ordinal,
            str(error),
        )

    def retire(self, finish: Callable[[], None]) -> None:
        """Unregisters everything, after the copies that are under way; then the memory may be unmapped."""
        if not self._epochs:
            return
        # An exception here leaves all registered, and so mapped, until the next call.
        finish()
        for epoch, entry in list(self._epochs.items()):
            self._unregister(entry.addresses)
            del self._epochs[epoch]
