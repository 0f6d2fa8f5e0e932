"""Sizes and payload pools as text."""

from __future__ import annotations

import pytest

from tensorpool.errors import ConfigError
from tensorpool.shm import parse_pools
from tensorpool.units import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), (512, 512), ("64B", 64), ("64KiB", 65536), (" 4 MiB ", 4 << 20), ("1GiB", 1 << 30)],
)
def test_size_is_a_number_and_a_unit(text, size) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "4MB", "4 mib", "-4MiB", "4.5MiB", "0x40", "4MiB!"])
def test_invalid_size_error_shows_a_valid_size(text) -> None:
    with pytest.raises(ConfigError, match="as in '4MiB'"):
        parse_size(text)


def test_pools_are_numbered_by_size_without_duplicates() -> None:
    assert parse_pools(["1MiB", 64, "64KiB", "1024KiB"]) == [(1, 64), (2, 65536), (3, 1 << 20)]


def test_stream_without_pools_option_gets_three_pools() -> None:
    assert parse_pools(None) == [(1, 64 << 10), (2, 1 << 20), (3, 4 << 20)]


@pytest.mark.parametrize(
    ("size", "fit"), [(100, 128), ("3MiB", 4 << 20), (1, 64), (0, 64), (63, 64), (-8, 64), (1 << 32, 1 << 31)]
)
@pytest.mark.requirement("wire-15.22-10")
def test_invalid_pool_size_error_names_the_next_valid_size(size, fit) -> None:
    with pytest.raises(ConfigError, match=f"the next that fits is {fit}$"):
        parse_pools([size])


def test_stream_with_empty_pools_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        parse_pools([])
