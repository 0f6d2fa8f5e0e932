"""Tensors of a device into slots: copies at the speed of the bus, and commits that a CUDA stream makes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from .. import _native
from ..errors import ClaimRefused, ConfigError, DeviceError
from .api import LEGACY_STREAM, CudaApi, open_api, stream_address
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
_DLPACK_VERSION: Final = (1, 0)


@dataclass(frozen=True, slots=True)
class _Source:
    """A tensor on a device, ready for a copy on `stream`."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""
    dtype: str
    item_bytes: int
    stream: int
    owner: object

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.item_bytes

    def rows(self) -> tuple[int, int] | None:
        """Bytes of a row and bytes from row to row, if the tensor is rows of the same distance."""
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


def _ordinal(tensor: Any) -> int:
    if hasattr(tensor, "__dlpack_device__"):
        _kind, ordinal = tensor.__dlpack_device__()
        return int(ordinal)
    return 0


def _open(tensor: Any, api: CudaApi, stream: int, event: int) -> _Source:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
        return _open_torch(tensor, torch)
    if hasattr(tensor, "__dlpack__"):
        try:
            capsule = tensor.__dlpack__(stream=stream, max_version=_DLPACK_VERSION)
        except TypeError:
            # An exporter of the time before DLPack 1.0.
            capsule = tensor.__dlpack__(stream=stream)
        source = _native.DlpackTensor(capsule)
        name = _NAMES.get((source.code, source.bits))
        if name is None:
            raise ConfigError(
                f"an element type of DLPack code {source.code} and {source.bits} bits has no name here; "
                "convert the tensor before the offer"
            )
        size = source.bits // 8
        strides = tuple(step * size for step in source.strides)
        return _Source(source.address, tuple(source.shape), strides, name, size, stream, source)
    return _open_interface(tensor, api, stream, event)


def _open_torch(tensor: Any, torch: Any) -> _Source:
    # Torch's `__dlpack__` takes as long as the copy of a megabyte, most of it to order two streams. A copy on
    # torch's own current stream needs no order.
    tensor = tensor.resolve_conj().resolve_neg()
    size = tensor.element_size()
    stream = torch.cuda.current_stream(tensor.device).cuda_stream or LEGACY_STREAM
    strides = tuple(step * size for step in tensor.stride())
    name = str(tensor.dtype).removeprefix("torch.")
    return _Source(tensor.data_ptr(), tuple(tensor.shape), strides, name, size, stream, tensor)


def _open_interface(tensor: Any, api: CudaApi, stream: int, event: int) -> _Source:
    import numpy as np

    interface = tensor.__cuda_array_interface__
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        strides = tuple(dtype.itemsize * prod(shape[i + 1 :]) for i in range(len(shape)))
    address, _read_only = interface["data"]
    if (written_on := interface.get("stream")) is not None:
        api.record(event, int(written_on))
        api.wait_for_event(stream, event)
    else:
        api.synchronize_device()
    return _Source(address, shape, tuple(strides), dtype.name, dtype.itemsize, stream, tensor)


class SlotWriter:
    """Copies tensors of one device into the slots of one producer. Any thread may use it."""

    def __init__(self, api: CudaApi) -> None:
        self._api = api
        # Reentrant: `offer` claims a slot, and the claim registers it.
        self._lock = threading.RLock()
        self._stream = api.create_stream()
        self._event = api.create_event()
        self._registrations = Registrations(api, read_only=False)
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
            self._registrations.ensure(slot.epoch, slot.mapped_pools, self._finish)

    def _finish(self) -> None:
        # Also copies that users began on streams of their own.
        self._api.synchronize_device()

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
    ) -> _native.OfferResult:
        """Copies `tensor` into the next slot and publishes it, after the work that makes the tensor."""
        with self._lock:
            source = _open(tensor, self._api, self._stream, self._event)
            if dtype is not None and str(dtype) != source.dtype:
                raise TypeError(f"the data is {source.dtype}, not {dtype}; convert it before the offer")
            rows = source.rows()
            if rows is None:
                raise ConfigError(
                    f"a tensor of shape {source.shape} with strides {source.strides} bytes: only rows of "
                    "the same distance are copied from a device; make it contiguous before the offer"
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
                return _native.OfferResult.dropped(refused.outcome)
            try:
                self._registrations.ensure(slot.epoch, slot.mapped_pools, self._finish)
                self._copy(source, slot, *rows)
            except BaseException:
                slot.abandon()
                raise
            return slot.commit()

    def _copy(self, source: _Source, slot: _native.Slot, row_bytes: int, pitch: int) -> None:
        if not source.nbytes:
            return
        target = slot.address
        if row_bytes == pitch:
            self._api.copy_to_host(target, source.address, source.nbytes, source.stream)
        else:
            self._api.copy_rows_to_host(
                target,
                source.address,
                row_bytes=row_bytes,
                source_pitch=pitch,
                rows=source.nbytes // row_bytes,
                stream=source.stream,
            )
        self._api.synchronize_stream(source.stream)

    def close(self) -> None:
        """Unregisters the pools, after the copies that are under way."""
        with self._lock, suppress(DeviceError):
            if self._closed:
                return
            self._closed = True
            self._registrations.retire(self._finish)
            self._api.destroy_event(self._event)
            self._api.destroy_stream(self._stream)


def writer_for(tensor: object, open_device: Callable[[int], CudaApi] = open_api) -> SlotWriter:
    """A writer for the device that `tensor` lies on."""
    return SlotWriter(open_device(_ordinal(tensor)))


def commit_after(slot: _native.Slot, stream: object, api: CudaApi | None = None) -> None:
    """Publishes the slot once `stream` has done what was given to it so far; see `Slot.commit_after`."""
    _ = slot.seq  # raises in a forked child, and for a slot that was committed or abandoned
    address = stream_address(stream)
    if address is None:
        raise ConfigError("stream None: give the CUDA stream that writes the slot")
    calls = api or open_api(0)
    commit = slot.commit_by_stream()
    try:
        calls.call_on_host(address, commit.function, commit.argument)
    except BaseException:
        # The copy may still be under way: a frame that is not whole is never published.
        commit.abandon()
        raise
