"""Validation of regions before they are mapped; each fault has its own reason (wire §15.1, §15.21a.5)."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorpool import _native
from tensorpool.errors import RegionRejected
from tensorpool.sbe import ShmRegionSuperblock

SUPERBLOCK = {field.python_name: field for field in ShmRegionSuperblock.layout().encoded_fields}


@pytest.fixture
def epoch(make_epoch):
    return make_epoch()


@pytest.fixture
def open_region(epoch, shm_base, free_stream_id) -> Callable[..., _native.Superblock]:
    """Opens the header ring (or pool 1) as announced, with the given changes."""

    def open_region(uri: str = epoch.header_uri, *, pool: bool = False, **changes) -> _native.Superblock:
        settings = {"base_dirs": [shm_base], "epoch": 77, "stream_id": free_stream_id, "nslots": 8}
        if pool:
            uri = epoch.pools[0].uri if uri == epoch.header_uri else uri
            settings |= {"pool_id": 1, "stride_bytes": 4096}
        return _native.open_region(uri, **(settings | changes))

    return open_region


@pytest.fixture
def refused(open_region, nothing_mapped) -> Callable[..., RegionRejected]:
    """The error of a refused region; nothing of it may stay mapped."""

    def refused(uri: str, **changes) -> RegionRejected:
        with pytest.raises(RegionRejected) as error:
            open_region(uri, **changes)
        assert nothing_mapped()
        assert error.value.uri == uri
        assert str(error.value).startswith(f"region {uri} refused: ")
        return error.value

    return refused


def uri_of(path: Path | str) -> str:
    return f"shm:file?path={path}"


def poke(path: Path, field: str, value: int) -> None:
    layout = SUPERBLOCK[field]
    with path.open("r+b") as file:
        file.seek(layout.offset)
        file.write(value.to_bytes(layout.size, "little"))


# --- accepted regions


@pytest.mark.requirement("wire-7.1-1")
def test_regions_that_match_the_announce_are_opened(open_region, epoch, nothing_mapped) -> None:
    assert open_region().slot_bytes == 256
    assert open_region(pool=True).stride_bytes == 4096
    assert nothing_mapped()


@pytest.mark.parametrize("value", [0, 4096, 0xFFFF_FFFF])
def test_pool_slot_size_has_several_valid_values(open_region, epoch, value) -> None:
    poke(epoch.pool(1), "slot_bytes", value)
    assert open_region(pool=True).slot_bytes == value


@pytest.mark.parametrize("value", [0, 256, 0xFFFF_FFFF])
def test_header_ring_stride_has_several_valid_values(open_region, epoch, value) -> None:
    poke(epoch.header, "stride_bytes", value)
    assert open_region().stride_bytes == value


def test_region_file_longer_than_needed_is_accepted(open_region, epoch) -> None:
    os.truncate(epoch.header, epoch.header.stat().st_size + 4096)
    assert open_region().nslots == 8


@pytest.mark.requirement("wire-15.21a.5-1")
def test_symlinked_base_directory_is_resolved_once(open_region, epoch, shm_base, tmp_path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(shm_base)
    assert open_region(base_dirs=[alias]).epoch == 77
    through = str(epoch.header).replace(str(shm_base), str(alias))
    assert open_region(uri_of(through), base_dirs=[alias]).epoch == 77


# --- paths


@pytest.mark.requirement("wire-15.21a.5-1")
@pytest.mark.parametrize("path", ["header.ring", "./header.ring", "../header.ring", r"C:\aeron\header.ring"])
def test_relative_region_path_is_refused(refused, path) -> None:
    assert refused(uri_of(path)).reason == "relative"


@pytest.mark.requirement("wire-15.21a.5-1")
@pytest.mark.parametrize("insert", ["/../{0}", "/./", "//", "/{0}/../{0}/"], ids=str)
def test_region_path_that_is_not_normalized_is_refused(refused, epoch, insert) -> None:
    parent, name = epoch.header.parent, epoch.header.name
    extra = insert.format(parent.name)
    path = f"{parent}{extra}" + (f"/{name}" if not extra.endswith("/") else name)
    assert refused(uri_of(path)).reason == "not_normal"


@pytest.mark.requirement("wire-15.21a.5-1")
def test_region_path_outside_the_base_directories_is_refused(refused, epoch, tmp_path, shm_base) -> None:
    copy = tmp_path / "header.ring"
    copy.write_bytes(epoch.header.read_bytes())
    assert refused(uri_of(copy)).reason == "outside"
    assert "allowed_base_dirs" in str(refused(uri_of(copy)))
    # A path that only starts with the same characters is another directory.
    assert refused(uri_of(f"{shm_base}-too/header.ring")).reason == "outside"
    assert refused(uri_of(shm_base)).reason == "outside"


@pytest.mark.requirement("wire-15.21a.5-3", "wire-15.21a.5-5")
def test_symlink_to_a_region_is_refused(refused, epoch, shm_base) -> None:
    link = shm_base / "ring"
    link.symlink_to(epoch.header)
    error = refused(uri_of(link))
    assert (error.reason, "symbolic link" in str(error)) == ("symlink", True)


@pytest.mark.requirement("wire-15.21a.5-3", "wire-15.21a.5-5")
def test_symlink_out_of_the_base_directory_is_refused(refused, epoch, shm_base, tmp_path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(epoch.header.read_bytes())
    (shm_base / "ring").symlink_to(copy)
    assert refused(uri_of(shm_base / "ring")).reason == "outside"


@pytest.mark.requirement("wire-15.21a.5-3", "wire-15.21a.5-5")
def test_region_in_a_symlinked_directory_is_refused(refused, epoch, shm_base) -> None:
    (shm_base / "epoch").symlink_to(epoch.directory)
    assert refused(uri_of(shm_base / "epoch" / "header.ring")).reason == "symlink"


def test_missing_region_file_is_refused(refused, epoch) -> None:
    assert refused(uri_of(epoch.directory / "other.ring")).reason == "missing"
    assert refused(uri_of(epoch.header / "below-a-file")).reason in {"missing", "io"}


@pytest.mark.requirement("wire-15.21a.5-2")
def test_directory_is_refused(refused, epoch) -> None:
    error = refused(uri_of(epoch.directory))
    assert (error.reason, "it is a directory" in str(error)) == ("not_regular", True)


@pytest.mark.requirement("wire-15.21a.5-2")
def test_fifo_is_refused_without_blocking(refused, shm_base) -> None:
    os.mkfifo(shm_base / "fifo")
    error = refused(uri_of(shm_base / "fifo"))
    assert (error.reason, "it is a FIFO" in str(error)) == ("not_regular", True)


@pytest.mark.requirement("wire-15.21a.5-2")
def test_socket_is_refused(refused, shm_base) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(shm_base / "socket"))
        error = refused(uri_of(shm_base / "socket"))
    assert (error.reason, "it is a socket" in str(error)) == ("not_regular", True)


@pytest.mark.requirement("wire-15.21a.5-2")
def test_character_device_is_refused(refused) -> None:
    error = refused(uri_of("/dev/null"), base_dirs=["/dev"])
    assert (error.reason, "character device" in str(error)) == ("not_regular", True)


@pytest.mark.requirement("wire-15.21a.5-2")
def test_block_device_is_refused(refused, shm_base) -> None:
    try:
        os.mknod(shm_base / "block", 0o600 | 0o060000, os.makedev(7, 0))
    except PermissionError:
        pytest.skip("takes root: a device node has to be made")
    error = refused(uri_of(shm_base / "block"))
    assert (error.reason, "block device" in str(error)) == ("not_regular", True)


# --- contents


@pytest.mark.parametrize("size", [0, 1, 63])
def test_file_shorter_than_a_superblock_is_refused(refused, epoch, size) -> None:
    os.truncate(epoch.header, size)
    error = refused(epoch.header_uri)
    assert (error.reason, f"the file has {size} bytes" in str(error)) == ("too_short", True)


@pytest.mark.requirement("wire-15.22-14")
@pytest.mark.parametrize("pool", [False, True], ids=["ring", "pool"])
@pytest.mark.parametrize("missing", [1, 200, "all"])
def test_truncated_region_is_refused(refused, epoch, pool, missing) -> None:
    path = epoch.pool(1) if pool else epoch.header
    size = path.stat().st_size
    os.truncate(path, 64 if missing == "all" else size - missing)
    error = refused(uri_of(path), pool=pool)
    assert (error.reason, f"needs {size}" in str(error)) == ("too_short", True)


@pytest.mark.requirement("wire-7.1-1", "wire-7.1-2", "wire-15.1-1", "wire-15.1-2")
@pytest.mark.parametrize("pool", [False, True], ids=["ring", "pool"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", 0x544F504C53484D30),
        ("magic", int.from_bytes(b"TPOLSHM1", "little")),
        ("layout_version", 2),
        ("layout_version", 0),
        ("epoch", 76),
        ("stream_id", 1),
        ("region_type", 3),
        ("pool_id", 9),
        ("nslots", 4),
        ("nslots", 16),
        ("slot_bytes", 128),
        ("stride_bytes", 64),
    ],
)
def test_superblock_field_that_contradicts_the_announce_is_refused(
    refused, epoch, pool, field, value
) -> None:
    path = epoch.pool(1) if pool else epoch.header
    poke(path, field, value)
    error = refused(uri_of(path), pool=pool)
    assert error.reason == field
    assert field in str(error)


@pytest.mark.requirement("wire-7.1-3", "wire-7.1-4")
def test_header_ring_and_pool_are_not_interchangeable(refused, epoch) -> None:
    assert refused(epoch.header_uri, pool_id=1, stride_bytes=4096).reason == "region_type"
    assert refused(epoch.pools[0].uri).reason == "region_type"


@pytest.mark.requirement("wire-7.1-4")
def test_pool_with_another_pool_id_is_refused(refused, epoch) -> None:
    assert refused(epoch.pools[1].uri, pool=True).reason == "pool_id"


@pytest.mark.parametrize("nslots", [0, 3, 12])
def test_nslots_must_be_a_power_of_two(refused, epoch, nslots) -> None:
    assert refused(epoch.header_uri, nslots=nslots).reason == "nslots"


@pytest.mark.requirement("wire-15.22-9", "wire-15.22-10")
@pytest.mark.parametrize("stride", [0, 32, 96, 4095, 4097])
def test_stride_must_be_a_power_of_two_from_64(refused, epoch, stride) -> None:
    poke(epoch.pool(1), "stride_bytes", stride)
    assert refused(epoch.pools[0].uri, pool=True, stride_bytes=stride).reason == "stride"


# --- URIs


@pytest.mark.requirement("wire-15.22-4", "wire-15.22-6")
@pytest.mark.parametrize("uri", ["", "shm:mem?path=/a", "file:///a", "bridge://a", "SHM:file?path=/a"])
def test_unknown_scheme_is_refused(refused, uri) -> None:
    assert refused(uri).reason == "scheme"


@pytest.mark.requirement("wire-15.22-5", "wire-15.22-11", "wire-15.22-12")
@pytest.mark.parametrize("tail", ["|mode=rw", "|", "&require_hugepages=true|x", "|require_hugepages=yes"])
def test_unknown_parameter_is_refused(refused, epoch, tail) -> None:
    assert refused(epoch.header_uri + tail).reason == "uri"


# --- hugepages


@pytest.mark.requirement("wire-15.22-2", "wire-15.22-7")
def test_region_without_required_hugepages_is_refused(refused, open_region, epoch) -> None:
    error = refused(f"{epoch.header_uri}|require_hugepages=true")
    assert (error.reason, "hugetlbfs" in str(error)) == ("not_hugepages", True)
    assert open_region(f"{epoch.header_uri}|require_hugepages=false").epoch == 77


@pytest.mark.requirement("wire-15.22-2", "wire-15.22-7")
def test_file_on_hugetlbfs_passes_the_hugepage_check(open_region, mounted) -> None:
    base = mounted("hugetlbfs")
    (base / "ring").touch()
    with pytest.raises(RegionRejected) as error:
        open_region(f"{uri_of(base / 'ring')}|require_hugepages=true", base_dirs=[base])
    # The file is empty, but its filesystem passed the check.
    assert error.value.reason == "too_short"


@pytest.mark.requirement("wire-15.22-2", "wire-15.22-7")
def test_regions_on_hugepages_use_whole_pages(make_epoch, open_region, mounted) -> None:
    base = mounted("hugetlbfs")
    page = os.statvfs(base).f_bsize
    if os.statvfs(base).f_bfree < 2 and _free_hugepages() < 2:
        pytest.skip("no hugepages are free here; set vm.nr_hugepages to 2 or more to run this")
    epoch = make_epoch(base=base, pools=[(1, 4096)], require_hugepages=True)
    assert epoch.header_uri.endswith("|require_hugepages=true")
    assert epoch.header.stat().st_size == page
    assert open_region(epoch.header_uri, base_dirs=[base]).nslots == 8
    _native.remove_epoch(epoch.directory)


def _free_hugepages() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("HugePages_Free")).split()[1])


@pytest.mark.requirement("wire-15.22-2")
def test_create_epoch_refuses_a_base_without_required_hugepages(make_epoch, shm_base) -> None:
    from tensorpool.errors import RegionCreateError

    with pytest.raises(RegionCreateError, match="not on hugetlbfs") as refused:
        make_epoch(require_hugepages=True)
    assert refused.value.reason == "not_hugepages"
    assert list(shm_base.iterdir()) == []
