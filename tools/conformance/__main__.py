"""The command behind `make conformance`: which requirements of the specifications are proven.

It compares the tests that name a requirement with the reports of the last test run. Each requirement is
proven, deviating (by a decision), skipped (with the reason) or untestable; anything else in a section that
complete.toml declares complete is an error, and so is a report that is older than the sources. The exit
status is 1 if there is an error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.conformance import marks as mark_list
from tools.conformance.marks import Marks
from tools.conformance.requirements import (
    ROOT,
    Requirement,
    complete_ids,
    deviation_errors,
    read_requirements,
    specification_errors,
)
from tools.conformance.run_report import RUST_SOURCES, SOURCES, Outcome, TestRun, fingerprint
from tools.conformance.verdict import (
    Outcomes,
    Status,
    Verdict,
    mark_errors,
    not_run,
    verdict_errors,
    verdicts_on,
)

PYTEST_REPORT = Path("build/requirements.json")
CARGO_REPORT = Path("build/requirements-cargo.json")
LOOM_REPORT = Path("build/requirements-loom.json")
REPORTS = (PYTEST_REPORT, CARGO_REPORT, LOOM_REPORT)
# Tests of a partial run that are named one by one.
MAX_NAMED = 5


@dataclass(frozen=True)
class Basis:
    """The reports that a verdict is based on."""

    runs: dict[Path, TestRun]
    faults: list[str]
    """Reports that are missing or out of date."""
    outcomes: Outcomes

    def describe(self) -> list[str]:
        """One line for each report."""
        return [
            f"{path}: {len(run.tests)} tests, {'' if run.long or path != PYTEST_REPORT else 'no long ones, '}"
            f"{run.finished}, {run.command}"
            for path, run in self.runs.items()
        ]


def read_basis(root: Path) -> Basis:
    """Reads the reports and compares them with the sources."""
    current = {path: fingerprint(root, RUST_SOURCES) for path in (CARGO_REPORT, LOOM_REPORT)}
    current[PYTEST_REPORT] = fingerprint(root, SOURCES)
    runs, faults = {}, []
    for path in REPORTS:
        run = TestRun.read(root / path)
        if run is None:
            faults.append(f"{path}: no report")
            continue
        runs[path] = run
        if run.fingerprint != current[path]:
            faults.append(f"{path}: the sources changed after the run of {run.finished}")
    rust = {**_tests(runs.get(LOOM_REPORT)), **_tests(runs.get(CARGO_REPORT))}
    pytest_run = runs.get(PYTEST_REPORT)
    outcomes = Outcomes(_tests(pytest_run), rust, pytest_run is not None and pytest_run.long)
    return Basis(runs, faults, outcomes)


def _tests(run: TestRun | None) -> dict[str, Outcome]:
    return run.tests if run is not None else {}


# --- output


def by_section(verdicts: list[Verdict]) -> Iterator[tuple[str, str, list[Verdict]]]:
    """Verdicts grouped by document and section."""
    sections: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        key = (verdict.requirement.document, verdict.requirement.section)
        sections.setdefault(key, []).append(verdict)
    for (document, section), inside in sections.items():
        yield document, section, inside


def section_table(verdicts: list[Verdict]) -> list[str]:
    """One line for each section: how many of its requirements are proven, and the others."""
    lines = [f"{'document':<10} {'section':<9} {'proven':>9}  others"]
    for document, section, inside in by_section(verdicts):
        testable = [verdict for verdict in inside if verdict.status != Status.UNTESTABLE]
        proven = sum(verdict.status == Status.PROVEN for verdict in inside)
        others = [
            f"{verdict.requirement.id} {verdict.status}"
            for verdict in testable
            if verdict.status != Status.PROVEN
        ]
        counts = f"{proven} of {len(testable)}"
        lines.append(f"{document:<10} {section:<9} {counts:>9}  {', '.join(others)}".rstrip())
    return lines


def details(verdicts: list[Verdict]) -> list[str]:
    """The deviations with their decisions, and the skipped requirements with their reasons."""
    lines = []
    for verdict in verdicts:
        requirement = verdict.requirement
        if verdict.status == Status.DEVIATING:
            lines.append(f"{requirement.id} deviating: {requirement.deviation}")
        elif verdict.status == Status.SKIPPED:
            lines.append(f"{requirement.id} skipped: {'; '.join(verdict.reasons)}")
    return lines


def totals(verdicts: list[Verdict]) -> str:
    """How many requirements have which status."""
    counts = Counter(verdict.status for verdict in verdicts)
    return f"{len(verdicts)} requirements: " + ", ".join(
        f"{counts[status]} {status}" for status in Status if counts[status] or status == Status.PROVEN
    )


def marks_table(requirements: list[Requirement], marks: Marks) -> str:
    """How many requirements have a test, if nothing is known about runs."""
    testable = [requirement for requirement in requirements if not requirement.untestable]
    tested = [requirement for requirement in testable if marks.tests.get(requirement.id)]
    untestable = len(requirements) - len(testable)
    return f"{len(tested)} of {len(testable)} have a test; {untestable} cannot be tested"


def to_json(verdicts: list[Verdict], basis: Basis, partial: list[str], errors: list[str]) -> str:
    """All verdicts, what they are based on, and the errors, as JSON."""
    return json.dumps(
        {
            "requirements": [
                {
                    "id": verdict.requirement.id,
                    "level": verdict.requirement.level,
                    "document": verdict.requirement.document,
                    "section": verdict.requirement.section,
                    "summary": verdict.requirement.summary,
                    "status": verdict.status,
                    "untestable": verdict.requirement.untestable or None,
                    "deviation": verdict.requirement.deviation or None,
                    "tests": verdict.tests,
                    "reasons": verdict.reasons,
                }
                for verdict in verdicts
            ],
            "based_on": [
                {
                    "report": str(path),
                    "command": run.command,
                    "finished": run.finished,
                    "status": run.status,
                    "long": run.long,
                    "tests": len(run.tests),
                }
                for path, run in basis.runs.items()
            ],
            "not_run": partial,
            "errors": errors,
        },
        indent=1,
    )


# --- the command


def main(arguments: list[str] | None = None) -> int:
    """Collects the marked tests and prints the verdicts; returns the exit status."""
    options = parse_options(arguments)
    root = options.root.resolve()
    return report(root, options, mark_list.collect(root))


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="print no table of sections")
    parser.add_argument("--marks", action="store_true", help="check the marks only, not the test runs")
    parser.add_argument("--has-run", action="store_true", help="only say whether a new test run is needed")
    parser.add_argument("--partial", action="store_true", help="accept that some marked tests did not run")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def report(root: Path, options: argparse.Namespace, marks: Marks) -> int:
    """Prints the verdicts on the requirements of a repository; returns the exit status."""
    requirements = read_requirements(root)
    complete, errors = complete_ids(root, requirements)
    errors += deviation_errors(root, requirements)
    compared = specification_errors(root, requirements)
    errors += compared or []
    errors += marks.errors + mark_errors(requirements, marks, complete)
    if options.marks:
        print(marks_table(requirements, marks))
        return _print_errors(errors)

    basis = read_basis(root)
    partial = not_run(marks, basis.outcomes)
    if options.has_run:
        return _has_run(basis, len(partial))
    is_partial = bool(partial) and options.partial
    verdicts = verdicts_on(requirements, marks, basis.outcomes)
    errors += basis.faults + verdict_errors(verdicts, is_partial)
    names = [mark.place if mark.is_rust else mark.test for mark in partial]
    if partial:
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        text = (
            f"the run was partial: {len(names)} of {len(marks.all())} tests that name a requirement "
            f"did not run: {', '.join(names[:MAX_NAMED])}{more}"
        )
        if is_partial:
            print(f"no verdict: {text}", file=sys.stderr)
        else:
            errors.append(text)

    if options.json:
        print(to_json(verdicts, basis, names, errors))
    else:
        lines = [] if options.quiet else section_table(verdicts)
        lines += details(verdicts)
        lines.append(totals(verdicts))
        lines += [f"based on {line}" for line in basis.describe()]
        print("\n".join(lines))
    if compared is not None and not options.quiet:
        print("the ids were compared with the specifications", file=sys.stderr)
    return _print_errors(errors)


def _has_run(basis: Basis, missing: int) -> int:
    faults = [*basis.faults, *([f"{missing} marked tests have not run"] if missing else [])]
    for fault in faults:
        print(f"a new test run is needed: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _print_errors(errors: list[str]) -> int:
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
