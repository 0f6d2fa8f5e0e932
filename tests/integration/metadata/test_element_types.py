"""Element types that have no number on the wire and are declared by metadata."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.attributes.extension_types import CARRIERS, extension

from .conftest import DEADLINE_S, MetadataHarness

AVAILABLE = [name for name in CARRIERS if extension(name) is not None]


def sample(name: str) -> np.ndarray:
    registered = extension(name)
    assert registered is not None
    _carrier, dtype, _is_pair = registered
    if dtype.kind == "c":
        return (np.arange(24) + 1j * np.arange(24, 0, -1)).reshape(2, 3, 4).astype(dtype)
    return np.arange(24).reshape(2, 3, 4).astype(dtype)


@pytest.fixture
def stream(harness: MetadataHarness) -> tuple[tp.Producer, tp.Consumer]:
    return harness.pair(metadata={})


def send(stream: tuple[tp.Producer, tp.Consumer], array: Any, **more: Any) -> tp.Frame:
    producer, consumer = stream
    assert producer.offer(array, **more)
    return consumer.receive(DEADLINE_S)


@pytest.mark.parametrize("name", AVAILABLE)
def test_declared_element_type_survives_delivery(stream: tuple[tp.Producer, tp.Consumer], name: str) -> None:
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
        frame = send(stream, array)
        expected = np.atleast_1d(array)
        assert (frame.dtype, frame.element_type, frame.shape) == (whole.dtype, name, expected.shape)
        for view in (frame.array, frame.copy()):
            assert (view.dtype, view.shape) == (whole.dtype, expected.shape)
            assert view.tobytes() == expected.tobytes()
        assert not frame.array.flags.writeable
        assert f"dtype={name}" in repr(frame)


@pytest.mark.parametrize("name", AVAILABLE)
def test_claimed_slot_has_the_declared_element_type(
    stream: tuple[tp.Producer, tp.Consumer], name: str
) -> None:
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


def test_consumer_without_metadata_gets_the_carrier_type(harness: MetadataHarness) -> None:
    producer, consumer = harness.pair(dtype="float16", metadata_stream_id=1398)
    assert producer.offer(np.array([1.5, -2], np.float16))
    frame = consumer.receive(DEADLINE_S)
    assert (frame.dtype, frame.element_type) == (np.dtype("uint16"), "uint16")
    assert frame.array.view(np.float16).tolist() == [1.5, -2]


def test_producer_without_metadata_refuses_carried_element_types(harness: MetadataHarness) -> None:
    producer, _ = harness.pair()
    with pytest.raises(tp.UnsupportedDtype, match="metadata"):
        producer.offer(np.zeros(3, np.float16))
    producer.set_metadata({})
    assert producer.offer(np.zeros(3, np.float16))
    assert producer.offer(np.float16(3)), "a scalar"


def test_carrier_type_is_refused_while_it_is_ambiguous(stream: tuple[tp.Producer, tp.Consumer]) -> None:
    producer, _ = stream
    assert send(stream, np.zeros(3, np.uint16)).dtype == np.uint16
    assert send(stream, np.ones(3, np.float16)).dtype == np.float16
    for plain in (np.zeros(3, np.uint16), np.zeros(3, np.uint16).data):
        with pytest.raises(tp.UnsupportedDtype, match="would be read as float16"):
            producer.offer(plain)
    with pytest.raises(tp.UnsupportedDtype, match="would be read as float16"):
        producer.claim((3,), "uint16")
    # Types that cannot be confused may alternate.
    assert send(stream, np.zeros(3, np.float32)).dtype == np.float32
    assert send(stream, np.ones(3, np.complex64)).dtype == np.complex64
    assert send(stream, np.zeros(3, np.uint16)).dtype == np.uint16


def test_fixed_element_type_cannot_change(harness: MetadataHarness) -> None:
    stream = producer, _ = harness.pair(dtype=np.float16)
    assert send(stream, np.ones(2, np.float16), dtype="float16").array.tolist() == [1, 1]
    with pytest.raises(tp.UnsupportedDtype, match="complex64"):
        producer.offer(np.zeros(3, np.complex64))
    assert send(stream, np.ones(2, np.float16)).meta_version == 1


def test_complex128_has_limits_on_dimensions_and_order(stream: tuple[tp.Producer, tp.Consumer]) -> None:
    producer, _ = stream
    with pytest.raises(ValueError, match="dimensions"):
        producer.offer(np.zeros((1,) * 8, np.complex128))
    with pytest.raises(ValueError, match='order "C"'):
        producer.claim((2, 2), "complex128", order="F")
    assert send(stream, np.zeros((1,) * 8, np.complex64)).shape == (1,) * 8


def test_float64_arrays_that_are_no_pairs_stay_float64(harness: MetadataHarness) -> None:
    """A foreign producer may declare complex128 and publish arrays without pairs of float64."""
    producer, consumer = harness.pair(dtype="complex128")
    version = producer.meta_version
    producer.describe(0)
    for plain in (np.zeros((4, 3)), np.zeros(2), np.zeros((2, 2), order="F")):
        producer.offer(plain, meta_version=version)
        frame = consumer.receive(DEADLINE_S)
        assert frame.meta is not None
        assert (frame.dtype, frame.array.shape) == (np.dtype("float64"), plain.shape)


def test_buffer_and_dlpack_have_the_declared_element_type(stream: tuple[tp.Producer, tp.Consumer]) -> None:
    frame = send(stream, np.array([[1, 2]], np.float16))
    with memoryview(frame) as view:
        assert (view.format, view.shape) == ("e", (1, 2))
    assert np.from_dlpack(frame).dtype == np.float16
