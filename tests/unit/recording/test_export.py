"""Exports to numpy, Zarr and MCAP have the content of the recording; the dataset for training."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.errors import CorruptRecording, FrameNotRecorded, InvalidFrames, MissingPackage
from tests.unit.recording.conftest import STREAM, WriterFactory, segment_files

IMAGES = [np.full((4, 6), 10 * number, np.uint16) + np.arange(6, dtype=np.uint16) for number in range(5)]


@pytest.fixture
def images(make_writer: WriterFactory, root: Path) -> Path:
    with make_writer() as writer:
        for seq, image in enumerate(IMAGES):
            writer.append(image, stream_id=STREAM, epoch=1, seq=seq, receive_time_ns=1_000 * seq)
    return root


def test_npy_is_one_array_that_can_be_mapped(images: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    count = recording.export(images, tmp_path / "f.npy", progress=lambda *step: steps.append(step))
    stack = np.load(tmp_path / "f.npy", mmap_mode="r")
    assert (count, steps[-1]) == (5, (5, 5))
    assert np.array_equal(stack, np.stack(IMAGES))
    del stack


def test_npz_accepts_frames_of_any_shape(
    images: Path, root: Path, make_writer: WriterFactory, tmp_path: Path
) -> None:
    with make_writer() as writer:
        writer.append(np.asfortranarray(np.eye(3)), stream_id=STREAM, epoch=1, seq=7, receive_time_ns=9)
    assert recording.export(images, tmp_path / "f.npz") == 6
    with np.load(tmp_path / "f.npz") as archive:
        assert archive["seq"].tolist() == [0, 1, 2, 3, 4, 7]
        assert archive["receive_time_ns"].tolist() == [0, 1_000, 2_000, 3_000, 4_000, 9]
        assert np.array_equal(archive["frame_00000002"], IMAGES[2])
        assert np.array_equal(archive["frame_00000005"], np.eye(3))
    with pytest.raises(InvalidFrames, match=r"frame 7 is float64 \(3, 3\)"):
        recording.export(images, tmp_path / "f.npy")
    assert not (tmp_path / "f.npy").exists()
    assert recording.export(images, tmp_path / "f.npy", seq=(1, 3)) == 3


def test_zarr_has_frames_and_columns(images: Path, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    # In its own process: zarr keeps a thread and an event loop until the process ends.
    script = (
        f"from tensorpool import recording; recording.export({str(images)!r}, {str(tmp_path / 'f.zarr')!r})"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    read = (
        "import sys, json, zarr; group = zarr.open_group(sys.argv[1], mode='r'); frames = group['frames']; "
        "print(json.dumps([frames[:].tolist(), group['seq'][:].tolist(), list(frames.chunks)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", read, str(tmp_path / "f.zarr")], check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout) == [np.stack(IMAGES).tolist(), [0, 1, 2, 3, 4], [1, 4, 6]]
    assert zarr.__version__ >= "3"


def test_mcap_has_foxglove_images_and_other_tensors(
    images: Path, make_writer: WriterFactory, tmp_path: Path
) -> None:
    reader = pytest.importorskip("mcap.reader")
    with make_writer() as writer:
        writer.append(np.arange(3.0), stream_id=7, epoch=1, seq=9, receive_time_ns=1_500)
    assert recording.export(images, tmp_path / "f.mcap") == 6
    with (tmp_path / "f.mcap").open("rb") as file:
        found = [
            (schema.name, channel.topic, message.log_time, json.loads(message.data))
            for schema, channel, message in reader.make_reader(file).iter_messages()
        ]
    assert [log_time for _, _, log_time, _ in found] == [0, 1_000, 1_500, 2_000, 3_000, 4_000]
    name, topic, _, image = found[1]
    assert (name, topic) == ("foxglove.RawImage", f"/stream/{STREAM}")
    assert (image["width"], image["height"], image["encoding"], image["step"]) == (6, 4, "mono16", 12)
    assert base64.b64decode(image["data"]) == IMAGES[1].tobytes()
    name, topic, _, tensor = found[2]
    assert (name, topic, tensor["dtype"], tensor["shape"]) == (
        "tensorpool.Tensor",
        "/stream/7",
        "float64",
        [3],
    )


@pytest.mark.parametrize(("form", "module"), [("zarr", "zarr"), ("mcap", "mcap.writer")])
def test_missing_package_is_named_in_the_error(
    form: str, module: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackage, match=rf"pip install 'aeron-tensorpool\[{form}\]'"):
        recording.export(images, tmp_path / f"f.{form}")
    assert not (tmp_path / f"f.{form}").exists()


def test_invalid_export_is_rejected(images: Path, tmp_path: Path, make_writer: WriterFactory) -> None:
    with pytest.raises(ValueError, match="the formats are npy"):
        recording.export(images, tmp_path / "f.csv")
    with pytest.raises(FileExistsError):
        recording.export(images, segment_files(images)[0], form="npy")
    with pytest.raises(FrameNotRecorded):
        recording.export(images, tmp_path / "f.npy", seq=(100, None))
    with make_writer() as writer:
        writer.append([1], stream_id=7, epoch=1, seq=0)
    with pytest.raises(ValueError, match="recorded streams: 7, 10000"):
        recording.export(images, tmp_path / "f.npy")


def test_damaged_payload_is_not_exported(images: Path, tmp_path: Path) -> None:
    ref = recording.open(images).frames(STREAM)[2].ref
    content = bytearray(Path(ref.path).read_bytes())
    content[ref.offset] ^= 1
    Path(ref.path).write_bytes(content)
    with pytest.raises(CorruptRecording, match="frame 2"):
        recording.export(images, tmp_path / "f.npy")
    assert not (tmp_path / "f.npy").exists()


def test_dataset_gives_writable_copies_and_can_be_pickled(images: Path) -> None:
    dataset = recording.FrameDataset[np.ndarray](images, STREAM, seq=(1, None))
    assert len(dataset) == 4
    assert np.array_equal(dataset[0], IMAGES[1])
    assert np.array_equal(dataset[-1], IMAGES[4])
    assert dataset[0].flags.writeable
    copy = pickle.loads(pickle.dumps(dataset))
    assert [int(copy[i][0, 0]) for i in range(len(copy))] == [10, 20, 30, 40]
    for wrong in (4, -5):
        with pytest.raises(IndexError):
            dataset[wrong]
    means = recording.FrameDataset(
        images, STREAM, transform=lambda frame: (frame.seq, float(frame.array.mean()))
    )
    assert means[1] == (1, 12.5)


def test_importing_recording_imports_no_optional_package() -> None:
    script = (
        "import sys; import tensorpool.recording; "
        "sys.exit(bool({'torch', 'zarr', 'mcap'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_importing_tensorpool_does_not_import_arrow() -> None:
    script = "import sys; import tensorpool, tensorpool.cli; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_train_example_runs_with_and_without_torch(images: Path) -> None:
    script = Path(__file__).parents[3] / "examples" / "recording" / "train.py"
    done = subprocess.run(
        [sys.executable, script, str(images), str(STREAM)], check=True, capture_output=True, text=True
    )
    mean = np.stack(IMAGES).mean() / 65_535
    assert done.stdout == f"5 frames, mean {mean:.4f}\n"
