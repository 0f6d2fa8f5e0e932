"""The calls of CUDA's runtime, with a stand-in for NVIDIA's bindings: devices, flags, errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tensorpool.cuda.api import CudaRuntime
from tensorpool.errors import DeviceError


class Error(int):
    """An error of the runtime: 0 is success."""

    name = "cudaSuccess"

    @classmethod
    def of(cls, number: int, name: str) -> Error:
        error = cls(number)
        error.name = name
        return error


DONE = Error(0)


class Bindings:
    """`cuda.bindings.runtime` as `CudaRuntime` uses it."""

    cudaMemcpyKind = SimpleNamespace(
        cudaMemcpyHostToDevice="to device",
        cudaMemcpyDeviceToHost="to host",
        cudaMemcpyDeviceToDevice="on device",
    )
    cudaDeviceAttr = SimpleNamespace(cudaDevAttrHostRegisterReadOnlySupported=1)
    cudaError_t = SimpleNamespace(cudaErrorNotReady=Error.of(600, "cudaErrorNotReady"))
    cudaHostRegisterPortable, cudaHostRegisterReadOnly = 1, 8

    def __init__(self, count: int = 1) -> None:
        self.count: Any = (DONE, count)
        self.current = 0
        self.read_only = 1
        self.result = DONE
        self.calls: list[tuple[Any, ...]] = []

    def cudaGetDeviceCount(self) -> Any:
        if isinstance(self.count, Exception):
            raise self.count
        return self.count

    def cudaDeviceGetAttribute(self, attribute: int, ordinal: int) -> tuple[Error, int]:
        return DONE, self.read_only

    def cudaGetErrorString(self, error: Error) -> tuple[Error, bytes]:
        return DONE, b"why"

    def cudaGetLastError(self) -> tuple[Error]:
        self.calls.append(("cleared",))
        return (DONE,)

    def cudaGetDevice(self) -> tuple[Error, int]:
        return DONE, self.current

    def cudaSetDevice(self, ordinal: int) -> tuple[Error]:
        self.current = ordinal
        return (DONE,)

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> tuple[Error]:
        self.calls.append(("register", address, nbytes, flags, self.current))
        return (self.result,)

    def cudaMemcpyAsync(self, *call: Any) -> tuple[Error]:
        self.calls.append((*call, self.current))
        return (self.result,)

    def cudaEventQuery(self, event: int) -> tuple[Error]:
        return (self.result,)


def open_runtime(monkeypatch: pytest.MonkeyPatch, bindings: Bindings, ordinal: int = 0) -> CudaRuntime:
    monkeypatch.setattr("tensorpool.cuda.api.load_bindings", lambda: bindings)
    return CudaRuntime(ordinal)


@pytest.mark.parametrize(
    ("count", "code", "text"),
    [
        ((DONE, 0), "cudaErrorNoDevice", "there is no CUDA device"),
        ((DONE, 3), "cudaErrorInvalidDevice", "the last one is cuda:2"),
        ((Error.of(35, "cudaErrorInsufficientDriver"), None), "cudaErrorInsufficientDriver", "why"),
        ((Error.of(3, "cudaErrorInitializationError"), None), "cudaErrorInitializationError", "by spawn"),
        (RuntimeError("no libcuda.so.1"), "cudaErrorInsufficientDriver", "no libcuda.so.1"),
    ],
    ids=["none", "fewer", "driver", "forked", "library"],
)
def test_a_device_that_cannot_be_used_reports_why(
    monkeypatch: pytest.MonkeyPatch, count: Any, code: str, text: str
) -> None:
    bindings = Bindings()
    bindings.count = count
    with pytest.raises(DeviceError, match=f"cuda:7.*{text}") as refused:
        open_runtime(monkeypatch, bindings, 7)
    assert refused.value.code == code


def test_memory_is_registered_for_all_devices_and_read_only_where_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bindings = Bindings()
    runtime = open_runtime(monkeypatch, bindings)
    runtime.register(4096, 8192, read_only=False)
    runtime.register(4096, 8192, read_only=True)
    assert bindings.calls == [("register", 4096, 8192, 1, 0), ("register", 4096, 8192, 9, 0)]
    bindings.read_only = 0
    with pytest.raises(DeviceError, match="read-only") as refused:
        open_runtime(monkeypatch, bindings).register(4096, 8192, read_only=True)
    assert refused.value.code == "cudaErrorNotSupported"


def test_calls_use_their_device_and_leave_the_thread_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings(count=2)
    runtime = open_runtime(monkeypatch, bindings, 1)
    runtime.copy_to_device(10, 20, 30, 5)
    assert bindings.calls == [(10, 20, 30, "to device", 5, 1)]
    assert bindings.current == 0
    bindings.result = Error.of(1, "cudaErrorInvalidValue")
    with pytest.raises(DeviceError):
        runtime.copy_to_host(10, 20, 30, 5)
    assert bindings.current == 0


def test_a_refused_call_leaves_no_error_for_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    runtime = open_runtime(monkeypatch, bindings)
    bindings.result = Error.of(2, "cudaErrorMemoryAllocation")
    with pytest.raises(DeviceError, match=r"cuda:0: why \(cudaErrorMemoryAllocation\)") as refused:
        runtime.register(4096, 8192, read_only=False)
    assert refused.value.code == "cudaErrorMemoryAllocation"
    assert bindings.calls[-1] == ("cleared",)


def test_an_event_that_has_not_happened_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    runtime = open_runtime(monkeypatch, bindings)
    assert runtime.has_happened(3)
    bindings.result = bindings.cudaError_t.cudaErrorNotReady
    assert not runtime.has_happened(3)
    bindings.result = Error.of(700, "cudaErrorIllegalAddress")
    with pytest.raises(DeviceError):
        runtime.has_happened(3)
