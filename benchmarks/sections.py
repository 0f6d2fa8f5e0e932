"""The sections beyond the data plane, by the names that `--only` takes."""

from __future__ import annotations

from collections.abc import Callable

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


def _driver_growth(settings: Settings) -> Part:
    found = driver_growth.measure(settings)
    return Part(
        "driver_growth",
        driver_report.growth_json(found),
        [Figures("Driver with many streams", driver_report.GROWTH_HEAD, driver_report.growth_rows(found))],
        found.targets(),
        [driver_report.growth_words()],
        found.failures,
        found.others(),
    )


def _driver_restart(settings: Settings) -> Part:
    found = driver_restart.measure(settings)
    return Part(
        "driver_restart",
        driver_report.restart_json(found),
        [Figures("Driver restart", driver_report.RESTART_HEAD, driver_report.restart_rows(found))],
        [],
        [driver_report.restart_words(found)],
        found.failures,
        found.others(),
    )


def _wishes(key: str, settings: Settings, *, own: bool) -> Part:
    found = wishes.measure(settings, own=own, quiet=not own)
    return Part(
        key,
        found.as_json()[key],
        [
            Figures("Streams of consumers' own", wishes.OWN_HEAD, found.own_rows()),
            Figures("Progress off", wishes.PROGRESS_HEAD, found.progress_rows()),
        ],
        [target for target in found.targets() if target.ratio is not None],
        found.words(),
        found.failures,
        found.others(),
    )


def _own_streams(settings: Settings) -> Part:
    return _wishes("own_streams", settings, own=True)


def _progress(settings: Settings) -> Part:
    return _wishes("progress_off", settings, own=False)


def _recording(settings: Settings) -> Part:
    found = recording_write.measure(settings)
    return Part(
        "recording",
        found.runs,
        [Figures("Recording", recording_write.HEAD, recording_write.rows(found))],
        found.targets(),
        [recording_write.WORDS],
        found.failures,
        found.others(),
    )


def _recordings(settings: Settings) -> Part:
    found = history.measure(settings)
    return Part(
        "recordings",
        found.to_json(),
        [Figures("Recordings", history.HEAD, found.rows())],
        found.targets(),
        [history.words()],
        found.failures,
        found.others(),
    )


def _discovery(settings: Settings) -> Part:
    found = discovery.measure(settings)
    return Part(
        "discovery",
        found.as_json(),
        [Figures("Registry", discovery.HEAD, found.rows())],
        found.targets(),
        found.words(),
        found.failures,
        found.others(),
    )


def _spark(settings: Settings) -> Part:
    found = spark.measure(settings)
    return Part(
        "spark",
        found.runs,
        [
            Figures("Spark", spark.HEAD, spark.rows(found)),
            Figures("Planning a micro-batch", spark.PLANNING_HEAD, spark.planning_rows(found)),
        ],
        found.targets(),
        [spark.words(found)],
        found.failures,
        found.others(),
    )


def _pipeline(settings: Settings) -> Part:
    found = pipeline.measure(settings)
    return Part(
        "pipeline",
        found.runs,
        [Figures("Pipeline", pipeline.HEAD, found.rows())],
        found.targets(),
        [pipeline.words(found)],
        found.failures,
        found.others(),
    )


def _bridge(settings: Settings) -> Part:
    found = bridge.measure(settings)
    return Part(
        "bridge",
        found.runs,
        [Figures("Bridge", bridge.HEAD, found.rows())],
        found.targets(),
        [found.words()],
        found.failures,
        found.others(),
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
