"""Says which requirements of the specifications have a test: `make conformance`.

A Python test names what it proves with `@pytest.mark.requirement("wire-8.3-1")`, a Rust test with a
line `/// requirement: wire-8.3-1, wire-8.3-2` in the comment above its `#[test]`. Tests are collected,
never run. The exit status is 1 for a gap in a section that complete.toml declares complete, for an id
that does not exist, and for a list of requirements that differs from the specifications' own.
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
LISTED = ROOT / "tests" / "conformance" / "requirements.csv"
COMPLETE = ROOT / "tests" / "conformance" / "complete.toml"
# The specifications themselves stay outside the repository; where they lie beside it, the ids must agree.
SPECIFIED = ROOT.parent / "shared" / "specs" / "requirements.csv"

RUST_REQUIREMENT = re.compile(r"^\s*/// requirement:\s*(?P<ids>.*)$")
RUST_TEST = re.compile(r"^\s*#\[(?:\w+::)*test\]")
# What may stand between the comment line and the test attribute.
RUST_BETWEEN = re.compile(r"^\s*(///|#\[)")


@dataclass(frozen=True)
class Requirement:
    id: str
    level: str
    section: str
    summary: str
    untestable: str

    @property
    def document(self) -> str:
        return self.id.partition("-")[0]

    def inside(self, section: str) -> bool:
        """Is it in this section or one below it? 15.2 holds 15.2.1 but not 15.21; * is the whole document."""
        return section in {"*", self.section} or self.section.startswith(f"{section}.")


@dataclass
class Findings:
    """Tests by requirement id, and everything that is wrong."""

    tests: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)


def listed(path: Path = LISTED) -> list[Requirement]:
    with path.open(newline="", encoding="utf-8") as file:
        return [Requirement(**row) for row in csv.DictReader(file)]


@cache
def known_ids() -> frozenset[str]:
    return frozenset(requirement.id for requirement in listed())


# --- collecting


def python_tests(root: Path, findings: Findings) -> None:
    """Lets pytest collect, and reads the markers of what it found."""
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
    for path in sorted((root / "crates").rglob("*.rs")):
        place = path.relative_to(root)
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            if not (match := RUST_REQUIREMENT.match(line)):
                continue
            if not _above_a_test(lines[number:]):
                findings.errors.append(f"{place}:{number}: a requirement line without a #[test] below it")
                continue
            for name in re.split(r"[,\s]+", match["ids"].strip()):
                findings.tests[name].append(f"{place}:{number}")


def _above_a_test(following: Iterable[str]) -> bool:
    for line in following:
        if RUST_TEST.match(line):
            return True
        if not RUST_BETWEEN.match(line):
            return False
    return False


# --- judging


def check_ids(requirements: list[Requirement], findings: Findings) -> None:
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
            inside = [one for one in requirements if one.document == document and one.inside(section)]
            if not inside:
                findings.errors.append(f"complete.toml: no section {section!r} in {document}")
            if gaps := [one.id for one in inside if missing(one, findings)]:
                findings.errors.append(
                    f"{document} §{section} is declared complete but has no test for {', '.join(gaps)}"
                )


def check_specified(requirements: list[Requirement], specified: Path, findings: Findings) -> bool:
    """Compares with the specifications' own list; False where that is not at hand."""
    if not specified.is_file():
        return False
    with specified.open(newline="", encoding="utf-8") as file:
        theirs = {row["id"]: (row["level"], row["section"]) for row in csv.DictReader(file)}
    ours = {one.id: (one.level, one.section) for one in requirements}
    for name in sorted(theirs.keys() - ours.keys()):
        findings.errors.append(f"{name} is in the specifications but not in requirements.csv")
    for name in sorted(ours.keys() - theirs.keys()):
        findings.errors.append(f"{name} is in requirements.csv but not in the specifications")
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name] != theirs[name]:
            findings.errors.append(f"{name}: level and section are {theirs[name]}, not {ours[name]}")
    return True


def missing(requirement: Requirement, findings: Findings) -> bool:
    return not requirement.untestable and not findings.tests.get(requirement.id)


# --- telling


def by_section(requirements: list[Requirement]) -> Iterator[tuple[str, str, list[Requirement]]]:
    sections: dict[tuple[str, str], list[Requirement]] = {}
    for requirement in requirements:
        sections.setdefault((requirement.document, requirement.section), []).append(requirement)
    for (document, section), inside in sections.items():
        yield document, section, inside


def table(requirements: list[Requirement], findings: Findings, only_totals: bool) -> str:
    lines = [] if only_totals else [f"{'document':<10} {'section':<9} {'tested':>9}  missing"]
    for document, section, inside in () if only_totals else by_section(requirements):
        gaps = [one.id for one in inside if missing(one, findings)]
        testable = [one for one in inside if not one.untestable]
        tested = f"{len(testable) - len(gaps)} of {len(testable)}"
        lines.append(f"{document:<10} {section:<9} {tested:>9}  {', '.join(gaps)}".rstrip())
    testable = [one for one in requirements if not one.untestable]
    gaps = [one.id for one in testable if missing(one, findings)]
    untestable = len(requirements) - len(testable)
    lines.append(f"{len(testable) - len(gaps)} of {len(testable)} have a test; {untestable} cannot be tested")
    return "\n".join(lines)


def as_json(requirements: list[Requirement], findings: Findings) -> str:
    return json.dumps(
        {
            "requirements": [
                {
                    "id": one.id,
                    "level": one.level,
                    "document": one.document,
                    "section": one.section,
                    "summary": one.summary,
                    "untestable": one.untestable or None,
                    "tests": findings.tests.get(one.id, []),
                }
                for one in requirements
            ],
            "errors": findings.errors,
        },
        indent=1,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument("--quiet", action="store_true", help="only the totals and what is wrong")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)

    root: Path = options.root.resolve()
    requirements = listed(root / LISTED.relative_to(ROOT))
    complete: dict[str, list[str]] = tomllib.loads((root / COMPLETE.relative_to(ROOT)).read_text())[
        "complete"
    ]
    findings = Findings()
    python_tests(root, findings)
    rust_tests(root, findings)
    check_ids(requirements, findings)
    check_complete(requirements, complete, findings)
    compared = check_specified(requirements, root.parent / SPECIFIED.relative_to(ROOT.parent), findings)

    print(as_json(requirements, findings) if options.json else table(requirements, findings, options.quiet))
    if compared and not options.quiet:
        print("the ids were compared with the specifications", file=sys.stderr)
    for error in findings.errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if findings.errors else 0


if __name__ == "__main__":
    sys.exit(main())
