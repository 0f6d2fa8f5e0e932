"""A camera that publishes noise at 30 frames per second: `python camera.py [STREAM]`. Stop it with Ctrl-C."""

import sys
import time
from contextlib import suppress

import numpy as np

import tensorpool as tp

stream_id = int(sys.argv[1]) if len(sys.argv) > 1 else 20000

with (
    suppress(KeyboardInterrupt),
    tp.open() as ctx,
    ctx.producer(stream_id, pools=["1MiB"], nslots=8) as camera,
):
    noise = np.random.default_rng()
    while True:
        # Without a driver there is no slot: the frame is skipped and counted.
        with suppress(tp.ClaimRefused), camera.claim((480, 640), "uint16") as slot:
            slot.array[:] = noise.integers(0, 4096, slot.array.shape)
        time.sleep(1 / 30)
