"""Rate of recording, compared with a plain sequential write of the same bytes to the same disk.

The time ends when the data is on the disk: after one fsync of the plain file, after the seal of the
recording. The camera publishes a little faster than the plain write, so that the disk is the limit. Frames
that the disk cannot take are lost; the ledger has to count every one of them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorpool as tp

from .camera_process import FRAME_BYTES, STREAM_ID, CameraPlan
from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .driver_process import DriverProcess, media_driver, media_driver_dir
from .processes import ChildProcess, MeasurementFailed
from .targets import Target

FRAMES, QUICK_FRAMES = 3200, 160
"""2 GiB; 100 MiB."""
_PACE_FACTOR = 1.1
_TIMEOUT_S = 120.0
_BLOCK_FRAMES = 12


@dataclass(slots=True)
class RecordingWrites:
    """All runs: bytes per second of both, and the ledger."""

    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def ratio(self) -> float | None:
        """Median of the rate relative to the plain write."""
        return statistics.median(run["ratio"] for run in self.runs) if self.runs else None

    def targets(self) -> list[Target]:
        """Bound on the rate."""
        return [
            Target("recording of 640 KiB frames", "a plain write, fsync in both", 0.8, False, self.ratio())
        ]

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for run in self.runs), default=None)


def measure(settings: Settings) -> RecordingWrites:
    """Runs the measurement."""
    writes = RecordingWrites()
    deadline = time.monotonic() + settings.patience_s
    frames = QUICK_FRAMES if settings.is_quick else FRAMES
    for number in range(settings.runs):
        show_progress(f"recording 640 KiB frames, run {number + 1}")
        try:
            writes.runs.append(measure_undisturbed(partial(measure_once, frames=frames), deadline))
        except MeasurementFailed as error:
            writes.failures.append(f"recording, run {number + 1}: {error}")
    show_progress("")
    return writes


@contextmanager
def on_disk() -> Iterator[Path]:
    """A directory on the disk of temporary files (TMPDIR)."""
    directory = Path(tempfile.mkdtemp(prefix="tensorpool-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure_once(directory: str, *, frames: int) -> Run:
    """One plain write, one recording, one more plain write."""
    with on_disk() as disk:
        before = plain_write(disk / "plain", frames)
        recorded = record(directory, disk / "recording", frames, pace_hz=_PACE_FACTOR * before / FRAME_BYTES)
        after = plain_write(disk / "plain", frames)
    # The speed of the disk may change between the two: their mean counts.
    plain = statistics.mean((before, after))
    return {"plain_bytes_s": plain, "ratio": recorded["bytes_s"] / plain, **recorded}


def plain_write(path: Path, frames: int) -> float:
    """Writes a file in large blocks and syncs it; returns bytes per second."""
    block = np.random.default_rng(1).integers(0, 256, _BLOCK_FRAMES * FRAME_BYTES, np.uint8).tobytes()
    left = frames * FRAME_BYTES
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        started_ns = time.monotonic_ns()
        while left > 0:
            left -= os.write(fd, memoryview(block)[:left])
        os.fsync(fd)
        taken_ns = time.monotonic_ns() - started_ns
    finally:
        os.close(fd)
        path.unlink()
    return frames * FRAME_BYTES / taken_ns * 1e9


def record(directory: str, root: Path, frames: int, *, pace_hz: float) -> dict[str, Any]:
    """Records frames of a camera process; returns the rate and the ledger."""
    with ExitStack() as stack:
        stack.enter_context(media_driver(directory))
        driver = stack.enter_context(DriverProcess(directory))
        driver.wait_ready()
        camera = ChildProcess(
            "benchmarks.camera_process", CameraPlan(directory, pace_hz).to_json(), state=directory
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
            started_ns = time.monotonic_ns()
            _wait_for(lambda: recorder.is_finished)
        taken_ns = time.monotonic_ns() - started_ns
        ledgers = recorder.ledger()
    return {
        "bytes_s": sum(ledger.rows for ledger in ledgers) * FRAME_BYTES / taken_ns * 1e9,
        "rows": sum(ledger.rows for ledger in ledgers),
        "lost": sum(sum(ledger.gaps.values()) for ledger in ledgers),
        "unaccounted": sum(ledger.span - ledger.rows - sum(ledger.gaps.values()) for ledger in ledgers),
    }


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"the recorder was not ready or did not finish within {_TIMEOUT_S:.0f} s")
        time.sleep(0.002)


# --- the report

HEAD = ["640 KiB frames", "recorded MiB/s", "plain write MiB/s", "ratio", "lost", "unaccounted"]


def rows(writes: RecordingWrites) -> list[list[str]]:
    """Rows of the table."""
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


NOTE = (
    "Recording: a camera in another process publishes a tenth faster than the plain write; the time ends "
    "when the last segment is sealed and when the plain file is synced; the plain write is the mean of one "
    "before and one after."
)
