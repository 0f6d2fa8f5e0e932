"""The sections beyond the data plane, by the names that `--only` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from . import (
    bridge,
    discovery,
    driver_growth,
    driver_report,
    driver_restart,
    history,
    pipeline,
    recording_write,
    spark,
    wishes,
)
from .dataplane import Settings
from .parts import Figures, Part
from .targets import Target


class _Found(Protocol):
    """What every measurement has."""

    failures: list[str]

    def targets(self) -> list[Target]: ...
    def others(self) -> float | None: ...


def _part(
    key: str,
    found: _Found,
    data: Any,
    *tables: Figures,
    words: list[str],
    targets: list[Target] | None = None,
) -> Part:
    reached = found.targets() if targets is None else targets
    return Part(key, data, list(tables), reached, words, found.failures, found.others())


def _driver_growth(settings: Settings) -> Part:
    found = driver_growth.measure(settings)
    return _part(
        "driver_growth",
        found,
        driver_report.growth_json(found),
        Figures("Driver with many streams", driver_report.GROWTH_HEAD, driver_report.growth_rows(found)),
        words=[driver_report.growth_words()],
    )


def _driver_restart(settings: Settings) -> Part:
    found = driver_restart.measure(settings)
    return _part(
        "driver_restart",
        found,
        driver_report.restart_json(found),
        Figures("Driver restart", driver_report.RESTART_HEAD, driver_report.restart_rows(found)),
        words=[driver_report.restart_words(found)],
    )


def _wishes(key: str, settings: Settings, *, own: bool) -> Part:
    found = wishes.measure(settings, own=own, quiet=not own)
    return _part(
        key,
        found,
        found.as_json()[key],
        Figures("Streams of consumers' own", wishes.OWN_HEAD, found.own_rows()),
        Figures("Progress off", wishes.PROGRESS_HEAD, found.progress_rows()),
        words=found.words(),
        targets=[target for target in found.targets() if target.ratio is not None],
    )


def _own_streams(settings: Settings) -> Part:
    return _wishes("own_streams", settings, own=True)


def _progress(settings: Settings) -> Part:
    return _wishes("progress_off", settings, own=False)


def _recording(settings: Settings) -> Part:
    found = recording_write.measure(settings)
    return _part(
        "recording",
        found,
        found.runs,
        Figures("Recording", recording_write.HEAD, recording_write.rows(found)),
        words=[recording_write.WORDS],
    )


def _recordings(settings: Settings) -> Part:
    found = history.measure(settings)
    return _part(
        "recordings",
        found,
        found.to_json(),
        Figures("Recordings", history.HEAD, found.rows()),
        words=[history.words()],
    )


def _discovery(settings: Settings) -> Part:
    found = discovery.measure(settings)
    return _part(
        "discovery",
        found,
        found.as_json(),
        Figures("Registry", discovery.HEAD, found.rows()),
        words=found.words(),
    )


def _spark(settings: Settings) -> Part:
    found = spark.measure(settings)
    return _part(
        "spark",
        found,
        found.runs,
        Figures("Spark", spark.HEAD, spark.rows(found)),
        Figures("Planning a micro-batch", spark.PLANNING_HEAD, spark.planning_rows(found)),
        words=[spark.words(found)],
    )


def _pipeline(settings: Settings) -> Part:
    found = pipeline.measure(settings)
    return _part(
        "pipeline",
        found,
        found.runs,
        Figures("Pipeline", pipeline.HEAD, found.rows()),
        words=[pipeline.words(found)],
    )


def _bridge(settings: Settings) -> Part:
    found = bridge.measure(settings)
    return _part(
        "bridge", found, found.runs, Figures("Bridge", bridge.HEAD, found.rows()), words=[found.words()]
    )


SECTIONS: dict[str, Callable[[Settings], Part]] = {
    "driver-growth": _driver_growth,
    "driver-restart": _driver_restart,
    "own-streams": _own_streams,
    "progress": _progress,
    "recording": _recording,
    "recordings": _recordings,
    "bridge": _bridge,
    "discovery": _discovery,
    "spark": _spark,
    "pipeline": _pipeline,
}
