"""The programs and commands of the tutorials, with the shown output."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tensorpool.runtime.counters import read_aeron_counters
from tests.e2e.pages import looks_like

ROOT = Path(__file__).parents[2]


def blocks(page: Path, language: str) -> list[str]:
    """Code blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


@pytest.fixture
def environment(aeron_dir: Path) -> dict[str, str]:
    """Environment variables of the programs."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "AERON_DIR": str(aeron_dir), "PATH": path, "NO_COLOR": "1"}


@contextmanager
def program(script: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program and ends it with SIGTERM."""
    process = subprocess.Popen([sys.executable, script], env=environment)
    try:
        yield process
        assert process.poll() is None, "the program ended early"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def follow(console: str, environment: dict[str, str]) -> None:
    """Runs each `$ command` and compares its output with the shown one."""
    for step in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, _, expected = step.partition("\n")
        result = subprocess.run(
            command, shell=True, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        printed = result.stdout + result.stderr
        if " pid " in expected:
            assert looks_like(printed, expected), command  # process ids differ
        elif expected.strip():
            assert printed == expected, command
        elif result.returncode:
            pytest.fail(f"{command}: {printed}")


def wait_for_service(name: str, environment: dict[str, str]) -> None:
    """Waits until a service answers."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ping = subprocess.run(
            [sys.executable, "-m", "tensorpool", "service", "ping", name, "--timeout", "1"],
            env=environment,
            capture_output=True,
            check=False,
            timeout=60,
        )
        if ping.returncode == 0:
            return
    raise AssertionError(f"service {name} did not answer within 60 s")


def test_service_tutorial_runs_as_shown(environment: dict[str, str], tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorial" / "write-a-service.md"
    source, client, _ = blocks(page, "python")
    example = (ROOT / "examples" / "service" / "counter.py").read_text("utf-8")
    assert example.partition("\n\n")[2] == source, "the tutorial and the example are the same program"
    assert len([line for line in source.splitlines() if line.strip()]) < 20
    script = tmp_path / "counter.py"
    script.write_text(source, "utf-8")
    (tmp_path / "client.py").write_text(client, "utf-8")
    with program(script, environment):
        wait_for_service("counter", environment)
        for console in blocks(page, "console"):
            follow(console, environment)
        result = subprocess.run(
            [sys.executable, tmp_path / "client.py"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert result.stdout == "17\n17\n"
        # The service's counters are among those of the media driver.
        shown = {c.label: c.value for c in read_aeron_counters(environment["AERON_DIR"]) if c.is_tensorpool}
        assert any("service" in label and "requests" in label and value > 5 for label, value in shown.items())
