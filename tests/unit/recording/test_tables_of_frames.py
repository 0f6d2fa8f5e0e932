"""Frames of a recording by name, as arrays, Arrow tables and data frames; exports with names and tags."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorpool import recording
from tensorpool.attributes.metadata import TAGS_KEY, attribute
from tensorpool.errors import CorruptRecording, FrameNotRecorded, InvalidFrames
from tensorpool.sbe import DataSourceAnnounce, DataSourceMeta
from tests.unit.recording.conftest import STREAM, WriterFactory

IMAGES = [np.full((4, 6), 10 * number, np.uint16) + np.arange(6, dtype=np.uint16) for number in range(5)]


@pytest.fixture
def images(make_writer: WriterFactory, root: Path) -> Path:
    """A recording of the stream `camera-1`, with tags and attributes."""
    with make_writer() as writer:
        announce = DataSourceAnnounce(
            stream_id=STREAM, producer_id=1, epoch=1, meta_version=1, name="camera-1"
        )
        attributes = (attribute("gain", 2.5), attribute("mask", np.eye(2)), attribute(TAGS_KEY, ["lab"]))
        meta = DataSourceMeta(stream_id=STREAM, meta_version=1, timestamp_ns=1, attributes=attributes)
        for message in (announce, meta):
            writer.add_message("metadata", message.encode(), stream_id=STREAM, epoch=1, meta_version=1)
        for seq, image in enumerate(IMAGES):
            writer.append(
                image, stream_id=STREAM, epoch=1, seq=seq, receive_time_ns=1_000 * seq, meta_version=1
            )
    return root


def test_recorded_streams_have_their_names(images: Path) -> None:
    opened = recording.open(images)
    assert opened.names == {STREAM: "camera-1"}
    assert f"streams=[{STREAM} (camera-1)]" in repr(opened)
    frames = opened.frames("camera-1")
    assert repr(frames) == f"<Frames stream={STREAM} frames={len(frames)}>"
    assert repr(frames[:2]) == f"<2 of {frames!r}>"
    assert repr(frames[0]).startswith(f"<RecordedFrame stream={STREAM} epoch={frames[0].epoch} seq=")
    assert [frame.seq for frame in opened.frames("camera-1", seq=(1, 2))] == [1, 2]
    assert opened.frame("camera-1", 3).seq == 3
    assert opened.removed_until("camera-1", 1) == -1
    assert recording.FrameDataset(images, "camera-1")[0].tolist() == IMAGES[0].tolist()
    (stream,) = recording.info(images).streams
    assert stream.name == "camera-1"


@pytest.mark.parametrize(
    "method", ["segments_of", "epochs", "earliest", "latest", "by_segment", "gaps", "ledger"]
)
def test_methods_of_a_recording_take_a_name(images: Path, method: str) -> None:
    opened = recording.open(images)
    by_name, by_id = (getattr(opened, method)(stream) for stream in ("camera-1", STREAM))
    # Selections of frames are compared by what they say of themselves.
    assert repr(by_name) == repr(by_id)
    assert len(by_name) == 1 if method in ("segments_of", "epochs", "by_segment", "ledger") else True
    with pytest.raises(FrameNotRecorded, match="no stream is named 'cam'"):
        getattr(opened, method)("cam")


def test_unknown_name_lists_the_recorded_streams(images: Path) -> None:
    with pytest.raises(FrameNotRecorded, match=rf"no stream is named 'cam'.*{STREAM} \(camera-1\)"):
        recording.open(images).frames("cam")


def test_frames_stack_into_one_array(images: Path) -> None:
    stack = recording.open(images).frames(STREAM).stack()
    assert np.array_equal(stack, np.stack(IMAGES))
    assert stack.flags.writeable


def test_a_slice_of_frames_stacks_and_is_a_table(images: Path) -> None:
    frames = recording.open(images).frames(STREAM)
    some = frames[1:4]
    assert np.array_equal(some.stack(), np.stack(IMAGES[1:4]))
    assert some[::2].to_arrow()["seq"].to_pylist() == [1, 3]
    assert some.to_pandas()["receive_time_ns"].tolist() == frames.to_pandas()["receive_time_ns"].tolist()[1:4]
    whole, sliced = frames.columns(), frames[:].columns()
    assert {name: (column.dtype, column.tolist()) for name, column in sliced.items()} == {
        name: (column.dtype, column.tolist()) for name, column in whole.items()
    }
    with pytest.raises(FrameNotRecorded, match="no frames"):
        frames[5:].stack()


def test_frames_of_several_shapes_do_not_stack(images: Path, make_writer: WriterFactory) -> None:
    with make_writer() as writer:
        writer.append(np.eye(3), stream_id=STREAM, epoch=1, seq=7, receive_time_ns=9_000)
    frames = recording.open(images).frames(STREAM)
    with pytest.raises(InvalidFrames, match=r"frame 7 is float64 \(3, 3\).*choose a range"):
        frames.stack()
    table = frames.to_arrow()
    assert table["tensor"].type == pa.large_binary()
    assert table["tensor"][5].as_py() == np.eye(3).tobytes()
    assert table["shape"][5].as_py() == [3, 3]


def test_frames_are_an_arrow_table(images: Path) -> None:
    table = recording.open(images).frames(STREAM).to_arrow()
    names = ["stream_id", "epoch", "seq", "timestamp_ns", "receive_time_ns", "meta_version"]
    assert table.column_names == [*names, "dtype", "shape", "tensor"]
    assert table["seq"].to_pylist() == [0, 1, 2, 3, 4]
    assert table["stream_id"].to_pylist() == [STREAM] * 5
    assert set(table["dtype"].to_pylist()) == {"uint16"}
    tensors = table["tensor"].combine_chunks().to_numpy_ndarray()
    assert np.array_equal(tensors, np.stack(IMAGES))


def test_frames_are_a_data_frame(images: Path) -> None:
    data = recording.open(images).frames("camera-1", seq=(1, 3)).to_pandas()
    assert data["seq"].tolist() == [1, 2, 3]
    assert data["shape"].tolist() == [(4, 6)] * 3
    assert np.array_equal(data["array"][1], IMAGES[2])
    assert data.groupby("epoch").size().tolist() == [3]


def test_damage_is_not_stacked(images: Path) -> None:
    frames = recording.open(images).frames(STREAM)
    ref = frames[2].ref
    content = bytearray(Path(ref.path).read_bytes())
    content[ref.offset] ^= 1
    Path(ref.path).write_bytes(content)
    with pytest.raises(CorruptRecording):
        recording.open(images).frames(STREAM).stack()


def test_selection_without_frames_is_an_empty_table(images: Path) -> None:
    frames = recording.open(images).frames(STREAM, seq=(100, None))
    assert frames.to_arrow().num_rows == 0
    assert len(frames.to_pandas()) == 0


FACTS = {
    "stream_id": STREAM,
    "name": "camera-1",
    "tags": ["lab"],
    "attributes": {"1": {"gain": 2.5, "mask": [[1.0, 0.0], [0.0, 1.0]]}},
}


def test_parquet_has_rows_and_facts(images: Path, tmp_path: Path) -> None:
    assert recording.export(images, tmp_path / "f.parquet", stream_id="camera-1") == 5
    # Without threads, which pyarrow would keep.
    table = pq.ParquetFile(tmp_path / "f.parquet", pre_buffer=False).read(use_threads=False)
    assert table["seq"].to_pylist() == [0, 1, 2, 3, 4]
    assert table["tensor"][3].as_py() == IMAGES[3].tobytes()
    assert json.loads(table.schema.metadata[b"tensorpool"]) == FACTS


def test_zarr_has_the_facts_as_attributes(images: Path, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    # In its own process: zarr keeps a thread and an event loop until the process ends.
    script = (
        "import json, sys, zarr\n"
        "from tensorpool import recording\n"
        "recording.export(*sys.argv[1:])\n"
        "print(json.dumps(dict(zarr.open_group(sys.argv[2], mode='r').attrs)))\n"
    )
    command = [sys.executable, "-c", script, str(images), str(tmp_path / "f.zarr")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == FACTS


def test_mcap_has_named_topics_and_facts(images: Path, make_writer: WriterFactory, tmp_path: Path) -> None:
    reader = pytest.importorskip("mcap.reader")
    with make_writer() as writer:
        writer.append(np.arange(3.0), stream_id=7, epoch=1, seq=9, receive_time_ns=1_500)
    recording.export(images, tmp_path / "f.mcap")
    with (tmp_path / "f.mcap").open("rb") as file:
        summary = reader.make_reader(file).get_summary()
    topics = {channel.topic: channel.metadata for channel in summary.channels.values()}
    assert set(topics) == {"/camera-1", "/stream/7"}
    assert topics["/camera-1"]["name"] == "camera-1"
    assert json.loads(topics["/camera-1"]["attributes"]) == FACTS["attributes"]
    with (tmp_path / "f.mcap").open("rb") as file:
        metadata = {record.name: record.metadata for record in reader.make_reader(file).iter_metadata()}
    assert json.loads(metadata[f"stream:{STREAM}"]["tags"]) == ["lab"]


def test_ledger_and_frame_are_tables_in_notebooks(images: Path) -> None:
    opened = recording.open(images)
    assert "<th>rows</th><td>5</td>" in opened.ledger(STREAM)[0]._repr_html_()
    assert "<th>shape</th><td>(4, 6)</td>" in opened.frame(STREAM, 0)._repr_html_()
