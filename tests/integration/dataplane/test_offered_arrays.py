"""Offered arrays of all dtypes, shapes, orders, strides and sources arrive unchanged."""

from __future__ import annotations

import array
import ctypes
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorpool as tp

NUMERIC = [
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float32",
    "float64",
    "bool",
]
REGISTRY = [*NUMERIC, "bytes", "bit"]


def sample(dtype: str, shape: tuple[int, ...] = (4, 5)) -> np.ndarray:
    """Numbers that use every byte of an element, including the extremes."""
    rng = np.random.default_rng(0)
    kind = np.dtype(dtype)
    raw = rng.integers(0, 256, size=(*shape, kind.itemsize), dtype=np.uint8)
    if kind.kind == "b":
        return (raw[..., 0] & 1).astype(bool)
    numbers = np.ascontiguousarray(raw).view(kind)[..., 0].copy()
    if kind.kind == "f":
        numbers = rng.standard_normal(shape).astype(kind)
        numbers.flat[:4] = [np.inf, -np.inf, np.nan, -0.0]
    else:
        numbers.flat[:2] = [np.iinfo(kind).min, np.iinfo(kind).max]
    return numbers


def assert_same(frame: tp.Frame, sent: np.ndarray) -> None:
    sent = sent if sent.ndim else sent.reshape(1)
    assert (frame.shape, frame.dtype) == (sent.shape, sent.dtype)
    assert frame.array.shape == sent.shape
    # Compared as bytes: NaN is not equal to itself, and -0.0 equals 0.0.
    assert frame.array.tobytes() == np.ascontiguousarray(sent).tobytes()
    assert frame.nbytes == sent.nbytes


# --- element types


@pytest.mark.requirement("wire-15.8-2")
@pytest.mark.parametrize("dtype", NUMERIC)
def test_every_numeric_dtype_arrives_unchanged(shared_stream, dtype) -> None:
    sent = sample(dtype)
    frame = shared_stream.send(sent)
    assert_same(frame, sent)
    assert frame.element_type == dtype


@pytest.mark.parametrize("dtype", ["bytes", "bit"])
def test_bytes_and_bits_keep_their_element_type(shared_stream, dtype) -> None:
    sent = sample("uint8", (7,))
    frame = shared_stream.send(sent, dtype=dtype)
    assert (frame.element_type, frame.dtype) == (dtype, np.dtype("uint8"))
    np.testing.assert_array_equal(frame.array, sent)


def test_numpy_characters_are_bytes(shared_stream) -> None:
    frame = shared_stream.send(np.array([b"a", b"\0", b"\xff"], dtype="S1"))
    assert (frame.element_type, frame.array.tobytes()) == ("bytes", b"a\0\xff")


@pytest.mark.parametrize(
    "alias", ["intc", "intp", "longlong", "ulonglong", "long", "ubyte", "single", "double"]
)
def test_numpy_dtype_aliases_are_the_same_type(shared_stream, alias) -> None:
    sent = np.arange(5).astype(alias)
    frame = shared_stream.send(sent)
    assert frame.element_type == sent.dtype.name
    np.testing.assert_array_equal(frame.array, sent)


@pytest.mark.parametrize(
    "dtype",
    [
        "float16",
        "complex64",
        "complex128",
        "longdouble",
        ">i4",
        ">f8",
        "object",
        "M8[ns]",
        "m8[s]",
        "U3",
        "S3",
    ],
)
def test_unsupported_dtype_is_refused_with_a_remedy(shared_stream, dtype) -> None:
    before = shared_stream.producer.next_seq
    with pytest.raises(tp.UnsupportedDtype) as refused:
        shared_stream.producer.offer(np.zeros(3, dtype=dtype))
    message = str(refused.value)
    assert refused.value.dtype == str(np.dtype(dtype))
    assert all(name in message for name in REGISTRY)
    assert "astype" in message
    assert "view('uint8')" in message
    assert isinstance(refused.value, TypeError)
    assert shared_stream.producer.next_seq == before


def test_record_dtype_is_refused(shared_stream) -> None:
    with pytest.raises(tp.UnsupportedDtype):
        shared_stream.producer.offer(np.zeros(3, dtype=[("a", "i4"), ("b", "f4")]))


def test_remedies_for_an_unsupported_dtype_work(shared_stream) -> None:
    halves = np.linspace(-1, 1, 7, dtype=np.float16)
    assert_same(shared_stream.send(halves.astype("float32")), halves.astype("float32"))
    frame = shared_stream.send(halves.view("uint8"))
    np.testing.assert_array_equal(frame.array.view(np.float16), halves)


def test_dtype_that_contradicts_the_data_is_refused(shared_stream) -> None:
    with pytest.raises(TypeError, match="the data is float32, not int32"):
        shared_stream.producer.offer(np.zeros(3, np.float32), dtype="int32")
    with pytest.raises(tp.UnsupportedDtype):
        shared_stream.producer.offer(np.zeros(3, np.uint8), dtype="float16")


# --- shapes and strides


@pytest.mark.requirement("wire-8.2-9", "wire-8.2-1")
@pytest.mark.parametrize("ndim", range(1, 9))
@pytest.mark.parametrize("order", ["C", "F"])
def test_one_to_eight_dimensions_arrive_in_both_orders(shared_stream, ndim, order) -> None:
    shape = (2, 3, 1, 2, 2, 1, 3, 2)[:ndim]
    sent = np.asarray(sample("int32", shape), order=order)
    frame = shared_stream.send(sent)
    assert_same(frame, sent)
    if order == "F":
        assert frame.array.flags.f_contiguous
    else:
        assert frame.array.flags.c_contiguous


@pytest.mark.requirement("wire-8.2-9")
def test_nine_dimensions_are_refused(shared_stream) -> None:
    with pytest.raises(ValueError, match="9 dimensions; a tensor has 1 to 8"):
        shared_stream.producer.offer(np.zeros((1,) * 9))


GRID: Any = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
VIEWS: dict[str, Any] = {
    "every second": GRID[::2],
    "every third column": GRID[:, :, ::3],
    "reversed": GRID[::-1],
    "reversed rows and columns": GRID[:, ::-1, ::-2],
    "transposed": GRID.T,
    "permuted": GRID.transpose(1, 0, 2),
    "inner block": GRID[1:3, 1:4, 2:5],
    "broadcast": np.broadcast_to(np.arange(6, dtype=np.int32), (4, 5, 6)),
    "one number all over": np.broadcast_to(np.int32(7), (3, 4)),
    "overlapping windows": np.lib.stride_tricks.sliding_window_view(np.arange(20, dtype=np.int64), 8),
    "a diagonal": np.lib.stride_tricks.as_strided(GRID, shape=(4, 4), strides=(120 + 24, 4)),
    "one column": GRID[:, :, 1],
    "F-ordered slice": np.asfortranarray(GRID)[:, 1:3],
    "unaligned": np.frombuffer(bytes(range(1, 34)), np.uint8)[1:].view(np.float64),
    "a field of records": np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])["b"],
}


@pytest.mark.parametrize("name", VIEWS)
def test_array_with_gaps_is_sent_contiguous(shared_stream, name) -> None:
    sent = VIEWS[name]
    frame = shared_stream.send(sent)
    assert_same(frame, sent)
    assert frame.array.flags.forc


@pytest.mark.requirement("wire-8.2-18")
@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 4), (0,) * 8], ids=str)
def test_empty_tensor_arrives_with_its_shape(shared_stream, shape) -> None:
    for sent in (np.zeros(shape, np.float32), np.zeros(shape, np.float32, order="F")):
        frame = shared_stream.send(sent)
        assert (frame.shape, frame.nbytes, frame.element_type) == (shape, 0, "float32")
        assert frame.array.shape == shape


@pytest.mark.parametrize("scalar", [np.float64(2.5), np.array(7, np.int16), np.bool_(True)], ids=repr)
def test_scalar_arrives_as_one_element(shared_stream, scalar) -> None:
    frame = shared_stream.send(scalar)
    assert (frame.shape, frame.array[0]) == ((1,), scalar)


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """Views of arrays by slicing, reversing, permuting and broadcasting."""
    dtype = np.dtype(draw(st.sampled_from(NUMERIC)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=7, min_side=0, max_side=5))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.frombuffer(draw(st.binary(min_size=min(size, 64), max_size=min(size, 64))) or b"\0", np.uint8)
    numbers = np.resize(raw, size).copy().view(dtype) if size else np.zeros(0, dtype)
    if dtype.kind == "b":
        numbers = numbers.view(np.uint8) % 2 == 1
    made = numbers.reshape(shape, order=draw(st.sampled_from("CF")))
    if made.ndim:
        made = np.asarray(made[draw(hnp.basic_indices(made.shape, allow_newaxis=False))])
        made = made.transpose(draw(st.permutations(range(made.ndim))))
    if draw(st.booleans()):
        made = np.broadcast_to(made, (draw(st.integers(0, 4)), *made.shape))
    return made


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(views())
def test_any_view_arrives_as_its_contiguous_copy(shared_stream, sent) -> None:
    assert_same(shared_stream.send(sent), sent)


# --- sources


class OnlyDlpack:
    """A tensor of another library, which supports DLPack only."""

    def __init__(self, wrapped: np.ndarray) -> None:
        self._wrapped = wrapped

    def __dlpack__(self, **options: Any) -> Any:
        return self._wrapped.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._wrapped.__dlpack_device__()


SOURCES: dict[str, tuple[Any, Any]] = {
    "bytes": (b"\1\2\3", np.array([1, 2, 3], np.uint8)),
    "bytearray": (bytearray(b"\1\2\3"), np.array([1, 2, 3], np.uint8)),
    "empty bytes": (b"", np.array([], np.uint8)),
    "memoryview": (memoryview(b"\1\2\3"), np.array([1, 2, 3], np.uint8)),
    "reversed memoryview": (memoryview(b"\1\2\3")[::-1], np.array([3, 2, 1], np.uint8)),
    "strided memoryview": (memoryview(GRID)[::3], GRID[::3]),
    "cast memoryview": (
        memoryview(bytes(range(12))).cast("I", (3, 1)),
        np.arange(12, dtype=np.uint8).view("u4"),
    ),
    "array of doubles": (array.array("d", [1.5, -2.5]), np.array([1.5, -2.5])),
    "array of shorts": (array.array("h", [-1, 2]), np.array([-1, 2], np.int16)),
    "array of unsigned longs": (array.array("L", [1, 2]), np.array([1, 2], np.uint64)),
    "ctypes matrix": (
        np.ctypeslib.as_ctypes(np.array([[1, 2, 3], [4, 5, 6]], "i2")),
        np.array([[1, 2, 3], [4, 5, 6]], "i2"),
    ),
    "ctypes booleans": ((ctypes.c_bool * 2)(True, False), np.array([True, False])),
    "DLPack": (OnlyDlpack(GRID), GRID),
    "DLPack, strided": (OnlyDlpack(GRID[::2, ::-1]), GRID[::2, ::-1]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_any_buffer_or_dlpack_object_can_be_offered(shared_stream, name) -> None:
    source, expected = SOURCES[name]
    frame = shared_stream.send(source)
    np.testing.assert_array_equal(frame.array.reshape(expected.shape), expected)
    assert frame.dtype == expected.dtype


def test_characters_of_a_buffer_are_bytes(shared_stream) -> None:
    frame = shared_stream.send(memoryview(b"abc").cast("c"))
    assert (frame.element_type, frame.array.tobytes()) == ("bytes", b"abc")


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))


@pytest.mark.parametrize(
    "source",
    [
        (ctypes.c_int16.__ctype_be__ * 2)(1, 2),
        (Pair * 2)(),
        memoryview(struct.pack("2P", 1, 2)).cast("P"),
        OnlyDlpack(np.zeros(3, np.float16)),
        OnlyDlpack(np.zeros(3, np.complex64)),
    ],
    ids=["big-endian", "structures", "pointers", "DLPack halves", "DLPack complex"],
)
def test_buffer_of_an_unsupported_format_is_refused_with_a_remedy(shared_stream, source) -> None:
    with pytest.raises(tp.UnsupportedDtype, match="supported are uint8, int8"):
        shared_stream.producer.offer(source)


@pytest.mark.parametrize(
    "value", [5, 1.5, "text", None, [1, 2], {"a": 1}, object()], ids=lambda value: type(value).__name__
)
def test_object_without_memory_is_refused(shared_stream, value) -> None:
    with pytest.raises(TypeError, match="offer a numpy array, or anything with the buffer protocol"):
        shared_stream.producer.offer(value)


def test_read_only_array_can_be_offered_unchanged(shared_stream) -> None:
    sent = np.arange(10)
    sent.setflags(write=False)
    assert_same(shared_stream.send(sent), sent)


def test_received_frame_can_be_offered_again(shared_stream) -> None:
    frame = shared_stream.send(GRID)
    assert_same(shared_stream.send(frame), GRID)
