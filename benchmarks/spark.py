"""Spark over a recording compared with Spark over Parquet of the same bytes; planning by number of segments.

Each run has a new Spark session in a child process, which measures both variants in turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import spark_runs
from .dataplane import Run, Settings
from .targets import Target

FRAME_BYTES = 640 << 10
SMALL_BYTES = 64 << 10
SEGMENTS, QUICK_SEGMENTS = (10, 1_000, 10_000), (10, 100)
MAX_GROWTH = 3.0
"""Allowed factor of the planning time with a thousand times as many segments: planning reads a manifest of a
thousand times the size from memory."""
_FRAMES, _QUICK_FRAMES = 3_200, 64


@dataclass(slots=True)
class SparkRuns:
    """All runs: seconds by query, and planning by number of segments."""

    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def ratio(self, above: str, below: str) -> float | None:
        """Median of the ratio of two values."""
        return _median(run[above] / run[below] for run in self.runs)

    def median(self, key: str) -> float | None:
        """Median of a value."""
        return _median(run[key] for run in self.runs)

    @property
    def segments(self) -> list[int]:
        """Measured numbers of segments."""
        return sorted(map(int, self.runs[0]["planning_ms"])) if self.runs else []

    def planning(self, segments: int, key: str = "planning_ms") -> float | None:
        """Median of a planning value with so many segments."""
        return _median(run[key][str(segments)] for run in self.runs)

    def growth(self, key: str) -> float | None:
        """Median of the ratio of the largest recording to the smallest."""
        if len(self.segments) < 2:
            return None
        low, high = str(self.segments[0]), str(self.segments[-1])
        return _median(run[key][high] / run[key][low] for run in self.runs if run[key][low] > 0)

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for run in self.runs), default=None)

    def targets(self) -> list[Target]:
        """Bounds on queries and planning."""
        if not self.runs:
            return []
        many = f"{self.segments[0]:,} → {self.segments[-1]:,} segments"
        return [
            Target("Spark: scan, inline", "Parquet", 1.0, False, self.ratio("parquet_scan_s", "scan_s")),
            Target(
                "Spark: scan of 64 KiB, inline", "Parquet", 1.0, False,
                self.ratio("small_parquet_scan_s", "small_scan_s"),
            ),
            Target(
                "Spark: numpy sum", "Parquet + mapInArrow", 8.0, False, self.ratio("parquet_map_s", "map_s")
            ),
            Target(
                "Spark: numpy max", "Parquet + mapInArrow", 8.0, False, self.ratio("parquet_max_s", "max_s")
            ),
            Target(f"Spark: planning, {many}", "the fewest", MAX_GROWTH, True, self.growth("planning_ms")),
            Target(f"Spark: memory, {many}", "the fewest", MAX_GROWTH, True, self.growth("resident_mib")),
        ]  # fmt: skip


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def measure(settings: Settings) -> SparkRuns:
    """Runs the measurement in child processes."""
    runs, failures = spark_runs.measure(
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


def rows(measured: SparkRuns) -> list[list[str]]:
    """Rows of the table of queries."""
    if not measured.runs:
        return []
    rows = []
    for name, ours, theirs in (
        ("scan of inline payloads", "scan_s", "parquet_scan_s"),
        ("the same, a quarter of the bytes in frames of 64 KiB", "small_scan_s", "small_parquet_scan_s"),
        ("numpy over every tensor: sum", "map_s", "parquet_map_s"),
        ("the same, checksums not checked", "map_unverified_s", "parquet_map_s"),
        ("the same, segments not mapped yet", "map_fresh_s", "parquet_map_s"),
        ("numpy over every tensor: max", "max_s", "parquet_max_s"),
        ("the same, segments not mapped yet", "max_fresh_s", "parquet_max_s"),
    ):
        ratio = measured.ratio(theirs, ours)
        rows.append([name, f"{measured.median(ours):.2f}", f"{measured.median(theirs):.2f}", f"{ratio:.2f}"])
    return rows


def planning_rows(measured: SparkRuns) -> list[list[str]]:
    """Rows of the table of planning."""
    rows = []
    for segments in measured.segments:
        time_ms, memory = measured.planning(segments), measured.planning(segments, "resident_mib")
        rows.append([f"{segments:,}", f"{time_ms:.2f}", f"{memory:.1f}"])
    return rows


def note(measured: SparkRuns) -> str:
    """How the figures were measured."""
    size = measured.runs[0]["bytes"] / (1 << 30)
    return (
        f"Spark: {size:.2f} GiB in frames of 640 KiB on tmpfs, local[2], warm: compiled, read, and "
        "mapped by earlier queries, unless the row says otherwise; the shortest of some rounds. "
        "The scan sums the lengths of payloads; sum and max are numpy's, over every byte. Planning is one "
        "micro-batch of five rows in the middle of a recording, from the refresh to the tasks."
    )
