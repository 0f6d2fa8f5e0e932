"""Prints the mean of every frame, and the ledger at the end: `python viewer.py [STREAM]`.

Start it before or after the camera.
"""

import sys
from contextlib import suppress

import tensorpool as tp

stream_id = int(sys.argv[1]) if len(sys.argv) > 1 else 20000

with tp.open() as ctx, ctx.consumer(stream_id) as frames:
    with suppress(KeyboardInterrupt):
        for frame in frames:  # waits without the GIL
            with frame:  # raises FrameOverwritten if the slot was reused meanwhile
                print(f"frame {frame.seq}: mean {frame.array.mean():.1f}", flush=True)
    print(frames.ledger())
