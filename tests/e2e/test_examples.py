"""The example programs, and the program on the first page of the site."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import pytest

import tensorpool as tp
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


def test_jax_example_publishes_what_it_computed_from_each_frame(
    environment: dict[str, str], aeron_dir: Path
) -> None:
    # Images of the camera are full of their sequence, so that each result says which frame it was made from.
    environment |= {"JAX_PLATFORMS": "cpu"}
    with (
        tp.open(aeron_dir=aeron_dir) as ctx,
        running(ROOT / "examples" / "find" / "camera.py", environment),
        running(ROOT / "examples" / "jax" / "tiles.py", environment) as tiles,
        ctx.consumer(20_000) as camera,
        ctx.consumer(name="tiles", find_timeout=60) as results,
    ):
        taken: dict[int | None, tuple[int, int]] = {}
        checked = 0
        for image in islice(camera, 3000):
            taken[image.trace_id] = (image.seq, image.timestamp_ns)
            for result in results.poll():
                if result.trace_id not in taken:
                    continue
                seq, taken_ns = taken[result.trace_id]
                with suppress(tp.FrameOverwritten):
                    means = result.copy()
                    assert (means.shape, means.dtype.name) == ((12, 16), "float32")
                    assert (means == seq % 4096).all()
                    assert result.timestamp_ns == taken_ns
                    checked += 1
            if checked >= 5:
                break
        assert checked >= 5
        assert tiles.stdout is not None
        lines = [tiles.stdout.readline() for _ in range(2)]
    for line in lines:
        match = re.fullmatch(r"frame (\d+) on cpu: brightest tile (\d+)\.0\n", line)
        assert match is not None, line
        assert int(match[1]) % 4096 == int(match[2])


def test_cupy_example_publishes_what_changed(environment: dict[str, str]) -> None:
    # A stand-in for the device and for CuPy: `make test-gpu` runs the example on a GPU.
    program = str(ROOT / "examples" / "cupy" / "motion.py")
    with running(ROOT / "examples" / "find" / "camera.py", environment):
        result = subprocess.run(
            [sys.executable, "-m", "tests.stand_in_cupy", program, "--frames", "30"],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert result.returncode == 0, result.stderr
    match = re.fullmatch(r"frame (\d+) on cuda:0: changed by up to (\d+\.\d)\n", result.stdout)
    assert match is not None, result.stdout
    assert int(match[1]) >= 29
    # Every image is brighter by one than the one before, or by more where frames were skipped.
    assert float(match[2]) >= 12.6


@pytest.mark.parametrize(
    ("cupy", "message"),
    [
        ("raise ImportError('no module cupy')", "this example needs CuPy (no module cupy): pip install"),
        (
            "class cuda:\n"
            "    class runtime:\n"
            "        CUDARuntimeError = OSError\n"
            "        def getDeviceCount():\n"
            "            raise OSError('cudaErrorInsufficientDriver')\n",
            "this example needs an NVIDIA GPU (cudaErrorInsufficientDriver); ",
        ),
    ],
    ids=["no CuPy", "no driver"],
)
def test_cupy_example_names_what_it_needs(
    environment: dict[str, str], tmp_path: Path, cupy: str, message: str
) -> None:
    (tmp_path / "cupy.py").write_text(cupy, "utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, [environment.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "cupy" / "motion.py"],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_python_code_of_the_first_page_of_the_site_runs(environment: dict[str, str], tmp_path: Path) -> None:
    (program,) = blocks(ROOT / "docs" / "index.md", "python")
    script = tmp_path / "index.py"
    script.write_text(program, "utf-8")
    result = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout) == (0, "0 (480, 640) 1.0\n"), result.stderr
