"""The programs and commands of docs/tutorial/first-steps.md, in the order of the page."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from mcap.reader import make_reader

from tests.e2e.pages import ROOT, blocks, looks_like, sh, steps

PAGE = ROOT / "docs" / "tutorial" / "first-steps.md"


def look_at_the_console(environment: dict[str, str], directory: Path) -> None:
    """Starts the command of the page on a free port, without a browser, and loads its page."""
    (command,) = [block for block in blocks(PAGE, "sh") if block.startswith("tensorpool console")]
    arguments = [*command.replace("--open ", "").split(), "--port", "0", "--json"]
    process = subprocess.Popen(
        arguments, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(json.loads(line)["url"], timeout=60) as page:
            assert b"TensorPool console" in page.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


# About ten commands, each with an interpreter of its own.
@pytest.mark.timeout(900)
def test_first_steps(aeron_dir: Path, shm_base: Path, tmp_path: Path, wait_until) -> None:
    variables = {"AERON_DIR": str(aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(shm_base), "NO_COLOR": "1"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **variables, "PATH": path}
    camera, viewer, reader = blocks(PAGE, "python")
    look, record, export = blocks(PAGE, "console")

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
        for command, expected in [*steps(record), *steps(export)]:
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            assert done.returncode == 0, done.stderr
            # On a terminal the log comes before the result.
            assert looks_like(done.stderr + done.stdout, expected), done.stdout
        look_at_the_console(environment, tmp_path)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    first, *shown, last = run(reader).splitlines()
    assert re.fullmatch(r"<Recording first streams=\[20000 \(camera-1\)\] segments=\d+>", first)
    assert len(shown) == 2
    # The mean of random pixels: 2048, with a deviation of about two.
    assert all(re.fullmatch(r"\d+ \(480, 640\) 20[345]\d\.0 A1", line) for line in shown), shown
    assert re.fullmatch(r"\(\d+, 480, 640\)", last)
    # The topic that the page names.
    with (tmp_path / "first.mcap").open("rb") as file:
        summary = make_reader(file).get_summary()
    assert summary is not None
    assert [channel.topic for channel in summary.channels.values()] == ["/camera-1"]
    assert [schema.name for schema in summary.schemas.values()] == ["foxglove.RawImage"]
