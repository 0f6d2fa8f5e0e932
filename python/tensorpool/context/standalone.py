"""The regions of a producer without a driver, with the access that `[driver]` configures.

A stream has the same group, mode, owner and pages with a driver and without one, so that a program can change
between both.
"""

from __future__ import annotations

from pathlib import Path

from ..client import OwnedRegions, ProducerOptions
from ..driver import DEFAULT_NSLOTS, DriverSettings
from ..driver.plan import Plan
from ..driver.storage import StreamDirectories, group_id, owner_id, set_owner
from ..shm import parse_pools
from ..shm.epoch_files import RegionAccess


def create_regions(
    stream_id: int,
    options: ProducerOptions,
    settings: DriverSettings,
    *,
    base_dir: Path,
    namespace: str,
    stale_after_ns: int,
) -> OwnedRegions:
    """The regions of the next epoch.

    Raises StreamBusy, RegionCreateError, or ConfigError for an unknown group or user.
    """
    plans = Plan(settings)
    plan = plans.get(stream_id) or plans.dynamic_plan(stream_id)
    access, owner = plan.access, owner_id(plan.access)
    directories = StreamDirectories(base_dir, namespace)
    directories.make(stream_id, access)
    try:
        regions = OwnedRegions.create(
            stream_id,
            base_dir=base_dir,
            namespace=namespace,
            nslots=options.nslots or DEFAULT_NSLOTS,
            pools=parse_pools(options.pools),
            stale_after_ns=stale_after_ns,
            access=RegionAccess(
                dir_mode=access.dir_mode,
                file_mode=access.file_mode,
                group=group_id(access),
                require_hugepages=options.require_hugepages or plan.hugepages,
            ),
        )
    except BaseException:
        directories.remove_if_empty(stream_id)
        raise
    try:
        set_owner(owner, regions.files.directory)
    except BaseException:
        regions.remove()
        raise
    return regions
