"""The command behind `make conformance`: which requirements of the specifications have a test.

A Python test names its requirements with `@pytest.mark.requirement("wire-8.3-1")`, a Rust test with a line
`/// requirement: wire-8.3-1, wire-8.3-2` in the comment above its `#[test]`. The tests are collected, not
run. The exit status is 1 for a missing test in a section that complete.toml declares complete, for an unknown
id, and for a list of requirements that differs from that of the specifications.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tests" / "conformance" / "requirements.csv"
COMPLETE = ROOT / "tests" / "conformance" / "complete.toml"
# The specifications are not part of the repository; if they are beside it, the ids must agree.
SPECIFICATION_REQUIREMENTS = ROOT.parent / "shared" / "specs" / "requirements.csv"

RUST_REQUIREMENT = re.compile(r"^\s*/// requirement:\s*(?P<ids>.*)$")
RUST_TEST = re.compile(r"^\s*#\[(?:\w+::)*test\]")
# Lines that are allowed between the comment line and the test attribute.
RUST_BETWEEN = re.compile(r"^\s*(///|#\[)")


@dataclass(frozen=True)
class Requirement:
    """A requirement of a specification."""

    id: str
    level: str
    section: str
    summary: str
    untestable: str

    @property
    def document(self) -> str:
        """Name of the specification."""
        return self.id.partition("-")[0]

    def is_in(self, section: str) -> bool:
        """Whether it is in this section or below. 15.2 contains 15.2.1 but not 15.21; * is the whole
        document."""
        return section in {"*", self.section} or self.section.startswith(f"{section}.")


@dataclass
class Findings:
    """Tests by requirement id, and errors."""

    tests: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)


def read_requirements(path: Path = REQUIREMENTS) -> list[Requirement]:
    """Reads requirements.csv."""
    with path.open(newline="", encoding="utf-8") as file:
        return [Requirement(**row) for row in csv.DictReader(file)]


@cache
def known_ids() -> frozenset[str]:
    """Ids of all requirements."""
    return frozenset(requirement.id for requirement in read_requirements())


# --- collection


def python_tests(root: Path, findings: Findings) -> None:
    """Collects the Python tests with pytest and reads their markers."""
    import pytest

    class Collector:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            for item in session.items:
                for marker in item.iter_markers("requirement"):
                    for name in marker.args:
                        # One line for all the parameters of a test.
                        test = item.nodeid.partition("[")[0]
                        if test not in findings.tests[name]:
                            findings.tests[name].append(test)

    output = io.StringIO()
    arguments = ["--collect-only", "-qq", "--rootdir", str(root), "-c", str(root / "pyproject.toml")]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), contextlib.chdir(root):
        status = pytest.main([*arguments, str(root / "tests")], plugins=[Collector()])
    if status not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        findings.errors.append(f"the tests cannot be collected:\n{output.getvalue().strip()}")


def rust_tests(root: Path, findings: Findings) -> None:
    """Reads the requirement lines of the Rust tests."""
    for path in sorted((root / "crates").rglob("*.rs")):
        source = path.relative_to(root)
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            if not (match := RUST_REQUIREMENT.match(line)):
                continue
            if not _precedes_test(lines[number:]):
                findings.errors.append(f"{source}:{number}: a requirement line without a #[test] below it")
                continue
            for name in re.split(r"[,\s]+", match["ids"].strip()):
                findings.tests[name].append(f"{source}:{number}")


def _precedes_test(following: Iterable[str]) -> bool:
    for line in following:
        if RUST_TEST.match(line):
            return True
        if not RUST_BETWEEN.match(line):
            return False
    return False


# --- checks


def check_ids(requirements: list[Requirement], findings: Findings) -> None:
    """Reports unknown ids and tests of untestable requirements."""
    known = {requirement.id for requirement in requirements}
    for name in sorted(findings.tests.keys() - known):
        findings.errors.append(f"no requirement {name!r}, named by {', '.join(findings.tests[name])}")
    for requirement in requirements:
        if requirement.untestable and findings.tests.get(requirement.id):
            findings.errors.append(f"{requirement.id} is listed as untestable but has a test")


def check_complete(
    requirements: list[Requirement], complete: dict[str, list[str]], findings: Findings
) -> None:
    documents = {requirement.document for requirement in requirements}
    for document, sections in complete.items():
        if document not in documents:
            findings.errors.append(f"complete.toml: no document {document!r}")
            continue
        for section in sections:
            inside = [
                requirement
                for requirement in requirements
                if requirement.document == document and requirement.is_in(section)
            ]
            if not inside:
                findings.errors.append(f"complete.toml: no section {section!r} in {document}")
            if gaps := [requirement.id for requirement in inside if lacks_test(requirement, findings)]:
                findings.errors.append(
                    f"{document} §{section} is declared complete but has no test for {', '.join(gaps)}"
                )


def check_specification(requirements: list[Requirement], specified: Path, findings: Findings) -> bool:
    """Compares with the list of the specifications; returns False if it is not available."""
    if not specified.is_file():
        return False
    with specified.open(newline="", encoding="utf-8") as file:
        theirs = {row["id"]: (row["level"], row["section"]) for row in csv.DictReader(file)}
    ours = {requirement.id: (requirement.level, requirement.section) for requirement in requirements}
    for name in sorted(theirs.keys() - ours.keys()):
        findings.errors.append(f"{name} is in the specifications but not in requirements.csv")
    for name in sorted(ours.keys() - theirs.keys()):
        findings.errors.append(f"{name} is in requirements.csv but not in the specifications")
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name] != theirs[name]:
            findings.errors.append(f"{name}: level and section are {theirs[name]}, not {ours[name]}")
    return True


def lacks_test(requirement: Requirement, findings: Findings) -> bool:
    """Whether a testable requirement has no test."""
    return not requirement.untestable and not findings.tests.get(requirement.id)


# --- output


def by_section(requirements: list[Requirement]) -> Iterator[tuple[str, str, list[Requirement]]]:
    """Requirements grouped by document and section."""
    sections: dict[tuple[str, str], list[Requirement]] = {}
    for requirement in requirements:
        sections.setdefault((requirement.document, requirement.section), []).append(requirement)
    for (document, section), inside in sections.items():
        yield document, section, inside


def table(requirements: list[Requirement], findings: Findings, only_totals: bool) -> str:
    """Text table of the sections and the totals."""
    lines = [] if only_totals else [f"{'document':<10} {'section':<9} {'tested':>9}  missing"]
    for document, section, inside in () if only_totals else by_section(requirements):
        gaps = [requirement.id for requirement in inside if lacks_test(requirement, findings)]
        testable = [requirement for requirement in inside if not requirement.untestable]
        tested = f"{len(testable) - len(gaps)} of {len(testable)}"
        lines.append(f"{document:<10} {section:<9} {tested:>9}  {', '.join(gaps)}".rstrip())
    testable = [requirement for requirement in requirements if not requirement.untestable]
    gaps = [requirement.id for requirement in testable if lacks_test(requirement, findings)]
    untestable = len(requirements) - len(testable)
    lines.append(f"{len(testable) - len(gaps)} of {len(testable)} have a test; {untestable} cannot be tested")
    return "\n".join(lines)


def to_json(requirements: list[Requirement], findings: Findings) -> str:
    """All requirements with their tests, and the errors, as JSON."""
    return json.dumps(
        {
            "requirements": [
                {
                    "id": requirement.id,
                    "level": requirement.level,
                    "document": requirement.document,
                    "section": requirement.section,
                    "summary": requirement.summary,
                    "untestable": requirement.untestable or None,
                    "tests": findings.tests.get(requirement.id, []),
                }
                for requirement in requirements
            ],
            "errors": findings.errors,
        },
        indent=1,
    )


def main(arguments: list[str] | None = None) -> int:
    """Prints the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="print only the totals and the errors")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)

    root: Path = options.root.resolve()
    requirements = read_requirements(root / REQUIREMENTS.relative_to(ROOT))
    complete: dict[str, list[str]] = tomllib.loads((root / COMPLETE.relative_to(ROOT)).read_text())[
        "complete"
    ]
    findings = Findings()
    python_tests(root, findings)
    rust_tests(root, findings)
    check_ids(requirements, findings)
    check_complete(requirements, complete, findings)
    compared = check_specification(
        requirements, root.parent / SPECIFICATION_REQUIREMENTS.relative_to(ROOT.parent), findings
    )

    print(to_json(requirements, findings) if options.json else table(requirements, findings, options.quiet))
    if compared and not options.quiet:
        print("the ids were compared with the specifications", file=sys.stderr)
    for error in findings.errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if findings.errors else 0


if __name__ == "__main__":
    sys.exit(main())
