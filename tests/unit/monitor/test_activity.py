"""Activity timestamps: read from the header ring of the canonical layout only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorpool.monitor.listener import read_activity
from tensorpool.monitor.reports import Activity
from tensorpool.sbe import MAGIC
from tensorpool.sbe.wire import ShmRegionSuperblock


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "tensorpool-ada" / "lab" / "5" / "3" / "header.ring"
    path.parent.mkdir(parents=True)
    path.write_bytes(superblock(epoch=3, activity_ns=77) + bytes(4096))
    return path


def superblock(*, epoch: int, activity_ns: int, magic: int = MAGIC) -> bytes:
    layout = ShmRegionSuperblock.layout()
    block = bytearray(64)
    for encoded in layout.encoded_fields:
        value = {"magic": magic, "epoch": epoch, "activityTimestampNs": activity_ns}.get(encoded.name)
        if value is not None:
            block[encoded.offset : encoded.offset + 8] = value.to_bytes(8, "little")
    return bytes(block)


def uri(path: Path) -> str:
    return f"shm:file?path={path}"


def test_activity_is_read_for_the_announced_stream_and_epoch(ring: Path) -> None:
    assert read_activity(5, 3, uri(ring)) == Activity(5, 3, 77)
    assert read_activity(6, 3, uri(ring)) is None
    assert read_activity(5, 4, uri(ring)) is None


def test_region_of_another_epoch_or_kind_has_no_activity(ring: Path) -> None:
    ring.write_bytes(superblock(epoch=4, activity_ns=77))
    assert read_activity(5, 3, uri(ring)) is None
    ring.write_bytes(superblock(epoch=3, activity_ns=77, magic=MAGIC + 1))
    assert read_activity(5, 3, uri(ring)) is None
    ring.write_bytes(superblock(epoch=3, activity_ns=77)[:63])
    assert read_activity(5, 3, uri(ring)) is None
    ring.unlink()
    assert read_activity(5, 3, uri(ring)) is None
    # Opening a pipe must not wait for a writer.
    os.mkfifo(ring)
    assert read_activity(5, 3, uri(ring)) is None


def test_links_and_other_paths_are_not_opened(ring: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "header.ring"
    ring.rename(elsewhere)
    assert read_activity(5, 3, uri(elsewhere)) is None
    ring.symlink_to(elsewhere)
    assert read_activity(5, 3, uri(ring)) is None
    for text in ("", "shm:file?path=/etc/passwd", "http://x", "shm:file?path=relative"):
        assert read_activity(5, 3, text) is None
