"""Prints the mean of every frame, and the ledger at the end. Start it before or after the camera."""

from contextlib import suppress

import tensorpool as tp

with tp.open() as ctx, ctx.consumer(10000) as frames:
    with suppress(KeyboardInterrupt):
        for frame in frames:  # waits without the GIL
            with frame:  # raises FrameOverwritten if it was lost while used
                print(f"frame {frame.seq}: mean {frame.array.mean():.1f}", flush=True)
    print(frames.ledger())
