"""A camera that is darker towards its corners and publishes its flat field as a blob. Stop it with Ctrl-C."""

import time
from contextlib import suppress

import numpy as np

import tensorpool as tp

FLAT_FIELD = 1  # type of the blob: a number that camera and readers agree on

y, x = np.mgrid[-1:1:480j, -1:1:640j]
flat_field = (1 - 0.3 * (x**2 + y**2)).astype(np.float32)

metadata = {"exposure_ms": 20, "flat_field": {"shape": flat_field.shape, "dtype": "float32"}}
with (
    suppress(KeyboardInterrupt),
    tp.open() as ctx,
    ctx.producer(10010, pools=["1MiB"], nslots=8, name="lab-camera", metadata=metadata) as camera,
):
    camera.set_blob(FLAT_FIELD, flat_field)
    noise = np.random.default_rng()
    while True:
        light = noise.normal(2000, 10, flat_field.shape)
        camera.offer((light * flat_field).astype(np.uint16))
        time.sleep(1 / 30)
