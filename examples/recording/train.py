"""Feeds recorded frames to PyTorch: `python train.py DIR STREAM`.

Any DataLoader takes the dataset as it is: workers open the recording for themselves, and nothing is loaded
before its batch is due. Without PyTorch the same dataset is walked through with numpy alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np

from tensorpool.recording import FrameDataset, RecordedFrame

BATCH = 8


def item(frame: RecordedFrame) -> np.ndarray:
    """What a model gets of a frame: its values from 0 to 1."""
    array = frame.array
    scale = np.iinfo(array.dtype).max if array.dtype.kind in "ui" else 1
    return array.astype(np.float32) / scale


def batches(dataset: FrameDataset[np.ndarray]) -> Iterable[np.ndarray]:
    try:
        from torch.utils.data import DataLoader
    except ImportError:
        print("PyTorch is not installed; numpy does the batches", file=sys.stderr)
        for start in range(0, len(dataset), BATCH):
            yield np.stack([dataset[number] for number in range(start, min(start + BATCH, len(dataset)))])
        return
    for batch in DataLoader(dataset, batch_size=BATCH, shuffle=False, num_workers=0):
        yield batch.numpy()


def main(root: str, stream_id: int) -> None:
    dataset = FrameDataset(root, stream_id, transform=item)
    total = 0.0
    for batch in batches(dataset):
        total += float(batch.mean(dtype=np.float64)) * len(batch)
    print(f"{len(dataset)} frames, mean {total / len(dataset):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
