"""Tensors of a device into slots: copies at the speed of the bus, and commits that a CUDA stream makes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any, Final
from weakref import WeakKeyDictionary

from .. import _native
from ..errors import ClaimRefused, ConfigError, DeviceError
from .api import LEGACY_STREAM, CudaApi, open_api, open_api_of, stream_address
from .frames import DeviceArray, DeviceFrame
from .registration import Registrations

# Names of element types by DLPack's code and bits.
_NAMES: Final = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16): "bfloat16",
    (5, 64): "complex64",
    (5, 128): "complex128",
    (6, 8): "bool",
}
# Element types of one byte, which an offer may name as one another.
_BYTE_NAMES: Final = frozenset({"bit", "bool", "bytes", "int8", "uint8"})
_DLPACK_VERSION: Final = (1, 0)
# Names of torch's element types, once they were needed.
_torch_names: Final[dict[object, str]] = {}


@dataclass(slots=True)
class _Source:
    """A tensor on a device, ready for a copy on `stream`."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In bytes; None: contiguous."""
    dtype: str
    item_bytes: int
    api: CudaApi
    stream: int
    owner: object

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.item_bytes

    def rows(self) -> tuple[int, int] | None:
        """Bytes of a row and bytes from row to row, if the tensor is rows of the same distance."""
        if self.strides is None or not self.nbytes:
            return self.nbytes, self.nbytes
        run, axis = self.item_bytes, len(self.shape)
        while axis and (self.shape[axis - 1] == 1 or self.strides[axis - 1] == run):
            axis -= 1
            run *= self.shape[axis]
        if axis == 0:
            return run, run
        pitch = step = self.strides[axis - 1]
        for dim in range(axis - 1, -1, -1):
            if self.shape[dim] != 1 and self.strides[dim] != step:
                return None
            step *= self.shape[dim]
        return (run, pitch) if pitch >= run else None


def _ordinal(tensor: Any, default: int = 0) -> int:
    if hasattr(tensor, "__dlpack_device__"):
        _kind, ordinal = tensor.__dlpack_device__()
        return int(ordinal)
    return default


@dataclass(slots=True)
class _CopyStream:
    """A stream for copies out of one device, with an event. Both are of use on that device only."""

    api: CudaApi
    address: int
    event: int

    @classmethod
    def open(cls, api: CudaApi) -> _CopyStream:
        address = api.create_stream()
        try:
            return cls(api, address, api.create_event())
        except BaseException:
            api.destroy_stream(address)
            raise

    def close(self) -> None:
        self.api.destroy_event(self.event)
        self.api.destroy_stream(self.address)


def _open(tensor: Any, stream_of: Callable[[int], _CopyStream], default: int) -> _Source:
    """The tensor in the memory of its device: `default`, if it does not say."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
        return _open_torch(tensor, torch, stream_of)
    if isinstance(tensor, DeviceFrame | DeviceArray):
        return _open_array(tensor.array if isinstance(tensor, DeviceFrame) else tensor, stream_of)
    if hasattr(tensor, "__dlpack__"):
        own = stream_of(_ordinal(tensor, default))
        try:
            capsule = tensor.__dlpack__(stream=own.address, max_version=_DLPACK_VERSION)
        except TypeError:
            # An exporter of the time before DLPack 1.0.
            capsule = tensor.__dlpack__(stream=own.address)
        source = _native.DlpackTensor(capsule)
        name = _NAMES.get((source.code, source.bits))
        if name is None:
            raise ConfigError(
                f"an element type of DLPack code {source.code} and {source.bits} bits has no name here; "
                "convert the tensor before the offer"
            )
        size = source.bits // 8
        strides = tuple(step * size for step in source.strides)
        shape = tuple(source.shape)
        return _Source(source.address, shape, strides, name, size, own.api, own.address, source)
    return _open_interface(tensor, stream_of(_ordinal(tensor, default)))


def _open_torch(tensor: Any, torch: Any, stream_of: Callable[[int], _CopyStream]) -> _Source:
    # Torch's `__dlpack__` takes as long as the copy of a megabyte, most of it to order two streams. A copy on
    # torch's own current stream needs no order.
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    size, dtype, strides = tensor.element_size(), tensor.dtype, None
    if not tensor.is_contiguous():
        strides = tuple(step * size for step in tensor.stride())
    if (name := _torch_names.get(dtype)) is None:
        name = _torch_names[dtype] = str(dtype).removeprefix("torch.")
    ordinal = tensor.get_device()
    # The default stream has the same address on every device: the API's own device says which is meant.
    stream = _current_stream(torch, ordinal) or LEGACY_STREAM
    api = stream_of(ordinal).api
    return _Source(tensor.data_ptr(), tuple(tensor.shape), strides, name, size, api, stream, tensor)


def _current_stream(torch: Any, ordinal: int) -> int:
    # What torch's own compiler uses: the public function makes an object, which takes four microseconds.
    if (raw := getattr(torch._C, "_cuda_getCurrentRawStream", None)) is not None:
        return int(raw(ordinal))
    return int(torch.cuda.current_stream(ordinal).cuda_stream)


def _open_array(array: DeviceArray, stream_of: Callable[[int], _CopyStream]) -> _Source:
    # Not by DLPack: the buffer of the array would wait for the own stream, which may have ended by then.
    own = stream_of(array.ordinal)
    array.wait_for_readers(own.address)
    name, size = array.dtype.name, array.dtype.itemsize
    return _Source(array.address, array.shape, array.strides, name, size, own.api, own.address, array)


def _open_interface(tensor: Any, own: _CopyStream) -> _Source:
    import numpy as np

    interface = tensor.__cuda_array_interface__
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        strides = tuple(dtype.itemsize * prod(shape[i + 1 :]) for i in range(len(shape)))
    address, _read_only = interface["data"]
    if (written_on := interface.get("stream")) is not None:
        own.api.record(own.event, int(written_on))
        own.api.wait_for_event(own.address, own.event)
    else:
        own.api.synchronize_device()
    return _Source(address, shape, tuple(strides), dtype.name, dtype.itemsize, own.api, own.address, tensor)


def _element_name(dtype: object) -> str:
    """The name of an element type as users write it: text, a type of numpy, a dtype of numpy or torch."""
    import numpy as np

    text = str(dtype)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    try:
        return np.dtype(dtype).name  # type: ignore[call-overload, no-any-return]
    except TypeError:
        return text


class SlotWriter:
    """Copies tensors of a device into the slots of one producer. Any thread may use it.

    The pools are registered with the first device. That holds for all devices of the process.
    """

    def __init__(self, api: CudaApi, open_device: Callable[[int], CudaApi] = open_api) -> None:
        self._api = api
        self._open_device = open_device
        # Reentrant: `offer` claims a slot, and the claim registers it.
        self._lock = threading.RLock()
        self._own_streams = {api.ordinal: _CopyStream.open(api)}
        self._registrations = Registrations(api, read_only=False)
        self._pid = os.getpid()
        self._closed = False

    @property
    def ordinal(self) -> int:
        """The number of the device."""
        return self._api.ordinal

    @property
    def registered_epochs(self) -> tuple[int, ...]:
        """The epochs whose pools the device writes directly."""
        return self._registrations.epochs

    def register_slot(self, slot: _native.Slot) -> None:
        """Registers the pools that the slot lies in. Called by `Producer.claim`."""
        with self._lock:
            if not self._closed:
                self._registrations.ensure(slot.epoch, slot.mapped_pools, self._finish)

    def _own_stream(self, ordinal: int) -> _CopyStream:
        if (own := self._own_streams.get(ordinal)) is None:
            own = self._own_streams[ordinal] = _CopyStream.open(self._open_device(ordinal))
        return own

    def _finish(self) -> None:
        # Also copies that users began on streams of their own, and the commits that follow them.
        pending = _all_commits()
        for api in {own.api for own in self._own_streams.values()} | pending.keys():
            api.synchronize_device()
        for commits in pending.values():
            commits.finish()

    def offer(
        self,
        producer: _native.Producer,
        tensor: object,
        *,
        timestamp_ns: int | None = None,
        dtype: object = None,
        meta_version: int | None = None,
        trace_id: int = 0,
        parents: Iterable[Any] | None = None,
        keep_strides: bool = False,
        refuse: Callable[[str, int], _native.OfferResult],
    ) -> _native.OfferResult:
        """Copies `tensor` into the next slot and publishes it, after the work that makes the tensor.

        A frame without a slot is what `refuse` returns for its outcome and its bytes.
        """
        with self._lock:
            if self._closed:
                return refuse("closed", int(getattr(tensor, "nbytes", 0)))
            source = _open(tensor, self._own_stream, self.ordinal)
            if dtype is not None and (name := _element_name(dtype)) != source.dtype:
                if source.item_bytes != 1 or name not in _BYTE_NAMES:
                    raise TypeError(f"the data is {source.dtype}, not {name}; convert it before the offer")
                source.dtype = name
            rows = source.rows()
            if rows is None:
                raise ConfigError(
                    f"a tensor of shape {source.shape} with strides {source.strides} bytes: only rows of "
                    "the same distance are copied from a device; make it contiguous before the offer"
                )
            if keep_strides and rows[0] != rows[1]:
                raise ConfigError(
                    f"keep_strides for a tensor of shape {source.shape} with strides {source.strides} bytes "
                    f"on cuda:{source.api.ordinal}: rows are packed when they are copied from a device; "
                    "offer it without keep_strides, or copy into a slot of producer.claim(…, strides=…)"
                )
            try:
                slot = producer.claim(
                    source.shape,
                    source.dtype,
                    timestamp_ns=timestamp_ns,
                    meta_version=meta_version,
                    trace_id=trace_id,
                    parents=parents,
                )
            except ClaimRefused as refused:
                return refuse(refused.outcome, source.nbytes)
            try:
                self._registrations.ensure(slot.epoch, slot.mapped_pools, self._finish)
                self._copy(source, slot, *rows)
            except BaseException:
                _wait_for_device(source.api)
                slot.abandon()
                raise
            return slot.commit()

    def _copy(self, source: _Source, slot: _native.Slot, row_bytes: int, pitch: int) -> None:
        if not source.nbytes:
            return
        target = slot.address
        if row_bytes == pitch:
            source.api.copy_to_host(target, source.address, source.nbytes, source.stream)
        else:
            source.api.copy_rows_to_host(
                target,
                source.address,
                row_bytes=row_bytes,
                source_pitch=pitch,
                rows=source.nbytes // row_bytes,
                stream=source.stream,
            )
        source.api.synchronize_stream(source.stream)

    def finish(self) -> None:
        """Waits until the device has written every slot that it was given, and those frames are published."""
        # In a forked child a thread that does not exist may hold the lock.
        if self._pid != os.getpid():
            return
        with self._lock, suppress(DeviceError):
            if not self._closed:
                self._finish()

    def close(self) -> None:
        """Unregisters the pools, after the copies that are under way.

        Interrupted by an exception of a signal, it can be called again.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._closed:
                return
            with suppress(DeviceError):
                self._registrations.retire(self._finish)
            self._closed = True
            for own in self._own_streams.values():
                with suppress(DeviceError):
                    own.close()


def _wait_for_device(api: CudaApi) -> None:
    """Waits for the device. The next owner of a slot that is given up would share it with a running copy."""
    with suppress(DeviceError):
        api.synchronize_device()


def writer_for(tensor: object, open_device: Callable[[int], CudaApi] = open_api) -> SlotWriter:
    """A writer for the device that `tensor` lies on."""
    return SlotWriter(open_device(_ordinal(tensor)), open_device)


# The flags of the commits that wait for the streams of a device.
_commits: Final[WeakKeyDictionary[CudaApi, _native.StreamCommits]] = WeakKeyDictionary()
_commits_lock: Final = threading.Lock()


def commits_of(api: CudaApi) -> _native.StreamCommits:
    with _commits_lock:
        if (commits := _commits.get(api)) is None:
            commits = _native.StreamCommits()
            api.register(commits.address, commits.nbytes, read_only=False)
            _commits[api] = commits
        return commits


def _all_commits() -> dict[CudaApi, _native.StreamCommits]:
    with _commits_lock:
        return dict(_commits)


def commit_after(slot: _native.Slot, stream: object, api: CudaApi | None = None) -> None:
    """Publishes the slot once `stream` has done what was given to it so far; see `Slot.commit_after`."""
    _ = slot.seq  # raises in a forked child, and for a slot that was committed or abandoned
    address = stream_address(stream)
    if address is None:
        raise ConfigError("stream None: give the CUDA stream that writes the slot")
    device = api or open_api_of(address)
    try:
        commit = slot.commit_by_stream(commits_of(device))
    except BaseException:
        # The slot is still open, and its owner may give it up next.
        _wait_for_device(device)
        raise
    try:
        device.write_word(address, commit.flag, 1)
    except BaseException:
        # Nothing waits for the copy any more: its frame is never published.
        _wait_for_device(device)
        commit.abandon()
        raise
