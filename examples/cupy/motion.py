"""CuPy over a live camera on the GPU: what changed against a running mean of its images, as a stream.

    python examples/find/camera.py              # in another terminal: publishes "camera-1"
    python examples/cupy/motion.py

Needs an NVIDIA GPU, the extra `cuda`, and CuPy for the CUDA of the driver. Stop it with Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

import tensorpool as tp

try:
    import cupy
except ImportError as error:
    sys.exit(f"this example needs CuPy ({error}): pip install 'cupy-cuda13x[ctk]', or 'cupy-cuda12x[ctk]'")

RESULTS, WEIGHT = 20_004, 1 / 16


def require_gpu() -> None:
    """Ends the program where CuPy has no GPU to work on."""
    try:
        ngpus = cupy.cuda.runtime.getDeviceCount()
        why = "CUDA finds none"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        # No driver, or one that is too old for this CuPy.
        ngpus, why = 0, str(error)
    if not ngpus:
        sys.exit(f"this example needs an NVIDIA GPU ({why}); examples/jax/tiles.py also runs on the CPU")


def main() -> None:
    """Runs until Ctrl-C, or for --frames frames."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--name", default="camera-1", help="the stream to read")
    parser.add_argument("--frames", type=int, default=0, help="stop after this many; 0: never")
    arguments = parser.parse_args()
    require_gpu()
    with (
        tp.open() as ctx,
        ctx.consumer(name=arguments.name, find_timeout=30.0, device="cuda:0") as frames,
        ctx.producer(
            RESULTS, pools=["2MiB"], nslots=8, name="motion", traces=True, device="cuda:0"
        ) as results,
    ):
        mean = None
        # Copies on the GPU, proven before they are handed out: CuPy may compute as late as it likes.
        for count, frame in enumerate(frames.on_device(depth=3), 1):
            image = cupy.from_dlpack(frame).astype(cupy.float32)
            mean = image if mean is None else mean + WEIGHT * (image - mean)
            motion = image - mean
            # Waits for the work of CuPy that makes the image, and copies it into a slot.
            results.offer(motion, timestamp_ns=frame.timestamp_ns, parents=[frame], strict=True)
            if count % 30 == 0 or count == arguments.frames:
                changed = float(abs(motion).max())
                print(f"frame {frame.seq} on {frame.device}: changed by up to {changed:.1f}", flush=True)
            if count == arguments.frames:
                return


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
