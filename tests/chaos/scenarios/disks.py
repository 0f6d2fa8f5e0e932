"""A full disk under a recorder, again and again, with room made in between."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time

from tests.chaos.stage import Stage

SHARE = 1.0
_DISK_BYTES = 24 << 20
_KEEP_FREE = 4 << 20


def run(stage: Stage) -> None:
    """Another program fills the recorder's disk; the space that is kept free stays free of frames."""
    disk = stage.work / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        stage.checker.verdict.skipped = "file systems cannot be mounted here"
        return
    try:
        _fill_again_and_again(stage)
    finally:
        stage.end_programs()
        stage.checker.recording(disk / "recording")
        subprocess.run(["umount", str(disk)], check=False, capture_output=True)


def _fill_again_and_again(stage: Stage) -> None:
    disk, rng = stage.work / "disk", stage.rng
    stage.start("producer", hz=500)
    stage.start("recorder", root=str(disk / "recording"), keep_free=str(_KEEP_FREE))
    stage.checker.expect(stage.frames_flow(), "no frames flow before the disk is filled")
    stage.restart_clock()
    filler = disk / "filler"
    while stage.has_time:
        time.sleep(rng.uniform(0.2, 1.0))
        with filler.open("ab") as file, contextlib.suppress(OSError):
            file.write(bytes(rng.randrange(1 << 20, 8 << 20)))
        stage.checker.count("disk filled")
        if rng.random() < 0.4:
            filler.unlink(missing_ok=True)
            stage.checker.count("room made")
    filler.unlink(missing_ok=True)
    stat = os.statvfs(disk)
    free = stat.f_bavail * stat.f_frsize
    stage.checker.expect(free >= _KEEP_FREE, f"{free} bytes are free, {_KEEP_FREE} should be kept free")
