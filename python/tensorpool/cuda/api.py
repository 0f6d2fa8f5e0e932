"""What is used of CUDA, as an interface, and its implementation by NVIDIA's bindings.

The interface is small, so that the logic above it can be tested on a machine without a GPU, by an
implementation that refuses, delays and fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Final, Protocol

from ..errors import ConfigError, DeviceError, MissingPackage

_DEVICE: Final = re.compile(r"cuda(?::(\d+))?")
_UNCHANGED: Final = nullcontext()
LEGACY_STREAM: Final = 1
"""Address of CUDA's default stream, which other streams wait for unless they are non-blocking."""
PER_THREAD_STREAM: Final = 2
"""Address of the default stream of a thread."""
UNORDERED_STREAM: Final = -1
"""No address: what callers of DLPack pass that order their work themselves."""


class CudaApi(Protocol):
    """The calls of one device. Addresses and handles are whole numbers. Every call may raise DeviceError."""

    ordinal: int
    """The number of the device."""

    def register(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """Locks memory of this process, so that the device copies from it and to it directly."""

    def unregister(self, address: int) -> None:
        """Ends `register`."""

    def allocate(self, nbytes: int) -> int:
        """Address of new memory of the device."""

    def free(self, address: int) -> None:
        """Returns memory of `allocate`."""

    def create_stream(self) -> int:
        """A stream that waits for no other."""

    def destroy_stream(self, stream: int) -> None:
        """Ends a stream, after what was given to it."""

    def create_event(self) -> int:
        """An event for `record`."""

    def destroy_event(self, event: int) -> None:
        """Ends an event."""

    def record(self, event: int, stream: int) -> None:
        """The event occurs once the stream has completed all work submitted so far."""

    def wait_for_event(self, stream: int, event: int) -> None:
        """Work submitted to the stream later begins after the event."""

    def synchronize_event(self, event: int) -> None:
        """Waits for the event, without the interpreter."""

    def has_happened(self, event: int) -> bool:
        """Whether the event has happened; does not wait."""

    def synchronize_stream(self, stream: int) -> None:
        """Waits, without the interpreter, until the stream has completed its work."""

    def synchronize_device(self) -> None:
        """Waits until all streams of the device have completed their work."""

    def copy_to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Begins a copy from memory of this process."""

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Begins a copy to memory of this process."""

    def copy_rows_to_host(
        self, target: int, source: int, *, row_bytes: int, source_pitch: int, rows: int, stream: int
    ) -> None:
        """Begins a copy of rows that lie `source_pitch` bytes apart, to rows side by side."""

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Begins a copy from device memory to device memory."""

    def write_word(self, stream: int, address: int, value: int) -> None:
        """Once the stream gets there, it writes 32 bits of registered memory, behind all it wrote before."""


def parse_device(device: str) -> int:
    """The ordinal of a device as users write it. Raises ConfigError."""
    match = _DEVICE.fullmatch(str(device))
    if match is None:
        raise ConfigError(f"device {device!r}: use 'cuda', or 'cuda:1' for the second GPU")
    return int(match[1] or 0)


def stream_address(stream: object) -> int | None:
    """The address of a CUDA stream of torch, CuPy, Numba or NVIDIA's bindings.

    None for None, and for the -1 of DLPack: a caller that orders its work itself and names no stream.
    """
    if stream is None or stream == UNORDERED_STREAM:
        return None
    if (protocol := getattr(stream, "__cuda_stream__", None)) is not None:
        _version, address = protocol() if callable(protocol) else protocol
        return int(address) or LEGACY_STREAM
    for attribute in ("cuda_stream", "ptr", "handle"):
        if (address := getattr(stream, attribute, None)) is not None:
            return int(getattr(address, "value", address) or 0) or LEGACY_STREAM
    try:
        return int(stream) or LEGACY_STREAM  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ConfigError(
            f"stream {stream!r}: give a CUDA stream of torch, CuPy or NVIDIA's bindings, or its address"
        ) from None


@cache
def load_bindings() -> Any:
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise MissingPackage(
            "frames on a GPU need NVIDIA's bindings: pip install 'aeron-tensorpool[cuda]'"
        ) from error
    return runtime


@cache
def _driver() -> Any:
    from cuda.bindings import driver

    return driver


@cache
def open_api(ordinal: int) -> CudaRuntime:
    """The API of one device of this machine. Raises DeviceError if there is no such device."""
    return CudaRuntime(ordinal)


def open_api_of(stream: int) -> CudaRuntime:
    """The API of the device that a CUDA stream belongs to."""
    return open_api(open_api(0).ordinal_of(stream))


class CudaRuntime:
    """CudaApi by NVIDIA's bindings of the runtime library. Any thread may use it."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._cuda: Any = load_bindings()
        count = self._device_count()
        if ordinal >= count:
            raise DeviceError(
                f"cuda:{ordinal} does not exist: the last one is cuda:{count - 1}; nvidia-smi lists those "
                "that the driver sees",
                code="cudaErrorInvalidDevice",
            )
        self._is_only = count == 1
        kind = self._cuda.cudaMemcpyKind
        self._host_to_device = kind.cudaMemcpyHostToDevice
        self._device_to_host = kind.cudaMemcpyDeviceToHost
        self._device_to_device = kind.cudaMemcpyDeviceToDevice
        attribute = self._cuda.cudaDeviceAttr.cudaDevAttrHostRegisterReadOnlySupported
        error, supported = self._cuda.cudaDeviceGetAttribute(attribute, ordinal)
        self.registers_read_only = int(error) == 0 and bool(supported)
        """Whether memory that this process may only read can be registered."""

    def _device_count(self) -> int:
        try:
            error, count = self._cuda.cudaGetDeviceCount()
        except RuntimeError as loading:
            # Older bindings look for the library of the driver here.
            raise DeviceError(
                f"cuda:{self.ordinal} cannot be used: {loading}; install a driver of NVIDIA",
                code="cudaErrorInsufficientDriver",
            ) from loading
        if int(error) == 0 and count > 0:
            return int(count)
        reason = self._text(error) if int(error) else "there is no CUDA device"
        raise DeviceError(
            f"cuda:{self.ordinal} does not exist: {reason}; nvidia-smi lists those that the driver sees",
            code=error.name if int(error) else "cudaErrorNoDevice",
        )

    def _text(self, error: Any) -> str:
        _, text = self._cuda.cudaGetErrorString(error)
        reason = f"{text.decode() if isinstance(text, bytes) else text} ({error.name})"
        if error.name == "cudaErrorInitializationError":
            reason += (
                "; a process that was forked after the first use of CUDA cannot use it: start it by spawn"
            )
        return reason

    def _current(self) -> AbstractContextManager[None]:
        # The current device belongs to the thread, and its user may have chosen another one of several.
        return _UNCHANGED if self._is_only else self._switched()

    @contextmanager
    def _switched(self) -> Iterator[None]:
        (before,) = self._check(self._cuda.cudaGetDevice())
        if before == self.ordinal:
            yield
            return
        self._check(self._cuda.cudaSetDevice(self.ordinal))
        try:
            yield
        finally:
            self._check(self._cuda.cudaSetDevice(before))

    def _check(self, result: tuple[Any, ...]) -> tuple[Any, ...]:
        error, *values = result
        if int(error) == 0:
            return tuple(values)
        # Else the next call of another library would report this error.
        self._cuda.cudaGetLastError()
        raise DeviceError(f"CUDA refused on cuda:{self.ordinal}: {self._text(error)}", code=error.name)

    def register(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """Locks memory of this process, with `cudaHostRegister`. Raises DeviceError."""
        if read_only and not self.registers_read_only:
            raise DeviceError("this device registers no read-only memory", code="cudaErrorNotSupported")
        flags = self._cuda.cudaHostRegisterPortable
        if read_only:
            flags |= self._cuda.cudaHostRegisterReadOnly
        with self._current():
            self._check(self._cuda.cudaHostRegister(address, nbytes, flags))

    def unregister(self, address: int) -> None:
        """Ends `register`, with `cudaHostUnregister`."""
        with self._current():
            self._check(self._cuda.cudaHostUnregister(address))

    def allocate(self, nbytes: int) -> int:
        """Allocates memory of the device and returns its address."""
        with self._current():
            (address,) = self._check(self._cuda.cudaMalloc(nbytes))
        return int(address)

    def free(self, address: int) -> None:
        """Frees memory of `allocate`."""
        with self._current():
            self._check(self._cuda.cudaFree(address))

    def create_stream(self) -> int:
        """Creates a CUDA stream that does not wait for the default stream; returns its address."""
        with self._current():
            (stream,) = self._check(self._cuda.cudaStreamCreateWithFlags(self._cuda.cudaStreamNonBlocking))
        return int(stream)

    def destroy_stream(self, stream: int) -> None:
        """Destroys a CUDA stream; its submitted work is completed."""
        with self._current():
            self._check(self._cuda.cudaStreamDestroy(stream))

    def create_event(self) -> int:
        """Creates an event without timing; returns its address."""
        with self._current():
            (event,) = self._check(self._cuda.cudaEventCreateWithFlags(self._cuda.cudaEventDisableTiming))
        return int(event)

    def destroy_event(self, event: int) -> None:
        """Destroys an event."""
        with self._current():
            self._check(self._cuda.cudaEventDestroy(event))

    def record(self, event: int, stream: int) -> None:
        """Records an event, which happens after the work that the CUDA stream has now."""
        with self._current():
            self._check(self._cuda.cudaEventRecord(event, stream))

    def wait_for_event(self, stream: int, event: int) -> None:
        """Makes later work of the CUDA stream wait for an event."""
        with self._current():
            self._check(self._cuda.cudaStreamWaitEvent(stream, event, 0))

    def synchronize_event(self, event: int) -> None:
        """Waits for an event; other Python threads run meanwhile."""
        self._check(self._cuda.cudaEventSynchronize(event))

    def has_happened(self, event: int) -> bool:
        """Whether an event has happened; does not wait."""
        (error,) = self._cuda.cudaEventQuery(event)
        if error == self._cuda.cudaError_t.cudaErrorNotReady:
            return False
        self._check((error,))
        return True

    def synchronize_stream(self, stream: int) -> None:
        """Waits for all work of a CUDA stream; other Python threads run meanwhile."""
        with self._current():
            self._check(self._cuda.cudaStreamSynchronize(stream))

    def synchronize_device(self) -> None:
        """Waits for all work of the device."""
        with self._current():
            self._check(self._cuda.cudaDeviceSynchronize())

    def copy_to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Starts a copy from memory of this process to the device."""
        self._copy(target, source, nbytes, stream, self._host_to_device)

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Starts a copy from the device to memory of this process."""
        self._copy(target, source, nbytes, stream, self._device_to_host)

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Starts a copy from device memory to device memory."""
        self._copy(target, source, nbytes, stream, self._device_to_device)

    def _copy(self, target: int, source: int, nbytes: int, stream: int, kind: Any) -> None:
        with self._current():
            self._check(self._cuda.cudaMemcpyAsync(target, source, nbytes, kind, stream))

    def copy_rows_to_host(
        self, target: int, source: int, *, row_bytes: int, source_pitch: int, rows: int, stream: int
    ) -> None:
        """Starts a copy of rows that are `source_pitch` bytes apart, to adjacent rows."""
        with self._current():
            self._check(
                self._cuda.cudaMemcpy2DAsync(
                    target, row_bytes, source, source_pitch, row_bytes, rows, self._device_to_host, stream
                )
            )

    def write_word(self, stream: int, address: int, value: int) -> None:
        """Makes the stream write a word behind a barrier for its earlier copies: `cuStreamWriteValue32`."""
        driver = _driver()
        with self._current():
            # The driver's calls need a context of the thread, which the runtime's calls make themselves.
            self._check(self._cuda.cudaSetDevice(self.ordinal))
            flags = driver.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT
            (error,) = driver.cuStreamWriteValue32(stream, address, value, flags)
        if int(error):
            raise DeviceError(
                f"CUDA refused to let a stream of cuda:{self.ordinal} write memory ({error.name})",
                code=error.name,
            )

    def ordinal_of(self, stream: int) -> int:
        """The device of a stream. A default stream is that of the thread's current device."""
        if self._is_only:
            return self.ordinal
        if stream > PER_THREAD_STREAM and (get_device := getattr(self._cuda, "cudaStreamGetDevice", None)):
            (ordinal,) = self._check(get_device(stream))
        else:
            (ordinal,) = self._check(self._cuda.cudaGetDevice())
        return int(ordinal)
