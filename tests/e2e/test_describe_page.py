"""docs/how-to/publish-metadata.md, program by program, with what each prints."""

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
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    places = {"AERON_DIR": str(aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(shm_base), "NO_COLOR": "1"}
    return {**os.environ, **places, "PATH": path}


@pytest.fixture
def programs(tmp_path: Path) -> list[Path]:
    made = []
    for number, source in enumerate(blocks(PAGE, "python")):
        made.append(tmp_path / f"program{number}.py")
        made[-1].write_text(source, "utf-8")
    assert len(made) == 5
    return made


@contextmanager
def running(program: Path, environment: dict[str, str]) -> Iterator[None]:
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
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_the_camera_says_the_reader_prints(programs: list[Path], environment: dict[str, str]) -> None:
    with running(programs[CAMERA], environment):
        assert printed(programs[READER], environment) == blocks(PAGE, "text")[0]


@pytest.mark.parametrize(("program", "answer"), [(TYPES, 1), (BLOBS, 2)])
def test_the_other_programs_print_what_is_shown(
    programs: list[Path], environment: dict[str, str], program: int, answer: int
) -> None:
    assert printed(programs[program], environment) == blocks(PAGE, "text")[answer]


def test_a_lineage_is_shown_as_on_the_page(programs: list[Path], environment: dict[str, str]) -> None:
    (console,) = blocks(PAGE, "console")
    ((command, expected),) = steps(console)
    with running(programs[TRACES], environment):
        # The media driver may still be starting: where there is none yet, the command ends at once.
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = sh(f"{command} --timeout 20", environment)
            if "no media driver" not in answer:
                break
        assert looks_like(answer, expected), answer


def test_every_type_of_the_table_is_carried_so() -> None:
    from tensorpool.attributes.dtypes import CARRIERS

    rows = [line.split("|")[1:3] for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    told = {name.strip(" `"): how.strip() for names, how in rows for name in names.split(",")}
    assert set(told) == set(CARRIERS)
    for name, carried in CARRIERS.items():
        assert told[name].split(",")[0].split(" ")[0] == carried.name, name
