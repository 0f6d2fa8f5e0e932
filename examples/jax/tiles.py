"""A jitted function of JAX over a live camera: the mean of each tile of its images, as a stream.

    python examples/find/camera.py              # in another terminal: publishes "camera-1"
    python examples/jax/tiles.py

Runs on the CPU; with JAX for CUDA and the extra `cuda` the same code runs on the GPU. Stop it with Ctrl-C.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp

import tensorpool as tp

RESULTS, TILE = 20_003, 40


@jax.jit
def tiles(image: jax.Array) -> jax.Array:
    """The mean of each tile of TILE by TILE pixels. Compiled once for each shape and element type."""
    rows, columns = (size // TILE for size in image.shape)
    image = image[: rows * TILE, : columns * TILE].astype(jnp.float32)
    return image.reshape(rows, TILE, columns, TILE).mean((1, 3))


def compute(frames: tp.Consumer) -> Iterator[tuple[Any, jax.Array]]:
    """Each frame with its tiles, which were computed from that frame alone."""
    if frames.device is None:
        # JAX computes in the background. Only a result that is there when `map` checks the frame is proven.
        yield from frames.map(lambda frame: tiles(jnp.from_dlpack(frame)).block_until_ready())
    else:
        # Copies on the GPU, proven before they are handed out: JAX may compute as late as it likes.
        for frame in frames.on_device(depth=3):
            yield frame, tiles(jnp.from_dlpack(frame))


def main() -> None:
    """Runs until Ctrl-C, or for --frames frames."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--name", default="camera-1", help="the stream to read")
    parser.add_argument("--frames", type=int, default=0, help="stop after this many; 0: never")
    arguments = parser.parse_args()
    options: dict[str, Any] = {"device": "cuda:0"} if jax.default_backend() == "gpu" else {}
    with (
        tp.open() as ctx,
        ctx.consumer(name=arguments.name, find_timeout=30.0, **options) as frames,
        ctx.producer(RESULTS, pools=["64KiB"], name="tiles", traces=True, **options) as results,
    ):
        for count, (frame, means) in enumerate(compute(frames), 1):
            results.offer(means, timestamp_ns=frame.timestamp_ns, parents=[frame], strict=True)
            if count % 30 == 0 or count == arguments.frames:
                where = jax.default_backend()
                print(f"frame {frame.seq} on {where}: brightest tile {means.max():.1f}", flush=True)
            if count == arguments.frames:
                return


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
