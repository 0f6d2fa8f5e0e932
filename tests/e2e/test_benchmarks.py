"""Short runs of `python -m benchmarks --quick`: the benchmarks work; their figures do not matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.as_written import NAMES
from benchmarks.driver_growth import QUICK
from benchmarks.fan_out import QUICK as CONSUMER_COUNTS
from benchmarks.per_consumer import QUICK as STREAM_COUNTS
from tests.browser import missing
from tests.remote_process import ROOT

TIMEOUT_S = 500
"""On a busy machine a short run takes many times as long as on an idle one."""

pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


def run_benchmarks(*arguments: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """JSON report of a short run, which may leave no files."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", "-", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert not list(Path("/dev/shm").glob(f"*-bench-{process.pid}-*"))
    report: dict[str, Any] = json.loads(out)
    assert report["failures"] == []
    return report


def test_driver_growth_section_has_every_load() -> None:
    report = run_benchmarks("--only", "driver-growth")
    rows = report["driver_growth"]
    streams, leases = QUICK
    sizes = [(1, 2), *((size.streams, size.leases) for size in (*streams, *leases))]
    assert [(row["streams"], row["leases"]) for row in rows] == sizes
    for row in rows:
        (run,) = row["runs"]
        assert run["attach_us"] > 0
        assert run["at_once_us"] > 0
        assert 0 < run["busy_cores"] < 8
        assert run["resident_bytes"] > 1 << 20
    few, many = rows[0]["runs"][0], rows[2]["runs"][0]
    # The descriptors are the driver's: for each stream a lock, and a watch on its producer's lock.
    assert many["descriptors"] - few["descriptors"] >= streams.largest.streams - 1
    growth = [target for target in report["targets"] if target["against"] == "linear growth"]
    assert len(growth) == 8
    assert (report["two_processes"], report["codecs"]) == ([], None)
    assert "driver_restart" not in report


def test_batches_section_has_batches_beside_single_frames() -> None:
    report = run_benchmarks("--only", "batches")
    runs = report["batches"]
    assert set(runs) == {"batches", "tensorpool"}
    for name, (run,) in runs.items():
        assert run["delivered_hz"] > 0, name
        assert run["torn"] == 0, name
    assert runs["batches"][0]["balanced"]
    (target,) = report["targets"]
    assert target["goal"] == "≥ 4.0 x single frames"


def test_as_written_section_has_latency_and_cost() -> None:
    report = run_benchmarks("--only", "as-written")
    rows = report["as_written"]
    assert [(row["library"], row["size"]) for row in rows] == [("tensorpool", size) for size in NAMES]
    for row in rows:
        (run,) = row["runs"]
        assert run["torn"] == 0
        assert 0 < run["p50_us"] <= run["p99_us"] <= run["p999_us"]
        assert 0 < run["sender_cores"] < 8
        assert 0 < run["receiver_cores"] < 8
        assert 0 < run["got"] <= 1


def test_fan_out_section_has_every_number_of_consumers() -> None:
    report = run_benchmarks("--only", "fan-out")
    assert set(report["fan_out"]) == {"64 B", "64 KiB"}
    for size, (run,) in report["fan_out"].items():
        assert list(run["steps"]) == [str(count) for count in CONSUMER_COUNTS], size
        for step in run["steps"].values():
            assert step["published"] > 0 < step["offer_cpu_ns"]
            # A slow reader misses frames, and none gets more than there are.
            assert 0 < step["got_least"] <= step["got_median"] <= 1
            assert step["torn"] == 0
    assert [target["goal"] for target in report["targets"]] == ["≤ 1.1 x one consumer"] * 2


def test_large_frames_section_has_small_rings() -> None:
    report = run_benchmarks("--only", "large-frames")
    cases = [(row["library"], row["size"], row["slots"]) for row in report["large_frames"]]
    assert cases == [("tensorpool", "640 KiB", 4), ("tensorpool", "4 MiB", 2), ("tensorpool", "4 MiB", 4)]
    for row in report["large_frames"]:
        (run,) = row["runs"]
        assert run["delivered_hz"] > 0 < run["bare_copy_hz"]
        assert run["torn"] == 0
    assert [target["goal"] for target in report["targets"]] == ["≥ 0.9 x the bare copy, same ring"] * 3


def test_recordings_section_measures_reading_and_replay() -> None:
    report = run_benchmarks("--only", "recordings")
    runs = {row["what"]: row["runs"][0] for row in report["recordings"]}
    assert runs["read"]["read_hz"] > 0
    assert runs["read"]["mapped_hz"] > 0
    assert runs["replay"]["replay_ratio"] > 0
    assert runs["spacing"]["spacing_frames"] > 100
    assert [int(count) for count in runs["growth"]["first_frame_ms"]] == [10, 100]
    goals = {target["what"]: target["goal"] for target in report["targets"]}
    assert goals["reading back, 640 KiB"] == "≥ 0.9 x a plain mapped read"
    assert goals["replay at full speed, 640 KiB"] == "≥ 0.7 x a producer's rate"


def test_driver_restart_section_has_both_ends() -> None:
    report = run_benchmarks("--only", "driver-restart")
    assert [row["driver_ends"] for row in report["driver_restart"]] == ["in order", "kill -9"]
    for row in report["driver_restart"]:
        (only,) = row["rounds"]
        assert only["down_ms"] > 0
        assert len(only["without_ms"]) == len(only["gaps_ms"]) == 2
    in_order = report["driver_restart"][0]["rounds"][0]
    # An orderly end revokes the leases, so no frames arrive until the driver is back.
    assert min(in_order["without_ms"]) > 0.5 * in_order["down_ms"]
    assert "driver_growth" not in report


def test_per_consumer_sections_measure_streams_and_unused_progress() -> None:
    report = run_benchmarks("--only", "per-consumer-streams", "--only", "progress")
    (streams,) = report["per_consumer_streams"]
    assert list(streams["offer_ns"]) == [str(count) for count in STREAM_COUNTS]
    assert all(ns > 0 for ns in streams["offer_ns"].values())
    (off,) = report["progress_off"]
    assert {"offer_plain_ns", "offer_requested_ns", "claim_plain_ns", "claim_requested_ns"} <= off.keys()
    assert "missed" in off
    assert "driver_growth" not in report


def test_console_section_has_its_cost_and_its_effect() -> None:
    report = run_benchmarks("--only", "console")
    (run,) = report["console"]
    assert run["share"] > 0
    assert run["age_p50_ms"] > 0
    assert run["hz"] > 0
    for name in ("effect_p50", "effect_p99", "net_p99", "pooled_p99"):
        assert 0 < run[f"{name}_low"] <= run[name] <= run[f"{name}_high"]
    if missing() is None:
        assert run["pixels_p50_ms"] > 0


def test_joins_section_compares_the_join_with_a_loop() -> None:
    report = run_benchmarks("--only", "joins")
    (run,) = report["joins"]
    assert all(run[key] > 0 for key in ("join_us", "loop_us", "join_p50_us", "one_p50_us", "limiter_hz"))
    names = [target["what"] for target in report["targets"]]
    assert {"joined pairs, 64 KiB", "rate of a limiter, above", "rate of a limiter, below"} <= set(names)


def test_discovery_section_has_both_sizes() -> None:
    report = run_benchmarks("--only", "discovery")
    rows = report["discovery"]
    assert [(row["streams"], row["drivers"]) for row in rows] == [(10, 2), (40, 2)]
    for row in rows:
        (run,) = row["runs"]
        assert run["by_name_p50_us"] > 0
        assert run["all_p50_us"] > 0
        assert 0 < run["busy_cores"] < 8
        # Each stream has a name, tags and two region URIs.
        assert 100 * row["streams"] < run["all_bytes"] < 1000 * row["streams"]
    names = [target["what"] for target in report["targets"] if target["what"].endswith("10 → 40 streams")]
    assert len(names) == 4


@pytest.mark.long
@pytest.mark.timeout(900)
def test_spark_section_compares_a_recording_with_parquet() -> None:
    report = run_benchmarks("--only", "spark", timeout_s=800)
    (run,) = report["spark"]
    ours = ("scan_s", "map_s", "map_unverified_s", "map_fresh_s", "max_s", "max_fresh_s")
    assert all(run[key] > 0 for key in (*ours, "parquet_scan_s", "parquet_map_s", "parquet_max_s"))
    assert list(run["planning_ms"]) == ["10", "100"]
    assert len([target for target in report["targets"] if target["what"].startswith("Spark")]) == 5


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pipeline_section_compares_ingest_with_spark() -> None:
    report = run_benchmarks("--only", "pipeline", timeout_s=800)
    (run,) = report["pipeline"]
    assert all(run[key] > 0 for key in ("inline_s", "reference_s", "parquet_s"))
    goals = {target["what"]: target["goal"] for target in report["targets"]}
    assert goals["pipeline: ingest, inline"] == "≥ 1.0 x Spark: Parquet → Parquet"
    assert goals["pipeline: ingest, by reference"] == "≥ 3.0 x Spark: Parquet → Parquet"


def test_bridge_section_compares_with_raw_udp() -> None:
    report = run_benchmarks("--only", "bridge")
    for name in ("goodput, jumbo MTU", "goodput, default MTU", "p50 latency"):
        (run,) = report["bridge"][name]
        assert run["raw"] > 0 < run["bridge"], name
    assert report["bridge"]["3 mappings"][0]["bridge"] > 0 < report["bridge"]["3 mappings"][0]["raw"]
    assert len([target for target in report["targets"] if target["what"].startswith("bridge")]) == 4


def test_recording_section_counts_every_frame() -> None:
    report = run_benchmarks("--only", "recording")
    (run,) = report["recording"]
    assert run["rows"] == 160
    assert run["unaccounted"] == 0
    assert run["bytes_s"] > 0
    assert run["plain_bytes_s"] > 0
    assert [target["against"] for target in report["targets"] if "recording" in target["what"]] == [
        "a plain write, fsync in both"
    ]
