"""A stand-in for CuPy: numpy over the memory of the stand-in for a CUDA device.

`python -m tests.stand_in_cupy PROGRAM ARGUMENT …` runs a program that needs a GPU and CuPy with both.
"""

from __future__ import annotations

import ctypes
import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tensorpool import _native
from tensorpool.client import consumer, producer
from tests.stand_in_cuda import StandInCuda

# DLPack's codes of element types.
_KINDS = {0: "i", 1: "u", 2: "f"}
_DEFAULT_STREAM = 1


def from_dlpack(tensor: Any) -> np.ndarray:
    """What `tensor` has in the memory of its device, as CuPy takes it over: for the default stream."""
    kind, _ordinal = tensor.__dlpack_device__()
    if kind != 2:
        raise BufferError("CuPy takes only what lies on a GPU")
    taken = _native.DlpackTensor(tensor.__dlpack__(stream=_DEFAULT_STREAM, max_version=(1, 0)))
    dtype = np.dtype(f"{_KINDS[taken.code]}{taken.bits // 8}")
    nbytes = int(np.prod(taken.shape)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(taken.address, nbytes), dtype).reshape(taken.shape)


def main() -> None:
    """Runs the program of the command line as `__main__`."""
    device = StandInCuda()
    for module in (consumer, producer):
        vars(module)["open_api"] = lambda ordinal: device
    cupy = ModuleType("cupy")
    runtime = SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=RuntimeError)
    vars(cupy).update(from_dlpack=from_dlpack, float32=np.float32, cuda=SimpleNamespace(runtime=runtime))
    sys.modules["cupy"] = cupy
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
