"""The programs and commands of docs/tutorial/first-steps.md, in the order of the page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.pages import ROOT, blocks, looks_like, sh, steps

PAGE = ROOT / "docs" / "tutorial" / "first-steps.md"


def test_first_steps(aeron_dir: Path, shm_base: Path, tmp_path: Path, wait_until) -> None:
    variables = {"AERON_DIR": str(aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(shm_base), "NO_COLOR": "1"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **variables, "PATH": path}
    camera, viewer, reader = blocks(PAGE, "python")
    look, record = blocks(PAGE, "console")

    def run(source: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", source],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "camera.py").write_text(camera, "utf-8")
    process = subprocess.Popen([sys.executable, "camera.py"], cwd=tmp_path, env=environment)
    try:
        wait_until(lambda: "camera-1" in sh("tensorpool discover", environment), timeout=120)
        for command, expected in steps(look):
            assert looks_like(sh(command, environment), expected), command
        lines = run(viewer).splitlines()
        assert len(lines) == 11
        assert all(re.fullmatch(r"frame \d+ of A1: mean 20\d\d", line) for line in lines[:10])
        assert re.fullmatch(r"span \d+ = received 10 \+ dropped \(.*rate_limited \d+.*\).*", lines[10])
        for command, _ in steps(record):
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env=environment, check=False, timeout=300
            )
            assert done.returncode == 0, command
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    first, second = run(reader).splitlines()
    assert re.fullmatch(r"<Recording first streams=\[20000\] segments=\d+>", first)
    assert second == "(480, 640) A1"
