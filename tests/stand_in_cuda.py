"""A stand-in for one CUDA device: its memory is memory of this process, and its streams can be held.

It refuses what a real device refuses (memory that is registered twice, or copied from after it was
unregistered) and can be made to refuse, delay or fail.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from collections.abc import Callable

import numpy as np

from tensorpool import _native
from tensorpool.errors import DeviceError


class StandInCuda:
    """CudaApi without a GPU. With `is_held` copies wait in their stream until something waits for them."""

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.is_held = False
        self.refuses_registration: str | None = None
        self.registered: dict[int, tuple[int, bool]] = {}
        self.log: list[str] = []
        """What happened, in order: register, unregister, copy, free, …"""
        self.memory: dict[int, np.ndarray] = {}
        self.streams: dict[int, deque[Callable[[], None]]] = {1: deque()}
        self.events: dict[int, tuple[int, int]] = {}
        """How often each was recorded, and which of these records has happened."""
        self._running: set[int] = set()
        self._handles = itertools.count(1000)

    def _fail(self, code: str) -> None:
        raise DeviceError(f"the stand-in refuses: {code}", code=code)

    # --- memory

    def register(self, address: int, nbytes: int, *, read_only: bool) -> None:
        if self.refuses_registration is not None:
            self._fail(self.refuses_registration)
        if address in self.registered:
            self._fail("cudaErrorHostMemoryAlreadyRegistered")
        self.registered[address] = (nbytes, read_only)
        self.log.append("register")

    def unregister(self, address: int) -> None:
        if self.registered.pop(address, None) is None:
            self._fail("cudaErrorHostMemoryNotRegistered")
        self.log.append("unregister")

    def is_registered(self, address: int, nbytes: int) -> bool:
        return any(
            at <= address and address + nbytes <= at + size for at, (size, _) in self.registered.items()
        )

    def allocate(self, nbytes: int) -> int:
        block = np.zeros(nbytes, np.uint8)
        address: int = block.__array_interface__["data"][0]
        self.memory[address] = block
        return address

    def free(self, address: int) -> None:
        self.synchronize_device()
        if self.memory.pop(address, None) is None:
            self._fail("cudaErrorInvalidValue")
        self.log.append("free")

    # --- streams

    def create_stream(self) -> int:
        stream = next(self._handles)
        self.streams[stream] = deque()
        return stream

    def destroy_stream(self, stream: int) -> None:
        self._run(stream)
        del self.streams[stream]

    def _give(self, stream: int, work: Callable[[], None]) -> None:
        if stream not in self.streams:
            self._fail("cudaErrorInvalidResourceHandle")
        self.streams[stream].append(work)
        if not self.is_held:
            self._run(stream)

    def _run(self, stream: int) -> None:
        if stream not in self.streams:
            self._fail("cudaErrorInvalidResourceHandle")
        if stream in self._running:
            # It waits for an event: what was given to it later begins after that.
            return
        self._running.add(stream)
        try:
            waiting = self.streams[stream]
            while waiting:
                waiting.popleft()()
        finally:
            self._running.discard(stream)

    def create_event(self) -> int:
        event = next(self._handles)
        self.events[event] = (0, 0)
        return event

    def destroy_event(self, event: int) -> None:
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        recorded, happened = self.events[event]
        self.events[event] = (recorded + 1, happened)

        def happen() -> None:
            if event in self.events:
                self.events[event] = (self.events[event][0], recorded + 1)

        self._give(stream, happen)

    def wait_for_event(self, stream: int, event: int) -> None:
        self.log.append("wait_for_event")
        # A later record of the event is not waited for.
        number, _ = self.events[event]
        self._give(stream, lambda: self._wait(event, number))

    def _wait(self, event: int, number: int) -> None:
        for stream in list(self.streams):
            if event in self.events and self.events[event][1] < number:
                self._run(stream)

    def synchronize_event(self, event: int) -> None:
        self._wait(event, self.events[event][0])

    def has_happened(self, event: int) -> bool:
        recorded, happened = self.events[event]
        return recorded == happened

    def synchronize_stream(self, stream: int) -> None:
        self._run(stream)

    def synchronize_device(self) -> None:
        self.log.append("synchronize_device")
        for stream in list(self.streams):
            self._run(stream)

    # --- copies

    def copy_to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        direct = self.is_registered(source, nbytes)
        self._give(stream, lambda: self._copy(target, source, nbytes, direct=direct, host=source))

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        direct = self.is_registered(target, nbytes)
        self._give(stream, lambda: self._copy(target, source, nbytes, direct=direct, host=target))

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._give(stream, lambda: self._copy(target, source, nbytes, direct=False, host=source))

    def copy_rows_to_host(
        self, target: int, source: int, *, row_bytes: int, source_pitch: int, rows: int, stream: int
    ) -> None:
        for row in range(rows):
            self.copy_to_host(target + row * row_bytes, source + row * source_pitch, row_bytes, stream)

    def _copy(self, target: int, source: int, nbytes: int, *, direct: bool, host: int) -> None:
        if direct and not self.is_registered(host, nbytes):
            self._fail("cudaErrorIllegalAddress")
        self.log.append("direct copy" if direct else "staged copy")
        ctypes.memmove(target, source, nbytes)

    def write_word(self, stream: int, address: int, value: int) -> None:
        if not self.is_registered(address, 4):
            self._fail("cudaErrorInvalidValue")
        self._give(stream, lambda: ctypes.c_uint32.from_address(address).__setattr__("value", value))


class DeviceTensor:
    """A tensor in the memory of the stand-in, as another library would have it."""

    def __init__(self, api: StandInCuda, array: np.ndarray, *, pitch: int | None = None) -> None:
        self._api = api
        rows = array.reshape(array.shape[0], -1) if array.ndim else array.reshape(1, 1)
        row_bytes = rows.shape[1] * array.itemsize
        self._pitch = pitch or row_bytes
        self.address = api.allocate(max(1, self._pitch * rows.shape[0]))
        for i, row in enumerate(np.ascontiguousarray(rows)):
            ctypes.memmove(self.address + i * self._pitch, row.ctypes.data, row_bytes)
        self._shape, self._dtype = array.shape, array.dtype
        inner = np.ascontiguousarray(array).strides[1:]
        self._strides = (self._pitch, *inner)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": self._shape,
            "typestr": self._dtype.str,
            "data": (self.address, False),
            "strides": self._strides,
            "stream": 1,
            "version": 3,
        }


class DlpackTensor(DeviceTensor):
    """A tensor that is exported by DLPack. `streams` has those that its readers named."""

    def __init__(self, api: StandInCuda, array: np.ndarray, *, code: int) -> None:
        super().__init__(api, array)
        self._code = code
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._api.ordinal

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object:
        self.streams.append(stream)
        size = self._dtype.itemsize
        return _native.dlpack_capsule(
            self,
            self.address,
            list(self._shape),
            [step // size for step in np.empty(self._shape, self._dtype).strides],
            code=self._code,
            bits=8 * size,
            device_type=2,
            device_id=self._api.ordinal,
            versioned=max_version is not None,
        )
