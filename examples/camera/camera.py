"""A camera that films noise at 30 frames a second. Stop it with Ctrl-C."""

import time
from contextlib import suppress

import numpy as np

import tensorpool as tp

with suppress(KeyboardInterrupt), tp.open() as ctx, ctx.producer(10000, pools=["1MiB"], nslots=8) as camera:
    noise = np.random.default_rng()
    while True:
        # No slot while the driver is away: the frame is skipped, and counted.
        with suppress(tp.ClaimRefused), camera.claim((480, 640), "uint16") as slot:
            slot.array[:] = noise.integers(0, 4096, slot.array.shape)
        time.sleep(1 / 30)
