"""Modes of files and directories by settings; test_permissions.py tests the kernel's enforcement."""

from __future__ import annotations

import pytest

from tensorpool.driver.config import DriverSettings, StreamSettings
from tensorpool.driver.plan import Access, Plan


@pytest.mark.parametrize(
    ("access", "file_mode", "dir_mode", "parent_mode"),
    [
        (Access(), 0o600, 0o700, 0o700),
        (Access(group="lab"), 0o660, 0o2770, 0o711),
        # Members may only read: consumers.
        (Access(group="lab", mode=0o640), 0o640, 0o2750, 0o711),
        (Access(mode=0o644), 0o644, 0o755, 0o711),
        (Access(group="lab", mode=0o600), 0o600, 0o2700, 0o700),
        # The driver keeps the directories: the owner of the files may only search them.
        (Access(owner="alice"), 0o600, 0o711, 0o711),
        (Access(owner="alice", group="lab"), 0o660, 0o2771, 0o711),
    ],
)
def test_access_modes_follow_from_owner_and_group(
    access: Access, file_mode: int, dir_mode: int, parent_mode: int
) -> None:
    assert (access.file_mode, access.dir_mode, access.parent_mode) == (file_mode, dir_mode, parent_mode)


def test_stream_inherits_group_and_mode_from_the_driver() -> None:
    streams = (
        StreamSettings(stream_id=1),
        StreamSettings(stream_id=2, group="other", mode=0o640, owner="alice"),
    )
    plan = Plan(DriverSettings(group="lab", mode=0o660, streams=streams))
    assert plan[1].access == Access(None, "lab", 0o660)
    assert plan[2].access == Access("alice", "other", 0o640)
    dynamic = plan.proposed(20_000)
    assert getattr(dynamic, "access", None) == Access(None, "lab", 0o660)
