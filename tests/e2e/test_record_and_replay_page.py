"""The programs and commands of docs/how-to/record-and-replay.md."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.client.metadata import SourceDescription
from tests.e2e.pages import ROOT, blocks, looks_like, steps, substituted
from tests.integration.replayer.conftest import MS, START_NS
from tests.integration.replayer.test_metadata import describe

PAGE = ROOT / "docs" / "how-to" / "record-and-replay.md"
CAMERA, READ, VIEWER, CONTROLLED = range(4)
RECORD, VERIFY, REPLAY, PACES = range(4)

# A dozen commands, each with an interpreter of its own.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def environment(aeron_dir: Path, shm_base: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"AERON_DIR": str(aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(shm_base), "NO_COLOR": "1"}
    return {**os.environ, **settings, "PATH": path}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with the page's programs."""
    programs = blocks(PAGE, "python")
    assert len(programs) == 4
    for number, source in enumerate(programs):
        (tmp_path / f"program{number}.py").write_text(source, "utf-8")
    return tmp_path


def start(directory: Path, program: int, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, f"program{program}.py"]
    return subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True)


def output_of(directory: Path, program: int, environment: dict[str, str]) -> str:
    process = start(directory, program, environment)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return out


def run_console(console: str, directory: Path, environment: dict[str, str]) -> None:
    for command, expected in steps(console):
        result = subprocess.run(
            command, shell=True, cwd=directory, env=environment, capture_output=True, text=True, check=False,
            timeout=100,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        # A busy machine delays frames; the page does not show these warnings.
        lines = (result.stdout + result.stderr).splitlines()
        answer = "\n".join(line for line in lines if "late by" not in line and "keep up" not in line)
        assert looks_like(answer, expected), answer


@contextmanager
def running_camera(directory: Path, environment: dict[str, str]) -> Iterator[None]:
    with start(directory, CAMERA, environment) as camera:
        try:
            yield
            assert camera.poll() is None, "the camera ended early"
            camera.send_signal(signal.SIGINT)
            assert camera.wait(60) == 0
        finally:
            camera.kill()


def test_page_records_reads_and_replays(directory: Path, environment: dict[str, str]) -> None:
    consoles, answers = blocks(PAGE, "console"), blocks(PAGE, "text")
    with running_camera(directory, environment):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            # The camera may still be starting: without a media driver the command fails at once.
            listing = subprocess.run(
                ["tensorpool", "stream", "ls", "--timeout", "10"],
                env=environment,
                capture_output=True,
                check=False,
            )
            if b"20000" in listing.stdout:
                break
        run_console(consoles[RECORD], directory, environment)
        run_console(consoles[VERIFY], directory, environment)
    assert output_of(directory, READ, environment) == answers[0]
    run_replays(directory, environment)


def test_page_replays_a_prepared_recording(directory: Path, environment: dict[str, str]) -> None:
    """The second half of the page, with a recording that is written without a recorder."""
    write_recording(directory / "recording")
    run_console(blocks(PAGE, "console")[VERIFY], directory, environment)
    assert output_of(directory, READ, environment) == blocks(PAGE, "text")[0]
    run_replays(directory, environment)


def run_replays(directory: Path, environment: dict[str, str]) -> None:
    consoles, answers = blocks(PAGE, "console"), blocks(PAGE, "text")
    with start(directory, VIEWER, environment) as viewer:
        try:
            run_console(consoles[REPLAY], directory, environment)
            out, _ = viewer.communicate(timeout=100)
        finally:
            viewer.kill()
    assert (viewer.returncode, out) == (0, answers[1])
    assert output_of(directory, CONTROLLED, environment) == answers[2]
    run_console(substituted(consoles[PACES], {"--rate 500": "--rate 2000"}), directory, environment)


def write_recording(root: Path) -> None:
    """Writes the recording of the page's camera: 200 frames in two seconds."""
    description = SourceDescription(name="camera-1", metadata={"serial": "A1", "exposure_ms": 4.0})
    description.bump(1)
    with recording.RecordingWriter(root, background=False) as writer:
        describe(writer, 20000, 7, description)
        for seq in range(200):
            writer.append(
                np.full((64, 64), seq, np.uint16), stream_id=20000, epoch=7, seq=seq,
                meta_version=description.version, receive_time_ns=START_NS + seq * 10 * MS,
            )  # fmt: skip
