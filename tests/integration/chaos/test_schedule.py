"""The schedule of `tests/chaos`: a few seconds of it in every run, and its page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.checker import Verdict
from tests.chaos.page import page_text
from tests.chaos.scenarios import NAMES, NOT_TRIED, load

TIMEOUT_S = 300


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("scenario", ["kills", "messages"])
def test_scenario_ends_without_findings(scenario: str) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--seed", "7", "--minutes", "0.04", "--only", scenario]
    done = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert verdict["findings"] == [], verdict["logs"]
    assert done.returncode == 0
    assert verdict["counts"]["frames checked"] > 0


def test_every_scenario_has_a_title_and_a_share() -> None:
    found = [load(name) for name in NAMES]
    assert all(scenario.title and scenario.share > 0 for scenario in found)
    files = {path.stem for path in (Path(__file__).parents[2] / "chaos/scenarios").glob("[a-z]*.py")}
    assert files == set(NAMES)


def test_page_names_findings_and_what_was_not_tried() -> None:
    good, bad, skipped = Verdict("kills", 1), Verdict("rings", 2), Verdict("disks", 3)
    good.counts["driver killed"] = 1_200
    bad.findings.append("a ledger does not add up")
    skipped.skipped = "file systems cannot be mounted here"
    text = page_text([good, bad, skipped], 5, 7_200)
    assert "| seed | 5 |" in text
    assert "driver killed 1,200 | ✓ |" in text
    assert "✗ findings in rings" in text
    assert "- rings, seed 2: a ledger does not add up" in text
    assert "file systems cannot be mounted here" in text
    assert all(what in text for what in NOT_TRIED)
