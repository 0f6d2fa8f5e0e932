"""Sections of the report other than the data plane, by their `--only` names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from . import (
    as_written,
    batches,
    bridge,
    console,
    discovery,
    driver_growth,
    driver_report,
    driver_restart,
    fan_out,
    joins,
    large_frames,
    per_consumer,
    pipeline,
    recording_read,
    recording_write,
    spark,
    tables,
)
from .dataplane import Settings
from .section import Section, Table
from .targets import Target


class _Measurement(Protocol):
    """Common interface of all measurements."""

    failures: list[str]

    def targets(self) -> list[Target]: ...
    def others(self) -> float | None: ...


def _section(
    key: str,
    runs: _Measurement,
    data: Any,
    *tables: Table,
    notes: list[str],
    targets: list[Target] | None = None,
) -> Section:
    """Builds the section of a measurement; `targets` replaces the measurement's own list."""
    chosen = runs.targets() if targets is None else targets
    return Section(key, data, list(tables), chosen, notes, runs.failures, runs.others())


def _as_written(settings: Settings) -> Section:
    runs = as_written.measure(settings)
    return _section(
        "as_written",
        runs,
        runs.to_json(),
        Table("As a user would write it", as_written.HEAD, runs.rows()),
        notes=[runs.note()],
    )


def _batches(settings: Settings) -> Section:
    runs = batches.measure(settings)
    return _section(
        "batches",
        runs,
        runs.runs,
        Table("Batches of small frames", batches.HEAD, runs.rows()),
        notes=[runs.note()],
    )


def _fan_out(settings: Settings) -> Section:
    runs = fan_out.measure(settings)
    return _section(
        "fan_out", runs, runs.runs, Table("Fan-out", fan_out.HEAD, runs.rows()), notes=[runs.note()]
    )


def _large_frames(settings: Settings) -> Section:
    runs = large_frames.measure(settings)
    return _section(
        "large_frames",
        runs,
        runs.to_json(),
        Table("Large frames", large_frames.HEAD, runs.rows()),
        notes=[runs.note()],
    )


def _driver_growth(settings: Settings) -> Section:
    runs = driver_growth.measure(settings)
    return _section(
        "driver_growth",
        runs,
        driver_report.growth_json(runs),
        Table("Driver with many streams", driver_report.GROWTH_HEAD, driver_report.growth_rows(runs)),
        notes=[driver_report.growth_note()],
    )


def _driver_restart(settings: Settings) -> Section:
    runs = driver_restart.measure(settings)
    return _section(
        "driver_restart",
        runs,
        driver_report.restart_json(runs),
        Table("Driver restart", driver_report.RESTART_HEAD, driver_report.restart_rows(runs)),
        notes=[driver_report.restart_note(runs)],
    )


def _per_consumer(key: str, settings: Settings, *, streams: bool) -> Section:
    runs = per_consumer.measure(settings, streams=streams, progress=not streams)
    return _section(
        key,
        runs,
        runs.to_json()[key],
        Table("Per-consumer streams", per_consumer.STREAMS_HEAD, runs.stream_rows()),
        Table("Progress off", per_consumer.PROGRESS_HEAD, runs.progress_rows()),
        notes=runs.notes(),
        targets=[target for target in runs.targets() if target.ratio is not None],
    )


def _per_consumer_streams(settings: Settings) -> Section:
    return _per_consumer("per_consumer_streams", settings, streams=True)


def _progress(settings: Settings) -> Section:
    return _per_consumer("progress_off", settings, streams=False)


def _recording(settings: Settings) -> Section:
    runs = recording_write.measure(settings)
    return _section(
        "recording",
        runs,
        runs.runs,
        Table("Recording", recording_write.HEAD, recording_write.rows(runs)),
        notes=[recording_write.NOTE],
    )


def _recordings(settings: Settings) -> Section:
    runs = recording_read.measure(settings)
    return _section(
        "recordings",
        runs,
        runs.to_json(),
        Table("Recordings", recording_read.HEAD, runs.rows()),
        notes=[recording_read.note()],
    )


def _discovery(settings: Settings) -> Section:
    runs = discovery.measure(settings)
    return _section(
        "discovery",
        runs,
        runs.to_json(),
        Table("Registry", discovery.HEAD, runs.rows()),
        notes=runs.notes(),
    )


def _spark(settings: Settings) -> Section:
    runs = spark.measure(settings)
    return _section(
        "spark",
        runs,
        runs.runs,
        Table("Spark", spark.HEAD, spark.rows(runs)),
        Table("Planning a micro-batch", spark.PLANNING_HEAD, spark.planning_rows(runs)),
        notes=[spark.note(runs)],
    )


def _pipeline(settings: Settings) -> Section:
    runs = pipeline.measure(settings)
    return _section(
        "pipeline",
        runs,
        runs.runs,
        Table("Pipeline", pipeline.HEAD, runs.rows()),
        notes=[pipeline.note(runs)],
    )


def _tables(settings: Settings) -> Section:
    runs = tables.measure(settings)
    return _section(
        "tables", runs, runs.runs, Table("Tables and stores", tables.HEAD, runs.rows()), notes=[tables.NOTE]
    )


def _bridge(settings: Settings) -> Section:
    runs = bridge.measure(settings)
    return _section("bridge", runs, runs.runs, Table("Bridge", bridge.HEAD, runs.rows()), notes=[runs.note()])


def _console(settings: Settings) -> Section:
    runs = console.measure(settings)
    return _section(
        "console", runs, runs.runs, Table("Console", console.HEAD, runs.rows()), notes=[console.NOTE]
    )


def _joins(settings: Settings) -> Section:
    runs = joins.measure(settings)
    return _section("joins", runs, runs.runs, Table("Joins", joins.HEAD, runs.rows()), notes=[joins.NOTE])


SECTIONS: dict[str, Callable[[Settings], Section]] = {
    "as-written": _as_written,
    "batches": _batches,
    "fan-out": _fan_out,
    "large-frames": _large_frames,
    "driver-growth": _driver_growth,
    "driver-restart": _driver_restart,
    "per-consumer-streams": _per_consumer_streams,
    "progress": _progress,
    "recording": _recording,
    "recordings": _recordings,
    "bridge": _bridge,
    "joins": _joins,
    "console": _console,
    "discovery": _discovery,
    "spark": _spark,
    "pipeline": _pipeline,
    "tables": _tables,
}
