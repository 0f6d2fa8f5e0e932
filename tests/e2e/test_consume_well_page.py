"""The programs of docs/how-to/consume-well.md, with their output; and that every drop reason is explained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorpool import Outcome
from tensorpool.client.ledger import DROP_REASONS
from tests.e2e.pages import ROOT

PAGE = ROOT / "docs" / "how-to" / "consume-well.md"
REASONS_PAGE = ROOT / "docs" / "reference" / "drop-reasons.md"
PROGRAMS = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_every_program_of_the_page_has_its_output() -> None:
    assert len(PROGRAMS) == PAGE.read_text("utf-8").count("```python") > 6


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program_prints_what_the_page_shows(
    number: int, aeron_dir: Path, shm_base: Path, tmp_path: Path
) -> None:
    source, expected = PROGRAMS[number]
    if re.search(r"^import torch\b", source, re.MULTILINE):
        # It takes gigabytes, so it is not among the packages that every run installs.
        pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(source, "utf-8")
    environment = {"AERON_DIR": str(aeron_dir), "TENSORPOOL_SHM__BASE_DIR": str(shm_base)}
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_every_drop_reason_and_outcome_is_explained() -> None:
    explained = set(re.findall(r"`(\w+)`", REASONS_PAGE.read_text("utf-8")))
    assert {*DROP_REASONS, *map(str, Outcome)} - explained == set()
