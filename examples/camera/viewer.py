"""Prints the mean of every frame, and the ledger at the end: `python viewer.py [STREAM]`.

Start it before or after the camera.
"""

import sys
from contextlib import suppress

import tensorpool as tp

stream_id = int(sys.argv[1]) if len(sys.argv) > 1 else 20000

with tp.open() as ctx, ctx.consumer(stream_id) as frames:
    with suppress(KeyboardInterrupt):
        # Waits without the GIL. A frame that is overwritten before its mean is known is skipped, and counted.
        for frame, mean in frames.map(lambda frame: frame.array.mean()):
            print(f"frame {frame.seq}: mean {mean:.1f}", flush=True)
    print(frames.ledger())
