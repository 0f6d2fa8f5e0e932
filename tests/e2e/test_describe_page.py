"""The programs and commands of docs/how-to/publish-metadata.md, with their output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.pages import ROOT, blocks, looks_like, sh, steps

PAGE = ROOT / "docs" / "how-to" / "publish-metadata.md"
CAMERA, READER, TYPES, BLOBS, TRACES = range(5)


@pytest.fixture
def environment(aeron_dir: Path, shm_base: Path) -> dict[str, str]:
    """Environment variables of the programs."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"AERON_DIR": str(aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(shm_base), "NO_COLOR": "1"}
    return {**os.environ, **variables, "PATH": path}


@pytest.fixture
def programs(tmp_path: Path) -> list[Path]:
    """The programs of the page, as files."""
    paths = []
    for number, source in enumerate(blocks(PAGE, "python")):
        paths.append(tmp_path / f"program{number}.py")
        paths[-1].write_text(source, "utf-8")
    assert len(paths) == 5
    return paths


@contextmanager
def running(program: Path, environment: dict[str, str]) -> Iterator[None]:
    """Runs a program and ends it with Ctrl-C."""
    process = subprocess.Popen([sys.executable, program], env=environment)
    try:
        yield
        assert process.poll() is None, "the program ended early"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def printed(program: Path, environment: dict[str, str]) -> str:
    """Output of a program that has to succeed."""
    result = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_reader_prints_the_metadata_of_the_camera(programs: list[Path], environment: dict[str, str]) -> None:
    with running(programs[CAMERA], environment):
        assert printed(programs[READER], environment) == blocks(PAGE, "text")[0]


@pytest.mark.parametrize(("program", "block"), [(TYPES, 1), (BLOBS, 2)])
def test_other_programs_print_the_shown_output(
    programs: list[Path], environment: dict[str, str], program: int, block: int
) -> None:
    assert printed(programs[program], environment) == blocks(PAGE, "text")[block]


def test_trace_command_prints_the_shown_lineage(programs: list[Path], environment: dict[str, str]) -> None:
    (console,) = blocks(PAGE, "console")
    ((command, expected),) = steps(console)
    with running(programs[TRACES], environment):
        # The command fails at once while the media driver is still starting.
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            output = sh(f"{command} --timeout 20", environment)
            if "no media driver" not in output:
                break
        assert looks_like(output, expected), output


def test_table_lists_the_carrier_of_every_type() -> None:
    from tensorpool.attributes.extension_types import CARRIERS

    rows = [line.split("|")[1:3] for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    documented = {name.strip(" `"): how.strip() for names, how in rows for name in names.split(",")}
    assert set(documented) == set(CARRIERS)
    for name, carried in CARRIERS.items():
        assert documented[name].split(",")[0].split(" ")[0] == carried.name, name
