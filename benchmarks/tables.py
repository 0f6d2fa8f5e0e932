"""A pipeline's tables under load and with a long history, and payloads of recordings in an S3 store.

Each run is a child process: readers beside a pipeline that ingests, merges and removes files; the plan of a
query for one stream and one minute over a log of many files; a scan of payloads from an S3 server on
loopback beside plain ranged reads.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from . import spark_runs
from .dataplane import Run, Settings
from .targets import Target

HEAD = ["tables and stores", "measured", "compared with", "ratio"]
_READS, _QUICK_READS = 10_000, 200
_FILES, _QUICK_FILES = 1_000_000, 20_000
_FRAMES, _QUICK_FRAMES = 800, 200
_PLANNING_S = 2.0
_MAX_FILES = 4


@dataclass(slots=True)
class TableRuns:
    """All runs."""

    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def _median(self, key: str, below: str | None = None) -> float | None:
        values = [run[key] / (1 if below is None else run[below]) for run in self.runs if key in run]
        return statistics.median(values) if values else None

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for run in self.runs), default=None)

    def targets(self) -> list[Target]:
        """Bounds on reads beside a pipeline, on planning, and on reads from a store."""
        if not self.runs:
            return []
        files, planning = f"{self.runs[0]['files']:,} files", self._median("planning_s")
        opened, reads = self._median("opened"), f"{self.runs[0]['reads']:,}"
        return [
            Target(
                f"tables: failed reads of {reads}", "all reads", 0.0, True, self._median("failed", "reads")
            ),
            Target(
                f"tables: planning one stream, one minute, {files}", f"{_PLANNING_S:g} s", 1.0, True,
                None if planning is None else planning / _PLANNING_S,
            ),
            Target(
                f"tables: files of one stream, one minute, {files}", f"{_MAX_FILES} files", 1.0, True,
                None if opened is None else opened / _MAX_FILES,
            ),
            Target(
                "recordings: payloads from S3", "plain ranged reads", 0.8, False,
                self._median("plain_s", "scan_s"),
            ),
        ]  # fmt: skip

    def rows(self) -> list[list[str]]:
        """Rows of the table."""
        if not self.runs:
            return []
        run = self.runs[0]
        reads = [int(value) for value in (self._median("failed") or 0, run["reads"], run["versions"])]
        scan, plain = self._median("scan_s"), self._median("plain_s")
        ratio = self._median("plain_s", "scan_s")
        return [
            ["failed reads while a pipeline ingests, merges and vacuums", f"{reads[0]} of {reads[1]:,}",
             f"{reads[2]:,} versions of the table", ""],
            [f"plan of one stream, one minute; {run['files']:,} files, {run['active']:,} after merging",
             f"{self._median('planning_s'):.2f} s, {self._median('opened'):.0f} files", "", ""],
            [f"payloads from S3 on loopback, {run['bytes'] / (1 << 20):,.0f} MiB", f"{scan:.2f} s",
             f"plain ranged reads {plain:.2f} s", f"{ratio:.2f}"],
        ]  # fmt: skip


NOTE = (
    "Tables: a reader opens the table for each read, and checks that every row is there once. The log of "
    "many files is made by hand, one file a micro-batch of ten seconds with all streams, a thousand of them "
    "merged to one; the merged ones are still in the log, as within their retention. Payloads: frames of 640 "
    "KiB, archived on versitygw; both sides read parts of 4 MiB with eight connections of the same client."
)


def measure(settings: Settings) -> TableRuns:
    """Runs the measurement in child processes."""
    runs, failures = spark_runs.measure(
        settings,
        "benchmarks.tables_process",
        "tables under load, and payloads from S3",
        reads=_QUICK_READS if settings.is_quick else _READS,
        files=_QUICK_FILES if settings.is_quick else _FILES,
        frames=_QUICK_FRAMES if settings.is_quick else _FRAMES,
    )
    return TableRuns(runs, failures)
