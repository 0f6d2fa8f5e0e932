"""`docs/explanation/what-was-tried.md`: what a run tried, with which result, and what was not tried."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import tensorpool as tp
from tests.chaos.checker import Verdict
from tests.chaos.scenarios import NOT_TRIED, load

FUZZ_RESULTS = Path(__file__).parents[2] / "build" / "fuzz.json"
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "what-was-tried.md"
_AGAIN = "## Single scenarios"


def write_page(verdicts: list[Verdict], seed: int, seconds: float, path: Path = PAGE) -> None:
    """Writes the page of a run."""
    path.write_text(page_text(verdicts, seed, seconds), "utf-8")


def page_text(verdicts: list[Verdict], seed: int, seconds: float) -> str:
    """The text of the page."""
    lines = [
        "# What was tried",
        "",
        "The schedule in `tests/chaos` kills, pauses and damages a running system, and checks what is left.",
        "Every word of every payload proves its frame; at the end no consumer may have a frame that was",
        "not published, every ledger must add up, and no process, file or byte may be left.",
        "`make chaos` runs it and writes this page; `python -m tests.chaos --seed N` repeats a run.",
        "",
        *_run_lines(verdicts, seed, seconds),
    ]
    lines += fuzz_lines(FUZZ_RESULTS)
    if findings := [(verdict, finding) for verdict in verdicts for finding in verdict.findings]:
        lines += ["", "## Findings", ""]
        lines += [f"- {verdict.scenario}, seed {verdict.seed}: {finding}" for verdict, finding in findings]
    lines += ["", "## Not tried", "", *(f"- {what}" for what in NOT_TRIED)]
    missing = [verdict for verdict in verdicts if verdict.skipped is not None]
    lines += [f"- {load(verdict.scenario).title}: {verdict.skipped}" for verdict in missing]
    return "\n".join(lines) + "\n"


def add_single(verdicts: list[Verdict], seed: int, seconds: float, path: Path = PAGE) -> None:
    """Puts a run of single scenarios on the page, beside the whole run, in place of an earlier one."""
    path.write_text(text_with_single(path.read_text("utf-8"), verdicts, seed, seconds), "utf-8")


def text_with_single(text: str, verdicts: list[Verdict], seed: int, seconds: float) -> str:
    """The text of a page with the section on single scenarios, before the next one."""
    before, _, rest = text.partition(f"\n{_AGAIN}\n")
    if not rest:
        before, _, rest = text.partition("\n## ")
    else:
        rest = rest.partition("\n## ")[2]
    lines = [
        _AGAIN, "",
        "Scenarios that were added or changed since the run above, run by themselves.",
        "", *_run_lines(verdicts, seed, seconds),
    ]  # fmt: skip
    findings = [(verdict, finding) for verdict in verdicts for finding in verdict.findings]
    lines += [""] if findings else []
    lines += [f"- {verdict.scenario}, seed {verdict.seed}: {finding}" for verdict, finding in findings]
    return f"{before}\n" + "\n".join(lines) + f"\n\n## {rest}"


def _run_lines(verdicts: list[Verdict], seed: int, seconds: float) -> list[str]:
    """Two tables: about the run, and what each scenario did."""
    total: Counter[str] = Counter()
    for verdict in verdicts:
        total.update(verdict.counts)
    lines = [
        "| | |",
        "|---|---|",
        f"| version | {tp.__version__} |",
        f"| date | {datetime.now(UTC):%Y-%m-%d} |",
        f"| machine | {platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()} |",
        f"| time | {seconds / 60:.0f} minutes |",
        f"| seed | {seed} |",
        f"| frames checked | {total['frames checked'] + total['recorded frames checked']:,} |",
        f"| result | {_result(verdicts)} |",
        "",
        "| scenario | what was done | result |",
        "|---|---|---|",
    ]
    for verdict in verdicts:
        done = ", ".join(f"{what} {number:,}" for what, number in sorted(verdict.counts.items()))
        lines.append(f"| {load(verdict.scenario).title} | {done} | {_of(verdict)} |")
    return lines


def fuzz_lines(path: Path) -> list[str]:
    """The section on the last whole run of `make fuzz`; empty without one."""
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    rows = [
        f"| {result['target']} | {result['inputs']:,} | {result['corpus']} | "
        f"{'✓' if result['crash'] is None else '✗'} |"
        for result in record["results"]
    ]
    return [
        "", "## Fuzzing", "",
        "libFuzzer over every decoder of the native core, and over a reader whose ring others change, on "
        f"{record['date']}, {record['results'][0]['seconds']} seconds a target (`make fuzz`).",
        "", "| target | inputs | corpus | result |", "|---|---:|---:|---|", *rows,
    ]  # fmt: skip


def _of(verdict: Verdict) -> str:
    if verdict.skipped is not None:
        return "not run here"
    return "✓" if verdict.ok else f"✗ {len(verdict.findings)} findings"


def _result(verdicts: list[Verdict]) -> str:
    bad = [verdict.scenario for verdict in verdicts if verdict.findings]
    return f"✗ findings in {', '.join(bad)}" if bad else "✓ nothing torn, every ledger exact, nothing left"
