"""Arrays of types that the wire has no number for arrive as what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.attributes.dtypes import CARRIERS, extension

from .conftest import DEADLINE_S, Stage

HERE = [name for name in CARRIERS if extension(name) is not None]


def sample(name: str) -> np.ndarray:
    found = extension(name)
    assert found is not None
    if found[1].kind == "c":
        return (np.arange(24) + 1j * np.arange(24, 0, -1)).reshape(2, 3, 4).astype(found[1])
    return np.arange(24).reshape(2, 3, 4).astype(found[1])


@pytest.fixture
def stream(stage: Stage) -> tuple[tp.Producer, tp.Consumer]:
    return stage.pair(metadata={})


def sent(stream: tuple[tp.Producer, tp.Consumer], array: Any, **more: Any) -> tp.Frame:
    assert stream[0].offer(array, **more)
    return stream[1].receive(DEADLINE_S)


@pytest.mark.parametrize("name", HERE)
def test_an_array_arrives_as_what_it_was(stream: tuple[tp.Producer, tp.Consumer], name: str) -> None:
    whole = sample(name)
    for array in (
        whole,
        whole.T,
        whole[:, ::2],
        whole[::-1],
        whole[:1, 0, 0],
        whole[:0],
        whole[0, 0, :1].reshape(()),
    ):
        frame = sent(stream, array)
        expected = np.atleast_1d(array)
        assert (frame.dtype, frame.element_type, frame.shape) == (whole.dtype, name, expected.shape)
        for seen in (frame.array, frame.copy()):
            assert (seen.dtype, seen.shape) == (whole.dtype, expected.shape)
            assert seen.tobytes() == expected.tobytes()
        assert not frame.array.flags.writeable
        assert f"dtype={name}" in repr(frame)


@pytest.mark.parametrize("name", HERE)
def test_a_slot_is_written_in_its_own_type(stream: tuple[tp.Producer, tp.Consumer], name: str) -> None:
    array, (producer, consumer) = sample(name), stream
    with producer.claim(array.shape, name) as slot:
        assert slot.array.dtype == array.dtype
        written = slot.array
        written[...] = array
    with pytest.raises(ValueError, match="read-only"):
        written[...] = array
    frame = consumer.receive(DEADLINE_S)
    assert frame.array.tobytes() == array.tobytes()
    assert frame.shape == array.shape
    with producer.claim((3,), array.dtype) as slot:
        slot.array[...] = array[0, 0, 0]
    assert consumer.receive(DEADLINE_S).dtype == array.dtype


def test_who_does_not_hear_of_it_gets_the_carrier(stage: Stage) -> None:
    producer, deaf = stage.pair(dtype="float16", metadata_stream_id=1398)
    assert producer.offer(np.array([1.5, -2], np.float16))
    frame = deaf.receive(DEADLINE_S)
    assert (frame.dtype, frame.element_type) == (np.dtype("uint16"), "uint16")
    assert frame.array.view(np.float16).tolist() == [1.5, -2]


def test_without_metadata_such_an_array_is_refused(stage: Stage) -> None:
    producer, _ = stage.pair()
    with pytest.raises(tp.UnsupportedDtype, match="metadata"):
        producer.offer(np.zeros(3, np.float16))
    producer.set_metadata({})
    assert producer.offer(np.zeros(3, np.float16))
    assert producer.offer(np.float16(3)), "a scalar"


def test_what_would_be_taken_for_something_else_is_refused(stream: tuple[tp.Producer, tp.Consumer]) -> None:
    producer, _ = stream
    assert sent(stream, np.zeros(3, np.uint16)).dtype == np.uint16
    assert sent(stream, np.ones(3, np.float16)).dtype == np.float16
    for plain in (np.zeros(3, np.uint16), np.zeros(3, np.uint16).data):
        with pytest.raises(tp.UnsupportedDtype, match="would be read as float16"):
            producer.offer(plain)
    with pytest.raises(tp.UnsupportedDtype, match="would be read as float16"):
        producer.claim((3,), "uint16")
    # Types that nobody can mistake go on side by side.
    assert sent(stream, np.zeros(3, np.float32)).dtype == np.float32
    assert sent(stream, np.ones(3, np.complex64)).dtype == np.complex64
    assert sent(stream, np.zeros(3, np.uint16)).dtype == np.uint16


def test_a_type_that_was_fixed_stays(stage: Stage) -> None:
    stream = producer, _ = stage.pair(dtype=np.float16)
    assert sent(stream, np.ones(2, np.float16), dtype="float16").array.tolist() == [1, 1]
    with pytest.raises(tp.UnsupportedDtype, match="complex64"):
        producer.offer(np.zeros(3, np.complex64))
    assert sent(stream, np.ones(2, np.float16)).meta_version == 1


def test_pairs_have_limits_that_are_told(stream: tuple[tp.Producer, tp.Consumer]) -> None:
    producer, _ = stream
    with pytest.raises(ValueError, match="dimensions"):
        producer.offer(np.zeros((1,) * 8, np.complex128))
    with pytest.raises(ValueError, match='order "C"'):
        producer.claim((2, 2), "complex128", order="F")
    assert sent(stream, np.zeros((1,) * 8, np.complex64)).shape == (1,) * 8


def test_pairs_that_are_none_stay_numbers(stage: Stage) -> None:
    """A foreign producer may declare complex128 and send what is not laid out as such."""
    producer, consumer = stage.pair(dtype="complex128")
    version = producer.meta_version
    producer.describe(0)
    for plain in (np.zeros((4, 3)), np.zeros(2), np.zeros((2, 2), order="F")):
        producer.offer(plain, meta_version=version)
        frame = consumer.receive(DEADLINE_S)
        assert frame.meta is not None
        assert (frame.dtype, frame.array.shape) == (np.dtype("float64"), plain.shape)


def test_the_array_s_other_faces_have_its_type_too(stream: tuple[tp.Producer, tp.Consumer]) -> None:
    frame = sent(stream, np.array([[1, 2]], np.float16))
    with memoryview(frame) as view:
        assert (view.format, view.shape) == ("e", (1, 2))
    assert np.from_dlpack(frame).dtype == np.float16
