"""Previews of frames as characters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensorpool.preview import NotAnImage
from tensorpool.top.preview import half_blocks, letters, shrink


def test_preview_keeps_proportions_and_colours() -> None:
    image = np.zeros((240, 320, 3), np.uint8)
    image[:, :160, 0] = 255
    image[:, 160:, 2] = 255
    small = shrink(image, 32, 40)
    assert small.shape == (24, 32, 3)
    assert small[0, 0].tolist() == [255, 0, 0]
    assert small[-1, -1].tolist() == [0, 0, 255]


def test_planar_images_and_floats_are_shown() -> None:
    planar = np.zeros((3, 40, 40), np.uint8)
    planar[1] = 200
    assert shrink(planar, 8, 8)[3, 3].tolist() == [0, 200, 0]
    ramp = shrink(np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64), 8, 8)
    assert ramp[0].max() < 30
    assert ramp[-1].min() > 225


def test_array_of_one_dimension_is_not_an_image() -> None:
    with pytest.raises(NotAnImage):
        shrink(np.arange(10), 8, 8)


def test_half_block_shows_two_pixels() -> None:
    pixels = np.array([[[255, 0, 0]], [[0, 0, 255]], [[0, 255, 0]]], np.uint8)
    first, second = half_blocks(pixels)
    style = first.spans[0].style
    assert first.plain == "▀"
    assert not isinstance(style, str)
    assert style.color is not None
    assert style.bgcolor is not None
    assert (style.color.triplet, style.bgcolor.triplet) == ((255, 0, 0), (0, 0, 255))
    assert second.plain == "▀"


def test_letters_are_denser_for_brighter_pixels() -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:, 3:] = 255
    assert [line.plain for line in letters(pixels)] == ["   @@@", "   @@@"]


@settings(deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.uint8, np.uint16, np.int8, np.float32, np.float64, np.bool_, np.complex64]),
        hnp.array_shapes(min_dims=2, max_dims=4, max_side=12),
    ),
    st.integers(1, 40),
    st.integers(1, 30),
)
def test_any_array_fits_any_size(array: np.ndarray, width: int, height: int) -> None:
    with np.errstate(all="ignore"):
        small = shrink(array, width, height)
    assert small.shape[0] <= height
    assert small.shape[1] <= width
    assert small.dtype == np.uint8
    assert len(half_blocks(small)) == (small.shape[0] + 1) // 2
    assert letters(small)
