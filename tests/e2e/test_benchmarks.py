"""`python -m benchmarks --quick`: shows that it works, not how fast it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.driver_growth import QUICK
from benchmarks.wishes import QUICK as OWN_STREAMS
from tests.remote_process import ROOT

PATIENCE_S = 110


def measured(*arguments: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """What it tells machines. Nothing of it stays."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", "-", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=patience_s)
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
    assert (found["two_processes"], found["codecs"]) == ([], None)
    assert "driver_restart" not in found


def test_recordings_that_are_read_and_played() -> None:
    found = measured("--only", "recordings")
    runs = {one["what"]: one["runs"][0] for one in found["recordings"]}
    assert runs["read"]["read_hz"] > 0
    assert runs["read"]["mapped_hz"] > 0
    assert runs["replay"]["replay_ratio"] > 0
    assert runs["spacing"]["spacing_frames"] > 100
    assert [int(count) for count in runs["growth"]["first_frame_ms"]] == [10, 100]
    goals = {target["what"]: target["goal"] for target in found["targets"]}
    assert goals["reading back, 640 KiB"] == "≥ 0.9 x a plain mapped read"
    assert goals["replay at full speed, 640 KiB"] == "≥ 0.7 x a producer's own rate"


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
    assert "driver_growth" not in found


def test_what_consumers_wishes_cost() -> None:
    found = measured("--only", "own-streams", "--only", "progress")
    (own,) = found["own_streams"]
    assert list(own["offer_ns"]) == [str(count) for count in OWN_STREAMS]
    assert all(ns > 0 for ns in own["offer_ns"].values())
    (off,) = found["progress_off"]
    assert {"offer_plain_ns", "offer_asked_ns", "claim_plain_ns", "claim_asked_ns"} <= off.keys()
    assert off["missed"] == 0
    assert "driver_growth" not in found


def test_a_registry_with_many_streams() -> None:
    found = measured("--only", "discovery")
    rows = found["discovery"]
    assert [(row["streams"], row["drivers"]) for row in rows] == [(10, 2), (40, 2)]
    for row in rows:
        (run,) = row["runs"]
        assert run["by_name_p50_us"] > 0
        assert run["all_p50_us"] > 0
        assert 0 < run["busy_cores"] < 8
        # A name, tags and two region URIs of each.
        assert 100 * row["streams"] < run["all_bytes"] < 1000 * row["streams"]
    about = [target["what"] for target in found["targets"] if target["what"].endswith("10 → 40 streams")]
    assert len(about) == 4


@pytest.mark.long
@pytest.mark.timeout(900)
def test_spark_over_a_recording_and_over_parquet() -> None:
    found = measured("--only", "spark", patience_s=800)
    (run,) = found["spark"]
    ours = ("scan_s", "map_s", "map_unverified_s", "map_fresh_s", "max_s", "max_fresh_s")
    assert all(run[key] > 0 for key in (*ours, "parquet_scan_s", "parquet_map_s", "parquet_max_s"))
    assert list(run["planning_ms"]) == ["10", "100"]
    assert len([target for target in found["targets"] if target["what"].startswith("Spark")]) == 5


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_pipelines_ingest_beside_sparks_own() -> None:
    found = measured("--only", "pipeline", patience_s=800)
    (run,) = found["pipeline"]
    assert all(run[key] > 0 for key in ("inline_s", "reference_s", "parquet_s"))
    goals = {target["what"]: target["goal"] for target in found["targets"]}
    assert goals["pipeline: ingest, inline"] == "≥ 1.0 x Spark: Parquet → Parquet"
    assert goals["pipeline: ingest, by reference"] == "≥ 3.0 x Spark: Parquet → Parquet"


def test_a_bridge_beside_raw_udp() -> None:
    found = measured("--only", "bridge")
    for name in ("goodput, jumbo MTU", "goodput, default MTU", "p50 latency"):
        (run,) = found["bridge"][name]
        assert run["raw"] > 0 < run["bridge"], name
    assert found["bridge"]["3 mappings"][0]["bridge"] > 0 < found["bridge"]["3 mappings"][0]["raw"]
    assert len([target for target in found["targets"] if target["what"].startswith("bridge")]) == 4


def test_how_fast_is_recorded() -> None:
    found = measured("--only", "recording")
    (run,) = found["recording"]
    assert run["rows"] == 160
    assert run["unaccounted"] == 0
    assert run["bytes_s"] > 0
    assert run["plain_bytes_s"] > 0
    assert [target["against"] for target in found["targets"] if "recording" in target["what"]] == [
        "a plain write, fsync in both"
    ]
