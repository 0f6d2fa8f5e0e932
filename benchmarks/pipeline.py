"""A pipeline's ingest into bronze beside Spark's own: Parquet files → Parquet files, the same rows.

Each run has a Spark of its own, in a child process: all sides are measured in it, in turn.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from . import spark_child
from .dataplane import Run, Settings
from .targets import Target

_FRAMES, _QUICK_FRAMES = 3_200, 64

HEAD = ["ingest into bronze", "s", "MB/s", "Parquet → Parquet s", "ratio"]


@dataclass(slots=True)
class PipelineRuns:
    """Every run: seconds by what was done."""

    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def ratio(self, key: str) -> float | None:
        found = [run["parquet_s"] / run[key] for run in self.runs]
        return statistics.median(found) if found else None

    def median(self, key: str) -> float:
        return float(statistics.median(run[key] for run in self.runs))

    def others(self) -> float | None:
        return max((run["others_cores"] for run in self.runs), default=None)

    def targets(self) -> list[Target]:
        against = "Spark: Parquet → Parquet"
        return [
            Target("pipeline: ingest, inline", against, 1.0, False, self.ratio("inline_s")),
            Target("pipeline: ingest, by reference", against, 3.0, False, self.ratio("reference_s")),
        ]

    def rows(self) -> list[list[str]]:
        if not self.runs:
            return []
        size = self.runs[0]["bytes"] / 1e6
        return [
            [
                name, f"{self.median(key):.2f}", f"{size / self.median(key):,.0f}",
                f"{self.median('parquet_s'):.2f}", f"{self.ratio(key):.2f}",
            ]
            for name, key in (("payloads inline", "inline_s"), ("by reference", "reference_s"))
        ]  # fmt: skip


def words(found: PipelineRuns) -> str:
    size = f"{found.runs[0]['bytes'] / (1 << 30):.2f} GiB" if found.runs else "no run"
    return (
        f"Pipeline: {size} in frames of 640 KiB of two streams on tmpfs, local[2], warm, from the start of a "
        "streaming query to its end; the shortest of some rounds. Ours are in the table by stream and day, "
        "committed; Spark's own are plain files."
    )


def measure(settings: Settings) -> PipelineRuns:
    runs, failures = spark_child.measure(
        settings,
        "benchmarks.pipeline_process",
        "a pipeline's ingest, and Spark's own",
        frames=_QUICK_FRAMES if settings.is_quick else _FRAMES,
    )
    return PipelineRuns(runs, failures)
