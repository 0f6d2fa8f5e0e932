"""Cost of reading and replaying recordings, compared with plain code and by number of segments."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .processes import ChildProcess, MeasurementFailed
from .recording_work import MEASUREMENTS, SIZE_BYTES, RecordingPlan
from .recording_write import on_disk
from .targets import Target

SEGMENTS, QUICK_SEGMENTS = (10, 1_000, 10_000), (10, 100)
MAX_GROWTH = 2.0
"""Allowed factor of the time with a thousand times as many segments: the manifest is longer."""
_TIMEOUT_S = 120.0
HEAD = ["recordings", "measured", "compared with", "", "ratio"]
Rows = list[list[str]]


@dataclass(slots=True)
class RecordingReads:
    """All runs, by measurement."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def median(self, what: str, key: str) -> float | None:
        """Median of a value over the runs."""
        known = [run[key] for run in self.runs.get(what, ()) if run.get(key) is not None]
        return statistics.median(known) if known else None

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for runs in self.runs.values() for run in runs), default=None)

    def first_ms(self) -> dict[int, float]:
        """Milliseconds to the first frame, by number of segments."""
        by_count: dict[int, list[float]] = {}
        for run in self.runs.get("growth", ()):
            for count, ms in run["first_frame_ms"].items():
                by_count.setdefault(int(count), []).append(ms)
        return {count: statistics.median(times) for count, times in sorted(by_count.items())}

    def _growth(self) -> float | None:
        times = list(self.first_ms().values())
        return times[-1] / times[0] if len(times) > 1 else None

    def targets(self) -> list[Target]:
        """Bounds on reading, replay and growth."""
        p99_us = self.median("spacing", "spacing_p99_us")
        return [
            Target(
                "reading back, 640 KiB", "a plain mapped read", 0.9, False, self.median("read", "read_ratio")
            ),
            Target(
                "replay at full speed, 640 KiB", "a producer's rate", 0.7, False,
                self.median("replay", "replay_ratio"),
            ),
            Target(
                "replay spacing at 1x, p99", "1 ms", 1.0, True, None if p99_us is None else p99_us / 1e3
            ),
            Target("first frame, 10 → 10,000 segments", "10 segments", MAX_GROWTH, True, self._growth()),
        ]  # fmt: skip

    def rows(self) -> Rows:
        """Rows of the table."""
        return list(self._rows())

    def _rows(self) -> Iterator[list[str]]:
        gib = SIZE_BYTES / (1 << 30)
        for what, ours, theirs, label, against, ratio in (
            ("read", "read_hz", "mapped_hz", "reading back, 640 KiB", "plain mapped read", "read_ratio"),
            ("replay", "replay_hz", "offer_hz", "replay at full speed", "offers of as many", "replay_ratio"),
            ("replay", "replay_hz", "offer_same_hz", "", "offers of the same frame", None),
            (
                "read",
                "memory_read_hz",
                "memory_mapped_hz",
                "reading back, shared memory",
                "plain mapped read",
                "memory_read_ratio",
            ),
            (
                "replay",
                "memory_replay_hz",
                "memory_offer_hz",
                "replay, shared memory",
                "offers of as many",
                "memory_replay_ratio",
            ),
        ):
            rate, other = self.median(what, ours), self.median(what, theirs)
            if rate is None or other is None:
                continue
            factor = self.median(what, ratio) if ratio else rate / other
            yield [
                label, f"{rate:,.0f} /s, {rate * gib:.1f} GiB/s", against,
                f"{other:,.0f} /s, {other * gib:.1f} GiB/s", f"{factor:.2f}",
            ]  # fmt: skip
        p50, p99 = (self.median("spacing", f"spacing_{name}_us") for name in ("p50", "p99"))
        if p50 is not None and p99 is not None:
            yield ["replay at 1x, 1 kHz", f"p50 {p50:.0f} µs, p99 {p99:.0f} µs", "recorded spacing", "", ""]
        times = self.first_ms()
        for count, ms in times.items():
            first = next(iter(times.values()))
            yield [f"first frame of {count:,} segments", f"{ms:.2f} ms", "", "", f"{ms / first:.2f}"]

    def to_json(self) -> list[dict[str, Any]]:
        """All runs as JSON."""
        return [{"what": what, "runs": runs} for what, runs in self.runs.items()]


def measure(settings: Settings) -> RecordingReads:
    """Runs all measurements."""
    reads = RecordingReads()
    deadline = time.monotonic() + settings.patience_s
    for what in MEASUREMENTS:
        # Growth and spacing vary little between runs.
        for number in range(settings.runs if what in ("read", "replay") else min(2, settings.runs)):
            show_progress(f"run {number + 1}: recordings, {what}")
            try:
                run = measure_undisturbed(partial(_run, what, settings.is_quick), deadline)
            except MeasurementFailed as error:
                reads.failures.append(f"recordings, {what}: {error}")
            else:
                reads.runs.setdefault(what, []).append(run)
    show_progress("")
    return reads


def _run(what: str, is_quick: bool, directory: str) -> Run:
    with on_disk() as disk:
        plan = RecordingPlan(
            directory,
            str(disk),
            frames=24 if is_quick else 800,
            rounds=2 if is_quick else 7,
            spaced_s=0.2 if is_quick else 3.0,
            segments=QUICK_SEGMENTS if is_quick else SEGMENTS,
        )
        child = ChildProcess("benchmarks.recording_work", what, plan.to_json(), state=directory)
        try:
            return child.result(_TIMEOUT_S)
        finally:
            child.end()


def note() -> str:
    """How the figures were measured."""
    return (
        "Recordings: files on a disk that are in the page cache, so that the disk is not measured, and "
        "files in shared memory, whose pages are mapped one by one. Reading copies every payload of 800 "
        "frames out of new mappings and unmaps them. A replay at full speed goes through a ring of 8 slots "
        "without a consumer, and so do the offers: of 800 different frames in memory, and of one frame in "
        "the cache. Spacing is between publish timestamps. The time to the first frame includes opening the "
        "recording."
    )
