"""A program that tries an installed package: `exchange.py alone|produce|consume`.

`alone` tries codecs and rings in one process. `produce` and `consume` are the two ends of an exchange: the
consumer ends when it has compared FRAMES frames, the producer at the end of its input. Emulation is slow, so
nothing here is measured.
"""

from __future__ import annotations

import platform
import select
import sys
import time

import numpy as np

import tensorpool as tp
from tensorpool import sbe

STREAM = 20_000
FRAMES = 50
SHAPE = (48, 64)
DEADLINE_S = 300
# Fixed fields, groups, and data of variable length.
MESSAGES = (
    sbe.FrameDescriptor(stream_id=STREAM, epoch=3, seq=12, timestamp_ns=5, meta_version=1, trace_id=9),
    sbe.TraceLinkSet(stream_id=STREAM, epoch=3, seq=12, trace_id=9, parents=(sbe.TraceParent(trace_id=7),)),
    sbe.DiscoveryRequest(
        request_id=1,
        client_id=2,
        response_stream_id=1200,
        tags=(sbe.Tag(tag="lab"),),
        response_channel="aeron:ipc",
        data_source_name="camera-1",
    ),
)


def image(number: int) -> np.ndarray:
    """The frame with this number; each pixel depends on it."""
    return (
        ((np.arange(SHAPE[0] * SHAPE[1], dtype=np.uint32) * 7 + number) % 251)
        .astype(np.uint16)
        .reshape(SHAPE)
    )


def alone() -> None:
    """Codecs and rings in one process."""
    for message in MESSAGES:
        decoded = sbe.decode(message.encode())
        assert decoded == message, decoded
    with (
        tp.open() as ctx,
        ctx.producer(STREAM, pools=["64KiB"], nslots=8) as camera,
        ctx.consumer(STREAM) as frames,
    ):
        frames.wait_for_producer()
        # Twice around the ring.
        for number in range(16):
            camera.offer(image(number))
            for frame in frames.poll():
                with frame:
                    assert np.array_equal(frame.array, image(number))
        ledger = frames.ledger()
        assert ledger.received == 16, ledger
    print(f"{platform.machine()}: {len(MESSAGES)} codecs, 16 frames through a ring of 8")


def produce() -> None:
    """Publishes frames until the end of the input."""
    with tp.open() as ctx, ctx.producer(STREAM, pools=["64KiB"], nslots=64) as camera:
        print("ready", flush=True)
        number = 0
        while not select.select([sys.stdin], [], [], 0.02)[0]:
            camera.offer(image(number))
            number += 1


def consume() -> None:
    """Compares frames of the other process."""
    deadline = time.monotonic() + DEADLINE_S
    compared = 0
    with tp.open() as ctx, ctx.consumer(STREAM) as frames:
        while compared < FRAMES:
            assert time.monotonic() < deadline, f"{compared} of {FRAMES} frames after {DEADLINE_S} s"
            for frame in frames.poll():
                with frame:
                    assert np.array_equal(frame.array, image(frame.seq)), frame.seq
                compared += 1
            time.sleep(0.005)
    print(f"{platform.machine()}: {compared} frames of another process compared")


if __name__ == "__main__":
    {"alone": alone, "produce": produce, "consume": consume}[sys.argv[1]]()
