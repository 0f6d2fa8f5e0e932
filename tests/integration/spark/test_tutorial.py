"""The Spark tutorial, run from its page, with fewer frames."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.e2e.pages import blocks, substituted
from tests.integration.spark.conftest import ROOT

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]

PAGE = ROOT / "docs" / "tutorial" / "numpy-over-a-million-frames-with-spark.md"


def follow(
    tmp_path: Path, frames: int, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
) -> list[str]:
    """The output of the page's programs, without the table."""
    patch.setenv("FRAMES", str(frames))
    # Spark's processes have another working directory, so the paths must be absolute.
    names = {f'"{name}"': f'"{tmp_path / name}"' for name in ("telescope", "looks", "looks-checkpoint")}
    scope: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(PAGE, "python"):
        exec(compile(substituted(block, names), str(PAGE), "exec"), scope)
    return [line for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]


def expected(frames: int) -> list[str]:
    flashes = len(range(7, frames, 1000))
    counted = f"{flashes} flashes in {frames} frames"
    return [counted, f"{flashes} flashes again", f"{frames} rows in the table"]


def test_tutorial_prints_its_results(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = 3_000
    assert follow(tmp_path, frames, capsys, monkeypatch) == expected(frames)


@pytest.mark.long
def test_tutorial_with_a_million_frames(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = int(os.environ.get("TENSORPOOL_TEST_FRAMES", "1000000"))
    assert follow(tmp_path, frames, capsys, monkeypatch) == expected(frames)
