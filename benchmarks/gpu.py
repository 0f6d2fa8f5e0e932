"""Frames to and from a GPU, beside copies from torch's own pinned memory in the same run.

python -m benchmarks.gpu [--json FILE]      needs torch and a GPU; `make bench-gpu` prepares the rest
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tensorpool as tp

MIB = 1 << 20
SIZES = (2 * MIB, 8 * MIB, 32 * MIB)
STREAM = 10_001
TIMEOUT_S = 60.0


def rate(nbytes: int, work: Callable[[], None], repeat: int = 400) -> float:
    """GiB a second of the median call; the calls end when their copies have ended."""
    for _ in range(20):
        work()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return nbytes / statistics.median(times) / 2**30


def to_device(ctx: tp.Context, nbytes: int) -> dict[str, float]:
    """A consumer's frame to the GPU, proven, beside torch from pinned and from pageable memory."""
    image = np.ones(nbytes, np.uint8)
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    pinned = torch.empty(nbytes, dtype=torch.uint8).pin_memory()
    with (
        ctx.producer(STREAM, pools=[nbytes], nslots=4) as producer,
        ctx.consumer(STREAM, device="cuda:0") as consumer,
    ):
        consumer.wait_for_producer()
        assert producer.offer(image)
        frame = consumer.receive(TIMEOUT_S)
        pageable = torch.from_numpy(frame.copy())

        def ours() -> None:
            assert frame.to_device().valid()

        def copy_from(source: torch.Tensor) -> None:
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()

        return {
            "tensorpool": rate(nbytes, ours),
            "torch pinned": rate(nbytes, lambda: copy_from(pinned)),
            "torch pageable": rate(nbytes, lambda: copy_from(pageable), 20),
        }


def to_slot(ctx: tp.Context, nbytes: int) -> dict[str, float]:
    """A tensor of the GPU into a slot and published, beside torch to pinned and to pageable memory."""
    image = torch.ones(nbytes, dtype=torch.uint8, device="cuda")
    pinned = torch.empty(nbytes, dtype=torch.uint8).pin_memory()
    pageable = torch.empty(nbytes, dtype=torch.uint8)
    with (
        ctx.producer(STREAM + 1, pools=[nbytes], nslots=4) as producer,
        ctx.consumer(STREAM + 1) as consumer,
    ):
        consumer.wait_for_producer()

        def ours() -> None:
            assert producer.offer(image)

        def copy_to(target: torch.Tensor) -> None:
            target.copy_(image, non_blocking=True)
            torch.cuda.synchronize()

        return {
            "tensorpool": rate(nbytes, ours),
            "torch pinned": rate(nbytes, lambda: copy_to(pinned)),
            "torch pageable": rate(nbytes, lambda: copy_to(pageable), 20),
        }


def by_stream(ctx: tp.Context, nbytes: int) -> dict[str, float]:
    """Sixteen tensors of the GPU into slots that their stream commits, beside torch to pinned memory."""
    frames = 16
    image = torch.ones(nbytes, dtype=torch.uint8, device="cuda")
    pinned = [torch.empty(nbytes, dtype=torch.uint8).pin_memory() for _ in range(frames)]
    stream = torch.cuda.current_stream()
    with (
        ctx.producer(STREAM + 4, pools=[nbytes], nslots=64, device="cuda:0") as producer,
        ctx.consumer(STREAM + 4) as consumer,
    ):
        consumer.wait_for_producer()

        def ours() -> None:
            for _ in range(frames):
                slot = producer.claim((nbytes,), "uint8")
                torch.from_numpy(slot.array).copy_(image, non_blocking=True)
                slot.commit_after(stream)
            while slot.result is None:
                pass

        def plain() -> None:
            for target in pinned:
                target.copy_(image, non_blocking=True)
            torch.cuda.synchronize()

        rates = {
            "tensorpool": rate(frames * nbytes, ours, 20),
            "torch pinned": rate(frames * nbytes, plain, 20),
        }
        return {**rates, "torch pageable": float("nan")}


def overlap(ctx: tp.Context) -> dict[str, float]:
    """Frames of 8 MiB through `on_device` with a kernel that takes as long as the copy."""
    nbytes, frames = 8 * MIB, 200
    image = np.ones(nbytes, np.uint8)
    with (
        ctx.producer(STREAM + 2, pools=[nbytes], nslots=256) as producer,
        ctx.consumer(
            STREAM + 2, device="cuda:0", timeout=TIMEOUT_S, max_outstanding_seq_gap=1000
        ) as consumer,
    ):
        consumer.wait_for_producer()

        def publish() -> None:
            for _ in range(frames):
                assert producer.offer(image)

        # The first frame registers 2 GiB of pools, and the first three allocate their buffers.
        publish()
        for i, _frame in enumerate(consumer.on_device(depth=3), 1):
            if i == frames:
                break
        publish()
        start = time.perf_counter()
        for i, _frame in enumerate(consumer.on_device(depth=3), 1):
            if i == frames:
                break
        copy_s = (time.perf_counter() - start) / frames
        # `_sleep` counts cycles: calibrated to the time of one copy.
        cycles = 1_000_000
        torch.cuda._sleep(cycles)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            torch.cuda._sleep(cycles)
        torch.cuda.synchronize()
        cycles = int(cycles * copy_s / (time.perf_counter() - start) * 50)
        start = time.perf_counter()
        for _ in range(frames):
            torch.cuda._sleep(cycles)
        torch.cuda.synchronize()
        kernel_s = (time.perf_counter() - start) / frames
        publish()
        start = time.perf_counter()
        for i, frame in enumerate(consumer.on_device(depth=3), 1):
            torch.from_dlpack(frame)
            torch.cuda._sleep(cycles)
            if i == frames:
                break
        torch.cuda.synchronize()
        both_s = (time.perf_counter() - start) / frames
    return {
        "copy µs": copy_s * 1e6,
        "kernel µs": kernel_s * 1e6,
        "both µs": both_s * 1e6,
        "ratio": max(copy_s, kernel_s) / both_s,
    }


def data_loader(ctx: tp.Context) -> dict[str, float]:
    """`tensorpool.torch.recorded` in a DataLoader with two workers, beside a plain mapped read."""
    import tensorpool.torch as tpt

    nbytes, frames = 640 << 10, 1500
    pool = 1 << 20
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        root = Path(folder) / "run"
        with (
            ctx.producer(STREAM + 3, pools=[pool], nslots=256) as producer,
            ctx.record(root, streams=[STREAM + 3]),
        ):
            # Its descriptors are received from here on.
            assert producer.wait_for_consumer(TIMEOUT_S)
            for i in range(frames):
                assert producer.offer(np.full(nbytes // 2, i, np.uint16))
                time.sleep(0.001)
        dataset = tpt.recorded(root)
        total = sum(dataset[i].nbytes for i in range(len(dataset)))
        loader: Any = torch.utils.data.DataLoader(
            dataset, batch_size=32, num_workers=2, collate_fn=tpt.collate, persistent_workers=True
        )
        times: dict[str, list[float]] = {"loader": [], "mapped": []}
        buffer = np.empty(nbytes // 2, np.uint16)
        for _ in range(4):
            start = time.perf_counter()
            for _batch in loader:
                pass
            times["loader"].append(time.perf_counter() - start)
            start = time.perf_counter()
            for i in range(len(dataset)):
                np.copyto(buffer, dataset[i])
            times["mapped"].append(time.perf_counter() - start)
    loaded, mapped = (total / min(times[name][1:]) / 2**30 for name in ("loader", "mapped"))
    return {"loader GiB/s": loaded, "mapped read GiB/s": mapped, "ratio": loaded / mapped}


def main() -> None:
    """Prints one table, and writes the figures as JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures into this file")
    arguments = parser.parse_args()
    properties = torch.cuda.get_device_properties(0)
    figures: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "card": properties.name,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "host": platform.machine(),
    }
    print(", ".join(f"{key} {value}" for key, value in figures.items()))
    with tp.open(mode="embedded") as ctx:
        for name, measure in (
            ("consumer → GPU", to_device),
            ("GPU → slot", to_slot),
            ("GPU → slot, committed by the stream", by_stream),
        ):
            for nbytes in SIZES:
                row = measure(ctx, nbytes)
                row["ratio"] = row["tensorpool"] / row["torch pinned"]
                figures[f"{name}, {nbytes // MIB} MiB"] = row
                print(
                    f"{name}, {nbytes // MIB:2} MiB: {row['tensorpool']:6.1f} GiB/s, torch pinned "
                    f"{row['torch pinned']:6.1f}, pageable {row['torch pageable']:6.1f}: "
                    f"{row['ratio']:.2f} of pinned",
                    flush=True,
                )
        for name, part in (("overlap, 8 MiB", overlap), ("DataLoader, 640 KiB, 2 workers", data_loader)):
            figures[name] = part(ctx)
            print(
                f"{name}: " + ", ".join(f"{key} {value:.2f}" for key, value in figures[name].items()),
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
