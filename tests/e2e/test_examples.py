"""The example programs and the Python code of the README."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.pages import ROOT, blocks


@pytest.fixture
def environment(aeron_dir: Path) -> dict[str, str]:
    """Environment with a private media driver directory, so that a running driver is not used."""
    return {**os.environ, "AERON_DIR": str(aeron_dir)}


@contextmanager
def running(script: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Runs a program and ends it with Ctrl-C."""
    process = subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()


def test_camera_example_sends_frames_to_the_viewer(environment: dict[str, str]) -> None:
    folder = ROOT / "examples" / "camera"
    with (
        running(folder / "camera.py", environment) as camera,
        running(folder / "viewer.py", environment) as viewer,
    ):
        assert viewer.stdout is not None
        lines = [viewer.stdout.readline() for _ in range(10)]
        assert camera.poll() is None
    numbers = [
        int(match[1]) for line in lines if (match := re.fullmatch(r"frame (\d+): mean \d+\.\d\n", line))
    ]
    assert len(numbers) == 10
    assert numbers == sorted(numbers)


def test_flat_field_example_corrects_the_frames(environment: dict[str, str]) -> None:
    folder = ROOT / "examples" / "flat_field"
    with (
        running(folder / "camera.py", environment) as camera,
        running(folder / "corrected.py", environment) as reader,
    ):
        assert reader.stdout is not None
        lines = [reader.stdout.readline() for _ in range(5)]
        assert camera.poll() is None
    for line in lines:
        match = re.fullmatch(r"lab-camera frame \d+: spread (\d+\.\d)% → (\d+\.\d)%\n", line)
        assert match is not None, line
        assert float(match[1]) > 5
        assert float(match[2]) < 1


def test_rolling_shutter_example_processes_partial_frames(environment: dict[str, str]) -> None:
    folder = ROOT / "examples" / "rolling_shutter"
    with running(folder / "camera.py", environment):
        result = subprocess.run(
            [sys.executable, folder / "medians.py"],
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert result.returncode == 0, result.stderr
    *lines, gain = result.stdout.splitlines()
    frame = r"frame \d+: -?\d+\.\d\d ms in (\d+) parts, \d+\.\d\d ms as a whole"
    parts = [int(match[1]) for line in lines if (match := re.fullmatch(frame, line))]
    assert len(parts) == len(lines) == 50
    assert max(parts) > 10, "the frames were not received in parts"
    assert re.fullmatch(r"-?\d+\.\d\d ms won: .* ms after the last row instead of .* ms", gain)


def test_python_code_of_the_first_page_of_the_site_runs(environment: dict[str, str], tmp_path: Path) -> None:
    (program,) = blocks(ROOT / "docs" / "index.md", "python")
    script = tmp_path / "index.py"
    script.write_text(program, "utf-8")
    result = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout) == (0, "0 (480, 640) 1.0\n"), result.stderr


def test_python_code_of_the_readme_runs(environment: dict[str, str], tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert block is not None
    script = tmp_path / "readme.py"
    script.write_text(block[1], "utf-8")
    result = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[:2] == ["0 (512, 512) 0.0", "1 (512, 512) 7.0"]
    assert "span 2 = received 2" in result.stdout
