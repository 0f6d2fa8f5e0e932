"""The mapping cache: off by default, limited in size, and up to date with growing and removed files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorpool.recording import segment_file


@pytest.fixture
def cache_enabled() -> Iterator[None]:
    segment_file.enable_cache()
    yield
    segment_file.enable_cache(False)


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return segment_file.map_file(file.fileno(), path)


def test_mapping_is_shared_only_while_the_cache_is_enabled(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    first = mapped(path)
    assert mapped(path) is not first
    segment_file.enable_cache()
    try:
        first = mapped(path)
        assert mapped(path) is first
    finally:
        segment_file.enable_cache(False)
    assert mapped(path) is not first


@pytest.mark.usefixtures("cache_enabled")
def test_grown_or_replaced_file_is_mapped_again(tmp_path: Path) -> None:
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


@pytest.mark.usefixtures("cache_enabled")
def test_evict_removed_drops_only_removed_and_renamed_files(tmp_path: Path) -> None:
    here, gone, renamed = (tmp_path / name for name in "abc")
    for path in (here, gone, renamed):
        path.write_bytes(path.name.encode())
    first = mapped(here)
    mapped(gone)
    mapped(renamed)
    gone.unlink()
    renamed.rename(tmp_path / "d")
    assert _maps(tmp_path) == 3
    segment_file.evict_removed()
    assert _maps(tmp_path) == 1
    assert mapped(here) is first


@pytest.mark.usefixtures("cache_enabled")
def test_cache_limits_files_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_file, "_MAX_FILES", 3)
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_bytes(b"x" * 10)
        mapped(path)
    assert _maps(tmp_path) == 3
    last = mapped(paths[2])
    monkeypatch.setattr(segment_file, "_MAX_BYTES", 20)
    mapped(paths[0])
    # The file used last stays, although others were mapped later.
    assert _maps(tmp_path) == 2
    assert mapped(paths[2]) is last


@pytest.mark.usefixtures("cache_enabled")
def test_cache_is_cleared_when_address_space_is_exhausted(
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
    """Number of files of a directory that this process has mapped."""
    with Path("/proc/self/maps").open() as file:
        return sum(str(directory) in line for line in file)
