"""Inspection of region files without an announce."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorpool import sbe
from tensorpool.clock import SYSTEM_CLOCK, ManualClock
from tensorpool.shm.epoch_files import Mount, mount_of, mounts
from tensorpool.shm.inspect import NotARegion, inspect, inspect_epoch, inspect_region, to_json
from tests.unit.shm.conftest import Epoch

NSLOTS = 8
STALE_AGE_NS = 3_000_000_001


def patch(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def slot_bytes(seq: int, *, is_committed: bool = True, pool_id: int = 1, **changes: object) -> bytes:
    tensor = sbe.TensorHeader(
        dtype=sbe.Dtype.UINT16, major_order=sbe.MajorOrder.ROW, ndims=2, dims=(4, 6)
    ).encode()
    fields: dict = {
        "seq_commit": seq << 1 | is_committed,
        "values_len_bytes": 48,
        "payload_slot": seq % NSLOTS,
        "pool_id": pool_id,
        "timestamp_ns": 5,
        "meta_version": 0,
        "header_bytes": tensor,
    }
    return sbe.SlotHeader(**(fields | changes)).encode()


def put_slot(epoch: Epoch, index: int, content: bytes) -> None:
    patch(epoch.header, 64 + 256 * index, content)


def test_fresh_regions_break_no_rule(make_epoch: Callable[..., Epoch]) -> None:
    epoch = make_epoch()
    (report,) = inspect(str(epoch.directory))
    assert report.all_problems() == []
    assert report.all_warnings() == []
    assert [(region.path.name, region.kind) for region in report.regions] == [
        ("header.ring", "header ring"), ("1.pool", "payload pool"), ("2.pool", "payload pool"),
    ]  # fmt: skip
    ring = report.regions[0].ring
    assert ring is not None
    assert (ring.newest_seq, ring.count("empty")) == (None, NSLOTS)
    assert report.regions[1].size_bytes == report.regions[1].expected_bytes == 64 + NSLOTS * 4096
    assert report.regions[0].pid_alive is True


def test_slot_report_has_sequence_shape_and_pool(make_epoch: Callable[..., Epoch]) -> None:
    epoch = make_epoch()
    for seq in (16, 9, 10):
        put_slot(epoch, seq % NSLOTS, slot_bytes(seq))
    put_slot(epoch, 3, slot_bytes(11, is_committed=False))
    ring = inspect_epoch(epoch.directory).regions[0].ring
    assert ring is not None
    assert ring.newest_seq == 16
    assert (ring.count("committed"), ring.count("in_progress"), ring.count("empty")) == (3, 1, 4)
    newest = ring.newest(2)
    assert [slot.seq for slot in newest] == [16, 11]
    assert (newest[0].shape, newest[0].dtype, newest[0].values_bytes, newest[0].pool_id) == (
        (4, 6), "uint16", 48, 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (slot_bytes(9, payload_slot=3), "the payload slot is 3, not 1"),
        (slot_bytes(10), "holds sequence 10, which belongs into slot 2"),
        (slot_bytes(9, payload_offset=64), "the payload starts at offset 64"),
        (slot_bytes(9, pool_id=7), "there is no pool 7"),
        (slot_bytes(9, values_len_bytes=4097), "4097 bytes do not fit the stride 4096"),
        (slot_bytes(9, values_len_bytes=47), "the tensor spans 48 bytes of a payload of 47"),
        (slot_bytes(9, header_bytes=b"\x01" * 8), "the tensor header has 8 bytes"),
        (slot_bytes(9, header_bytes=b"\x01" * 192), "the tensor header is unreadable"),
    ],
)
def test_invalid_slot_is_named(make_epoch: Callable[..., Epoch], content: bytes, expected: str) -> None:
    epoch = make_epoch()
    put_slot(epoch, 1, content)
    problems = inspect_epoch(epoch.directory).all_problems()
    assert problems
    assert any(text.startswith(f"header.ring: slot 1: {expected}") for text in problems), problems


@pytest.mark.parametrize(
    ("at", "content", "expected"),
    [
        (0, b"\0", "magic is"),
        (8, struct.pack("<I", 2), "layout version 2"),
        (24, struct.pack("<h", 9), "region type 9"),
        (26, struct.pack("<H", 2), "pool 2 in a file called 1.pool"),
        (28, struct.pack("<I", 6), "6 slots is not a power of two"),
        (28, struct.pack("<I", 16), "the superblock needs 65,600"),
        (36, struct.pack("<I", 100), "stride 100 is not a power of two"),
        (32, struct.pack("<I", 9), "slots of 9 bytes at a stride of 4096"),
        (12, struct.pack("<Q", 78), "epoch 78 in the directory of epoch 77"),
        (20, struct.pack("<I", 1), "stream 1 in the directory of stream"),
    ],
)
def test_invalid_superblock_is_named(
    make_epoch: Callable[..., Epoch], at: int, content: bytes, expected: str
) -> None:
    epoch = make_epoch()
    patch(epoch.pool(1), at, content)
    problems = inspect_region(epoch.pool(1)).problems
    assert any(expected in text for text in problems), problems


def test_regions_of_one_epoch_must_agree(make_epoch: Callable[..., Epoch]) -> None:
    epoch = make_epoch()
    patch(epoch.pool(2), 12, struct.pack("<Q", 78))
    assert "the regions name different epochs: 77, 78" in inspect_epoch(epoch.directory).problems
    epoch.header.unlink()
    epoch.directory.joinpath("notes.txt").touch()
    report = inspect_epoch(epoch.directory)
    assert "header.ring is missing" in report.problems
    assert report.warnings == ("notes.txt: not part of the layout",)


def test_inspect_reports_files_that_are_not_regions(make_epoch: Callable[..., Epoch], tmp_path: Path) -> None:
    epoch = make_epoch()
    link = epoch.directory / "3.pool"
    link.symlink_to(epoch.pool(1))
    assert "a symbolic link, which consumers refuse" in inspect_region(link).problems
    short = epoch.directory / "4.pool"
    short.write_bytes(b"\0" * 63)
    assert inspect_region(short).problems == ("63 bytes are too few for a superblock of 64",)
    folder = epoch.directory / "5.pool"
    folder.mkdir()
    assert inspect_region(folder).problems == ("not a regular file",)
    with pytest.raises(NotARegion, match="no regions"):
        inspect(str(tmp_path))
    with pytest.raises(NotARegion, match="No such file"):
        inspect(str(tmp_path / "nothing"))
    with pytest.raises(NotARegion, match="shm:file"):
        inspect("shm:mem?path=/a")


def test_truncated_ring_is_checked_up_to_its_end(make_epoch: Callable[..., Epoch]) -> None:
    epoch = make_epoch()
    with epoch.header.open("r+b") as file:
        file.truncate(64 + 3 * 256 + 10)
    report = inspect_region(epoch.header)
    assert report.ring is not None
    assert len(report.ring.slots) == 3
    assert any("the superblock needs 2,112" in text for text in report.problems)


def test_dead_owner_is_a_warning_and_not_a_problem(make_epoch: Callable[..., Epoch]) -> None:
    epoch = make_epoch()
    later = ManualClock(monotonic_ns=SYSTEM_CLOCK.monotonic_ns() + STALE_AGE_NS)
    stale = inspect_region(epoch.header, clock=later)
    assert any("is alive, but its activity timestamp" in text for text in stale.warnings)
    # Larger than any process id of Linux.
    patch(epoch.header, 40, struct.pack("<Q", 1 << 23))
    assert inspect_region(epoch.header).warnings == ()
    dead = inspect_region(epoch.header, clock=later)
    assert dead.pid_alive is False
    assert any("which is dead" in text for text in dead.warnings)
    assert dead.problems == ()


def test_stream_directory_report_has_all_epochs(make_epoch: Callable[..., Epoch]) -> None:
    old, new = make_epoch(epoch=77), make_epoch(epoch=100)
    reports = inspect(str(new.directory.parent))
    assert [report.directory for report in reports] == [old.directory, new.directory]
    assert any("superseded" in text for text in reports[0].warnings)
    assert reports[1].warnings == ()


def test_region_uri_with_hugepages_is_checked(make_epoch: Callable[..., Epoch]) -> None:
    epoch = make_epoch()
    (plain,) = inspect(epoch.pools[0].uri)
    assert [region.path for region in plain.regions] == [epoch.pool(1)]
    assert plain.all_problems() == []
    (huge,) = inspect(epoch.header_uri + "|require_hugepages=true")
    assert huge.all_problems() == [
        "header.ring: the URI requires hugepages, and the file is not on hugetlbfs"
    ]


def test_json_has_wide_numbers_as_text(make_epoch: Callable[..., Epoch]) -> None:
    epoch = make_epoch(epoch=1 << 60)
    put_slot(epoch, 1, slot_bytes(9))
    shown: Any = to_json(inspect_epoch(epoch.directory))
    assert shown["valid"] is True
    assert shown["regions"][0]["superblock"]["epoch"] == str(1 << 60)
    assert shown["regions"][0]["ring"]["newest_seq"] == "9"
    assert shown["regions"][0]["mode"] == "0600"


def test_mount_of_returns_the_nearest_mount(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text("none / ext4 rw 0 0\nnone /a tmpfs rw 0 0\nnone /a/b\\040c hugetlbfs rw,relatime 0 0\n")
    known = mounts(str(table))
    assert mount_of(Path("/a/b c/d"), known) == Mount(
        Path("/a/b c"), "hugetlbfs", frozenset({"rw", "relatime"})
    )
    assert getattr(mount_of(Path("/a/x"), known), "kind", None) == "tmpfs"
    assert getattr(mount_of(Path("/ab"), known), "kind", None) == "ext4"
    assert mounts(str(tmp_path / "nothing")) == []
