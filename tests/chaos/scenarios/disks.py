"""A full disk under a recorder, again and again, with room made in between and producers replaced."""

from __future__ import annotations

import contextlib
import os
import time

from tests.chaos.stage import Stage, mounted

SHARE = 1.0
_DISK_BYTES = 24 << 20
_KEEP_FREE = 4 << 20
# Less than the disk without what is kept free: the recorder's own files do not fill it.
_RETAIN = 6 << 20
_ROWS_AFTER_ROOM = 50
_REPLACED = 0.3


def run(stage: Stage) -> None:
    """Another program fills the recorder's disk. The space that is kept free stays free of frames, consumers
    lose nothing by it, and the recorder writes again whenever there is room. Producers that are killed leave
    gaps of two epochs, which the recorder has to keep apart until it can write them."""
    disk = stage.work / "disk"
    with mounted(disk, _DISK_BYTES):
        try:
            _fill_again_and_again(stage)
        finally:
            stage.end_programs()
            stage.checker.recording(disk / "recording")


def _fill_again_and_again(stage: Stage) -> None:
    disk, rng, checker = stage.work / "disk", stage.rng, stage.checker
    producer = stage.start("producer", hz=500)
    consumer = stage.start("consumer")
    recorder = stage.start(
        "recorder", root=str(disk / "recording"), keep_free=str(_KEEP_FREE), retain_bytes=str(_RETAIN),
        rotate_bytes=str(1 << 20),
    )  # fmt: skip
    checker.expect(stage.advances(recorder, "recorded", _ROWS_AFTER_ROOM), "nothing is recorded at the start")
    stage.restart_clock()
    filler = disk / "filler"
    rounds = 0
    while stage.has_time or not rounds:
        time.sleep(rng.uniform(0.2, 1.0))
        with filler.open("ab") as file, contextlib.suppress(OSError):
            file.write(bytes(rng.randrange(1 << 20, 8 << 20)))
        checker.count("disk filled")
        if rng.random() < _REPLACED:
            stage.kill(producer)
            producer = stage.start("producer", hz=500)
        if rng.random() < 0.4:
            filler.unlink(missing_ok=True)
            checker.count("room made")
            checker.expect(
                stage.advances(recorder, "recorded", _ROWS_AFTER_ROOM),
                f"nothing is recorded after room was made: {recorder.counts}",
            )
            rounds += 1
        stage.programs_live("beside a full disk")
        checker.expect(stage.advances(consumer, "checked", 1), "a consumer gets no frames beside a full disk")
    filler.unlink(missing_ok=True)
    checker.count("frames recorded", recorder.counts.recorded)
    stat = os.statvfs(disk)
    free = stat.f_bavail * stat.f_frsize
    checker.expect(free >= _KEEP_FREE, f"{free} bytes are free, {_KEEP_FREE} should be kept free")
