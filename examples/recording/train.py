"""Recorded frames as a PyTorch dataset: `python train.py DIR STREAM`.

A DataLoader accepts the dataset directly: each worker opens the recording, and a frame is loaded with its
batch. Without PyTorch the program reads the same dataset with numpy alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np

from tensorpool.recording import FrameDataset, RecordedFrame

BATCH = 8


def item(frame: RecordedFrame) -> np.ndarray:
    """Input of a model: the values of a frame, scaled to 0 to 1."""
    array = frame.array
    scale = np.iinfo(array.dtype).max if array.dtype.kind in "ui" else 1
    return array.astype(np.float32) / scale


def batches(dataset: FrameDataset[np.ndarray]) -> Iterable[np.ndarray]:
    """Batches of the dataset."""
    try:
        from torch.utils.data import DataLoader
    except ImportError:
        print("PyTorch is not installed; using numpy", file=sys.stderr)
        for start in range(0, len(dataset), BATCH):
            yield np.stack([dataset[number] for number in range(start, min(start + BATCH, len(dataset)))])
        return
    for batch in DataLoader(dataset, batch_size=BATCH, shuffle=False, num_workers=0):
        yield batch.numpy()


def main(root: str, stream_id: int) -> None:
    """Prints the mean of all frames."""
    dataset = FrameDataset(root, stream_id, transform=item)
    total = 0.0
    for batch in batches(dataset):
        total += float(batch.mean(dtype=np.float64)) * len(batch)
    print(f"{len(dataset)} frames, mean {total / len(dataset):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
