"""The directory of a media driver: who may enter it, from its first moment."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tests.remote_process import RemoteProcess

from .intruder import Intruder

ALICE = 54_321
STARTS = 20


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the user")
def test_other_user_opens_nothing_while_a_media_driver_starts(
    aeron_dir: Path, wait_until: Callable[..., Any]
) -> None:
    """A process that has opened a directory continues to read below it, whatever its mode is later."""
    with RemoteProcess(Intruder, ALICE) as intruder:
        intruder.call("start", directory=str(aeron_dir))
        for _ in range(STARTS):
            with tp.MediaDriver(aeron_dir):
                before = intruder.call("attempts")
                wait_until(lambda before=before: intruder.call("attempts") > before + 1)
        assert intruder.call("finish") == []


def test_parents_of_the_directory_have_the_mode_of_the_umask(shm_base: Path) -> None:
    """A driver for several users may lie in a directory that does not exist yet."""
    shm_base.mkdir(exist_ok=True)
    parent = shm_base / "host"
    umask = os.umask(0o027)
    try:
        with tp.MediaDriver(parent / "aeron", dir_mode=0o770):
            modes = [stat.S_IMODE(path.stat().st_mode) for path in (parent, parent / "aeron")]
    finally:
        os.umask(umask)
    parent.rmdir()
    assert modes == [0o750, 0o770]
