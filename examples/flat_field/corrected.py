"""Corrects the frames with the flat field of the camera. Start it before or after the camera."""

from contextlib import suppress

import numpy as np

import tensorpool as tp

FLAT_FIELD = 1


def flat_field(frames: tp.Consumer, frame: tp.Frame) -> np.ndarray | None:
    """The flat field of a frame; None until the blob has arrived."""
    table = frames.blob(FLAT_FIELD, frame)
    if table is None or frame.meta is None:
        return None
    layout = frame.meta["flat_field"]
    return np.frombuffer(table, layout["dtype"]).reshape(layout["shape"])


with suppress(KeyboardInterrupt), tp.open() as ctx, ctx.consumer(10010) as frames:
    version, flat = None, None
    for frame in frames:
        if flat is None or frame.meta_version != version:
            version, flat = frame.meta_version, flat_field(frames, frame)
        if flat is None:
            continue
        with suppress(tp.FrameOverwritten), frame:
            image = frame.array
            corrected = image / flat
            spread = f"{image.std() / image.mean():.1%} → {corrected.std() / corrected.mean():.1%}"
        print(f"{frames.source_name} frame {frame.seq}: spread {spread}", flush=True)
