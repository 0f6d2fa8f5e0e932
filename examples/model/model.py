"""A small convolution model on a live camera: camera → GPU → results as a stream with their lineage.

    python examples/find/camera.py              # in another terminal: publishes "camera-1"
    python examples/model/model.py

Without a GPU it runs on the CPU, with the same code. `--recording DIR` reads a recording instead.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

import tensorpool as tp

RESULTS = 20_001


def build(device: str) -> torch.nn.Module:
    """Two convolutions that find edges and average them over tiles of the image."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 1, 3, padding=1),
        torch.nn.AdaptiveAvgPool2d((12, 16)),
    )  # fmt: skip
    return model.to(device).eval()


def images(frames: tp.Consumer, device: str) -> Iterator[tuple[Any, torch.Tensor]]:
    """Each frame with its image on the device, proven whole."""
    if device == "cpu":
        for whole in frames.whole():
            yield whole, torch.from_numpy(whole.array)
    else:
        for frame in frames.on_device(depth=3):
            yield frame, torch.from_dlpack(frame)


def main() -> None:
    """Runs until Ctrl-C, or for --frames frames."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--name", default="camera-1", help="the stream to read")
    parser.add_argument("--frames", type=int, default=0, help="stop after this many; 0: never")
    parser.add_argument("--recording", help="a recording to read instead of the live stream")
    arguments = parser.parse_args()
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    model = build(device)
    if arguments.recording:
        over_recording(arguments.recording, model, device)
        return
    options: dict[str, Any] = {} if device == "cpu" else {"device": device}
    with (
        tp.open() as ctx,
        ctx.consumer(name=arguments.name, find_timeout=30.0, **options) as frames,
        ctx.producer(RESULTS, pools=["64KiB"], name="edges", traces=True, **options) as results,
    ):
        latencies = []
        for count, (frame, image) in enumerate(images(frames, device), 1):
            with torch.inference_mode():
                edges = model(image.float()[None, None] / 65_535)[0, 0]
            results.offer(edges, timestamp_ns=frame.timestamp_ns, parents=[frame])
            latencies.append(time.monotonic_ns() - frame.timestamp_ns)
            if count % 100 == 0 or count == arguments.frames:
                middle = sorted(latencies)[len(latencies) // 2] / 1e6
                print(
                    f"frame {frame.seq} on {device}: capture to result {middle:.2f} ms (median)", flush=True
                )
                latencies.clear()
            if count == arguments.frames:
                return


def over_recording(root: str, model: torch.nn.Module, device: str) -> None:
    """The same model over every frame of a recording, in batches."""
    import tensorpool.torch as tpt

    dataset = tpt.recorded(root)
    loader = torch.utils.data.DataLoader(dataset, batch_size=16, collate_fn=tpt.collate)
    with torch.inference_mode():
        for number, batch in enumerate(loader):
            edges = model(batch.to(device, non_blocking=True).float()[:, None] / 65_535)
            print(f"batch {number}: {len(batch)} frames, mean {edges.mean().item():.4f}")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
