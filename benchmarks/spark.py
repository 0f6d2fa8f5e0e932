"""Spark over a recording beside Spark over Parquet with the same bytes, and planning as segments grow.

Each run has a Spark of its own, in a child process: both sides of a ratio are measured in it, in turn.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from . import spark_child
from .dataplane import Run, Settings
from .targets import Target

FRAME_BYTES = 640 << 10
SEGMENTS, QUICK_SEGMENTS = (10, 1_000, 10_000), (10, 100)
FLAT = 3.0
"""Planning over a thousand times the segments may take so much longer and still count as flat: it reads a
manifest of a thousand times the size, at the speed of memory."""
_FRAMES, _QUICK_FRAMES = 3_200, 64


@dataclass(slots=True)
class SparkRuns:
    """Every run: seconds by what was done, and planning by number of segments."""

    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def ratio(self, above: str, below: str) -> float | None:
        found = [run[above] / run[below] for run in self.runs]
        return statistics.median(found) if found else None

    def median(self, key: str) -> float | None:
        found = [run[key] for run in self.runs]
        return statistics.median(found) if found else None

    @property
    def segments(self) -> list[int]:
        return sorted(map(int, self.runs[0]["planning_ms"])) if self.runs else []

    def planning(self, segments: int, key: str = "planning_ms") -> float | None:
        found = [run[key][str(segments)] for run in self.runs]
        return statistics.median(found) if found else None

    def growth(self, key: str) -> float | None:
        """The largest recording by the smallest one."""
        if len(self.segments) < 2:
            return None
        low, high = str(self.segments[0]), str(self.segments[-1])
        found = [run[key][high] / run[key][low] for run in self.runs if run[key][low] > 0]
        return statistics.median(found) if found else None

    def others(self) -> float | None:
        return max((run["others_cores"] for run in self.runs), default=None)

    def targets(self) -> list[Target]:
        if not self.runs:
            return []
        many = f"{self.segments[0]:,} → {self.segments[-1]:,} segments"
        return [
            Target("Spark: scan, inline", "Parquet", 1.0, False, self.ratio("parquet_scan_s", "scan_s")),
            Target(
                "Spark: numpy sum", "Parquet + mapInArrow", 8.0, False, self.ratio("parquet_map_s", "map_s")
            ),
            Target(
                "Spark: numpy max", "Parquet + mapInArrow", 8.0, False, self.ratio("parquet_max_s", "max_s")
            ),
            Target(f"Spark: planning, {many}", "the fewest", FLAT, True, self.growth("planning_ms")),
            Target(f"Spark: memory, {many}", "the fewest", FLAT, True, self.growth("resident_mib")),
        ]


def measure(settings: Settings) -> SparkRuns:
    runs, failures = spark_child.measure(
        settings,
        "benchmarks.spark_process",
        "Spark over a recording and over Parquet",
        frames=_QUICK_FRAMES if settings.is_quick else _FRAMES,
        segments=QUICK_SEGMENTS if settings.is_quick else SEGMENTS,
    )
    return SparkRuns(runs, failures)


# --- the report


HEAD = ["Spark", "recording s", "Parquet s", "ratio"]
PLANNING_HEAD = ["segments", "planning ms", "memory MiB"]


def rows(found: SparkRuns) -> list[list[str]]:
    if not found.runs:
        return []
    made = []
    for name, ours, theirs in (
        ("scan of inline payloads", "scan_s", "parquet_scan_s"),
        ("numpy over every tensor: sum", "map_s", "parquet_map_s"),
        ("the same, checksums not checked", "map_unverified_s", "parquet_map_s"),
        ("the same, segments not mapped yet", "map_fresh_s", "parquet_map_s"),
        ("numpy over every tensor: max", "max_s", "parquet_max_s"),
        ("the same, segments not mapped yet", "max_fresh_s", "parquet_max_s"),
    ):
        ratio = found.ratio(theirs, ours)
        made.append([name, f"{found.median(ours):.2f}", f"{found.median(theirs):.2f}", f"{ratio:.2f}"])
    return made


def planning_rows(found: SparkRuns) -> list[list[str]]:
    made = []
    for segments in found.segments:
        time_ms, memory = found.planning(segments), found.planning(segments, "resident_mib")
        made.append([f"{segments:,}", f"{time_ms:.2f}", f"{memory:.1f}"])
    return made


def words(found: SparkRuns) -> str:
    size = found.runs[0]["bytes"] / (1 << 30)
    return (
        f"Spark: {size:.2f} GiB in frames of 640 KiB on tmpfs, local[2], warm: compiled, read, and "
        "mapped by the queries before, unless it says otherwise; the shortest of some rounds. "
        "The scan sums the lengths of payloads; sum and max are numpy's, over every byte. Planning is one "
        "micro-batch of five rows in the middle of a recording, from a fresh look at it to its tasks."
    )
