"""The quickstart of the README: its four blocks, in order, in one directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.pages import ROOT, blocks

README = ROOT / "README.md"


@pytest.fixture
def environment(aeron_dir: Path, shm_base: Path) -> dict[str, str]:
    """Environment with a private media driver, so that a running driver is not used, and a small Spark."""
    variables = {
        "AERON_DIR": str(aeron_dir),
        "TENSORPOOL_SHM__BASE_DIR": str(shm_base),
        "PYTHONPATH": str(ROOT / "python"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return {**os.environ, **variables}


def run(program: str, directory: Path, environment: dict[str, str], timeout: float = 120) -> str:
    script = directory / "program.py"
    script.write_text(program, "utf-8")
    result = subprocess.run(
        [sys.executable, script],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_live_block_of_the_readme_receives_both_frames(environment: dict[str, str], tmp_path: Path) -> None:
    live, _, _, _ = blocks(README, "python")
    assert run(live, tmp_path, environment).splitlines() == [
        "0 (512, 512) 0.0",
        "1 (512, 512) 7.0",
        "span 2 = received 2",
    ]


def test_stage_of_the_readme_is_the_example_that_is_run_by_tests() -> None:
    _, _, _, stage = blocks(README, "python")
    assert stage.strip() in (ROOT / "examples" / "stage" / "difference.py").read_text("utf-8")


@pytest.mark.timeout(400)
def test_record_and_spark_blocks_of_the_readme_work_on_one_recording(
    environment: dict[str, str], tmp_path: Path
) -> None:
    _, record, spark, _ = blocks(README, "python")
    assert run(record, tmp_path, environment).split() == ["100", "(100,", "48,", "64)"]
    pytest.importorskip("pyspark")
    assert float(run(spark, tmp_path, environment, timeout=300)) == 99.0
