"""The example programs, and the program on the first page of the site."""

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


def test_spectrometer_example_publishes_batches(environment: dict[str, str]) -> None:
    folder = ROOT / "examples" / "spectrometer"
    with (
        running(folder / "spectrometer.py", environment) as spectrometer,
        running(folder / "peaks.py", {**environment, "PYTHONUNBUFFERED": "1"}) as reader,
    ):
        assert reader.stdout is not None
        lines = [reader.stdout.readline() for _ in range(5)]
        assert spectrometer.poll() is None
    line = r"(\d+) spectra from (\d+), \d+ missing: peak in channel 9\n"
    matches = [match for text in lines if (match := re.fullmatch(line, text))]
    assert len(matches) == 5, lines
    first = [int(match[2]) for match in matches]
    assert first == sorted(first)
    assert max(int(match[1]) for match in matches) > 10, "the frames came one by one"


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
