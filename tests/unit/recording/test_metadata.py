"""Recorded metadata: the attributes of a frame's version, and element types that metadata define."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.attributes.extension_types import CARRIERS, extension
from tensorpool.client.metadata import SourceDescription
from tensorpool.recording.batch import FrameBatch
from tensorpool.recording.tensors import NUMBERS
from tests.unit.recording.conftest import STREAM, WriterFactory, frames


def meta_message(description: SourceDescription) -> bytes:
    return description.messages(STREAM)[1]


def versions(*numbers: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.array(numbers, np.uint32)


def test_frame_has_the_attributes_of_its_version(make_writer: WriterFactory, root: Path) -> None:
    description = SourceDescription(metadata={"gain": 2})
    with make_writer() as writer:
        description.bump(7)
        writer.add_message("metadata", meta_message(description), stream_id=STREAM, epoch=1, meta_version=1)
        description.change({"gain": 3, "lens": "50 mm"}, name=None, summary=None, now_ns=8)
        writer.add_message("metadata", meta_message(description), stream_id=STREAM, epoch=1, meta_version=2)
        writer.add_message("metadata", b"no message", stream_id=STREAM, epoch=1)
        writer.write_batch(frames(0, 4, meta_version=versions(0, 1, 2, 3)))
        writer.write_batch(frames(0, 1, epoch=2, meta_version=versions(1)))
    attributes = [frame.meta for frame in recording.open(root).frames(STREAM)]
    assert [None if meta is None else dict(meta) for meta in attributes] == [
        None,
        {"gain": 2},
        {"gain": 3, "lens": "50 mm"},
        # Version 3 was not recorded, and version 1 of another epoch is another version.
        None,
        None,
    ]
    assert attributes[1] is not None
    assert (attributes[1].version, attributes[1].timestamp_ns) == (1, 7)


def test_metadata_without_epoch_applies_to_all_epochs(make_writer: WriterFactory, root: Path) -> None:
    description = SourceDescription(metadata={"gain": 2})
    description.bump(7)
    with make_writer() as writer:
        writer.add_message("metadata", meta_message(description), stream_id=STREAM, meta_version=1)
        writer.write_batch(frames(0, 1))
        writer.write_batch(frames(0, 1, epoch=2))
        writer.add_message(
            "metadata", meta_message(description), stream_id=STREAM + 1, epoch=1, meta_version=1
        )
    found = [dict(frame.meta or {}) for frame in recording.open(root).frames(STREAM)]
    assert found == [{"gain": 2}, {"gain": 2}]


def test_later_metadata_is_found_after_a_refresh(make_writer: WriterFactory, root: Path) -> None:
    description = SourceDescription(metadata={"gain": 2})
    description.bump(7)
    with make_writer() as writer, recording.open(root) as recorded:
        writer.write_batch(frames(0, 1))
        recorded.refresh()
        frame = recorded.frames(STREAM).first()
        assert frame.meta is None
        writer.add_message("metadata", meta_message(description), stream_id=STREAM, epoch=1, meta_version=1)
        writer.flush()
        recorded.refresh()
        assert frame.meta == {"gain": 2}


def carrying(array: np.ndarray[Any, Any], carrier: str, **changes: Any) -> FrameBatch:
    """One frame with the bytes of an array, under the element type of its carrier."""
    batch = frames(0, 1, array.nbytes, dtype=np.full(1, NUMBERS[carrier], np.int16), **changes)
    batch.arena[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    item = np.dtype(carrier).itemsize
    shape = array.nbytes // item
    batch.dims[0, 0], batch.strides[0, 0] = shape, item
    if array.dtype == np.complex128:
        batch.ndims[0] = 2
        batch.dims[0, :2], batch.strides[0, :2] = (shape // 2, 2), (16, 8)
    return batch


@pytest.mark.parametrize(
    ("name", "carrier"),
    [(name, carried.name) for name, carried in CARRIERS.items() if extension(name) is not None],
)
def test_metadata_defines_the_element_type(
    name: str, carrier: str, make_writer: WriterFactory, root: Path
) -> None:
    description = SourceDescription(dtype=name)
    description.bump(1)
    assert description.extension is not None
    dtype = description.extension[1]
    array = np.arange(1, 9).astype(dtype)
    with make_writer() as writer:
        writer.add_message("metadata", meta_message(description), stream_id=STREAM, epoch=1, meta_version=1)
        writer.write_batch(carrying(array, carrier))
        # The same bytes in an epoch without metadata.
        writer.write_batch(carrying(array, carrier, epoch=2))
    typed, plain = recording.open(root).frames(STREAM)
    assert typed.array.tobytes() == array.tobytes()
    assert (typed.array.dtype, typed.dtype, typed.element_type) == (dtype, dtype, name)
    assert typed.array.shape == typed.shape == array.shape
    assert typed.array.strides == typed.strides
    assert not typed.array.flags.writeable
    assert typed.carried.dtype == plain.array.dtype == plain.dtype == np.dtype(carrier)
    assert plain.element_type == carrier
    assert typed.carried.shape == plain.shape
    assert typed.crc32c == plain.crc32c


def test_element_type_that_does_not_fit_is_ignored(make_writer: WriterFactory, root: Path) -> None:
    description = SourceDescription(dtype="complex128")
    description.bump(1)
    with make_writer() as writer:
        writer.add_message("metadata", meta_message(description), stream_id=STREAM, epoch=1, meta_version=1)
        writer.write_batch(carrying(np.arange(8.0), "float64"))
    (frame,) = recording.open(root).frames(STREAM)
    assert (frame.array.dtype.name, frame.shape, frame.element_type) == ("float64", (8,), "float64")


@pytest.mark.parametrize(("name", "kept"), [("float16", "float16"), ("timedelta64[ns]", "int64")])
def test_export_uses_a_type_that_numpy_can_load(
    name: str, kept: str, make_writer: WriterFactory, root: Path
) -> None:
    description = SourceDescription(dtype=name)
    description.bump(1)
    assert description.extension is not None
    array = np.arange(1, 9).astype(description.extension[1])
    with make_writer() as writer:
        writer.add_message("metadata", meta_message(description), stream_id=STREAM, epoch=1, meta_version=1)
        writer.write_batch(carrying(array, description.extension[0]))
    out = root.parent / "frames.npy"
    recording.export(root, out, stream_id=STREAM)
    loaded = np.load(out)
    assert loaded.dtype == np.dtype(kept)
    assert loaded.tobytes() == array.tobytes()
