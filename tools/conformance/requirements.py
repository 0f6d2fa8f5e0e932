"""The list of requirements: requirements.csv, complete.toml, and the decisions that deviations refer to."""

from __future__ import annotations

import csv
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path("tests/conformance/requirements.csv")
COMPLETE = Path("tests/conformance/complete.toml")
# The specifications are not part of the repository; if they are beside it, the ids must agree.
SPECIFICATION_REQUIREMENTS = Path("../shared/specs/requirements.csv")
DECISIONS = "docs/decisions/"

HEADING = re.compile(r"^#+\s+(?P<text>.*)$")
ANCHOR = re.compile(r'<a id="(?P<name>[^"]+)">')


@dataclass(frozen=True)
class Requirement:
    """A requirement of a specification."""

    id: str
    level: str
    section: str
    summary: str
    untestable: str
    deviation: str
    """Page and anchor of the decision not to follow it to the letter; empty if the project follows it."""

    @property
    def document(self) -> str:
        """Name of the specification."""
        return self.id.partition("-")[0]

    def is_in(self, section: str) -> bool:
        """Whether it is in this section or below. 15.2 contains 15.2.1 but not 15.21; * is the whole
        document."""
        return section in {"*", self.section} or self.section.startswith(f"{section}.")


def read_requirements(root: Path = ROOT) -> list[Requirement]:
    """Reads requirements.csv."""
    with (root / REQUIREMENTS).open(newline="", encoding="utf-8") as file:
        return [Requirement(**row) for row in csv.DictReader(file)]


@cache
def known_ids() -> frozenset[str]:
    """Ids of all requirements."""
    return frozenset(requirement.id for requirement in read_requirements())


def complete_ids(root: Path, requirements: list[Requirement]) -> tuple[set[str], list[str]]:
    """Ids of the requirements in the sections that complete.toml declares complete, and its errors."""
    complete: dict[str, list[str]] = tomllib.loads((root / COMPLETE).read_text())["complete"]
    documents = {requirement.document for requirement in requirements}
    ids: set[str] = set()
    errors = []
    for document, sections in complete.items():
        if document not in documents:
            errors.append(f"complete.toml: no document {document!r}")
            continue
        for section in sections:
            inside = {
                requirement.id
                for requirement in requirements
                if requirement.document == document and requirement.is_in(section)
            }
            if not inside:
                errors.append(f"complete.toml: no section {section!r} in {document}")
            ids |= inside
    return ids, errors


def deviation_errors(root: Path, requirements: list[Requirement]) -> list[str]:
    """What is wrong with the decisions that deviating requirements refer to."""
    errors = []
    for requirement in requirements:
        if requirement.deviation and (fault := _deviation_fault(root, requirement)):
            errors.append(f"{requirement.id}: the deviation {requirement.deviation!r} {fault}")
    return errors


def _deviation_fault(root: Path, requirement: Requirement) -> str:
    if requirement.untestable:
        return "is of a requirement that is listed as untestable"
    path, _, anchor = requirement.deviation.partition("#")
    if not path.startswith(DECISIONS) or ".." in path:
        return f"is not a page of {DECISIONS}"
    if not anchor:
        return f"names no anchor: write {path}#…"
    if not (root / path).is_file():
        return "names a page that does not exist"
    text = (root / path).read_text(encoding="utf-8")
    if anchor not in anchors(text):
        return "names an anchor that the page does not have"
    if not re.search(rf"\b{re.escape(requirement.id)}\b(?![\d.])", ANCHOR.sub("", text)):
        return "names a page that does not mention the requirement"
    return ""


def anchors(text: str) -> set[str]:
    """Anchors of a Markdown page: its headings as GitHub links them, and its `<a id="…">`."""
    names = {match["name"] for match in ANCHOR.finditer(text)}
    for line in text.splitlines():
        if match := HEADING.match(line):
            text = re.sub(r"[^\w\- ]", "", match["text"].strip().lower())
            names.add(text.replace(" ", "-"))
    return names


def specification_errors(root: Path, requirements: list[Requirement]) -> list[str] | None:
    """Differences from the list of the specifications; None if that list is not available."""
    specified = root / SPECIFICATION_REQUIREMENTS
    if not specified.is_file():
        return None
    with specified.open(newline="", encoding="utf-8") as file:
        theirs = {row["id"]: (row["level"], row["section"]) for row in csv.DictReader(file)}
    ours = {requirement.id: (requirement.level, requirement.section) for requirement in requirements}
    return [
        *(
            f"{name} is in the specifications but not in requirements.csv"
            for name in sorted(theirs.keys() - ours.keys())
        ),
        *(
            f"{name} is in requirements.csv but not in the specifications"
            for name in sorted(ours.keys() - theirs.keys())
        ),
        *(
            f"{name}: level and section are {theirs[name]}, not {ours[name]}"
            for name in sorted(ours.keys() & theirs.keys())
            if ours[name] != theirs[name]
        ),
    ]
