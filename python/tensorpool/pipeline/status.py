"""The status of a pipeline, read from its root by any process, also while the pipeline runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from ..recording.table_store import open_store
from . import layout, marker
from .decisions import Memory, StageFigures, StageTotals, is_running, last_decision

Counts = Mapping[str, int | Mapping[str, int]]
"""Numbers by name. Some of them are divided by reason, or by function."""


def counts_of(stage: str, totals: StageTotals) -> Counts:
    """The counts of a stage, by the names under which it shows them."""
    if stage == layout.BRONZE:
        return {"frames": totals.frames, "bytes": totals.bytes, "files": totals.files}
    if stage == layout.SILVER:
        return {
            "frames": totals.frames,
            "bytes": totals.bytes,
            "missing": totals.missing,
            "rejects": totals.rejects,
        }
    return totals.alignments if stage == layout.ALIGN else {"functions": totals.functions}


class StageJson(TypedDict):
    """A stage as JSON. `at_ns` is text: many JSON readers would round it."""

    batch: int
    rows: int
    bytes: int
    seconds: float
    at_ns: str | None
    totals: Counts


class StatusJson(TypedDict):
    """A `Status` as JSON."""

    root: str
    id: str
    name: str | None
    versions: dict[str, int]
    is_running: bool
    stages: dict[str, StageJson]
    last_frames_ns: dict[str, str]
    pending: dict[str, int]


def _stage_json(stage: str, figures: StageFigures) -> StageJson:
    return {
        "batch": figures.batch,
        "rows": figures.rows,
        "bytes": figures.bytes,
        "seconds": figures.seconds,
        "at_ns": None if figures.at_ns is None else str(figures.at_ns),
        "totals": counts_of(stage, figures.totals) if figures.batch >= 0 else {},
    }


@dataclass(slots=True)
class Status:
    """The state of a pipeline, read from its root."""

    root: str
    """Where its tables are."""
    pipeline_id: str
    """The id that it got when it was first run."""
    versions: dict[str, int]
    """Version of the tables of each stage, by its name."""
    stages: dict[str, StageFigures]
    """What each stage has done, by name."""
    last_frames: dict[int, int]
    """Stream → receive time of its latest frame. A stream that has stopped stays behind the others."""
    pending: dict[str, int]
    """Alignment → number of its pending frames."""
    is_running: bool
    """Whether a process runs it now."""
    name: str | None = None
    """The name of the pipeline; None if it has none."""

    def to_json(self) -> StatusJson:
        """The status as JSON, as `tensorpool pipeline status --json` prints them."""
        return {
            "root": self.root,
            "id": self.pipeline_id,
            "name": self.name,
            "versions": self.versions,
            "is_running": self.is_running,
            "stages": {name: _stage_json(name, figures) for name, figures in self.stages.items()},
            "last_frames_ns": {str(stream): str(at) for stream, at in self.last_frames.items()},
            "pending": self.pending,
        }


def status(root: str | os.PathLike[str], name: str | None = None) -> Status:
    """The status of a pipeline at `root`, a directory or a URI. `name`: which, if it has several.

    Raises PipelineError if there is none, or if there are several and none is named.
    """
    pipeline_marker = marker.read(root, name)
    store = open_store(root)
    pipeline_store = open_store(layout.pipeline_directory(store.url, pipeline_marker.name))
    last = last_decision(pipeline_store)
    stages = {} if last is None else last.stages
    memory = Memory() if last is None else last.memory
    return Status(
        store.url,
        pipeline_marker.pipeline_id,
        pipeline_marker.versions,
        {stage: stages.get(stage, StageFigures()) for stage in layout.STAGES},
        memory.last_frames,
        {name: state.pending for name, state in memory.alignments.items()},
        is_running(pipeline_store),
        pipeline_marker.name,
    )
