"""Fixtures that create epochs and mounts and remove them after the test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from tensorpool.shm.epoch_files import EpochSpec, PoolFile, PoolSpec, RegionAccess, create_epoch


@dataclass(frozen=True)
class Epoch:
    """The regions of one epoch and their URIs."""

    directory: Path
    header_uri: str
    pools: list[PoolFile]

    @property
    def header(self) -> Path:
        return self.directory / "header.ring"

    def pool(self, pool_id: int) -> Path:
        return self.directory / f"{pool_id}.pool"

    def files(self) -> list[Path]:
        return sorted(self.directory.iterdir())


@pytest.fixture
def make_epoch(shm_base: Path, free_stream_id: int) -> Iterator[Callable[..., Epoch]]:
    """Creates regions below `shm_base`; all files below it are removed after the test."""

    def make(**changes: Any) -> Epoch:
        settings: dict[str, Any] = {
            "base": shm_base,
            "user": "alice",
            "namespace": "default",
            "stream_id": free_stream_id,
            "epoch": 77,
            "nslots": 8,
            "pools": [(1, 4096), (2, 65536)],
        } | changes
        names = {field.name for field in fields(RegionAccess)} & settings.keys()
        access = RegionAccess(**{name: settings.pop(name) for name in names})
        pools = [PoolSpec(*pool) for pool in settings.pop("pools")]
        files = create_epoch(EpochSpec(**settings, pools=pools, access=access))
        return Epoch(files.directory, files.header_uri, files.pools)

    yield make
    for entry in shm_base.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`mounted("tmpfs", "size=64k")`: a new filesystem; skips the test where mounting is forbidden."""
    points: list[Path] = []

    def mount(kind: str, options: str = "") -> Path:
        point = tmp_path / f"{kind}-{len(points)}"
        point.mkdir()
        command = ["mount", "-t", kind, *(["-o", options] if options else []), kind, str(point)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a {kind} cannot be mounted here (it takes root): {done.stderr.strip()}")
        points.append(point)
        return point

    yield mount
    for point in points:
        subprocess.run(["umount", str(point)], check=True)


@pytest.fixture
def nothing_mapped(shm_base: Path) -> Callable[[], bool]:
    """Whether no file below `shm_base` is mapped into this process."""
    return lambda: f"{shm_base}/" not in Path("/proc/self/maps").read_text()
