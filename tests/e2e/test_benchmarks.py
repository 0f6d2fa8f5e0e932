"""`python -m benchmarks --quick`: shows that it works, not how fast it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.driver_growth import QUICK
from tests.remote import ROOT

PATIENCE_S = 110


def measured(*arguments: str) -> dict[str, Any]:
    """What it tells machines. Nothing of it stays."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", "-", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert not list(Path("/dev/shm").glob(f"*-bench-{process.pid}-*"))
    found: dict[str, Any] = json.loads(out)
    assert found["failures"] == []
    return found


def test_a_driver_with_many_streams() -> None:
    found = measured("--only", "driver-growth")
    rows = found["driver_growth"]
    streams, leases = QUICK
    crowds = [(1, 2), *((crowd.streams, crowd.leases) for crowd in (*streams, *leases))]
    assert [(row["streams"], row["leases"]) for row in rows] == crowds
    for row in rows:
        (run,) = row["runs"]
        assert run["attach_us"] > 0
        assert run["at_once_us"] > 0
        assert 0 < run["busy_cores"] < 8
        assert run["resident_bytes"] > 1 << 20
    few, many = rows[0]["runs"][0], rows[2]["runs"][0]
    # They are the driver's: each stream has its lock, and the watch on its producer's.
    assert many["descriptors"] - few["descriptors"] >= streams.largest.streams - 1
    growth = [target for target in found["targets"] if target["against"] == "linear growth"]
    assert len(growth) == 8
    assert (found["driver_restart"], found["two_processes"], found["codecs"]) == ([], [], None)


def test_a_driver_that_is_restarted() -> None:
    found = measured("--only", "driver-restart")
    assert [row["driver_ends"] for row in found["driver_restart"]] == ["in order", "kill -9"]
    for row in found["driver_restart"]:
        (only,) = row["rounds"]
        assert only["away_ms"] > 0
        assert len(only["without_ms"]) == len(only["gaps_ms"]) == 2
    in_order = found["driver_restart"][0]["rounds"][0]
    # Leases end with the goodbye, so that there is nothing before the driver is back.
    assert min(in_order["without_ms"]) > 0.5 * in_order["away_ms"]
    assert found["driver_growth"] == []
