"""Enforcement of access rights by the kernel, with a real second user."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tensorpool.driver.actions import FilesFailed, MakeFiles
from tensorpool.driver.plan import Access, StreamPlan
from tensorpool.driver.storage import group_id, owner_id
from tensorpool.errors import ConfigError
from tests.remote_process import RemoteProcess
from tests.unit.driver.conftest import StorageHarness
from tests.unit.driver.roles import OtherUser

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

ALICE, LAB, OTHERS = 54_321, 54_322, 54_323
DENIED = "PermissionError"


@pytest.fixture
def tries(storage_harness: StorageHarness, plan: StreamPlan, shm_base: Path) -> Callable[..., dict[str, str]]:
    """The permitted operations of a user of these groups on a stream with this access."""
    shm_base.chmod(0o755)

    def tries(access: Access, *, uid: int = ALICE, groups: tuple[int, ...] = (OTHERS,)) -> dict[str, str]:
        mine = replace(plan, access=access)
        # Assigned, as a producer gets it.
        files = storage_harness.assign(mine, storage_harness.make(mine))
        with RemoteProcess(OtherUser, uid, groups[0], list(groups)) as other:
            return other.call("tries", directory=str(files.directory))

    return tries


def test_private_stream_is_only_for_the_drivers_user(tries: Callable[..., dict[str, str]]) -> None:
    assert set(tries(Access()).values()) == {DENIED}


def test_group_may_map_and_other_users_may_not(tries: Callable[..., dict[str, str]]) -> None:
    access = Access(group=str(LAB))
    member = tries(access, groups=(OTHERS, LAB))
    assert (member["read"], member["write"], member["list"]) == ("ok", "ok", "ok")
    assert member["list streams"] == DENIED
    assert set(tries(access).values()) == {DENIED}


def test_read_only_group_cannot_write_or_rename(
    tries: Callable[..., dict[str, str]],
) -> None:
    member = tries(Access(group=str(LAB), mode=0o640), groups=(OTHERS, LAB))
    assert member["read"] == "ok"
    assert (member["write"], member["rename"], member["create"]) == (DENIED, DENIED, DENIED)


def test_owner_may_map_and_not_change_the_directory(tries: Callable[..., dict[str, str]]) -> None:
    access = Access(owner=str(ALICE))
    alice = tries(access)
    assert (alice["read"], alice["write"]) == ("ok", "ok")
    assert (alice["rename"], alice["create"], alice["list"]) == (DENIED, DENIED, DENIED)
    bob = tries(access, uid=ALICE + 9)
    assert (bob["read"], bob["write"]) == (DENIED, DENIED)


def test_all_users_may_read_if_the_mode_allows_it(tries: Callable[..., dict[str, str]]) -> None:
    anyone = tries(Access(mode=0o644))
    assert (anyone["read"], anyone["list"]) == ("ok", "ok")
    assert (anyone["write"], anyone["create"]) == (DENIED, DENIED)


def test_streams_of_different_groups_coexist(
    tries: Callable[..., dict[str, str]],
    storage_harness: StorageHarness,
    plan: StreamPlan,
    free_stream_ids: Callable[[], int],
) -> None:
    private = storage_harness.make(replace(plan, stream_id=free_stream_ids()))
    # The parent directories were private; now all users may search them.
    member = tries(Access(group=str(LAB)), groups=(OTHERS, LAB))
    assert member["read"] == "ok"
    shared = storage_harness.make(
        replace(plan, stream_id=free_stream_ids(), access=Access(group=str(OTHERS)))
    )
    with RemoteProcess(OtherUser, ALICE, LAB, [LAB]) as other:
        for files in (private, shared):
            assert other.call("tries", directory=str(files.directory))["read"] == DENIED


def test_private_stream_does_not_restrict_other_streams(
    storage_harness: StorageHarness, plan: StreamPlan, free_stream_ids: Callable[[], int], shm_base: Path
) -> None:
    shm_base.chmod(0o755)
    shared = storage_harness.make(replace(plan, access=Access(group=str(LAB))))
    storage_harness.make(replace(plan, stream_id=free_stream_ids()))
    with RemoteProcess(OtherUser, ALICE, LAB, [LAB]) as member:
        assert member.call("tries", directory=str(shared.directory))["read"] == "ok"


def test_files_have_mode_and_group_under_any_umask(storage_harness: StorageHarness, plan: StreamPlan) -> None:
    before = os.umask(0o777)
    try:
        files = storage_harness.make(replace(plan, access=Access(group=str(LAB))))
    finally:
        os.umask(before)
    for path in files.directory.iterdir():
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, LAB)
    for directory in (files.directory, files.directory.parent):
        assert (stat.S_IMODE(directory.stat().st_mode), directory.stat().st_gid) == (0o2770, LAB)
    for directory in list(files.directory.parents)[1:3]:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o711


def test_unknown_user_or_group_is_named(storage_harness: StorageHarness, plan: StreamPlan) -> None:
    with pytest.raises(ConfigError, match="group 'no-such-group' does not exist"):
        group_id(Access(group="no-such-group"))
    with pytest.raises(ConfigError, match="owner 'no-such-user' does not exist"):
        owner_id(Access(owner="no-such-user"))
    assert (group_id(Access(group="root")), owner_id(Access(owner="root"))) == (0, 0)
    result = storage_harness.perform(MakeFiles(replace(plan, access=Access(owner="no-such-user"))))
    assert isinstance(result, FilesFailed)
    assert storage_harness.files() == []
