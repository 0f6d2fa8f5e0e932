"""docs/how-to/record-and-replay.md, program by program and command by command."""

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
from tests.integration.replayer.test_descriptions import describe

PAGE = ROOT / "docs" / "how-to" / "record-and-replay.md"
CAMERA, LOOK, VIEWER, STEERED = range(4)
RECORD, VERIFY, REPLAY, PACES = range(4)


@pytest.fixture
def environment(aeron_dir: Path, shm_base: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    places = {"AERON_DIR": str(aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(shm_base), "NO_COLOR": "1"}
    return {**os.environ, **places, "PATH": path}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the page's programs."""
    made = blocks(PAGE, "python")
    assert len(made) == 4
    for number, source in enumerate(made):
        (tmp_path / f"program{number}.py").write_text(source, "utf-8")
    return tmp_path


def start(place: Path, program: int, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, f"program{program}.py"]
    return subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True)


def printed(place: Path, program: int, environment: dict[str, str]) -> str:
    done = start(place, program, environment)
    out, _ = done.communicate(timeout=100)
    assert done.returncode == 0
    return out


def follow(console: str, place: Path, environment: dict[str, str]) -> None:
    for command, expected in steps(console):
        done = subprocess.run(
            command, shell=True, cwd=place, env=environment, capture_output=True, text=True, check=False,
            timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        # Frames are late where the machine is busy, which is no matter of the page's.
        lines = (done.stdout + done.stderr).splitlines()
        answer = "\n".join(line for line in lines if "late by" not in line and "keep up" not in line)
        assert looks_like(answer, expected), answer


@contextmanager
def filming(place: Path, environment: dict[str, str]) -> Iterator[None]:
    with start(place, CAMERA, environment) as camera:
        try:
            yield
            assert camera.poll() is None, "the camera ended early"
            camera.send_signal(signal.SIGINT)
            assert camera.wait(60) == 0
        finally:
            camera.kill()


def test_record_look_and_play_back(place: Path, environment: dict[str, str]) -> None:
    consoles, answers = blocks(PAGE, "console"), blocks(PAGE, "text")
    with filming(place, environment):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            # The camera may still be starting: without a media driver the command ends at once.
            done = subprocess.run(
                ["tensorpool", "stream", "ls", "--timeout", "10"],
                env=environment,
                capture_output=True,
                check=False,
            )
            if b"20000" in done.stdout:
                break
        follow(consoles[RECORD], place, environment)
        follow(consoles[VERIFY], place, environment)
    assert printed(place, LOOK, environment) == answers[0]
    play_back(place, environment)


def test_play_back_what_was_recorded(place: Path, environment: dict[str, str]) -> None:
    """The second half of the page, on a recording of the same kind that was made without a recorder."""
    make(place / "recording")
    follow(blocks(PAGE, "console")[VERIFY], place, environment)
    assert printed(place, LOOK, environment) == blocks(PAGE, "text")[0]
    play_back(place, environment)


def play_back(place: Path, environment: dict[str, str]) -> None:
    consoles, answers = blocks(PAGE, "console"), blocks(PAGE, "text")
    with start(place, VIEWER, environment) as viewer:
        try:
            follow(consoles[REPLAY], place, environment)
            out, _ = viewer.communicate(timeout=100)
        finally:
            viewer.kill()
    assert (viewer.returncode, out) == (0, answers[1])
    assert printed(place, STEERED, environment) == answers[2]
    follow(substituted(consoles[PACES], {"--rate 500": "--rate 2000"}), place, environment)


def make(root: Path) -> None:
    """What the page's camera would have left: 200 frames of two seconds."""
    said = SourceDescription(name="camera-1", metadata={"serial": "A1", "exposure_ms": 4.0})
    said.bump(1)
    with recording.RecordingWriter(root, background=False) as writer:
        describe(writer, 20000, 7, said)
        for seq in range(200):
            writer.append(
                np.full((64, 64), seq, np.uint16), stream_id=20000, epoch=7, seq=seq,
                meta_version=said.version, receive_time_ns=START_NS + seq * 10 * MS,
            )  # fmt: skip
