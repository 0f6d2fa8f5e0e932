"""Tensors by reference, without Spark: views of files, ranges of stores, stacked tensors, images."""

from __future__ import annotations

import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pytest
from pyspark.sql.types import StructType

from tensorpool import recording
from tensorpool.errors import CorruptRecording, FrameNotRecorded, MissingPackage
from tensorpool.preview import encode_png
from tensorpool.recording.storage import StorageUri
from tensorpool.spark import tensors
from tensorpool.spark.tensors.functions import compute_stats, to_image
from tensorpool.spark.tensors.rows import RangedSegment, Segments, stack, views
from tensorpool.spark.tensors.tensor_map import ResultColumns
from tests.unit.spark.conftest import add, batch_reader, read, tensor, write

KEEP = ("stream_id", "epoch", "seq")


def batch_of(root: Path, **given: Any) -> pa.RecordBatch:
    reader = batch_reader(root, **given)
    return pa.concat_batches([batch for one in reader.partitions() for batch in reader.read(one)])


def arrays(rows: pa.RecordBatch, segments: Segments, **how: Any) -> list[Any]:
    settings = {"verify": True, "skip_damage": False} | how
    return [frame.array for frame in views(rows, segments, KEEP, **settings)]


def test_views_are_read_only_aligned_and_not_copied(root: Path) -> None:
    write(root, range(10), per_segment=10)
    found = arrays(batch_of(root), Segments())
    for seq, array in enumerate(found):
        assert np.array_equal(array, tensor(seq))
        assert array.ctypes.data % 64 == 0
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    # One mapping for all of them.
    assert found[1].ctypes.data - found[0].ctypes.data == 64


@pytest.mark.parametrize("kind", ["fsspec", "pyarrow", "uri", "moved"])
def test_segments_are_read_from_another_location(root: Path, tmp_path: Path, kind: str) -> None:
    write(root, range(12), per_segment=5)
    rows = batch_of(root)
    elsewhere = tmp_path / "elsewhere"
    root.rename(elsewhere)
    if kind == "fsspec":
        store = fsspec.filesystem("memory")
        store.put(str(elsewhere), "/bucket", recursive=True)
        segments = Segments("/bucket", store)
    elif kind == "pyarrow":
        segments = Segments(str(elsewhere), pyarrow.fs.LocalFileSystem())
    else:
        segments = Segments(f"file://{elsewhere}" if kind == "uri" else str(elsewhere))
    found = arrays(rows, segments)
    assert len(found) == 12
    assert all(np.array_equal(array, tensor(seq)) for seq, array in enumerate(found))
    with pytest.raises(FrameNotRecorded, match="give its location"):
        arrays(rows, Segments())


def test_neighbouring_payloads_in_a_store_are_one_request() -> None:
    class Reader:
        size_bytes = 100 << 20
        requests: list[tuple[int, int]] = []  # noqa: RUF012

        def read(self, start: int, length: int) -> bytes:
            self.requests.append((start, length))
            return bytes(length)

        def read_into(self, start: int, target: memoryview) -> int:
            target[:] = self.read(start, len(target))
            return len(target)

    with ThreadPoolExecutor(1) as pool:
        segment = RangedSegment(Reader(), StorageUri("memory://x"), pool)
        for number in range(100):
            assert len(segment.read(64 * number, 64)) == 64
        assert Reader.requests == [(0, 1 << 20)]
        # In order, so further ahead.
        segment.read(1 << 20, 64)
        assert Reader.requests[1:] == [(1 << 20, 2 << 20)]
        # A large range is several requests, which run at the same time.
        assert len(segment.read(50 << 20, 6 << 20)) == 6 << 20
        assert Reader.requests[2:] == [(50 << 20, 4 << 20), (54 << 20, 2 << 20)]


def test_growing_and_sealed_segment_is_read(root: Path) -> None:
    segments = Segments()
    with recording.RecordingWriter(root, background=False) as writer:
        add(writer, range(3))
        assert len(arrays(batch_of(root), segments)) == 3
        add(writer, range(3, 6))
        assert len(arrays(batch_of(root), segments)) == 6
    rows = batch_of(root)
    assert all(np.array_equal(array, tensor(seq)) for seq, array in enumerate(arrays(rows, segments)))


def test_damaged_payload_is_an_error_or_left_out(root: Path) -> None:
    write(root, range(10), per_segment=10)
    rows = batch_of(root)
    path = next(root.glob("stream=*/epoch=*/*.arrows"))
    content = bytearray(path.read_bytes())
    content[rows.to_pylist()[4]["payload_offset"]] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecording, match="stream 10000, epoch 1, frame 4"):
        arrays(rows, Segments())
    assert len(arrays(rows, Segments(), skip_damage=True)) == 9
    assert len(arrays(rows, Segments(), verify=False)) == 10


def test_equal_tensors_are_stacked_without_a_copy(root: Path) -> None:
    write(root, range(20), per_segment=10)
    frames = list(views(batch_of(root), Segments(), KEEP, verify=True, skip_damage=False))
    stacked = stack(frames[:10], is_one_segment=True)
    assert stacked.shape == (10, 4, 8)
    assert stacked.ctypes.data == frames[0].array.ctypes.data
    assert all(np.array_equal(stacked[seq], tensor(seq)) for seq in range(10))
    copied = stack(frames, is_one_segment=False)
    assert all(np.array_equal(copied[seq], tensor(seq)) for seq in range(20))
    assert np.array_equal(stack(frames[3:4], is_one_segment=True)[0], tensor(3))


def results(root: Path, fn: Any, schema: str | StructType, **how: Any) -> list[dict[str, Any]]:
    struct_type = schema if isinstance(schema, StructType) else StructType.fromJson(_fields(schema))
    out = ResultColumns(KEEP, struct_type, with_row=how.pop("with_row", False))
    frames = views(batch_of(root), Segments(), KEEP, verify=True, skip_damage=False)
    batch = how.pop("batch", None)
    found = out.stacked(fn, frames, batch) if batch else out.each(fn, frames)
    return [row for one in found for row in one.to_pylist()]


def _fields(text: str) -> dict[str, Any]:
    kinds = {"double": "double", "bigint": "long", "string": "string"}
    fields = [part.strip().split() for part in text.split(",")]
    return {
        "type": "struct",
        "fields": [{"name": n, "type": kinds[k], "nullable": True, "metadata": {}} for n, k in fields],
    }


def test_function_returns_a_value_tuple_or_dictionary(root: Path) -> None:
    write(root, range(3))
    assert results(root, lambda array: array.max(), "top bigint")[2]["top"] == tensor(2).max()
    assert results(root, lambda array: (1, "x"), "a bigint, b string")[0] == {
        "stream_id": 10_000, "epoch": 1, "seq": 0, "a": 1, "b": "x",
    }  # fmt: skip
    assert results(root, lambda array: {"b": "x", "a": 1}, "a bigint, b string")[1]["b"] == "x"
    named = results(root, lambda array, row: f"{row.seq} {row.dtype} {row.shape}", "s string", with_row=True)
    assert named[1]["s"] == "1 uint16 (4, 8)"


def test_function_of_stacked_tensors_returns_a_value_each(root: Path) -> None:
    write(root, range(23), per_segment=10)
    sizes = []

    def tops(array: Any) -> Any:
        sizes.append(len(array))
        return array.reshape(len(array), -1).max(axis=1)

    found = results(root, tops, "top bigint", batch=8)
    assert [row["top"] for row in found] == [tensor(seq).max() for seq in range(23)]
    assert max(sizes) == 8
    with pytest.raises(RuntimeError, match="returned 1 values of top for 8 tensors"):
        results(root, lambda array: [1], "top bigint", batch=8)


def test_error_of_a_function_names_the_frame(root: Path) -> None:
    write(root, range(3))

    def fails(array: Any, row: Any) -> float:
        return 1.0 / (row.seq - 1)

    with pytest.raises(RuntimeError, match="stream 10000, epoch 1, frame 1: ZeroDivisionError"):
        results(root, fails, "x double", with_row=True)
    with pytest.raises(RuntimeError, match=r"returned \['y'\], but the schema has \['x'\]"):
        results(root, lambda array: {"y": 1}, "x double")
    with pytest.raises(TypeError, match="column x should be double"):
        results(root, lambda array: "word", "x double")


def test_invalid_row_has_no_tensor(root: Path) -> None:
    write(root, range(1))
    with pytest.raises(ValueError, match="read with option payload=ref"):
        tensors.to_numpy(read(root, payload="none")[0])
    row = read(root, payload="inline")[0]
    with pytest.raises(ValueError, match="extends beyond its 64 bytes"):
        tensors.to_numpy(row | {"shape": [5, 8]})
    with pytest.raises(ValueError, match="element type 'uint17'"):
        tensors.to_numpy(row | {"dtype": "uint17"})


def test_stats_leave_nans_out() -> None:
    assert compute_stats(np.array([1.0, np.nan, 3.0])) == (1.0, 3.0, 2.0, 1.0, 1)
    assert compute_stats(np.array([np.nan])) == (None, None, None, None, 1)
    assert compute_stats(np.arange(4, dtype="uint8"))[:3] == (0.0, 3.0, 1.5)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((64, 32), (16, 8)), ((5, 40, 20, 3), (14, 7, 3)), ((100,), (1, 15)), ((4, 4), (4, 4))],
)
def test_thumbnail_is_a_png_of_the_tensor(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    pixels = to_image(array, 16, None, None)
    assert pixels.shape == expected
    assert (pixels.min(), pixels.max()) == (0, 255)
    content = encode_png(pixels)
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, colour = struct.unpack(">IIBB", content[16:26])
    assert (height, width, depth, colour) == (*expected[:2], 8, 2 if len(expected) == 3 else 0)
    size = struct.unpack(">I", content[33:37])[0]
    lines = np.frombuffer(zlib.decompress(content[41 : 41 + size]), np.uint8).reshape(height, -1)
    assert np.array_equal(lines[:, 1:].reshape(expected), pixels)


def test_to_torch_returns_copies_single_or_stacked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, range(7), per_segment=3)
    torch = SimpleNamespace(from_numpy=lambda array: array, stack=np.stack)
    monkeypatch.setitem(sys.modules, "torch", torch)
    rows: Any = SimpleNamespace(toLocalIterator=lambda: iter(read(root, includeGaps="true")))
    copies = list(tensors.to_torch(rows))
    assert all(np.array_equal(copy, tensor(seq)) for seq, copy in enumerate(copies))
    assert all(copy.flags.writeable for copy in copies)
    assert [len(batch) for batch in tensors.to_torch(rows, batch_size=3)] == [3, 3, 1]


def test_missing_torch_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackage, match="pip install torch"):
        next(tensors.to_torch(None))  # type: ignore[arg-type]


def test_kept_columns_keep_their_type_if_all_null(root: Path) -> None:
    write(root, range(3))
    rows = batch_of(root)
    schema = StructType().add("top", "long")
    columns = ResultColumns(("seq", "trace_id"), schema, with_row=False)
    frames = views(rows, Segments(), ("seq", "trace_id"), verify=True, skip_damage=False)
    (found,) = columns.each(lambda array: int(array.max()), frames)
    assert found.schema.field("trace_id").type == pa.int64()
    assert found.column("trace_id").null_count == 3
    assert found.column("seq").to_pylist() == [0, 1, 2]
