"""The recording as Spark sees it: counted and checked by a streaming query in a process of its own."""

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

    def __str__(self) -> str:
        return f"a streaming query of Spark: {self.frames:,} frames, {self.equal:,} checksums equal"

    def faults(self, rows: int) -> list[str]:
        if self.frames != rows:
            return [f"Spark counts {self.frames} frames of {rows} that were recorded"]
        if self.equal != rows:
            return [f"Spark finds {rows - self.equal} frames with another checksum than was recorded"]
        return []

    def as_json(self) -> dict[str, Any]:
        return {"frames": self.frames, "equal": self.equal}


def missing() -> str | None:
    """What Spark lacks here."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'aeron-tensorpool[spark]'"
    if shutil.which("java") is None:
        return "Java (17 or newer) is not installed"
    return None


def query(root: Path, environment: Mapping[str, str]) -> Queried:
    done = subprocess.run(
        [sys.executable, "-m", "tensorpool.demo.query", str(root)],
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
