"""Views of arrays as bytes for a browser."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensorpool.console.frames import (
    MAX_ELEMENTS,
    MAX_POINTS,
    FrameView,
    NotAView,
    browser_elements,
    encode_view,
    meta_text,
    pack_message,
    shown_axes,
)

DTYPES = {
    "u8": "u1",
    "i8": "i1",
    "u16": "<u2",
    "i16": "<i2",
    "u32": "<u4",
    "i32": "<i4",
    "f32": "<f4",
    "f64": "<f8",
}


def decoded(array: npt.NDArray[Any], view: FrameView) -> tuple[Any, npt.NDArray[Any]]:
    """The header and the elements as the browser has them."""
    encoded = encode_view(array, view)
    header: Any = encoded.header
    elements = np.frombuffer(encoded.payload, DTYPES[header["elements"]])
    return header, elements.reshape(header["rows"], header["columns"], header["channels"])


@given(
    hnp.arrays(np.uint16, st.tuples(st.integers(2, 60), st.integers(2, 60))),
    st.integers(0, 70), st.integers(0, 70), st.integers(1, 70), st.integers(1, 70), st.integers(1, 40),
)  # fmt: skip
def test_every_shown_element_is_the_true_value_at_its_place(
    array: npt.NDArray[np.uint16], top: int, left: int, height: int, width: int, size: int
) -> None:
    view = FrameView(top=top, left=left, height=height, width=width, max_rows=size, max_columns=size)
    header, elements = decoded(array, view)
    assert header["rows"] <= size
    assert header["columns"] <= size
    for row in range(header["rows"]):
        for column in range(header["columns"]):
            place = header["top"] + row * header["step"], header["left"] + column * header["step"]
            assert elements[row, column, 0] == array[place]


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((480, 640), (0, 1, None)), ((480, 640, 3), (0, 1, 2)), ((3, 480, 640), (1, 2, 0)),
        ((480, 640, 1), (0, 1, None)),
        ((7, 480, 640), (1, 2, None)), ((2, 7, 480, 640), (2, 3, None)), ((5, 480, 640, 4), (1, 2, 3)),
        ((2048,), (None, 0, None)), ((1, 2048), (None, 1, None)), ((2048, 1), (None, 0, None)),
        ((), (None, None, None)),
    ],
)  # fmt: skip
def test_axes_follow_the_shape(shape: tuple[int, ...], axes: tuple[int | None, ...]) -> None:
    assert shown_axes(shape, FrameView()) == axes


def test_plane_of_any_two_axes_can_be_chosen() -> None:
    array = np.arange(7 * 5 * 6, dtype=np.uint16).reshape(7, 5, 6)
    _, elements = decoded(array, FrameView(rows_axis=2, columns_axis=0, channels_axis=-1, index=(0, 3, 0)))
    np.testing.assert_array_equal(elements[:, :, 0], array[:, 3, :].T)
    _, elements = decoded(array, FrameView(index=(9, 0, 0)))
    np.testing.assert_array_equal(elements[:, :, 0], array[6])
    with pytest.raises(NotAView, match="do not fit"):
        encode_view(array, FrameView(rows_axis=1, columns_axis=1))
    with pytest.raises(NotAView, match="do not fit"):
        encode_view(array, FrameView(rows_axis=1, columns_axis=7))


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "grbg", "gbrg"])
def test_bayer_mosaic_becomes_colours(pattern: str) -> None:
    values = {"r": 1000, "g": 500, "b": 200}
    cell = np.array([values[letter] for letter in pattern], np.uint16).reshape(2, 2)
    header, elements = decoded(np.tile(cell, (8, 8)), FrameView(bayer=pattern))
    assert (header["rows"], header["columns"], header["step"]) == (8, 8, 2)
    assert (elements == [1000, 500, 200]).all()


def test_large_frame_is_thinned_and_a_part_of_it_is_whole() -> None:
    array = np.arange(4096 * 4096, dtype=np.uint32).reshape(4096, 4096)
    header, elements = decoded(array, FrameView(max_rows=4096, max_columns=4096))
    assert elements.size <= MAX_ELEMENTS
    assert header["step"] > 1
    header, elements = decoded(array, FrameView(top=100, left=200, height=50, width=60))
    assert header["step"] == 1
    np.testing.assert_array_equal(elements[:, :, 0], array[100:150, 200:260])


def test_long_line_keeps_a_single_peak() -> None:
    line = np.zeros(1_000_000, np.float32)
    line[777_777] = 5
    header, elements = decoded(line, FrameView())
    assert header["kind"] == "line"
    assert header["envelope"]
    assert elements.size <= MAX_POINTS
    assert elements.max() == 5
    _, elements = decoded(line, FrameView(left=777_770, width=20))
    assert elements[0, 7, 0] == 5


@pytest.mark.parametrize(
    ("array", "name", "values", "is_rounded"),
    [
        (np.array([True, False]), "u8", [1, 0], False),
        (np.array([1.5, np.nan, np.inf], np.float16), "f32", [1.5, np.nan, np.inf], False),
        (np.array([3 + 4j]), "f64", [5], False),
        (np.array([1 << 60], np.int64), "f64", [float(1 << 60)], True),
        (np.array([7], np.uint64), "f64", [7], False),
        (np.array([258], ">u2"), "u16", [258], False),
        (np.array(["2020-01-01"], "datetime64[D]"), "f64", [18262], False),
    ],
)
def test_elements_of_other_types_become_numbers(
    array: npt.NDArray[Any], name: str, values: list[float], is_rounded: bool
) -> None:
    elements, found, rounded = browser_elements(array)
    assert (found, rounded) == (name, is_rounded)
    np.testing.assert_array_equal(elements, values)


@pytest.mark.parametrize(
    "array",
    [np.zeros((0, 4)), np.array(["text"]), np.array([object()]), np.zeros(2, [("a", "i4"), ("b", "f8")])],
)
def test_array_without_numbers_is_refused_with_the_reason(array: npt.NDArray[Any]) -> None:
    with pytest.raises(NotAView, match=r"no elements|not numbers"):
        encode_view(array, FrameView())


@pytest.mark.parametrize(
    "view",
    [
        {"top": -1},
        {"top": "1"},
        {"top": True},
        {"max_rows": 10**6},
        {"index": 3},
        {"index": [0] * 99},
        {"bayer": "abcd"},
        {"width": 1.5},
    ],
)
def test_view_of_a_browser_is_checked(view: dict[str, Any]) -> None:
    with pytest.raises(NotAView):
        FrameView.from_json(view)


def test_message_has_its_elements_at_a_multiple_of_eight() -> None:
    for text in ("", "a", "abc", "ü"):
        message = pack_message({"why": text}, b"\1\2")
        (size,) = struct.unpack_from("<I", message)
        assert (4 + size) % 8 == 0
        assert json.loads(message[4 : 4 + size])["why"] == text
        assert message[4 + size :] == b"\1\2"


def test_attributes_are_bounded_texts() -> None:
    shown = meta_text({f"name-{n}": "x" * 5000 for n in range(500)} | {"esc\x1b": 1})
    assert len(shown) == 40
    assert max(map(len, shown.values())) == 300
    assert meta_text({"esc\x1b": "\n"}) == {"esc\\x1b": "\\n"}
