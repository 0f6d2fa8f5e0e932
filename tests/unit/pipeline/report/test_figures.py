"""Figures of a report on small tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tensorpool.errors import PipelineError
from tensorpool.pipeline import report, schemas
from tests.unit.pipeline.report.sample_tables import DATE, START_NS, pipeline, put

SECOND = 1_000_000_000


def test_report_totals_equal_the_tables(tmp_path: Path) -> None:
    made = pipeline(tmp_path / "out")
    found = report.collect(tmp_path / "out")
    assert {one.stream_id: one.frames for one in found.streams} == made.frames
    assert {one.stream_id: one.recorded for one in found.streams} == made.recorded
    assert {one.stream_id: one.counted for one in found.streams} == made.frames
    assert found.reasons("dropped") == {"overwritten": 6}
    assert found.reasons("rejected") == {"checksum": 2}
    assert found.total("bytes") == sum(made.frames.values()) * 48 * 64
    assert [one.name for one in found.streams] == ["camera-10000", "camera-10001"]
    assert found.streams[0].rate_hz == pytest.approx(20, rel=0.02)
    assert found.faults == []


def test_json_has_the_figures_and_no_nan(tmp_path: Path) -> None:
    made = pipeline(tmp_path / "out")
    found = json.loads(json.dumps(report.collect(tmp_path / "out").to_json(), allow_nan=False))
    assert found["totals"] == {
        "recorded": sum(made.recorded.values()), "frames": sum(made.frames.values()),
        "bytes": sum(made.frames.values()) * 48 * 64, "counted": sum(made.frames.values()),
        "rejected": {"checksum": 2}, "dropped": {"overwritten": 6},
    }  # fmt: skip
    assert found["balanced"] is True
    assert sum(found["series"]["streams"]["10000"]["frames"]) == made.frames[10_000]
    assert found["pipeline"]["versions"] == schemas.VERSIONS


def test_alignment_has_share_and_spread(tmp_path: Path) -> None:
    made = pipeline(tmp_path / "out")
    (found,) = report.collect(tmp_path / "out", samples=0).alignments
    rows = made.frames[10_000] - 5
    assert (found.name, found.by, found.streams) == ("pairs", "timestamp", [10_000, 10_001])
    assert (found.rows, found.unaligned) == (rows, {"missing": 5})
    assert found.share == rows / (rows + 5)
    assert found.spread["p50"] == pytest.approx(200_000 + rows / 2 * 100, rel=0.03)
    assert found.spread["max"] == 200_000 + (rows - 1) * 100


def test_late_frame_is_not_decided_again(tmp_path: Path) -> None:
    pipeline(tmp_path / "out")
    late = [{"stream_id": 10_001, "seq": 3, "time": START_NS // 1_000, "reason": "late", "streams": []}]
    put(tmp_path / "out", schemas.unaligned("pairs"), late, date=DATE)
    (found,) = report.collect(tmp_path / "out", samples=0).alignments
    assert found.unaligned == {"missing": 5, "late": 1}
    assert found.share == found.rows / (found.rows + 5)


def test_frames_missing_in_silver_are_a_fault(tmp_path: Path) -> None:
    made = pipeline(tmp_path / "out")
    DeltaTable(tmp_path / "out/silver/rejects").delete("stream_id = 10000")
    found = report.collect(tmp_path / "out", samples=0)
    bronze, silver = made.recorded[10_000], made.frames[10_000]
    assert found.faults == [f"stream 10000: bronze has {bronze:,} frames, silver checked {silver:,}"]
    assert found.to_json()["balanced"] is False


def test_frames_missing_in_gold_are_a_fault(tmp_path: Path) -> None:
    pipeline(tmp_path / "out")
    extra: dict[str, Any] = {
        "stream_id": 10_001, "interval_start_ns": START_NS, "interval_ns": SECOND, "frames": 1,
    }  # fmt: skip
    put(tmp_path / "out", schemas.quality(), [extra], date=DATE)
    (fault,) = report.collect(tmp_path / "out", samples=0).faults
    assert fault.startswith("stream 10001: silver has")


def test_files_without_a_transaction_are_not_counted(tmp_path: Path) -> None:
    made = pipeline(tmp_path / "out")
    frames = tmp_path / f"out/silver/frames/date={DATE}"
    file = next(frames.iterdir())
    shutil.copy(file, frames / "b00000009-0123456789abcdef.parquet")
    assert report.collect(tmp_path / "out", samples=0).streams[0].frames == made.frames[10_000]


def test_empty_pipeline_has_a_page(tmp_path: Path) -> None:
    made = pipeline(tmp_path / "out")
    for stage in ("bronze", "silver", "gold"):
        shutil.rmtree(made.root / stage)
    found = report.write(made.root, tmp_path / "page.html")
    assert found.streams == []
    assert "no frames yet" in (tmp_path / "page.html").read_text("utf-8")


def test_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="pipeline run"):
        report.collect(tmp_path)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("seconds", [3, 600])
def test_number_of_buckets_is_bounded(tmp_path: Path, seconds: int) -> None:
    made = pipeline(tmp_path / "out", streams=(10_000,), seconds=seconds, hz=4)
    found = report.collect(tmp_path / "out", samples=0)
    assert found.span is not None
    assert found.span.buckets == min(seconds, 200)
    series = found.series[10_000]
    assert series.sum("frames").sum() == made.frames[10_000]
    assert series.sum("dropped").sum() == 3
