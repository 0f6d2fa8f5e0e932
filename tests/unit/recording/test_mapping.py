"""Mappings are made anew, unless a process keeps them; then they follow what becomes of their files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorpool.recording import mmap_cache


@pytest.fixture
def kept() -> Iterator[None]:
    mmap_cache.enable_cache()
    yield
    mmap_cache.enable_cache(False)


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap_cache.map_file(file.fileno(), path)


def test_a_mapping_goes_with_its_reader_unless_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    first = mapped(path)
    assert mapped(path) is not first
    mmap_cache.enable_cache()
    try:
        first = mapped(path)
        assert mapped(path) is first
    finally:
        mmap_cache.enable_cache(False)
    assert mapped(path) is not first


@pytest.mark.usefixtures("kept")
def test_a_file_that_grew_or_was_replaced_is_mapped_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    first = mapped(path)
    with path.open("ab") as file:
        file.write(b"def")
    assert bytes(mapped(path)) == b"abcdef"
    assert bytes(first) == b"abc"
    other = tmp_path / "b"
    other.write_bytes(b"ABCDEF")
    other.replace(path)
    assert bytes(mapped(path)) == b"ABCDEF"


@pytest.mark.usefixtures("kept")
def test_what_was_removed_or_renamed_is_let_go_and_the_rest_is_not(tmp_path: Path) -> None:
    here, gone, renamed = (tmp_path / name for name in "abc")
    for path in (here, gone, renamed):
        path.write_bytes(path.name.encode())
    first = mapped(here)
    mapped(gone)
    mapped(renamed)
    gone.unlink()
    renamed.rename(tmp_path / "d")
    assert _maps(tmp_path) == 3
    mmap_cache.evict_removed()
    assert _maps(tmp_path) == 1
    assert mapped(here) is first


@pytest.mark.usefixtures("kept")
def test_only_so_many_files_and_bytes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap_cache, "_MOST_FILES", 3)
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_bytes(b"x" * 10)
        mapped(path)
    assert _maps(tmp_path) == 3
    last = mapped(paths[2])
    monkeypatch.setattr(mmap_cache, "_MOST_BYTES", 20)
    mapped(paths[0])
    # The one that was used last stays, though others came later.
    assert _maps(tmp_path) == 2
    assert mapped(paths[2]) is last


@pytest.mark.usefixtures("kept")
def test_what_is_kept_makes_room_where_address_space_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(b"x")
    mapped(paths[0])
    real = mmap.mmap

    def limited(fd: int, size: int, prot: int) -> mmap.mmap:
        if _maps(tmp_path):
            raise OSError(12, os.strerror(12))
        return real(fd, size, prot=prot)

    monkeypatch.setattr(mmap, "mmap", limited)
    assert bytes(mapped(paths[1])) == b"x"
    assert _maps(tmp_path) == 1


def _maps(directory: Path) -> int:
    """How many files of a directory this process has mapped."""
    with Path("/proc/self/maps").open() as file:
        return sum(str(directory) in line for line in file)
