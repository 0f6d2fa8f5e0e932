"""Creation and removal of region files: bytes, sizes, modes, names (wire §6, §7.1, §15.21a)."""

from __future__ import annotations

import os
import pwd
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorpool import _native
from tensorpool.errors import RegionCreateError
from tensorpool.sbe import MAGIC, RegionType, ShmRegionSuperblock
from tensorpool.shm.epoch_files import user_name

NULL_CASES = ["", ".", "..", "../../etc", "/", "a/b", "/root", "...hidden", "tab\tnewline\n", "café", "\0"]


def superblock(path: Path) -> ShmRegionSuperblock:
    return ShmRegionSuperblock.decode(path.read_bytes()[:64])


# --- bytes


@pytest.mark.requirement("wire-7.1-2")
def test_region_starts_with_the_magic_bytes(make_epoch) -> None:
    for path in make_epoch().files():
        assert path.read_bytes()[:8] == bytes([0x31, 0x4D, 0x48, 0x53, 0x4C, 0x50, 0x4F, 0x54])


@pytest.mark.requirement("wire-6-1", "wire-7.1-3")
def test_header_ring_superblock_has_all_fields(make_epoch, free_stream_id) -> None:
    before = time.monotonic_ns()
    epoch = make_epoch(nslots=16)
    block = superblock(epoch.header)
    assert before <= block.start_timestamp_ns <= time.monotonic_ns()
    assert block == ShmRegionSuperblock(
        magic=MAGIC,
        layout_version=1,
        epoch=77,
        stream_id=free_stream_id,
        region_type=RegionType.HEADER_RING,
        pool_id=0,
        nslots=16,
        slot_bytes=256,
        stride_bytes=0,
        pid=os.getpid(),
        start_timestamp_ns=block.start_timestamp_ns,
        activity_timestamp_ns=block.start_timestamp_ns,
    )


@pytest.mark.requirement("wire-6-1", "wire-7.1-4")
@pytest.mark.parametrize(("pool_id", "stride"), [(1, 64), (7, 4096), (65534, 1 << 20)])
def test_pool_superblock_has_id_and_stride(make_epoch, pool_id, stride) -> None:
    epoch = make_epoch(pools=[(pool_id, stride)])
    block = superblock(epoch.pool(pool_id))
    assert (block.region_type, block.pool_id) == (RegionType.PAYLOAD_POOL, pool_id)
    assert (block.nslots, block.slot_bytes, block.stride_bytes) == (8, stride, stride)


@pytest.mark.requirement("wire-6-1", "wire-15.22-9")
def test_region_size_is_superblock_and_slots(make_epoch) -> None:
    epoch = make_epoch(nslots=4, pools=[(1, 64), (2, 8192)])
    assert epoch.header.stat().st_size == 64 + 4 * 256
    assert epoch.pool(1).stat().st_size == 64 + 4 * 64
    assert epoch.pool(2).stat().st_size == 64 + 4 * 8192


def test_new_region_has_zeroed_slots(make_epoch) -> None:
    for path in make_epoch().files():
        assert not any(path.read_bytes()[64:])


def test_new_region_has_all_pages_allocated(make_epoch) -> None:
    for path in make_epoch(pools=[(1, 1 << 20)]).files():
        assert path.stat().st_blocks * 512 >= path.stat().st_size


# --- paths and names


@pytest.mark.requirement("wire-15.21a.3-1")
def test_regions_lie_in_the_canonical_layout(make_epoch, shm_base, free_stream_id) -> None:
    epoch = make_epoch(user="alice", namespace="lab1", epoch=123)
    directory = shm_base / "tensorpool-alice" / "lab1" / str(free_stream_id) / "123"
    assert epoch.directory == directory
    assert epoch.header_uri == f"shm:file?path={directory}/header.ring"
    assert epoch.pools == [
        (1, 4096, f"shm:file?path={directory}/1.pool"),
        (2, 65536, f"shm:file?path={directory}/2.pool"),
    ]


@pytest.mark.requirement("wire-15.21a.3-5")
def test_file_names_are_the_same_in_every_epoch(make_epoch) -> None:
    first, second = make_epoch(epoch=1), make_epoch(epoch=2)
    names = [path.name for path in first.files()]
    assert names == [path.name for path in second.files()] == ["1.pool", "2.pool", "header.ring"]


@pytest.mark.requirement("wire-15.21a.3-2")
def test_region_path_names_the_effective_user(monkeypatch) -> None:
    assert user_name() == _native.sanitize_user(pwd.getpwuid(os.geteuid()).pw_name)
    other_user = next(entry for entry in pwd.getpwall() if entry.pw_uid != os.geteuid())
    monkeypatch.setattr(os, "geteuid", lambda: other_user.pw_uid)
    monkeypatch.setenv("USER", "mallory")
    assert user_name() == _native.sanitize_user(pwd.getpwuid(other_user.pw_uid).pw_name)


def test_user_without_a_name_is_a_number(monkeypatch) -> None:
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    free_uid = next(uid for uid in range(60_000, 70_000) if uid not in taken)
    monkeypatch.setattr(os, "geteuid", lambda: free_uid)
    assert user_name() == str(free_uid)


@pytest.mark.requirement("wire-15.21a.3-3")
@pytest.mark.parametrize("name", [*NULL_CASES, "x" * 300], ids=repr)
def test_hostile_user_name_stays_below_the_base_directory(make_epoch, shm_base, name) -> None:
    epoch = make_epoch(user=name)
    user_directory = epoch.directory.parents[2]
    assert user_directory.parent == shm_base
    assert user_directory.name.startswith("tensorpool-")
    assert [path.name for path in shm_base.iterdir()] == [user_directory.name]


@pytest.mark.requirement("wire-15.21a.3-3")
@settings(deadline=None)
@example("../..")
@given(st.text())
def test_sanitized_user_name_has_no_path_characters(name) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", _native.sanitize_user(name))


def test_ordinary_user_name_is_unchanged() -> None:
    assert _native.sanitize_user("jane.doe-2_x") == "jane.doe-2_x"


@pytest.mark.requirement("wire-15.21a.3-4")
@pytest.mark.parametrize("name", ["default", "lab1", "a", "Sim_2.x-y", "n" * 64])
def test_region_path_has_the_namespace(make_epoch, name) -> None:
    assert make_epoch(namespace=name).directory.parents[1].name == name


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "a b", "é", "a\0b", "n" * 65])
def test_namespace_with_path_characters_is_refused(make_epoch, shm_base, name) -> None:
    with pytest.raises(RegionCreateError, match="namespace") as refused:
        make_epoch(namespace=name)
    assert refused.value.reason == "invalid"
    assert list(shm_base.iterdir()) == []


# --- modes


@pytest.mark.requirement("wire-15.10-1", "wire-15.21a.6-1")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777], ids=oct)
def test_region_modes_are_private_under_any_umask(make_epoch, shm_base, free_stream_id, umask) -> None:
    # In another process: all threads share the umask, and an embedded media driver may be one of them.
    script = (
        "import sys; from pathlib import Path; from tensorpool.shm import EpochSpec, PoolSpec, create_epoch; "
        "spec = EpochSpec(Path(sys.argv[1]), 'default', int(sys.argv[2]), 1, 8, [PoolSpec(1, 64)]); "
        "print(create_epoch(spec).directory)"
    )
    command = [sys.executable, "-c", script, str(shm_base), str(free_stream_id)]
    done = subprocess.run(command, umask=umask, capture_output=True, text=True, check=True)
    directory = Path(done.stdout.strip())
    for parent in (directory, *directory.parents[:3]):
        assert stat.S_IMODE(parent.stat().st_mode) == 0o700, parent
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_regions_may_be_shared_with_a_group(make_epoch) -> None:
    epoch = make_epoch(dir_mode=0o2770, file_mode=0o660, group=os.getegid())
    assert stat.S_IMODE(epoch.directory.stat().st_mode) == 0o2770
    for path in epoch.files():
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, os.getegid())


# --- failed creation leaves no files


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nslots": 0}, "power of two"),
        ({"nslots": 12}, "power of two"),
        ({"pools": []}, "at least one payload pool"),
        ({"pools": [(1, 32)]}, "power of two of at least 64"),
        ({"pools": [(1, 96)]}, "power of two of at least 64"),
        ({"pools": [(1, 0)]}, "power of two of at least 64"),
        ({"pools": [(0, 64)]}, "pool id 0"),
        ({"pools": [(3, 64), (3, 128)]}, "pool id 3"),
        ({"base": "shm/relative"}, "not absolute"),
    ],
    ids=str,
)
@pytest.mark.requirement("wire-15.22-10")
def test_invalid_layout_is_refused_before_files_exist(make_epoch, shm_base, changes, reason) -> None:
    with pytest.raises(RegionCreateError, match=reason) as refused:
        make_epoch(**changes)
    assert refused.value.reason == "invalid"
    assert list(shm_base.iterdir()) == []


@pytest.mark.parametrize("stride", [64, 128, 4096, 1 << 21])
@pytest.mark.requirement("wire-15.22-10")
def test_stride_may_be_any_power_of_two_from_64(make_epoch, stride) -> None:
    assert make_epoch(nslots=1, pools=[(1, stride)]).pool(1).stat().st_size == 64 + stride


def test_base_directory_without_valid_uri_is_refused(make_epoch, shm_base) -> None:
    odd = shm_base / "with space"
    odd.mkdir()
    with pytest.raises(RegionCreateError, match="not allowed in the path") as refused:
        make_epoch(base=odd)
    assert refused.value.reason == "invalid"
    assert list(odd.iterdir()) == []


def test_missing_base_directory_is_named(make_epoch, shm_base) -> None:
    with pytest.raises(RegionCreateError, match=f"{shm_base}/missing") as refused:
        make_epoch(base=shm_base / "missing")
    assert refused.value.reason == "io"
    assert list(shm_base.iterdir()) == []


def test_existing_epoch_is_never_overwritten(make_epoch) -> None:
    epoch = make_epoch()
    before = {path: path.read_bytes() for path in epoch.files()}
    with pytest.raises(RegionCreateError, match="exists already") as refused:
        make_epoch(nslots=16)
    assert refused.value.reason == "exists"
    assert {path: path.read_bytes() for path in epoch.files()} == before


def test_full_filesystem_is_an_error_and_stays_empty(make_epoch, mounted) -> None:
    base = mounted("tmpfs", "size=256k")
    with pytest.raises(RegionCreateError, match="no room for 8388672 bytes") as refused:
        make_epoch(base=base, pools=[(1, 4096), (2, 1 << 20)])
    assert refused.value.reason == "no_space"
    assert list(base.iterdir()) == []
    assert make_epoch(base=base, pools=[(1, 4096)]).pool(1).stat().st_size == 64 + 8 * 4096


def test_file_size_limit_is_an_error_and_leaves_no_files(shm_base, free_stream_id) -> None:
    # The same failure without permission to mount: the kernel refuses to allocate beyond the limit.
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from tensorpool.errors import RegionCreateError\n"
        "from tensorpool.shm import EpochSpec, PoolSpec, create_epoch\n"
        "pools = [PoolSpec(1, 64), PoolSpec(2, 1 << 20)]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "try:\n"
        "    create_epoch(EpochSpec(Path(sys.argv[1]), 'default', int(sys.argv[2]), 1, 8, pools))\n"
        "except RegionCreateError as error:\n"
        "    print(error.reason)\n"
    )
    command = [sys.executable, "-c", script, str(shm_base), str(free_stream_id)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "no_space"
    assert list(shm_base.iterdir()) == []


def test_directory_of_another_user_is_refused(make_epoch, shm_base) -> None:
    if os.geteuid() != 0:
        pytest.skip("takes root: a directory has to be given to another user")
    foreign = shm_base / "tensorpool-alice"
    foreign.mkdir()
    os.chown(foreign, 12345, -1)
    with pytest.raises(RegionCreateError, match="belongs to user id 12345") as refused:
        make_epoch()
    assert refused.value.reason == "foreign_owner"
    assert list(foreign.iterdir()) == []


def test_symlinked_directory_is_not_followed(make_epoch, shm_base, tmp_path) -> None:
    (shm_base / "tensorpool-alice").symlink_to(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(RegionCreateError) as refused:
        make_epoch()
    assert refused.value.reason == "io"
    assert sorted(tmp_path.iterdir()) == before


# --- removing


def test_remove_epoch_removes_its_directory_only(make_epoch) -> None:
    gone, kept = make_epoch(epoch=1), make_epoch(epoch=2)
    _native.remove_epoch(gone.directory)
    assert not gone.directory.exists()
    assert len(kept.files()) == 3


def test_remove_epoch_keeps_a_directory_with_other_files(make_epoch) -> None:
    epoch = make_epoch()
    notes = epoch.directory / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(OSError, match="not empty"):
        _native.remove_epoch(epoch.directory)
    assert epoch.files() == [notes]


def test_remove_epoch_does_not_follow_symlinks(make_epoch, shm_base) -> None:
    epoch = make_epoch()
    link = shm_base / "link"
    link.symlink_to(epoch.directory)
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        _native.remove_epoch(link)
    assert len(epoch.files()) == 3
