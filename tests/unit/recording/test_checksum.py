"""CRC-32C: known values, seeds, buffers and ranges."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from tensorpool import _native


@pytest.mark.parametrize(
    ("content", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_of_known_values(content: bytes, crc: int) -> None:
    assert _native.crc32c(content) == crc


def test_crc32c_continues_from_a_seed() -> None:
    content = np.random.default_rng(1).bytes(100_000)
    whole = _native.crc32c(content)
    for cut in (0, 1, 63, 16_384, 99_999, 100_000):
        assert _native.crc32c(content[cut:], _native.crc32c(content[:cut])) == whole


def test_crc32c_accepts_contiguous_buffers_only() -> None:
    array = np.arange(64, dtype=np.float32)
    assert _native.crc32c(array) == _native.crc32c(array.tobytes())
    assert _native.crc32c(array[8:16]) == _native.crc32c(array[8:16].tobytes())
    with mmap.mmap(-1, 4096) as memory:
        assert _native.crc32c(memory) == _native.crc32c(bytes(4096))
    with pytest.raises((ValueError, BufferError)):
        _native.crc32c(array[::2])


def test_crc32c_each_equals_single_calls() -> None:
    content = np.random.default_rng(2).integers(0, 256, 1_000, np.uint8)
    offsets, lengths = np.array([0, 10, 999, 1000], np.uint64), np.array([10, 0, 1, 0], np.uint64)
    runs = zip(offsets.tolist(), lengths.tolist(), strict=True)
    expected = [_native.crc32c(content[at : at + size]) for at, size in runs]
    assert _native.crc32c_each(content, offsets, lengths).tolist() == expected


@pytest.mark.parametrize(("offset", "length"), [(1_000, 1), (999, 2), (0, 1_001), (2**64 - 1, 2)])
def test_crc32c_each_rejects_ranges_outside_the_buffer(offset: int, length: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        _native.crc32c_each(bytes(1_000), np.array([offset], np.uint64), np.array([length], np.uint64))
    with pytest.raises(ValueError, match="as many"):
        _native.crc32c_each(bytes(10), np.zeros(1, np.uint64), np.zeros(2, np.uint64))
