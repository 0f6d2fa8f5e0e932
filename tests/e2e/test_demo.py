"""`tensorpool demo` as a person runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "tensorpool", "demo"]


def test_the_demo_ends_by_itself_with_a_ledger_that_adds_up() -> None:
    done = subprocess.run(
        [*DEMO, "--seconds", "2", "--json"], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    camera = result["camera"]
    assert camera["committed"] == 400
    assert camera["committed"] == camera["published"] + sum(camera["unpublished"].values())
    assert result["faults"] == []
    for name in ("viewer", "slow model"):
        seen = result[name]
        assert seen["span"] == camera["committed"]
        assert seen["span"] == seen["received"] + sum(seen["dropped"].values())
        assert seen["torn"] == 0
        assert seen["received"] > 0


def test_the_demo_shows_a_table_and_says_that_all_is_accounted_for() -> None:
    done = subprocess.run([*DEMO, "--seconds", "1"], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "the ledger" in done.stdout
    assert "every frame is accounted for, none was torn" in done.stdout


def test_ctrl_c_ends_the_demo_early_with_its_ledger() -> None:
    demo = subprocess.Popen(
        [*DEMO, "--seconds", "600", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        _wait_until_filming(demo.pid)
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=60)
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.communicate()
    assert demo.returncode == 0, err.decode()
    assert json.loads(out)["camera"]["committed"] < 600 * 200
    assert _leftovers(demo.pid) == []


def test_a_process_that_dies_is_named_and_the_demo_fails() -> None:
    demo = subprocess.Popen(
        [*DEMO, "--seconds", "600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        camera = _wait_until_filming(demo.pid)
        os.kill(camera, signal.SIGKILL)
        _, err = demo.communicate(timeout=90)
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.communicate()
    assert demo.returncode == 1
    assert "the camera ended early" in err
    assert _leftovers(demo.pid) == []


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--fps", "x"], ["--nonsense"]])
def test_misuse_is_told_apart_from_failure(arguments: list[str]) -> None:
    done = subprocess.run([*DEMO, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "Usage: " in done.stderr


def _leftovers(director: int) -> list[Path]:
    return [path for path in Path("/dev/shm").iterdir() if f"demo-{director}" in path.name]


def _wait_until_filming(director: int) -> int:
    """The camera's process, once fifty frames are in its ring."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in _children(director):
            if b"demo.camera" in Path(f"/proc/{child}/cmdline").read_bytes() and _newest_seq(child) >= 50:
                return child
        time.sleep(0.05)
    raise AssertionError("the camera did not film")


def _newest_seq(camera: int) -> int:
    """The highest sequence in the header ring that the camera has mapped."""
    mapped = re.search(r"\S+/header\.ring", Path(f"/proc/{camera}/maps").read_text())
    if mapped is None:
        return -1
    slots = Path(mapped[0]).read_bytes()[64:]
    return max(int.from_bytes(slots[at : at + 8], "little") >> 1 for at in range(0, len(slots), 256))


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
