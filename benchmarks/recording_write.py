"""How fast frames are recorded, beside a plain sequential write of the same bytes to the same disk.

Both are on the disk when the time is taken: the plain file by one fsync, the recording sealed. The camera
films a little faster than the plain write was, so that the disk is the bound; frames that it does not take
are lost and counted, and every one has to be accounted for.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorpool as tp

from .dataplane import Run, Settings, progress, undisturbed
from .driver_process import DriverProcess, media_driver, media_driver_dir
from .pair import Child, MeasurementFailed
from .recording_camera import FRAME_BYTES, STREAM_ID, CameraPlan
from .targets import Target

FRAMES, QUICK_FRAMES = 3200, 160
"""2 GiB; 100 MiB."""
_FASTER = 1.1
_PATIENCE_S = 120.0
_BLOCK_FRAMES = 12


@dataclass(slots=True)
class Writes:
    """Every run: bytes a second of both, and the account."""

    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def ratio(self) -> float | None:
        return statistics.median(run["ratio"] for run in self.runs) if self.runs else None

    def targets(self) -> list[Target]:
        return [
            Target("recording of 640 KiB frames", "a plain write, fsync in both", 0.8, False, self.ratio())
        ]

    def others(self) -> float | None:
        return max((run["others_cores"] for run in self.runs), default=None)


def measure(settings: Settings) -> Writes:
    found = Writes()
    deadline = time.monotonic() + settings.patience_s
    frames = QUICK_FRAMES if settings.is_quick else FRAMES
    for number in range(settings.runs):
        progress(f"recording 640 KiB frames, run {number + 1}")
        try:
            found.runs.append(undisturbed(partial(one_run, frames=frames), deadline))
        except MeasurementFailed as error:
            found.failures.append(f"recording, run {number + 1}: {error}")
    progress("")
    return found


@contextmanager
def on_disk() -> Iterator[Path]:
    """A directory on the disk where temporary files go (TMPDIR)."""
    directory = Path(tempfile.mkdtemp(prefix="tensorpool-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def one_run(directory: str, *, frames: int) -> Run:
    with on_disk() as disk:
        before = plain_write(disk / "plain", frames)
        recorded = record(directory, disk / "recording", frames, pace_hz=_FASTER * before / FRAME_BYTES)
        after = plain_write(disk / "plain", frames)
    # The disk may have changed its mind in between: the mean of both sides.
    plain = statistics.mean((before, after))
    return {"plain_bytes_s": plain, "ratio": recorded["bytes_s"] / plain, **recorded}


def plain_write(path: Path, frames: int) -> float:
    """Bytes a second of a file written in large blocks, until it is on the disk."""
    block = np.random.default_rng(1).integers(0, 256, _BLOCK_FRAMES * FRAME_BYTES, np.uint8).tobytes()
    left = frames * FRAME_BYTES
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        begun = time.monotonic_ns()
        while left > 0:
            left -= os.write(fd, memoryview(block)[:left])
        os.fsync(fd)
        taken = time.monotonic_ns() - begun
    finally:
        os.close(fd)
        path.unlink()
    return frames * FRAME_BYTES / taken * 1e9


def record(directory: str, root: Path, frames: int, *, pace_hz: float) -> dict[str, Any]:
    with ExitStack() as stack:
        stack.enter_context(media_driver(directory))
        driver = stack.enter_context(DriverProcess(directory))
        driver.wait_ready()
        camera = Child(
            "benchmarks.recording_camera", CameraPlan(directory, pace_hz).to_json(), state=directory
        )
        stack.callback(camera.end)
        camera.expect_ready()
        context = stack.enter_context(
            tp.open(
                mode="driver",
                aeron_dir=media_driver_dir(directory),
                shm_base_dir=directory,
                media_driver="external",
            )
        )
        with tp.record(root, streams=[STREAM_ID], frames=frames, context=context, serve=False) as recorder:
            _wait_for(lambda: recorder.mapped()[STREAM_ID] is not None)
            camera.start(0)
            begun = time.monotonic_ns()
            _wait_for(lambda: recorder.is_finished)
        taken = time.monotonic_ns() - begun
        ledgers = recorder.ledger()
    return {
        "bytes_s": sum(one.rows for one in ledgers) * FRAME_BYTES / taken * 1e9,
        "rows": sum(one.rows for one in ledgers),
        "lost": sum(sum(one.gaps.values()) for one in ledgers),
        "unaccounted": sum(one.span - one.rows - sum(one.gaps.values()) for one in ledgers),
    }


def _wait_for(is_there: Any) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_there():
        if time.monotonic() > deadline:
            raise MeasurementFailed("the recorder did not come to an end")
        time.sleep(0.002)


# --- the report

HEAD = ["640 KiB frames", "recorded MiB/s", "plain write MiB/s", "ratio", "lost", "unaccounted"]


def rows(writes: Writes) -> list[list[str]]:
    if not writes.runs:
        return []
    median = {key: statistics.median(run[key] for run in writes.runs) for key in ("bytes_s", "plain_bytes_s")}
    total = {key: sum(run[key] for run in writes.runs) for key in ("rows", "lost", "unaccounted")}
    return [
        [
            f"{total['rows']:,}",
            f"{median['bytes_s'] / (1 << 20):,.0f}",
            f"{median['plain_bytes_s'] / (1 << 20):,.0f}",
            f"{writes.ratio():.2f}",
            f"{total['lost']:,}",
            f"{total['unaccounted']:,}",
        ]
    ]


WORDS = (
    "Recording: a camera in another process films a tenth faster than the plain write was; until the last "
    "segment is sealed, and until the plain file's fsync is done; the plain write before and after, the mean "
    "of both."
)
