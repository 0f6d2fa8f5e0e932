"""Measurements that have a Spark of their own each, in a child process which ends with a line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from .dataplane import Run, Settings, progress, undisturbed
from .pair import MeasurementFailed

_WITHIN_S = 600.0
_MOST_RUNS = 3


def measure(settings: Settings, module: str, what: str, **plan: Any) -> tuple[list[Run], list[str]]:
    """All runs, and what went wrong in others."""
    runs: list[Run] = []
    failures: list[str] = []
    deadline = time.monotonic() + settings.patience_s
    plan["rounds"] = 1 if settings.is_quick else 3
    for number in range(min(settings.runs, _MOST_RUNS)):
        progress(f"run {number + 1}: {what}")
        try:
            runs.append(undisturbed(partial(_ask, module, plan), deadline))
        except MeasurementFailed as error:
            failures.append(f"{what}: {error}")
    progress("")
    return runs, failures


def _ask(module: str, plan: dict[str, Any], directory: str) -> Run:
    Path(directory).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, json.dumps({"directory": directory, **plan})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    if done.returncode:
        raise MeasurementFailed((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    run: Run = json.loads(done.stdout.strip().splitlines()[-1])
    return run
