"""A rolling-shutter camera, which reads its sensor row by row in 30 ms. Stop it with Ctrl-C."""

import time
from contextlib import suppress

import numpy as np

import tensorpool as tp

ROWS, COLUMNS, ROWS_PER_STEP, READOUT_S = 480, 640, 8, 0.030

with suppress(KeyboardInterrupt), tp.open() as ctx, ctx.producer(10002, pools=["1MiB"], nslots=8) as camera:
    noise = np.random.default_rng()
    while True:
        scene = noise.integers(0, 4096, (ROWS, COLUMNS), "uint16")
        # Without a driver there is no slot: the frame is skipped and counted.
        with suppress(tp.ClaimRefused), camera.claim((ROWS, COLUMNS), "uint16", progress="rows") as slot:
            start = time.monotonic()
            for row in range(0, ROWS, ROWS_PER_STEP):
                time.sleep(max(0.0, start + row / ROWS * READOUT_S - time.monotonic()))
                slot.array[row : row + ROWS_PER_STEP] = scene[row : row + ROWS_PER_STEP]
                slot.advance(ROWS_PER_STEP)  # publishes progress; never waits for readers
        time.sleep(0.010)
