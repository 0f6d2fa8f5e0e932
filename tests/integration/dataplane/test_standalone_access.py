"""Regions of producers without a driver: group, mode, owner and hugepages as `[driver]` has them."""

from __future__ import annotations

import grp
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.errors import RegionCreateError

_NR_HUGEPAGES = Path("/proc/sys/vm/nr_hugepages")
_PAGE = 2 << 20
LAYOUT: dict[str, Any] = {"nslots": 4, "pools": [64]}


def write_config(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def open_context(aeron_dir: Path, tmp_path: Path) -> Callable[..., tp.Context]:
    def make(base: Path, driver: str = "", **more: Any) -> tp.Context:
        config = write_config(tmp_path / "tensorpool.toml", driver)
        return tp.open(
            **{"mode": "standalone", "aeron_dir": aeron_dir, "shm_base_dir": base, "config": config, **more}
        )

    return make


@pytest.fixture
def hugepages(tmp_path: Path, wait_until: Callable[..., Any]) -> Iterator[Callable[[int], Path]]:
    """A mount of hugepages, and the number of pages that are free in it."""
    mount = tmp_path / "hugepages"
    mount.mkdir()
    try:
        before = _NR_HUGEPAGES.read_text()
    except OSError:
        pytest.skip("this kernel has no hugepages")
    if int(before):
        pytest.skip("hugepages of this machine are in use")
    command = ["mount", "-t", "hugetlbfs", "none", str(mount)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("hugetlbfs cannot be mounted here")

    def reserve(pages: int) -> Path:
        try:
            _NR_HUGEPAGES.write_text(str(pages))
        except OSError:
            pytest.skip("hugepages cannot be reserved here")
        if int(_NR_HUGEPAGES.read_text()) < pages:
            pytest.skip("the machine has no free hugepages")
        return mount

    yield reserve
    subprocess.run(["umount", str(mount)], check=True)

    def is_restored() -> bool:
        with suppress(OSError):
            _NR_HUGEPAGES.write_text(before)
        return _NR_HUGEPAGES.read_text() == before

    wait_until(is_restored)


def test_hugepages_are_refused_on_ordinary_memory(
    open_context: Callable[..., tp.Context], shm_base: Path, free_stream_id: int
) -> None:
    with open_context(shm_base) as context:
        with pytest.raises(RegionCreateError, match="hugetlbfs") as refused:
            context.producer(free_stream_id, nslots=4, pools=[64], require_hugepages=True)
        assert refused.value.reason == "not_hugepages"
        assert not list(shm_base.glob("tensorpool-*/default/*")), "nothing is left behind"
        context.producer(free_stream_id, nslots=4, pools=[64]).close()
    with (
        open_context(shm_base, "[driver]\nhugepages = true\n") as context,
        pytest.raises(RegionCreateError, match="hugetlbfs"),
    ):
        context.producer(free_stream_id, nslots=4, pools=[64])


@pytest.mark.parametrize("mode", ["standalone", "embedded"])
def test_stream_is_created_in_its_own_base_directory(
    open_context: Callable[..., tp.Context],
    shm_base: Path,
    mode: str,
    free_stream_ids: Callable[[], int],
) -> None:
    here, elsewhere = free_stream_ids(), free_stream_ids()
    base, other = shm_base / "base", shm_base / "other"
    base.mkdir()
    other.mkdir()
    layout: dict[str, Any] = {"nslots": 4, "pools": ["4KiB"]}
    common = "[[driver.streams]]\nnslots = 4\npools = ['4KiB']\n"
    driver = f"{common}stream_id = {here}\n{common}stream_id = {elsewhere}\nbase_dir = '{other}'\n"
    with open_context(base, driver, mode=mode, allowed_base_dirs=[base, other]) as context:
        for stream_id, directory in ((here, base), (elsewhere, other)):
            with context.producer(stream_id, **layout) as producer, context.consumer(stream_id) as consumer:
                found = list(shm_base.glob(f"*/tensorpool-*/*/{stream_id}/{producer.epoch}"))
                assert [path.is_relative_to(directory) for path in found] == [True]
                assert producer.wait_for_consumer(60)
                assert consumer.wait_for_producer(60)
                producer.offer(np.arange(4))
                assert consumer.receive(60).copy().tolist() == [0, 1, 2, 3]
    base.rmdir()
    other.rmdir()


def test_hugepages_are_taken_from_their_directory(
    open_context: Callable[..., tp.Context], shm_base: Path, free_stream_id: int
) -> None:
    ordinary = shm_base / "ordinary"
    ordinary.mkdir()
    with open_context(shm_base, f"[driver]\nhugepages_dir = '{ordinary}'\n") as context:
        with pytest.raises(RegionCreateError, match="hugetlbfs") as refused:
            context.producer(free_stream_id, require_hugepages=True, **LAYOUT)
        assert str(ordinary) in str(refused.value)
        # Other streams are where they were.
        with context.producer(free_stream_id, **LAYOUT):
            assert len(list(shm_base.glob(f"tensorpool-*/default/{free_stream_id}/*"))) == 1
    ordinary.rmdir()


@pytest.mark.parametrize("mode", ["standalone", "embedded"])
def test_frames_travel_through_hugepages(
    open_context: Callable[..., tp.Context], hugepages: Callable[[int], Path], mode: str, free_stream_id: int
) -> None:
    # One page for the ring and one for the pool; a driver makes the files of the next epoch too.
    with open_context(hugepages(8), mode=mode) as context:
        producer = context.producer(free_stream_id, nslots=4, pools=[64], require_hugepages=True)
        consumer = context.consumer(free_stream_id, timeout=60)
        assert consumer.wait_for_producer(60)
        assert producer.wait_for_consumer(60)
        producer.offer(np.arange(4))
        assert consumer.receive(60).copy().tolist() == [0, 1, 2, 3]


@pytest.mark.requirement("driver-4.3-5")
def test_exhausted_hugepages_are_refused(
    open_context: Callable[..., tp.Context], hugepages: Callable[[int], Path], free_stream_id: int
) -> None:
    mount = hugepages(0)
    with open_context(mount) as context:
        with pytest.raises(RegionCreateError, match="nr_hugepages") as refused:
            context.producer(free_stream_id, nslots=4, pools=[64], require_hugepages=True)
        assert refused.value.reason == "no_hugepages"
    with open_context(mount, mode="embedded") as context:
        with pytest.raises(tp.AttachError, match="nr_hugepages") as rejected:
            context.producer(free_stream_id, nslots=4, pools=[64], require_hugepages=True)
        assert rejected.value.code == "REJECTED"


def test_regions_have_the_configured_group_and_mode(
    open_context: Callable[..., tp.Context], shm_base: Path, free_stream_id: int
) -> None:
    # Any group of this user, or as root any group at all.
    group = grp.getgrgid(os.getgroups()[-1] if os.geteuid() else 1)
    driver = f"[driver]\ngroup = {group.gr_name!r}\n"
    with open_context(shm_base, driver) as context, context.producer(free_stream_id, nslots=4, pools=[64]):
        [epoch] = shm_base.glob(f"tensorpool-*/default/{free_stream_id}/*")
        for path in epoch.iterdir():
            assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (group.gr_gid, 0o660)
        for directory in (epoch, epoch.parent):
            assert directory.stat().st_gid == group.gr_gid
            assert stat.S_IMODE(directory.stat().st_mode) == 0o2770
        assert epoch.parent.parent.stat().st_mode & 0o011, "others must be able to reach it"


def test_regions_have_the_configured_mode_of_a_stream(
    open_context: Callable[..., tp.Context], shm_base: Path, free_stream_id: int
) -> None:
    owner = "owner = '1'\n" if os.geteuid() == 0 else ""
    driver = f"[[driver.streams]]\nstream_id = {free_stream_id}\nmode = '0644'\n{owner}"
    with open_context(shm_base, driver) as context, context.producer(free_stream_id, nslots=4, pools=[64]):
        [epoch] = shm_base.glob(f"tensorpool-*/default/{free_stream_id}/*")
        for path in epoch.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o644
            assert path.stat().st_uid == (1 if owner else os.geteuid())


def test_unknown_group_is_a_configuration_error(
    open_context: Callable[..., tp.Context], shm_base: Path, free_stream_id: int
) -> None:
    with (
        open_context(shm_base, "[driver]\ngroup = 'nobody-has-this-group'\n") as context,
        pytest.raises(tp.ConfigError, match="nobody-has-this-group"),
    ):
        context.producer(free_stream_id, nslots=4, pools=[64])
