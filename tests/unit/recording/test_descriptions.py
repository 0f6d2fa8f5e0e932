"""What a source said of its frames goes with them: attributes, and element types that metadata tell of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.attributes.dtypes import CARRIERS, extension
from tensorpool.client.metadata import SourceDescription
from tensorpool.recording.batch import FrameBatch
from tensorpool.recording.tensors import NUMBERS
from tests.unit.recording.conftest import STREAM, Writing, frames


def told(description: SourceDescription) -> bytes:
    return description.messages(STREAM)[1]


def versions(*numbers: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.array(numbers, np.uint32)


def test_each_frame_has_the_attributes_of_its_version(writing: Writing, root: Path) -> None:
    description = SourceDescription(metadata={"gain": 2})
    with writing() as writer:
        description.bump(7)
        writer.note("metadata", told(description), stream_id=STREAM, epoch=1, meta_version=1)
        description.change({"gain": 3, "lens": "50 mm"}, name=None, summary=None, now_ns=8)
        writer.note("metadata", told(description), stream_id=STREAM, epoch=1, meta_version=2)
        writer.note("metadata", b"no message", stream_id=STREAM, epoch=1)
        writer.write_batch(frames(0, 4, meta_version=versions(0, 1, 2, 3)))
        writer.write_batch(frames(0, 1, epoch=2, meta_version=versions(1)))
    found = [frame.meta for frame in recording.open(root).frames(STREAM)]
    assert [None if one is None else dict(one) for one in found] == [
        None,
        {"gain": 2},
        {"gain": 3, "lens": "50 mm"},
        # Version 3 was never heard of, and in another epoch 1 is another version.
        None,
        None,
    ]
    assert found[1] is not None
    assert (found[1].version, found[1].timestamp_ns) == (1, 7)


def test_what_names_no_epoch_is_of_the_one_announced_before(writing: Writing, root: Path) -> None:
    description = SourceDescription(metadata={"gain": 2})
    description.bump(7)
    with writing() as writer:
        writer.note("metadata", told(description), stream_id=STREAM, meta_version=1)
        writer.write_batch(frames(0, 1))
        writer.write_batch(frames(0, 1, epoch=2))
        writer.note("metadata", told(description), stream_id=STREAM + 1, epoch=1, meta_version=1)
    found = [dict(frame.meta or {}) for frame in recording.open(root).frames(STREAM)]
    assert found == [{"gain": 2}, {"gain": 2}]


def test_what_is_said_later_is_known_after_a_refresh(writing: Writing, root: Path) -> None:
    description = SourceDescription(metadata={"gain": 2})
    description.bump(7)
    with writing() as writer, recording.open(root) as recorded:
        writer.write_batch(frames(0, 1))
        recorded.refresh()
        frame = recorded.frames(STREAM).first()
        assert frame.meta is None
        writer.note("metadata", told(description), stream_id=STREAM, epoch=1, meta_version=1)
        writer.flush()
        recorded.refresh()
        assert frame.meta == {"gain": 2}


def carrying(array: np.ndarray[Any, Any], carrier: str, **changes: Any) -> FrameBatch:
    """One frame with the bytes of an array, its elements called something else."""
    made = frames(0, 1, array.nbytes, dtype=np.full(1, NUMBERS[carrier], np.int16), **changes)
    made.arena[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    item = np.dtype(carrier).itemsize
    shape = array.nbytes // item
    made.dims[0, 0], made.strides[0, 0] = shape, item
    if array.dtype == np.complex128:
        made.ndims[0] = 2
        made.dims[0, :2], made.strides[0, :2] = (shape // 2, 2), (16, 8)
    return made


@pytest.mark.parametrize(
    ("name", "carrier"),
    [(name, carried.name) for name, carried in CARRIERS.items() if extension(name) is not None],
)
def test_elements_are_what_metadata_say(name: str, carrier: str, writing: Writing, root: Path) -> None:
    description = SourceDescription(dtype=name)
    description.bump(1)
    assert description.extension is not None
    dtype = description.extension[1]
    array = np.arange(1, 9).astype(dtype)
    with writing() as writer:
        writer.note("metadata", told(description), stream_id=STREAM, epoch=1, meta_version=1)
        writer.write_batch(carrying(array, carrier))
        # The same bytes in an epoch that said nothing.
        writer.write_batch(carrying(array, carrier, epoch=2))
    said, unsaid = recording.open(root).frames(STREAM)
    assert said.array.tobytes() == array.tobytes()
    assert (said.array.dtype, said.dtype, said.element_type) == (dtype, dtype, name)
    assert said.array.shape == said.shape == array.shape
    assert said.array.strides == said.strides
    assert not said.array.flags.writeable
    assert said.carried.dtype == unsaid.array.dtype == unsaid.dtype == np.dtype(carrier)
    assert unsaid.element_type == carrier
    assert said.carried.shape == unsaid.shape
    assert said.crc32c == unsaid.crc32c


def test_a_type_that_does_not_fit_the_frame_changes_nothing(writing: Writing, root: Path) -> None:
    description = SourceDescription(dtype="complex128")
    description.bump(1)
    with writing() as writer:
        writer.note("metadata", told(description), stream_id=STREAM, epoch=1, meta_version=1)
        writer.write_batch(carrying(np.arange(8.0), "float64"))
    (frame,) = recording.open(root).frames(STREAM)
    assert (frame.array.dtype.name, frame.shape, frame.element_type) == ("float64", (8,), "float64")


@pytest.mark.parametrize(("name", "kept"), [("float16", "float16"), ("timedelta64[ns]", "int64")])
def test_exports_use_a_type_that_others_can_load(name: str, kept: str, writing: Writing, root: Path) -> None:
    description = SourceDescription(dtype=name)
    description.bump(1)
    assert description.extension is not None
    array = np.arange(1, 9).astype(description.extension[1])
    with writing() as writer:
        writer.note("metadata", told(description), stream_id=STREAM, epoch=1, meta_version=1)
        writer.write_batch(carrying(array, description.extension[0]))
    out = root.parent / "frames.npy"
    recording.export(root, out, stream_id=STREAM)
    loaded = np.load(out)
    assert loaded.dtype == np.dtype(kept)
    assert loaded.tobytes() == array.tobytes()
