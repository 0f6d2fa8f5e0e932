"""A measurement that has a Spark of its own, in a child process which ends with a line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from .dataplane import Run
from .pair import MeasurementFailed

_WITHIN_S = 600.0


def ask(module: str, directory: str, **plan: Any) -> Run:
    Path(directory).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, json.dumps({"directory": directory, **plan})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    if done.returncode:
        raise MeasurementFailed((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    run: Run = json.loads(done.stdout.strip().splitlines()[-1])
    return run
