"""Assignment of a new epoch to clean regions."""

from __future__ import annotations

import os
import time

import pytest

from tensorpool import _native
from tensorpool.errors import RegionCreateError
from tests.integration.driver.roles import LockHolder
from tests.remote_process import RemoteProcess


def test_assigned_epoch_keeps_its_files_and_gets_new_superblocks(harness, stream_id) -> None:
    regions = harness.regions(stream_id)
    before = {path.name: path.stat().st_ino for path in regions.directory.iterdir()}
    old, began_ns = regions.directory, time.monotonic_ns()
    regions.assign(1_005)
    assert not old.exists()
    assert regions.directory == old.parent / "1005"
    assert {path.name: path.stat().st_ino for path in regions.directory.iterdir()} == before
    for name in before:
        block = regions.superblock(name)
        assert (block.epoch, block.pid, block.stream_id) == (1_005, os.getpid(), stream_id)
        assert block.activity_timestamp_ns >= began_ns
    for uri, options in [
        (regions.files.header_uri, {}),
        *(
            (uri, {"pool_id": pool_id, "stride_bytes": stride})
            for pool_id, stride, uri in regions.files.pools
        ),
    ]:
        _native.open_region(
            uri, base_dirs=[str(regions.base)], epoch=1_005, stream_id=stream_id, nslots=8, **options
        )


def test_epoch_is_not_assigned_over_another_or_to_locked_regions(harness, stream_id) -> None:
    regions, other = harness.regions(stream_id), harness.regions(stream_id, epoch=2_000)
    with pytest.raises(RegionCreateError) as refused:
        regions.assign(2_000)
    assert refused.value.reason == "exists"
    with pytest.raises(RegionCreateError) as refused:
        other.assign(1_500)
    assert refused.value.reason == "invalid"
    with RemoteProcess(LockHolder) as holder:
        holder.call("lock", path=str(regions.directory / "header.ring"))
        with pytest.raises(RegionCreateError) as refused:
            regions.assign(3_000)
        assert refused.value.reason == "held"
    assert (regions.superblock().epoch, other.superblock().epoch) == (1_000, 2_000)
