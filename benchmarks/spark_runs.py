"""Runs of measurements with Spark, each in a child process that prints a line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .processes import MeasurementFailed

_TIMEOUT_S = 600.0
_MAX_RUNS = 3


def measure(settings: Settings, module: str, what: str, **plan: Any) -> tuple[list[Run], list[str]]:
    """All runs, and the errors of the runs that failed."""
    runs: list[Run] = []
    failures: list[str] = []
    deadline = time.monotonic() + settings.patience_s
    plan["rounds"] = 1 if settings.is_quick else 3
    for number in range(min(settings.runs, _MAX_RUNS)):
        show_progress(f"run {number + 1}: {what}")
        try:
            runs.append(measure_undisturbed(partial(_run_child, module, plan), deadline))
        except MeasurementFailed as error:
            failures.append(f"{what}: {error}")
    show_progress("")
    return runs, failures


def _run_child(module: str, plan: dict[str, Any], directory: str) -> Run:
    Path(directory).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, json.dumps({"directory": directory, **plan})]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if result.returncode:
        raise MeasurementFailed((result.stderr.strip().splitlines() or ["no error text"])[-1])
    run: Run = json.loads(result.stdout.strip().splitlines()[-1])
    return run
