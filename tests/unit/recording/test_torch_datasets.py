"""Recordings as datasets of torch: the choice of frames, and batches with a single copy of each."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorpool.errors import ConfigError
from tests.stand_in_torch import torch_datasets
from tests.unit.recording.conftest import STREAM, WriterFactory

IMAGES = [np.full((4, 6), 10 * number, np.uint16) + np.arange(6, dtype=np.uint16) for number in range(5)]


@pytest.fixture
def datasets() -> Iterator[Any]:
    with torch_datasets() as module:
        yield module


@pytest.fixture
def worker(datasets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs as the worker of a DataLoader."""
    monkeypatch.setattr(datasets, "get_worker_info", lambda: SimpleNamespace(id=0, num_workers=2))


@pytest.fixture
def images(make_writer: WriterFactory, root: Path) -> Path:
    write(make_writer, IMAGES)
    return root


def write(make_writer: WriterFactory, images: list[np.ndarray], stream_id: int = STREAM) -> None:
    with make_writer() as writer:
        for seq, image in enumerate(images):
            writer.append(image, stream_id=stream_id, epoch=1, seq=seq, receive_time_ns=1_000 * seq)


def arrived(batch: Any) -> Any:
    """The batch of a worker as the main process gets it."""
    return pickle.loads(pickle.dumps(batch))


def test_frames_have_numbers_across_recordings_and_streams(
    datasets: Any, make_writer: WriterFactory, images: Path
) -> None:
    write(make_writer, IMAGES[:2], STREAM + 1)
    dataset = datasets.recorded([images, images])
    assert len(dataset) == 14
    for index, number in ((0, 0), (4, 4), (5, 0), (6, 1), (7, 0), (-1, 1), (-14, 0)):
        assert np.array_equal(dataset[index], IMAGES[number])
    for index in (14, -15):
        with pytest.raises(IndexError, match="of 14"):
            dataset[index]
    assert [item[0, 0] for item in dataset.__getitems__([3, 8])] == [30, 10]
    assert not dataset[0].flags.writeable


def test_times_split_a_recording_and_streams_choose(datasets: Any, images: Path) -> None:
    first = datasets.recorded(images, streams=STREAM, time=(None, 2_000))
    last = datasets.recorded(images, streams=[STREAM], time=(2_001, None), transform=lambda f: f.seq)
    assert (len(first), [last[i] for i in range(len(last))]) == (3, [3, 4])
    with pytest.raises(ConfigError, match="no frames"):
        datasets.recorded(images, streams=STREAM + 7)


def test_a_batch_has_a_copy_of_each_frame(datasets: Any, images: Path) -> None:
    dataset = datasets.recorded(images)
    batch = datasets.collate([dataset[i] for i in (4, 0)])
    assert np.array_equal(batch.numpy(), np.stack([IMAGES[4], IMAGES[0]]))
    image, seq = datasets.collate([(dataset[1], np.array(1)), (dataset[2], np.array(2))])
    assert (image.numpy()[1, 0, 0], seq.numpy().tolist()) == (20, [1, 2])
    assert datasets.collate([{"a": np.ones(2)}])["a"].numpy().tolist() == [[1, 1]]
    with pytest.raises(ValueError, match="different shapes"):
        datasets.collate([np.ones(2), np.ones(3)])
    with pytest.raises(ValueError, match="different types"):
        datasets.collate([np.ones(2, np.float32), np.ones(2, np.int32)])


def test_sixteen_bit_floats_of_ml_dtypes_are_collated(datasets: Any) -> None:
    values = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    batch = datasets.collate([values, values])
    assert (str(batch.dtype), tuple(batch.shape)) == ("torch.bfloat16", (2, 2, 3))
    carried = batch.view(datasets.torch.int16).numpy().view(ml_dtypes.bfloat16)
    assert np.array_equal(carried[1], values)


@pytest.mark.usefixtures("worker")
def test_a_worker_sends_places_in_files_instead_of_frames(datasets: Any, images: Path) -> None:
    dataset = pickle.loads(pickle.dumps(datasets.recorded(images)))
    batch = datasets.collate([dataset[i] for i in (1, 3)])
    assert len(pickle.dumps(batch)) < 1000
    assert np.array_equal(arrived(batch).numpy(), np.stack([IMAGES[1], IMAGES[3]]))
    # What is no whole frame of a recording travels in shared memory.
    for items in ([dataset[0][:2], dataset[1][:2]], [dataset[0] + 1, dataset[1] + 1]):
        assert datasets.collate(items).is_shared()


@pytest.mark.usefixtures("worker")
def test_frames_of_a_remote_recording_travel_in_shared_memory(datasets: Any, images: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    uri = "memory://datasets/run"
    fsspec.filesystem("memory").put(str(images), "datasets/run", recursive=True)
    try:
        dataset = datasets.recorded(uri)
        batch = datasets.collate([dataset[i] for i in (1, 3)])
        assert batch.is_shared()
        assert np.array_equal(batch.numpy(), np.stack([IMAGES[1], IMAGES[3]]))
    finally:
        fsspec.filesystem("memory").rm("datasets", recursive=True)


@pytest.mark.usefixtures("worker")
def test_a_new_recording_of_the_same_name_is_mapped_anew(
    datasets: Any, make_writer: WriterFactory, images: Path
) -> None:
    first = datasets.recorded(images)
    assert arrived(datasets.collate([first[0], first[1]])).numpy()[1, 0, 0] == 10
    del first
    shutil.rmtree(images)
    write(make_writer, [image + 1 for image in IMAGES])
    second = datasets.recorded(images)
    assert arrived(datasets.collate([second[0], second[1]])).numpy()[1, 0, 0] == 11


def test_every_worker_has_a_share_of_every_limited_stream(datasets: Any) -> None:
    """A limit passes every second frame, or every third: each worker gets some of these, too."""
    for workers in (1, 2, 3, 8):
        for step in range(1, 65):
            shares = [datasets.worker_of(seq, workers) for seq in range(5, 5 + 400 * step, step)]
            counts = np.bincount(shares, minlength=workers)
            assert len(counts) == workers
            assert counts.min() > 400 // workers // 2
