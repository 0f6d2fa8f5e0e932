"""The programs of the how-to pages about joins and limiters, with their output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tensorpool as tp
from tests.e2e.pages import ROOT

PAGES = [ROOT / "docs" / "how-to" / name for name in ("join-streams.md", "limit-a-stream.md")]
_PROGRAM = re.compile(r"```python\n(.*?)```\s+```text\n(.*?)```", re.DOTALL)
PROGRAMS = [program for page in PAGES for program in _PROGRAM.findall(page.read_text("utf-8"))]


def test_every_program_of_the_pages_has_its_output() -> None:
    assert len(PROGRAMS) == sum(page.read_text("utf-8").count("```python") for page in PAGES) > 3


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program_prints_what_the_page_shows(
    number: int, aeron_dir: Path, shm_base: Path, tmp_path: Path
) -> None:
    source, expected = PROGRAMS[number]
    program = tmp_path / "program.py"
    program.write_text(source, "utf-8")
    environment = {"AERON_DIR": str(aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(shm_base)}
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_every_reason_of_a_join_is_explained(aeron_dir: Path, shm_base: Path) -> None:
    explained = set(re.findall(r"^\| `(\w+)` \|", PAGES[0].read_text("utf-8"), re.MULTILINE))
    with (
        tp.open("standalone", aeron_dir=str(aeron_dir), shm_base_dir=shm_base) as ctx,
        ctx.join({"one": 20_000}) as join,
    ):
        assert set(join.ledger().inputs["one"].dropped) == explained
