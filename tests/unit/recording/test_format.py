"""Recorded frames are read back exactly, by this package and by any Arrow reader."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tensorpool import recording
from tensorpool.errors import InvalidFrames, NotARecording, UnsupportedDtype
from tensorpool.recording import arrow_format, layout
from tensorpool.recording.manifest_store import file_stats
from tensorpool.recording.segment_file import SegmentFile
from tensorpool.recording.tensors import NUMBERS, NUMPY
from tests.unit.recording.conftest import STREAM, WriterFactory, frames, segment_files, seqs

U64_MAX = 2**64 - 1
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (0,), (3, 0, 2), (5, 3), (2, 3, 4), (1, 1, 1, 1, 1, 1, 1, 2)]


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_every_element_type_is_read_back_in_every_shape(
    name: str, make_writer: WriterFactory, root: Path
) -> None:
    rng = np.random.default_rng(NUMBERS[name])
    arrays = []
    for shape in SHAPES:
        raw = rng.integers(0, 256, int(np.prod(shape)) * NUMPY[name].itemsize, np.uint8)
        arrays.append((raw % 2 if name == "bool" else raw).view(NUMPY[name]).reshape(shape))
    with make_writer() as writer:
        for seq, array in enumerate(arrays):
            kind = name if name in ("bytes", "bit") else None
            writer.append(array, stream_id=STREAM, epoch=1, seq=seq, element_type=kind)
    found = recording.open(root).frames(STREAM)
    assert len(found) == len(arrays)
    for frame, array in zip(found, arrays, strict=True):
        expected = array.reshape(1) if array.ndim == 0 else array
        assert (frame.element_type, frame.dtype, frame.shape) == (name, array.dtype, expected.shape)
        assert frame.array.tobytes() == expected.tobytes()
        assert frame.nbytes == expected.nbytes
        assert frame.major_order == "row"
        assert frame.valid()


def test_directory_of_a_new_recording_is_private(make_writer: WriterFactory, root: Path) -> None:
    umask = os.umask(0)
    try:
        make_writer().close()
    finally:
        os.umask(umask)
    assert root.stat().st_mode & 0o777 == 0o700


def test_padding_is_zero_in_a_reused_arena(make_writer: WriterFactory, root: Path) -> None:
    with make_writer(batch_rows=2) as writer:
        for seq, nbytes in enumerate((64, 64, 3, 3)):
            writer.append(np.full(nbytes, 7, np.uint8), stream_id=STREAM, epoch=1, seq=seq)
    block, _ = list(recording.open(root).frames(STREAM).runs())[1]
    assert block.arrow.column("payload")[0].as_py() == b"\x07" * 3 + bytes(61)


def test_arrays_of_any_memory_layout_keep_their_values(make_writer: WriterFactory, root: Path) -> None:
    plain = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    given = [plain, np.asfortranarray(plain), plain.transpose(1, 0, 2), plain[::2, ::-1], plain[:, :, 1]]
    with make_writer() as writer:
        for seq, array in enumerate(given):
            writer.append(array, stream_id=STREAM, epoch=1, seq=seq)
    found = list(recording.open(root).frames(STREAM))
    for frame, array in zip(found, given, strict=True):
        assert np.array_equal(frame.array, array)
    assert [frame.major_order for frame in found] == ["row", "column", "row", "row", "row"]
    assert found[1].strides == (4, 12, 48)


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 1000, 4096])
def test_payloads_are_aligned_read_only_views_of_the_file(
    nbytes: int, make_writer: WriterFactory, root: Path
) -> None:
    with make_writer() as writer:
        for first in (0, 3, 8):
            writer.write_batch(frames(first, 3, nbytes))
    (path,) = segment_files(root)
    content = path.read_bytes()
    for frame in recording.open(root).frames(STREAM):
        assert frame.array.ctypes.data % layout.ALIGNMENT == 0
        assert not frame.array.flags.writeable
        assert not frame.array.flags.owndata
        ref = frame.ref
        assert ref.offset % layout.ALIGNMENT == 0
        assert content[ref.offset : ref.offset + ref.length] == frame.payload.tobytes()
        with pytest.raises(ValueError, match="read-only"):
            frame.array[0] = 1


def test_numbers_keep_all_their_bits(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.append(
            np.zeros(1), stream_id=2**32 - 1, epoch=U64_MAX - 1, seq=U64_MAX - 1, timestamp_ns=2**63,
            publish_timestamp_ns=U64_MAX - 1, receive_time_ns=-5, meta_version=2**32 - 1, trace_id=U64_MAX,
        )  # fmt: skip
        writer.append(np.zeros(1), stream_id=2**32 - 1, epoch=U64_MAX - 1, seq=U64_MAX)
    one, other = recording.open(root).frames(2**32 - 1)
    assert (one.stream_id, one.epoch, one.seq) == (2**32 - 1, U64_MAX - 1, U64_MAX - 1)
    assert (one.timestamp_ns, one.publish_timestamp_ns, one.receive_time_ns) == (2**63, U64_MAX - 1, -5)
    assert (one.meta_version, one.trace_id) == (2**32 - 1, U64_MAX)
    assert (other.publish_timestamp_ns, other.trace_id, other.seq) == (None, None, U64_MAX)
    with pa.memory_map(str(segment_files(root)[0])) as file, pa.ipc.open_stream(file) as reader:
        rows = reader.read_all().to_pylist()
    assert (rows[0]["epoch"], rows[0]["seq"], rows[1]["seq"]) == (-2, -2, -1)
    assert (rows[0]["trace_id"], rows[1]["trace_id"]) == (-1, None)


def test_any_arrow_reader_reads_a_segment(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 3, 100))
        writer.write_batch(frames(3, 2, 64))
    (path,) = segment_files(root)
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        table = reader.read_all()
        table.validate(full=True)
        assert table.schema.equals(arrow_format.FRAMES)
        rows = table.to_pylist()
    assert [row["seq"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[0]["shape"] == [100]
    assert (rows[0]["dtype"], rows[0]["major_order"], rows[0]["payload_bytes"]) == ("uint8", "row", 100)
    # A value is padded to a multiple of 64; `payload_bytes` is its real length.
    assert [len(row["payload"]) for row in rows] == [128, 128, 128, 64, 64]
    assert rows[0]["payload"][100:] == bytes(28)


def test_batch_may_mix_shapes_and_types(make_writer: WriterFactory, root: Path) -> None:
    given: list[Any] = [np.float64(3), np.ones((2, 3), np.uint16), np.zeros((1, 2, 3, 4), bool), b"raw"]
    with make_writer() as writer:
        for seq, one in enumerate(given):
            array = np.frombuffer(one, np.uint8) if isinstance(one, bytes) else np.asarray(one)
            kind = "bytes" if isinstance(one, bytes) else None
            writer.append(array, stream_id=STREAM, epoch=1, seq=seq, element_type=kind)
    found = list(recording.open(root).frames(STREAM))
    assert [frame.element_type for frame in found] == ["float64", "uint16", "bool", "bytes"]
    assert [frame.shape for frame in found] == [(1,), (2, 3), (1, 2, 3, 4), (3,)]


def test_unsupported_arrays_are_rejected(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        for array in (np.zeros(2, np.complex64), np.zeros(2, ">u4"), np.array(["a"])):
            with pytest.raises(UnsupportedDtype):
                writer.append(array, stream_id=STREAM, epoch=1, seq=0)
        with pytest.raises(InvalidFrames, match="8 dimensions"):
            writer.append(np.zeros((1,) * 9), stream_id=STREAM, epoch=1, seq=0)
        writer.append(np.zeros(2), stream_id=STREAM, epoch=1, seq=0)
    assert len(recording.open(root).frames(STREAM)) == 1


def two_frames(**changes: Any) -> Any:
    return frames(0, 2, 64, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq": np.array([1, 1], np.uint64)}, "do not increase"),
        ({"seq": np.array([0, 1], np.int64)}, "column seq"),
        ({"dtype": np.array([1, 12], np.int16)}, "element type 12"),
        ({"major_order": np.array([1, 0], np.int16)}, "major order"),
        ({"ndims": np.array([1, 0], np.uint8)}, "dimensions"),
        ({"payload_offset": np.array([0, 100], np.uint64)}, "packed"),
        ({"payload_offset": np.array([0, 128], np.uint64)}, "packed"),
        ({"payload_bytes": np.array([64, 65], np.uint64)}, "outside the arena"),
        ({"dims": np.full((2, 8), 65, np.int32)}, "beyond its payload"),
        ({"dims": np.full((2, 8), -1, np.int32)}, "beyond its payload"),
        ({"strides": np.full((2, 8), 2**62, np.int64)}, "beyond its payload"),
        ({"strides": np.full((2, 8), -1, np.int64)}, "beyond its payload"),
        ({"crc32c": np.zeros(3, np.uint32)}, "crc32c"),
    ],
)
def test_inconsistent_batch_is_rejected(
    changes: dict[str, Any], message: str, make_writer: WriterFactory, root: Path
) -> None:
    with make_writer() as writer:
        with pytest.raises(InvalidFrames, match=message):
            writer.write_batch(two_frames(**changes))
        writer.write_batch(two_frames())
    assert seqs(recording.open(root)) == [0, 1]


def test_unknown_columns_of_a_later_version_are_ignored(make_writer: WriterFactory, root: Path) -> None:
    with make_writer() as writer:
        writer.write_batch(frames(0, 2))
    (path,) = segment_files(root)
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        batch = reader.read_next_batch()
        richer = batch.append_column("exposure_ns", pa.array([1, 2])).replace_schema_metadata(
            reader.schema.metadata
        )
        content = arrow_format.schema_message(richer.schema) + arrow_format.batch_message(richer)
    path.write_bytes(content + arrow_format.END_OF_STREAM)
    assert file_stats(SegmentFile(path)).rows == 2
    (root / layout.MANIFEST_FILE).unlink()
    assert seqs(recording.open(root)) == [0, 1]


def test_newer_format_version_is_rejected(
    make_writer: WriterFactory, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as future:
        future.setattr(layout, "VERSION", 9)
        with make_writer() as writer:
            writer.write_batch(frames(0))
    with pytest.raises(NotARecording, match=r"format version 9.*update"):
        recording.open(root)
    # The segments have the version too, in case only they were copied.
    (root / layout.MARKER_FILE).unlink()
    with pytest.raises(NotARecording, match=r"arrows has format version 9.*update"):
        list(recording.open(root).frames(STREAM))


def test_directory_without_a_recording_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"x")
    with pytest.raises(NotARecording, match="contains no recording"):
        recording.open(tmp_path)
    with pytest.raises(NotARecording, match=r"photo\.png"):
        recording.RecordingWriter(tmp_path, background=False)
    with pytest.raises(NotARecording):
        recording.open(tmp_path / "nowhere")
