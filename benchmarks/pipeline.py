"""A pipeline's ingest into bronze, compared with Spark's Parquet → Parquet of the same rows.

Each run has a new Spark session in a child process, which measures all variants in turn.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from . import spark_runs
from .dataplane import Run, Settings
from .targets import Target

_FRAMES, _QUICK_FRAMES = 3_200, 64
MAX_BATCH = 3.0
"""Allowed time of a micro-batch that commits to all tables, relative to Spark's copy to one file."""

HEAD = ["ingest into bronze", "s", "MiB/s", "Parquet → Parquet s", "ratio"]


@dataclass(slots=True)
class PipelineRuns:
    """All runs: seconds by variant."""

    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def ratio(self, key: str) -> float | None:
        """Median of the speed relative to Spark's."""
        ratios = [run["parquet_s"] / run[key] for run in self.runs]
        return statistics.median(ratios) if ratios else None

    def batch_ratio(self) -> float | None:
        """Median of the time of a small micro-batch relative to Spark's."""
        ratios = [run["batch_s"] / run["parquet_batch_s"] for run in self.runs]
        return statistics.median(ratios) if ratios else None

    def median(self, key: str) -> float:
        """Median of a value over the runs."""
        return float(statistics.median(run[key] for run in self.runs))

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for run in self.runs), default=None)

    def targets(self) -> list[Target]:
        """Bounds on the ingest."""
        against = "Spark: Parquet → Parquet"
        return [
            Target("pipeline: ingest, inline", against, 1.0, False, self.ratio("inline_s")),
            Target("pipeline: ingest, by reference", against, 3.0, False, self.ratio("reference_s")),
            Target("pipeline: micro-batch of 200 rows", against, MAX_BATCH, True, self.batch_ratio()),
        ]

    def rows(self) -> list[list[str]]:
        """Rows of the table."""
        if not self.runs:
            return []
        size = self.runs[0]["bytes"] / (1 << 20)
        return [
            [
                name, f"{self.median(key):.2f}", f"{size / self.median(key):,.0f}",
                f"{self.median('parquet_s'):.2f}", f"{self.ratio(key):.2f}",
            ]
            for name, key in (("payloads inline", "inline_s"), ("by reference", "reference_s"))
        ] + [
            [
                "micro-batch of 200 rows, to gold", f"{self.median('batch_s'):.2f}", "",
                f"{self.median('parquet_batch_s'):.2f}", f"{self.batch_ratio():.2f}",
            ]
        ]  # fmt: skip


def note(measured: PipelineRuns) -> str:
    """How the figures were measured."""
    size = f"{measured.runs[0]['bytes'] / (1 << 30):.2f} GiB" if measured.runs else "no run"
    return (
        f"Pipeline: {size} in frames of 640 KiB of two streams on tmpfs, local[2], warm, from the start of a "
        "streaming query to its end; the shortest of some rounds. The pipeline partitions its table by "
        "stream and day and commits it; Spark writes plain files. A micro-batch of 200 rows of 4 KiB goes "
        "through all stages, with statistics and quality, and commits to nine tables; Spark's copies the "
        "rows to one file; its ratio is of times, smaller is better."
    )


def measure(settings: Settings) -> PipelineRuns:
    """Runs the measurement in child processes."""
    runs, failures = spark_runs.measure(
        settings,
        "benchmarks.pipeline_process",
        "pipeline ingest and Spark Parquet → Parquet",
        frames=_QUICK_FRAMES if settings.is_quick else _FRAMES,
    )
    return PipelineRuns(runs, failures)
