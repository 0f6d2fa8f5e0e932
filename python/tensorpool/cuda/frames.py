"""Frames on a device: asynchronous copies out of shared memory, each proven after it has ended.

A producer may overwrite a slot while it is copied. So the commit word of the slot is checked after the copy
has ended and before the copy is handed out: a copy that mixes two frames never is. Buffers of the device are
used again once the streams that read them are done.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict

from .. import _native
from ..errors import ClosedError, DeviceError, ForkedError, FrameOverwritten, ReceiveTimeout
from .api import LEGACY_STREAM, CudaApi, stream_address
from .registration import Registrations

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_CPU: Final = 1
_CUDA: Final = 2
# DLPack's codes of element types, by the kind of the numpy dtype, or by the name of a type of ml_dtypes.
_CODES: Final = {"i": 0, "u": 1, "f": 2, "bfloat16": 4, "c": 5, "b": 6}
# In `__dlpack__`, the caller says that it orders its work itself; so its stream is not known.
_UNSYNCHRONIZED: Final = -1
# A wait for a frame looks so often whether the memory of an epoch that ended can be unregistered.
_WAIT_S: Final = 0.25


class CudaArrayInterface(TypedDict):
    """The interface by which libraries take over arrays of a device, version 3."""

    shape: tuple[int, ...]
    typestr: str
    data: tuple[int, bool]
    """The address, and whether the memory is read-only."""
    strides: tuple[int, ...]
    stream: int | None
    """The stream that writes the array; None: it is written."""
    version: int


class FrameSource(Protocol):
    """What `Device.iterate` needs of a consumer."""

    timeout: float | None

    @property
    def stream_id(self) -> int:
        """The stream that is read."""

    @property
    def closed(self) -> bool:
        """Whether no frame can come any more."""

    @property
    def epoch(self) -> int | None:
        """The mapped epoch; None while nothing is mapped."""

    def receive_or_none(self, timeout: float | None = None) -> _native.Frame | None:
        """The next frame; None if none came in time."""


@dataclass(slots=True)
class _Buffer:
    """Memory of the device, with the streams that may still read it."""

    address: int
    capacity: int
    event: int
    streams: dict[int, object] = field(default_factory=dict)
    """By address; with the stream that the user gave, so that it is not destroyed before it is waited for."""
    is_unordered: bool = False
    """Its reader did not say which stream it uses."""


class Device:
    """The copies of one consumer's frames to one device. Any thread may use it."""

    def __init__(self, api: CudaApi, *, depth: int = 3) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._stream = api.create_stream()
        self._registrations = Registrations(api, read_only=True)
        self._free: list[_Buffer] = []
        # Buffers whose arrays have ended. The garbage collector may end one on a thread that holds the lock.
        self._returned: deque[_Buffer] = deque()
        self._kept = depth + 1
        self._pid = os.getpid()
        self._closed = False

    @property
    def ordinal(self) -> int:
        """The number of the device."""
        return self._api.ordinal

    @property
    def registered_epochs(self) -> tuple[int, ...]:
        """The epochs whose pools the device reads directly."""
        return self._registrations.epochs

    def check_fork(self) -> None:
        """Raises ForkedError in a forked child: there CUDA does not work, and another thread may have held
        the lock."""
        if os.getpid() != self._pid:
            raise ForkedError(
                "copies to a device belong to the process that began them; in a forked child, use frames of "
                "a context of its own, or start the process by spawn"
            )

    def copy_frame(self, frame: _native.Frame, stream: object = None) -> DeviceFrame:
        """Begins the copy of `frame`. `stream` is the stream that the copy will be used on."""
        source = frame.array
        address, _ = source.__array_interface__["data"]
        used_on = stream_address(stream)
        with self._lock:
            if self._closed:
                raise ClosedError("the consumer is closed, and with it its copies to the device")
            self._registrations.ensure(frame.epoch, frame.mapped_pools, self._finish)
            buffer = self._take(frame.nbytes)
            try:
                if frame.nbytes:
                    self._api.copy_to_device(buffer.address, address, frame.nbytes, self._stream)
                self._api.record(buffer.event, self._stream)
            except BaseException:
                self._store(buffer)
                raise
        if used_on is not None:
            buffer.streams[used_on] = stream
        array = DeviceArray(self, buffer, source.shape, source.dtype, source.strides, frame.nbytes)
        return DeviceFrame(frame, array, self._api)

    def iterate(self, source: FrameSource, depth: int, stream: object = None) -> Iterator[DeviceFrame]:
        """Proven frames of `source`, with up to `depth` copies under way ahead of the caller."""
        self._kept = max(self._kept, depth + 1)
        under_way: deque[DeviceFrame] = deque()
        try:
            while True:
                while len(under_way) < depth:
                    frame = self._next(source, is_waiting=not under_way)
                    if frame is None:
                        break
                    try:
                        under_way.append(self.copy_frame(frame, stream))
                    except ClosedError:
                        # Another thread has closed the consumer since the frame was received.
                        if not source.closed:
                            raise
                        break
                    finally:
                        del frame
                if not under_way:
                    return
                copied = under_way.popleft()
                if copied.valid():
                    yield copied
                del copied
        finally:
            under_way.clear()

    def _next(self, source: FrameSource, *, is_waiting: bool) -> _native.Frame | None:
        """The next frame; None if none is there, or the consumer is closed. Waits only if `is_waiting`."""
        if not is_waiting:
            return source.receive_or_none(0.0)
        left = source.timeout
        while not source.closed:
            wait = _WAIT_S if left is None else min(left, _WAIT_S)
            if (frame := source.receive_or_none(wait)) is not None:
                return frame
            if left is not None and (left := left - wait) <= 0:
                raise ReceiveTimeout(f"no frame within {source.timeout} s", stream_id=source.stream_id)
            self.unregister_ended(source.epoch)
        return None

    def unregister_ended(self, epoch: int | None) -> None:
        """Unregisters the pools of epochs other than `epoch`, so that their memory can be unmapped."""
        with self._lock:
            if not self._closed and any(e != epoch for e in self._registrations.epochs):
                self._registrations.retire(self._finish)

    def _finish(self) -> None:
        self._api.synchronize_stream(self._stream)

    def _take(self, nbytes: int) -> _Buffer:
        self._collect()
        for i, buffer in enumerate(self._free):
            if buffer.capacity >= nbytes:
                del self._free[i]
                break
        else:
            buffer = self._allocate(nbytes)
        self._order(buffer)
        return buffer

    def _allocate(self, nbytes: int) -> _Buffer:
        event = self._api.create_event()
        try:
            # At least one byte: some libraries do not take the address 0 of an empty array.
            return _Buffer(self._api.allocate(max(nbytes, 1)), nbytes, event)
        except DeviceError as error:
            self._api.destroy_event(event)
            raise DeviceError(
                f"cuda:{self.ordinal} has no memory for a frame of {nbytes} bytes: release earlier frames, "
                f"or use a smaller depth ({error})",
                code=error.code,
            ) from error

    def _order(self, buffer: _Buffer) -> None:
        """The next copy into the buffer begins after its readers are done."""
        self._wait_for_readers(buffer)
        buffer.streams, buffer.is_unordered = {}, False

    def wait_for_readers(self, buffer: _Buffer, stream: int) -> None:
        """Later work of `stream` begins after what the readers' streams were given so far."""
        self.check_fork()
        with self._lock:
            self._wait_for_readers(buffer, stream)

    def _wait_for_readers(self, buffer: _Buffer, waiting: int | None = None) -> None:
        try:
            if buffer.is_unordered:
                self._api.synchronize_device()
            for stream in () if buffer.is_unordered else buffer.streams:
                self._api.record(buffer.event, stream)
                self._api.wait_for_event(waiting or self._stream, buffer.event)
        except DeviceError:
            # A stream that its owner has ended: nothing remains but to wait for all.
            self._api.synchronize_device()

    def release(self, buffer: _Buffer) -> None:
        """Takes a buffer back when its array has no reader any more."""
        if os.getpid() != self._pid:
            return
        self._returned.append(buffer)
        self._collect_after_close()

    def _collect_after_close(self) -> None:
        """Frees returned buffers of a closed device. A thread that has the lock does so when it is done."""
        while self._closed and self._returned and self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def _collect(self) -> None:
        while self._returned:
            self._store(self._returned.popleft())

    def _store(self, buffer: _Buffer) -> None:
        if self._closed:
            self._end(buffer)
            return
        self._free.append(buffer)
        if len(self._free) > self._kept:
            # The smallest: else buffers of frames that have become larger would never be kept.
            smallest = min(range(len(self._free)), key=lambda i: self._free[i].capacity)
            self._end(self._free.pop(smallest))

    def _end(self, buffer: _Buffer) -> None:
        # CUDA's free waits for the streams that still read the memory.
        with suppress(DeviceError):
            self._api.free(buffer.address)
            self._api.destroy_event(buffer.event)

    def copy_array(self, array: DeviceArray) -> DeviceArray:
        """A copy of the array in a buffer of its own, after the work that its readers' streams have now."""
        self.check_fork()
        with self._lock:
            if self._closed:
                raise ClosedError("the consumer is closed, and with it its copies to the device")
            buffer = self._take(array.nbytes)
            try:
                self._wait_for_readers(array._buffer)
                if array.nbytes:
                    self._api.copy_on_device(buffer.address, array.address, array.nbytes, self._stream)
                self._finish()
            except BaseException:
                self._store(buffer)
                raise
        return DeviceArray(self, buffer, array.shape, array.dtype, array.strides, array.nbytes)

    def copy_to_host(self, array: DeviceArray) -> npt.NDArray[Any]:
        """The array as a numpy array, after the work that its readers' streams have now."""
        import numpy as np

        self.check_fork()
        # The bytes between first and last element, and the same strides over them.
        memory = np.empty(array.nbytes, np.uint8)
        host = np.ndarray(array.shape, array.dtype, memory, strides=array.strides)
        if array.nbytes:
            target, _ = memory.__array_interface__["data"]
            with self._lock:
                if self._closed:
                    # The own stream has ended, and arrays outlive the consumer.
                    self._api.synchronize_device()
                else:
                    self._wait_for_readers(array._buffer)
                stream = LEGACY_STREAM if self._closed else self._stream
                self._api.copy_to_host(target, array.address, array.nbytes, stream)
                self._api.synchronize_stream(stream)
            self._collect_after_close()
        return host

    def close(self) -> None:
        """Waits for copies that are under way, unregisters the pools and frees the buffers in no use.

        Interrupted by an exception of a signal, it can be called again.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            with suppress(DeviceError):
                self._registrations.retire(self._finish)
            self._closed = True
            self._collect()
            free, self._free = self._free, []
            for buffer in free:
                self._end(buffer)
            with suppress(DeviceError):
                self._api.destroy_stream(self._stream)
        self._collect_after_close()


class DeviceArray:
    """An array in the memory of a CUDA device, for torch, CuPy, JAX and Numba.

    It holds its memory as long as it lives, and as long as an array that was made from it lives.
    """

    def __init__(
        self,
        device: Device,
        buffer: _Buffer,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...],
        nbytes: int,
    ) -> None:
        self._device = device
        self._buffer = buffer
        self.shape = shape
        self.dtype = dtype
        self.strides = strides
        """Bytes from one element to the next, for each dimension."""
        self.nbytes = nbytes
        """Bytes from the first element to the end of the last."""

    @property
    def address(self) -> int:
        """The address of the first element in the memory of the device."""
        return self._buffer.address

    @property
    def ordinal(self) -> int:
        """The number of the device."""
        return self._device.ordinal

    def wait_for_readers(self, stream: int) -> None:
        """Later work of the CUDA stream begins after the work that the array's readers have now."""
        self._device.wait_for_readers(self._buffer, stream)

    @property
    def __cuda_array_interface__(self) -> CudaArrayInterface:
        # The copy has ended, so there is no stream to wait for. The reader does not say on which stream it
        # works: unless `to_device(stream=…)` names it, the buffer waits for the whole device.
        if not self._buffer.streams:
            self._buffer.is_unordered = True
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": self.strides,
            "stream": None,
            "version": 3,
        }

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        if dl_device is not None and tuple(map(int, dl_device)) == (_CPU, 0):
            if copy is False:
                raise BufferError("the array is on a GPU: the CPU can be given only a copy of it")
            if stream is not None and stream != _UNSYNCHRONIZED:
                self._buffer.streams.setdefault(int(stream), None)
            host = self._device.copy_to_host(self)
            return host.__dlpack__(max_version=max_version) if max_version else host.__dlpack__()
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"the array is on cuda:{self._device.ordinal}, not on {dl_device}")
        if copy:
            return self._device.copy_array(self)._export(stream, max_version, is_copied=True)
        return self._export(stream, max_version)

    def _export(
        self, stream: int | None, max_version: tuple[int, int] | None, *, is_copied: bool = False
    ) -> object:
        code = _CODES.get(self.dtype.kind, _CODES.get(self.dtype.name))
        if code is None:
            raise BufferError(f"DLPack has no element type for {self.dtype}")
        if stream == _UNSYNCHRONIZED:
            self._buffer.is_unordered = True
        else:
            address = LEGACY_STREAM if stream is None else int(stream)
            self._buffer.streams.setdefault(address, None)
        size = self.dtype.itemsize
        return _native.dlpack_capsule(
            self,
            self.address,
            list(self.shape),
            [step // size for step in self.strides],
            code=code,
            bits=8 * size,
            device_type=_CUDA,
            device_id=self._device.ordinal,
            copied=is_copied,
            versioned=max_version is not None and max_version[0] >= 1,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self._device.ordinal

    def __repr__(self) -> str:
        return f"<DeviceArray shape={self.shape} dtype={self.dtype} cuda:{self._device.ordinal}>"

    def __del__(self) -> None:
        self._device.release(self._buffer)


class DeviceFrame:
    """A frame on a CUDA device: a private copy, with the facts of the frame.

        image = torch.from_dlpack(frame.to_device())

    The copy may still be under way. `array`, DLPack and `__cuda_array_interface__` wait for its end, and
    raise FrameOverwritten if the producer reused the slot meanwhile: what they return is one frame, whole.
    """

    def __init__(self, frame: _native.Frame, array: DeviceArray, api: CudaApi) -> None:
        self._frame = frame
        self._array = array
        self._api = api
        self._is_whole: bool | None = None
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Whether the copy has ended; does not wait."""
        return self._is_whole is not None or self._api.has_happened(self._array._buffer.event)

    def valid(self) -> bool:
        """Waits for the end of the copy; whether the slot held this frame all the time.

        False is final: the frame is counted as `late` in the ledger of the consumer.
        """
        self._array._device.check_fork()
        with self._lock:
            if self._is_whole is None:
                self._api.synchronize_event(self._array._buffer.event)
                self._is_whole = self._frame.valid()
            return self._is_whole

    @property
    def array(self) -> DeviceArray:
        """The payload on the device, writable. Raises FrameOverwritten if the copy is not whole."""
        if not self.valid():
            raise FrameOverwritten(
                f"frame {self.seq} of stream {self.stream_id} was overwritten while it was copied to the "
                "device; give the stream more slots, or use consumer.on_device(), which skips such frames",
                stream_id=self.stream_id,
                epoch=self.epoch,
                seq=self.seq,
            )
        return self._array

    @property
    def __cuda_array_interface__(self) -> CudaArrayInterface:
        return self.array.__cuda_array_interface__

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        return self.array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def copy_to_host(self) -> npt.NDArray[Any]:
        """The payload as a numpy array, copied back from the device."""
        array = self.array
        return array._device.copy_to_host(array)

    @property
    def stream_id(self) -> int:
        """The stream of the frame."""
        return self._frame.stream_id

    @property
    def epoch(self) -> int:
        """The epoch of the frame."""
        return self._frame.epoch

    @property
    def seq(self) -> int:
        """The number of the frame within its epoch."""
        return self._frame.seq

    @property
    def timestamp_ns(self) -> int:
        """When the payload was captured."""
        return self._frame.timestamp_ns

    @property
    def publish_timestamp_ns(self) -> int | None:
        """When the frame was published; None if the producer does not stamp it."""
        return self._frame.publish_timestamp_ns

    @property
    def meta_version(self) -> int:
        """The metadata version that applies to the frame. 0: none."""
        return self._frame.meta_version

    @property
    def meta(self) -> Mapping[str, Any] | None:
        """The attributes that belong to the frame; None if they were not received yet."""
        return self._frame.meta

    @property
    def trace_id(self) -> int | None:
        """The trace id that the frame carries. None if it carries none."""
        return self._frame.trace_id

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the elements."""
        return self._array.dtype

    @property
    def nbytes(self) -> int:
        """Number of bytes of the payload."""
        return self._array.nbytes

    @property
    def device(self) -> str:
        """The device of the copy, as in "cuda:0"."""
        return f"cuda:{self._array._device.ordinal}"

    def __repr__(self) -> str:
        state = {None: "copying", True: "whole", False: "overwritten"}[self._is_whole]
        return (
            f"<DeviceFrame stream={self.stream_id} epoch={self.epoch} seq={self.seq} shape={self.shape} "
            f"dtype={self.dtype} {self.device} {state}>"
        )
