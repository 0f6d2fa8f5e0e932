"""A spectrometer with 100,000 spectra a second, in blocks of a thousand. Stop it with Ctrl-C."""

import time
from contextlib import suppress

import numpy as np

import tensorpool as tp

CHANNELS, BLOCK, RATE_HZ = 16, 1000, 100_000

with (
    suppress(KeyboardInterrupt),
    tp.open() as ctx,
    # 8192 slots: eight blocks, so a reader may pause for 80 ms.
    ctx.producer(10020, pools=[CHANNELS * 4], nslots=8192, name="spectrometer") as spectra,
):
    noise = np.random.default_rng()
    line = np.exp(-((np.arange(CHANNELS) - 9.0) ** 2) / 4)
    period_ns = 1_000_000_000 // RATE_HZ
    due_ns = time.monotonic_ns()
    while True:
        block = noise.normal(100 * line, 5, (BLOCK, CHANNELS)).astype(np.float32)
        # Each row of the block is a frame with its own sequence and its own time.
        spectra.offer_many(block, timestamps_ns=due_ns + period_ns * np.arange(BLOCK))
        due_ns += period_ns * BLOCK
        time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
