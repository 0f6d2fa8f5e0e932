"""A camera with a name, tags and a data source id. Stop it with Ctrl-C."""

import time
from contextlib import suppress

import numpy as np

import tensorpool as tp

with (
    suppress(KeyboardInterrupt),
    tp.open() as ctx,
    ctx.producer(
        20000,
        pools=["1MiB"],
        nslots=8,
        name="camera-1",
        tags=["lab", "calibrated"],
        metadata={"tensorpool.data_source_id": 4711},
        traces=True,
    ) as camera,
):
    while True:
        camera.offer(np.full((480, 640), camera.next_seq % 4096, "uint16"))
        time.sleep(1 / 30)
