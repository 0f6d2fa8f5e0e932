"""The recording as Spark sees it: counted and checked by a streaming query, and taken to tables by a
pipeline."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cast import DemoFailed

_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Queried:
    frames: int
    equal: int
    tables: dict[str, Any]
    """What the pipeline's gold table counts: `frames`, `drops` by reason, `rejected`; rows of `silver`."""

    def __str__(self) -> str:
        return f"a streaming query of Spark: {self.frames:,} frames, {self.equal:,} checksums equal"

    def tables_words(self) -> str:
        drops = ", ".join(f"{reason} {count:,}" for reason, count in sorted(self.tables["drops"].items()))
        missing = f"missing: {drops or 'none'}; as in the ledger"
        return f"a pipeline to gold tables and a report page: {self.tables['frames']:,} frames, {missing}"

    def faults(self, rows: int, gaps: Mapping[str, int]) -> list[str]:
        if self.frames != rows:
            return [f"Spark counts {self.frames} frames of {rows} that were recorded"]
        if self.equal != rows:
            return [f"Spark finds {rows - self.equal} frames with another checksum than was recorded"]
        found = self.tables
        if (found["frames"], found["silver"], found["rejected"]) != (rows, rows, 0):
            return [f"the gold table has {found['frames']} frames and {found['rejected']} rejects, of {rows}"]
        missing = {reason: count for reason, count in gaps.items() if count}
        if found["drops"] != missing:
            return [f"the gold table counts drops {found['drops']}, and the ledger {missing}"]
        page = found["report"]
        if (page["frames"], page["drops"]) != (rows, missing):
            return [f"the report has {page['frames']} frames and drops {page['drops']}, of {rows}, {missing}"]
        return [f"the report: {fault}" for fault in page["faults"]]

    def as_json(self) -> dict[str, Any]:
        return {"frames": self.frames, "equal": self.equal, "tables": self.tables}


def missing() -> str | None:
    """What Spark lacks here."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'aeron-tensorpool[spark]'"
    if shutil.which("java") is None:
        return "Java (17 or newer) is not installed"
    return None


def query(root: Path, environment: Mapping[str, str], page: Path) -> Queried:
    done = subprocess.run(
        [sys.executable, "-m", "tensorpool.demo.query", str(root), str(page)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        # A Ctrl-C is the director's to handle.
        start_new_session=True,
    )
    if done.returncode != 0:
        raise DemoFailed(f"the Spark query failed:\n{done.stderr[-2000:]}")
    return Queried(**json.loads(done.stdout.splitlines()[-1]))
