"""A rolling-shutter camera: its sensor is read out row by row, 30 ms a frame. Stop it with Ctrl-C."""

import time
from contextlib import suppress

import numpy as np

import tensorpool as tp

ROWS, COLUMNS, AT_ONCE, READOUT_S = 480, 640, 8, 0.030

with suppress(KeyboardInterrupt), tp.open() as ctx, ctx.producer(10002, pools=["1MiB"], nslots=8) as camera:
    noise = np.random.default_rng()
    while True:
        scene = noise.integers(0, 4096, (ROWS, COLUMNS), "uint16")
        # No slot while the driver is away: the frame is skipped, and counted.
        with suppress(tp.ClaimRefused), camera.claim((ROWS, COLUMNS), "uint16", progress="rows") as slot:
            start = time.monotonic()
            for row in range(0, ROWS, AT_ONCE):
                time.sleep(max(0.0, start + row / ROWS * READOUT_S - time.monotonic()))
                slot.array[row : row + AT_ONCE] = scene[row : row + AT_ONCE]
                slot.advance(AT_ONCE)  # told to those who follow; never waits for them
        time.sleep(0.010)
