"""What an owner of shared memory makes: bytes, sizes, modes, names (wire §6, §7.1, §15.21a)."""

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
def test_every_region_starts_with_the_bytes_of_the_magic(make_epoch) -> None:
    for path in make_epoch().files():
        assert path.read_bytes()[:8] == bytes([0x31, 0x4D, 0x48, 0x53, 0x4C, 0x50, 0x4F, 0x54])


@pytest.mark.requirement("wire-6-1", "wire-7.1-3")
def test_the_superblock_of_a_header_ring_says_what_it_is(make_epoch, free_stream_id) -> None:
    before = time.monotonic_ns()
    epoch = make_epoch(nslots=16)
    found = superblock(epoch.header)
    assert before <= found.start_timestamp_ns <= time.monotonic_ns()
    assert found == ShmRegionSuperblock(
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
        start_timestamp_ns=found.start_timestamp_ns,
        activity_timestamp_ns=found.start_timestamp_ns,
    )


@pytest.mark.requirement("wire-6-1", "wire-7.1-4")
@pytest.mark.parametrize(("pool_id", "stride"), [(1, 64), (7, 4096), (65534, 1 << 20)])
def test_the_superblock_of_a_pool_carries_its_id_and_stride(make_epoch, pool_id, stride) -> None:
    epoch = make_epoch(pools=[(pool_id, stride)])
    found = superblock(epoch.pool(pool_id))
    assert (found.region_type, found.pool_id) == (RegionType.PAYLOAD_POOL, pool_id)
    assert (found.nslots, found.slot_bytes, found.stride_bytes) == (8, stride, stride)


@pytest.mark.requirement("wire-6-1", "wire-15.22-9")
def test_a_region_is_exactly_64_bytes_and_its_slots(make_epoch) -> None:
    epoch = make_epoch(nslots=4, pools=[(1, 64), (2, 8192)])
    assert epoch.header.stat().st_size == 64 + 4 * 256
    assert epoch.pool(1).stat().st_size == 64 + 4 * 64
    assert epoch.pool(2).stat().st_size == 64 + 4 * 8192


def test_the_slots_of_a_new_region_are_zero(make_epoch) -> None:
    for path in make_epoch().files():
        assert not any(path.read_bytes()[64:])


def test_every_page_of_a_region_is_allocated_when_it_is_made(make_epoch) -> None:
    for path in make_epoch(pools=[(1, 1 << 20)]).files():
        assert path.stat().st_blocks * 512 >= path.stat().st_size


# --- places and names


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
def test_the_user_in_the_path_is_the_effective_one(monkeypatch) -> None:
    assert user_name() == _native.sanitize_user(pwd.getpwuid(os.geteuid()).pw_name)
    somebody = next(entry for entry in pwd.getpwall() if entry.pw_uid != os.geteuid())
    monkeypatch.setattr(os, "geteuid", lambda: somebody.pw_uid)
    monkeypatch.setenv("USER", "mallory")
    assert user_name() == _native.sanitize_user(pwd.getpwuid(somebody.pw_uid).pw_name)


def test_a_user_without_a_name_goes_by_number(monkeypatch) -> None:
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    nobody_has = next(uid for uid in range(60_000, 70_000) if uid not in taken)
    monkeypatch.setattr(os, "geteuid", lambda: nobody_has)
    assert user_name() == str(nobody_has)


@pytest.mark.requirement("wire-15.21a.3-3")
@pytest.mark.parametrize("name", [*NULL_CASES, "x" * 300], ids=repr)
def test_a_hostile_user_name_stays_one_directory_below_the_base(make_epoch, shm_base, name) -> None:
    epoch = make_epoch(user=name)
    user_directory = epoch.directory.parents[2]
    assert user_directory.parent == shm_base
    assert user_directory.name.startswith("tensorpool-")
    assert [path.name for path in shm_base.iterdir()] == [user_directory.name]


@pytest.mark.requirement("wire-15.21a.3-3")
@settings(deadline=None)
@example("../..")
@given(st.text())
def test_no_user_name_survives_with_a_character_that_could_climb(name) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", _native.sanitize_user(name))


def test_an_ordinary_user_name_is_left_alone() -> None:
    assert _native.sanitize_user("jane.doe-2_x") == "jane.doe-2_x"


@pytest.mark.requirement("wire-15.21a.3-4")
@pytest.mark.parametrize("name", ["default", "lab1", "a", "Sim_2.x-y", "n" * 64])
def test_the_namespace_is_a_part_of_the_path(make_epoch, name) -> None:
    assert make_epoch(namespace=name).directory.parents[1].name == name


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "a b", "é", "a\0b", "n" * 65])
def test_a_namespace_that_could_lead_elsewhere_is_refused(make_epoch, shm_base, name) -> None:
    with pytest.raises(RegionCreateError, match="namespace") as refused:
        make_epoch(namespace=name)
    assert refused.value.reason == "invalid"
    assert list(shm_base.iterdir()) == []


# --- modes


@pytest.mark.requirement("wire-15.10-1", "wire-15.21a.6-1")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777], ids=oct)
def test_modes_are_private_whatever_the_umask(make_epoch, shm_base, free_stream_id, umask) -> None:
    # In a process of its own: the umask is one for all threads, and a media driver may be among them.
    script = (
        "import sys; from tensorpool import _native; "
        "print(_native.create_epoch(base=sys.argv[1], user='alice', namespace='default', "
        "stream_id=int(sys.argv[2]), epoch=1, nslots=8, pools=[(1, 64)])[0])"
    )
    command = [sys.executable, "-c", script, str(shm_base), str(free_stream_id)]
    done = subprocess.run(command, umask=umask, capture_output=True, text=True, check=True)
    directory = Path(done.stdout.strip())
    for parent in (directory, *directory.parents[:3]):
        assert stat.S_IMODE(parent.stat().st_mode) == 0o700, parent
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_group_may_be_let_in(make_epoch) -> None:
    epoch = make_epoch(dir_mode=0o2770, file_mode=0o660, group=os.getegid())
    assert stat.S_IMODE(epoch.directory.stat().st_mode) == 0o2770
    for path in epoch.files():
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, os.getegid())


# --- what cannot be made leaves nothing behind


@pytest.mark.parametrize(
    ("changes", "words"),
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
def test_a_layout_that_breaks_a_rule_is_refused_before_anything_is_made(
    make_epoch, shm_base, changes, words
) -> None:
    with pytest.raises(RegionCreateError, match=words) as refused:
        make_epoch(**changes)
    assert refused.value.reason == "invalid"
    assert list(shm_base.iterdir()) == []


@pytest.mark.parametrize("stride", [64, 128, 4096, 1 << 21])
@pytest.mark.requirement("wire-15.22-10")
def test_powers_of_two_from_64_on_are_strides(make_epoch, stride) -> None:
    assert make_epoch(nslots=1, pools=[(1, stride)]).pool(1).stat().st_size == 64 + stride


def test_a_base_that_no_uri_can_name_is_refused(make_epoch, shm_base) -> None:
    odd = shm_base / "with space"
    odd.mkdir()
    with pytest.raises(RegionCreateError, match="not allowed in the path") as refused:
        make_epoch(base=odd)
    assert refused.value.reason == "invalid"
    assert list(odd.iterdir()) == []


def test_a_missing_base_is_named(make_epoch, shm_base) -> None:
    with pytest.raises(RegionCreateError, match=f"{shm_base}/missing") as refused:
        make_epoch(base=shm_base / "missing")
    assert refused.value.reason == "io"
    assert list(shm_base.iterdir()) == []


def test_an_epoch_that_exists_is_left_as_it_is(make_epoch) -> None:
    epoch = make_epoch()
    before = {path: path.read_bytes() for path in epoch.files()}
    with pytest.raises(RegionCreateError, match="exists already") as refused:
        make_epoch(nslots=16)
    assert refused.value.reason == "exists"
    assert {path: path.read_bytes() for path in epoch.files()} == before


def test_a_filesystem_without_room_is_an_error_at_once_and_stays_empty(make_epoch, mounted) -> None:
    base = mounted("tmpfs", "size=256k")
    with pytest.raises(RegionCreateError, match="no room for 8388672 bytes") as refused:
        make_epoch(base=base, pools=[(1, 4096), (2, 1 << 20)])
    assert refused.value.reason == "no_space"
    assert list(base.iterdir()) == []
    assert make_epoch(base=base, pools=[(1, 4096)]).pool(1).stat().st_size == 64 + 8 * 4096


def test_a_limit_on_file_sizes_is_an_error_and_nothing_stays(shm_base, free_stream_id) -> None:
    # The same failure for those who may not mount: the kernel refuses to allocate beyond the limit.
    script = (
        "import resource, sys\n"
        "from tensorpool import _native\n"
        "from tensorpool.errors import RegionCreateError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "try:\n"
        "    _native.create_epoch(base=sys.argv[1], user='alice', namespace='default',\n"
        "        stream_id=int(sys.argv[2]), epoch=1, nslots=8, pools=[(1, 64), (2, 1 << 20)])\n"
        "except RegionCreateError as error:\n"
        "    print(error.reason)\n"
    )
    command = [sys.executable, "-c", script, str(shm_base), str(free_stream_id)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "no_space"
    assert list(shm_base.iterdir()) == []


def test_a_directory_of_another_user_is_a_trap_and_refused(make_epoch, shm_base) -> None:
    if os.geteuid() != 0:
        pytest.skip("takes root: a directory has to be given to another user")
    trap = shm_base / "tensorpool-alice"
    trap.mkdir()
    os.chown(trap, 12345, -1)
    with pytest.raises(RegionCreateError, match="belongs to user id 12345") as refused:
        make_epoch()
    assert refused.value.reason == "foreign_owner"
    assert list(trap.iterdir()) == []


def test_a_link_in_place_of_a_directory_is_not_followed(make_epoch, shm_base, tmp_path) -> None:
    (shm_base / "tensorpool-alice").symlink_to(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(RegionCreateError) as refused:
        make_epoch()
    assert refused.value.reason == "io"
    assert sorted(tmp_path.iterdir()) == before


# --- removing


def test_removing_an_epoch_takes_its_directory_and_no_other(make_epoch) -> None:
    gone, kept = make_epoch(epoch=1), make_epoch(epoch=2)
    _native.remove_epoch(gone.directory)
    assert not gone.directory.exists()
    assert len(kept.files()) == 3


def test_a_file_that_is_no_region_keeps_its_directory(make_epoch) -> None:
    epoch = make_epoch()
    notes = epoch.directory / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(OSError, match="not empty"):
        _native.remove_epoch(epoch.directory)
    assert epoch.files() == [notes]


def test_a_link_to_an_epoch_is_not_followed_when_removing(make_epoch, shm_base) -> None:
    epoch = make_epoch()
    link = shm_base / "link"
    link.symlink_to(epoch.directory)
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        _native.remove_epoch(link)
    assert len(epoch.files()) == 3
