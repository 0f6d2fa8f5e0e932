"""The median of every row, computed while the frame is still being written, and the time that this saves.

Prints how long after a frame's last row its medians are known, and how long a computation from the complete
frame takes. Start it before or after the camera.
"""

import statistics
import time
from contextlib import suppress

import numpy as np

import tensorpool as tp

FRAMES = 50


def ms_since(captured_ns: int) -> float:
    """Milliseconds since a monotonic time."""
    return (time.monotonic_ns() - captured_ns) / 1e6


def compare(frame: tp.Frame, known_ns: int, parts: int) -> tuple[float, float]:
    """Computes the medians again from the complete frame; returns the latencies of both ways."""
    by_rows = (known_ns - frame.timestamp_ns) / 1e6
    np.median(frame.array, axis=1)
    whole = ms_since(frame.timestamp_ns)
    print(f"frame {frame.seq}: {by_rows:.2f} ms in {parts} parts, {whole:.2f} ms as a whole", flush=True)
    return by_rows, whole


latencies: list[tuple[float, float]] = []
with (
    suppress(KeyboardInterrupt),
    tp.open() as ctx,
    ctx.consumer(10002, progress=True, progress_rows=8) as frames,
):
    seq, done, parts, medians = -1, 0, 0, np.empty(0)
    for part in frames.progress(timeout=10):
        if part.seq != seq:
            seq, done, parts, medians = part.seq, 0, 0, np.empty(part.shape[0])
        medians[done : part.rows] = np.median(part.array[done:], axis=1)
        if not part.valid():
            continue  # too late: the slot already has another frame
        done, parts = part.rows or 0, parts + 1
        if part.state != "complete":
            continue
        known_ns = time.monotonic_ns()
        # The producer publishes the descriptor before the last part, so the frame can be polled now.
        for frame in frames.poll():
            if frame.seq == seq:
                latencies.append(compare(frame, known_ns, parts))
        if len(latencies) >= FRAMES:
            break
if latencies:
    by_rows, whole = (statistics.median(column) for column in zip(*latencies, strict=True))
    print(f"{whole - by_rows:.2f} ms won: {by_rows:.2f} ms after the last row instead of {whole:.2f} ms")
