"""Frames on CUDA devices: copies at the speed of the bus, with proof that nothing was overwritten meanwhile.

`ctx.consumer(…, device="cuda:0")` registers the mapped pools of a stream with CUDA, so that frames are copied
straight out of shared memory. `frame.to_device()` and `consumer.on_device()` return `DeviceFrame`, which
torch, CuPy and JAX take over by DLPack or `__cuda_array_interface__`. `producer.offer(tensor)` takes tensors
that lie on a device.

Needs the extra `cuda` (NVIDIA's bindings); nothing of it is imported before a device is used.
"""

from .api import CudaApi, CudaRuntime, open_api, parse_device, stream_address
from .frames import Device, DeviceArray, DeviceFrame
from .slots import SlotWriter, commit_after

__all__ = [
    "CudaApi",
    "CudaRuntime",
    "Device",
    "DeviceArray",
    "DeviceFrame",
    "SlotWriter",
    "commit_after",
    "open_api",
    "parse_device",
    "stream_address",
]
