"""What recordings cost to read and to play: against the plain way to do the same, and as they grow."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .dataplane import Run, Settings, progress, undisturbed
from .history_work import SIZE_BYTES, WHAT, Plan
from .pair import Child, MeasurementFailed
from .recording_write import on_disk
from .targets import Target

SEGMENTS, QUICK_SEGMENTS = (10, 1_000, 10_000), (10, 100)
FLAT = 2.0
"""A thousand times as many segments may cost so many times as much: the manifest is longer."""
_WITHIN_S = 120.0
HEAD = ["recordings", "measured", "compared with", "", "ratio"]
Rows = list[list[str]]


@dataclass(slots=True)
class History:
    """All runs, by what was measured."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def median(self, what: str, key: str) -> float | None:
        known = [run[key] for run in self.runs.get(what, ()) if run.get(key) is not None]
        return statistics.median(known) if known else None

    def others(self) -> float | None:
        return max((run["others_cores"] for runs in self.runs.values() for run in runs), default=None)

    def first_ms(self) -> dict[int, float]:
        """Time to the first frame by the number of segments."""
        found: dict[int, list[float]] = {}
        for run in self.runs.get("growth", ()):
            for count, ms in run["first_frame_ms"].items():
                found.setdefault(int(count), []).append(ms)
        return {count: statistics.median(times) for count, times in sorted(found.items())}

    def _growth(self) -> float | None:
        times = list(self.first_ms().values())
        return times[-1] / times[0] if len(times) > 1 else None

    def targets(self) -> list[Target]:
        p99_us = self.median("spacing", "spacing_p99_us")
        return [
            Target(
                "reading back, 640 KiB", "a plain mapped read", 0.9, False, self.median("read", "read_ratio")
            ),
            Target(
                "replay at full speed, 640 KiB", "a producer's own rate", 0.7, False,
                self.median("replay", "replay_ratio"),
            ),
            Target(
                "replay spacing at 1x, p99", "1 ms", 1.0, True, None if p99_us is None else p99_us / 1e3
            ),
            Target("first frame, 10 → 10,000 segments", "10 segments", FLAT, True, self._growth()),
        ]  # fmt: skip

    def rows(self) -> Rows:
        return list(self._rows())

    def _rows(self) -> Iterator[list[str]]:
        gib = SIZE_BYTES / (1 << 30)
        for what, ours, theirs, words, against, ratio in (
            ("read", "read_hz", "mapped_hz", "reading back, 640 KiB", "plain mapped read", "read_ratio"),
            ("replay", "replay_hz", "offer_hz", "replay at full speed", "offers of as many", "replay_ratio"),
            ("replay", "replay_hz", "offer_same_hz", "", "offers of one again and again", None),
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
            found = self.median(what, ratio) if ratio else rate / other
            yield [
                words, f"{rate:,.0f} /s, {rate * gib:.1f} GiB/s", against,
                f"{other:,.0f} /s, {other * gib:.1f} GiB/s", f"{found:.2f}",
            ]  # fmt: skip
        p50, p99 = (self.median("spacing", f"spacing_{name}_us") for name in ("p50", "p99"))
        if p50 is not None and p99 is not None:
            yield ["replay at 1x, 1 kHz", f"p50 {p50:.0f} µs, p99 {p99:.0f} µs", "recorded spacing", "", ""]
        times = self.first_ms()
        for count, ms in times.items():
            least = next(iter(times.values()))
            yield [f"first frame of {count:,} segments", f"{ms:.2f} ms", "", "", f"{ms / least:.2f}"]

    def to_json(self) -> list[dict[str, Any]]:
        return [{"what": what, "runs": runs} for what, runs in self.runs.items()]


def measure(settings: Settings) -> History:
    found = History()
    deadline = time.monotonic() + settings.patience_s
    for what in WHAT:
        # Growth and spacing are no matter of a few percent.
        for number in range(settings.runs if what in ("read", "replay") else min(2, settings.runs)):
            progress(f"run {number + 1}: recordings, {what}")
            try:
                run = undisturbed(partial(_run, what, settings.is_quick), deadline)
            except MeasurementFailed as error:
                found.failures.append(f"recordings, {what}: {error}")
            else:
                found.runs.setdefault(what, []).append(run)
    progress("")
    return found


def _run(what: str, is_quick: bool, directory: str) -> Run:
    with on_disk() as disk:
        plan = Plan(
            directory,
            str(disk),
            frames=24 if is_quick else 800,
            rounds=2 if is_quick else 7,
            spaced_s=0.2 if is_quick else 3.0,
            segments=QUICK_SEGMENTS if is_quick else SEGMENTS,
        )
        child = Child("benchmarks.history_work", what, plan.to_json(), state=directory)
        try:
            return child.result(_WITHIN_S)
        finally:
            child.end()


def words() -> str:
    return (
        "Recordings: on the disk and in the page cache, so that no disk is measured, and once more in shared "
        "memory, whose pages are mapped one by one. Reading copies every payload of 800 frames out of fresh "
        "mappings, and unmaps them. A replay at full speed goes through a ring of 8 slots to nobody, as "
        "do the offers: of 800 different frames out of memory, and of one in the cache. Spacing is that "
        "of the times of publication. The time to the first frame includes opening."
    )
