"""How far a pipeline is, read from its root: also while it runs, also from elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _native
from ..errors import LockHeld
from . import layout, marker
from .commit import Commit, last_commit
from .engine import STAGES
from .layout import Layout


@dataclass(slots=True)
class StageStatus:
    """A stage's last commit, and its totals."""

    stage: str
    batch: int = -1
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    at_ns: int | None = None
    totals: dict[str, Any] = field(default_factory=dict)

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "rows": self.rows,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "at_ns": None if self.at_ns is None else str(self.at_ns),
            "totals": self.totals,
        }


@dataclass(slots=True)
class Status:
    """A pipeline, as its root tells."""

    root: Path
    pipeline_id: str
    versions: dict[str, int]
    stages: dict[str, StageStatus]
    last_frames: dict[int, int]
    """Stream → when its latest frame was received. One that stays behind the others has gone quiet."""
    pending: dict[str, int]
    """Alignment → frames that are kept until they are decided."""
    is_running: bool

    def to_json(self) -> dict[str, Any]:
        """The status as JSON values, as `tensorpool pipeline status --json` prints them."""
        return {
            "root": str(self.root),
            "id": self.pipeline_id,
            "versions": self.versions,
            "is_running": self.is_running,
            "stages": {name: one.to_json() for name, one in self.stages.items()},
            "last_frames_ns": {str(stream): str(at) for stream, at in self.last_frames.items()},
            "pending": self.pending,
        }


def status(root: str | os.PathLike[str]) -> Status:
    """Raises PipelineError where there is no pipeline."""
    place = Path(root)
    found = marker.read(place)
    where = Layout(place)
    commits = {stage: last_commit(where, stage) for stage in STAGES}
    silver, align = commits[layout.SILVER], commits["align"]
    return Status(
        place,
        found.pipeline_id,
        found.versions,
        {stage: _stage(stage, commit) for stage, commit in commits.items()},
        {} if silver is None else {int(s): at for s, at in silver.state.get("last", {}).items()},
        {} if align is None else {n: one["pending"] for n, one in align.state.get("alignments", {}).items()},
        _is_held(where.lock),
    )


def _stage(stage: str, commit: Commit | None) -> StageStatus:
    if commit is None:
        return StageStatus(stage)
    return StageStatus(
        stage, commit.batch, commit.rows, commit.bytes, commit.seconds, commit.at_ns, commit.totals
    )


def _is_held(lock: Path) -> bool:
    if not lock.exists():
        return False
    try:
        _native.FileLock(lock, f"process {os.getpid()} (status)").release()
    except (LockHeld, OSError):
        return True
    return False
