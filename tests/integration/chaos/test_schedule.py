"""The schedule of `tests/chaos`: a few seconds of it in every run, and its page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.checker import Checker, Verdict
from tests.chaos.page import fuzz_lines, page_text, text_with_single
from tests.chaos.scenarios import NAMES, NOT_TRIED, load
from tests.chaos.tally import Counts, read_counts

TIMEOUT_S = 300


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    ("scenario", "counted"),
    [
        ("kills", "frames checked"),
        ("starts", "driver started after a killed one"),
        ("messages", "frames checked"),
        ("floods", "frames checked"),
        ("rings", "frames checked"),
        ("files", "frames checked"),
        ("memory", "frames checked"),
        ("disks", "frames recorded"),
    ],
)
def test_scenario_ends_without_findings(scenario: str, counted: str) -> None:
    # On a busy machine two seconds may be too short for a program to do anything.
    for minutes in ("0.04", "0.5"):
        command = [sys.executable, "-m", "tests.chaos", "--seed", "7", "--minutes", minutes, "--json"]
        done = subprocess.run(
            [*command, "--only", scenario], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        (verdict,) = json.loads(done.stdout)["verdicts"]
        if not verdict["findings"] or any(" started, and no " not in text for text in verdict["findings"]):
            break
    if verdict["skipped"] is not None:
        pytest.skip(verdict["skipped"])
    assert verdict["findings"] == [], verdict["logs"]
    assert done.returncode == 0
    assert verdict["counts"][counted] > 0


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.long
def test_tables_on_a_full_disk_equal_the_ledger() -> None:
    test_scenario_ends_without_findings("tables", "rows of silver/frames compared")


@pytest.mark.parametrize("role", ["producer", "consumer", "recorder"])
def test_scenario_that_stood_still_is_a_finding(role: str) -> None:
    checker = Checker("kills", 1)
    checker.count(f"{role} started")
    assert len(checker.end().findings) == 1


def test_torn_frames_of_a_killed_program_are_a_finding() -> None:
    checker = Checker("kills", 1)
    checker.program("consumer", Counts(checked=10, torn=1), None)
    checker.program("consumer", Counts(checked=5), None)
    assert (checker.verdict.counts["frames checked"], len(checker.verdict.findings)) == (14, 1)


@pytest.mark.parametrize(("name", "is_finding"), [("aeron-lab-{pid}", False), ("aeron-chaos-{pid}-0", True)])
def test_only_what_a_run_may_have_left_is_a_finding(
    name: str, is_finding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.chaos.checker.LEFTOVER_TIMEOUT_S", 0.1)
    left = Path("/dev/shm") / name.format(pid=os.getpid())
    checker = Checker("kills", 1)
    left.mkdir()
    try:
        assert bool(checker.end().findings) == is_finding
    finally:
        left.rmdir()


def test_counts_of_a_killed_program_stay(tmp_path: Path) -> None:
    path = tmp_path / "tally"
    code = (
        "import os, pathlib, signal, sys; from tests.chaos.tally import Tally\n"
        "tally = Tally(pathlib.Path(sys.argv[1])); tally.add('checked'); tally.add('checked')\n"
        "tally.set('recorded', 7); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert read_counts(path) == Counts()
    subprocess.run([sys.executable, "-c", code, str(path)], timeout=TIMEOUT_S, check=False)
    assert read_counts(path) == Counts(checked=2, recorded=7)


def test_page_has_the_results_of_fuzzing(tmp_path: Path) -> None:
    results = tmp_path / "fuzz.json"
    assert fuzz_lines(results) == []
    run = {"target": "wire", "inputs": 1_234_567, "seconds": 20, "corpus": 109, "crash": None}
    results.write_text(json.dumps({"date": "2026-11-16", "results": [run]}))
    assert "| wire | 1,234,567 | 109 | ✓ |" in fuzz_lines(results)


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


def test_single_scenarios_have_a_section_of_their_own() -> None:
    whole = page_text([Verdict("kills", 1)], 5, 7_200)
    again = Verdict("rings", 2)
    again.counts["stray writes"] = 40
    text = text_with_single(whole, [again], 6, 600)
    assert text.index("| seed | 5 |") < text.index("## Single scenarios") < text.index("| seed | 6 |")
    assert text.index("stray writes 40 | ✓ |") < text.index("## Not tried")
    again.counts["stray writes"] = 41
    replaced = text_with_single(text, [again], 7, 600)
    assert "| seed | 6 |" not in replaced
    assert replaced.count("## Single scenarios") == 1
    assert replaced.replace("| seed | 7 |", "| seed | 6 |").replace("writes 41", "writes 40") == text
