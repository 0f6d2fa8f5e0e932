"""Frames as PNG files, read back by a decoder of the test's own."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from tensorpool.preview import NotAnImage, encode_png, to_pixels

CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}


def decode_png(content: bytes) -> np.ndarray:
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        body = content[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", content, at + 8 + length)[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, bits, colour, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any(), "no row is filtered"
    pixels = np.ascontiguousarray(rows[:, 1:]).view(">u2" if bits == 16 else np.uint8)
    return pixels.reshape((height, width, CHANNELS[colour]))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 3), (3, 5, 4), (1, 1)])
def test_whole_numbers_come_back_as_they_were(dtype: type, shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, shape, dtype)
    back = decode_png(encode_png(to_pixels(image)))
    assert np.array_equal(back.squeeze(-1) if image.ndim == 2 else back, image)


def test_strided_and_column_major_images_are_written_upright() -> None:
    image = np.asfortranarray(np.arange(12, dtype=np.uint16).reshape(3, 4))[:, ::2]
    assert np.array_equal(decode_png(encode_png(to_pixels(image)))[..., 0], image)


def test_other_types_are_stretched_from_least_to_greatest() -> None:
    floats = np.array([[-1.0, 0.0], [1.0, np.nan]], np.float32)
    assert to_pixels(floats).tolist() == [[0, 128], [255, 0]]
    assert to_pixels(np.array([[np.inf, -np.inf, 0, 4]], np.float64)).tolist() == [[255, 0, 0, 255]]
    assert to_pixels(np.array([[-5, 5]], np.int32)).tolist() == [[0, 255]]
    assert to_pixels(np.full((2, 2), 7.0)).tolist() == [[0, 0], [0, 0]]
    assert to_pixels(np.full((1, 2), np.nan)).tolist() == [[0, 0]]
    assert to_pixels(np.array([[True, False]])).tolist() == [[255, 0]]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3, 64, 32), (64, 32, 3)),
        ((64, 32, 1), (64, 32)),
        ((1, 64, 32), (64, 32)),
        ((10, 64, 32), (64, 32)),
        ((2, 1, 3, 64, 32), (64, 32, 3)),
    ],
)
def test_channels_and_stacks_find_their_place(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert to_pixels(np.zeros(shape, np.uint8)).shape == expected


@pytest.mark.parametrize("shape", [(7,), (0, 4), (4, 0)])
def test_what_has_no_rows_and_columns_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(NotAnImage, match="not an image"):
        to_pixels(np.zeros(shape, np.uint8))
