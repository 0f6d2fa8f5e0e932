"""The verdict on each requirement, from the tests that name it and the reports of their runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tools.conformance.marks import Mark, Marks
from tools.conformance.requirements import Requirement
from tools.conformance.run_report import Outcome


class Status(StrEnum):
    """What is known about a requirement."""

    PROVEN = "proven"
    """A test of it passed, and none failed."""
    DEVIATING = "deviating"
    """A decision says why the project does otherwise; a test of what it does passed, and none failed."""
    SKIPPED = "skipped"
    """All its tests were skipped."""
    UNTESTABLE = "untestable"
    """It binds something other than this code; the list says what."""
    FAILED = "failed"
    """A test of it failed."""
    NOT_RUN = "not run"
    """A test of it is missing in the report, and no other one proves or refutes it."""
    MISSING = "missing"
    """No test names it."""


ACCEPTED = {Status.PROVEN, Status.DEVIATING, Status.SKIPPED, Status.UNTESTABLE}


@dataclass(frozen=True)
class Verdict:
    """The verdict on one requirement."""

    requirement: Requirement
    status: Status
    tests: list[str]
    """Where its tests are."""
    reasons: list[str] = field(default_factory=list)
    """Why tests were skipped, failed or did not run."""


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of all test runs, by test."""

    python: Mapping[str, Outcome]
    rust: Mapping[str, Outcome]
    long: bool
    """Whether the Python run included the long tests."""

    def outcome(self, mark: Mark) -> Outcome | None:
        """What became of a test; None if it did not run."""
        if mark.is_rust:
            pattern = re.compile(mark.test)
            return next((outcome for name, outcome in self.rust.items() if pattern.fullmatch(name)), None)
        if (outcome := self.python.get(mark.test)) is not None:
            return outcome
        if mark.is_long and not self.long:
            return Outcome("skipped", "long: run make test-long")
        return None


def verdicts_on(requirements: Iterable[Requirement], marks: Marks, outcomes: Outcomes) -> list[Verdict]:
    """The verdicts on all requirements."""
    known = {mark: outcomes.outcome(mark) for mark in marks.all()}
    return [_verdict(requirement, marks, known) for requirement in requirements]


def _verdict(requirement: Requirement, marks: Marks, known: Mapping[Mark, Outcome | None]) -> Verdict:
    tests = marks.tests.get(requirement.id, [])
    places = marks.places(requirement.id)
    if requirement.untestable:
        return Verdict(requirement, Status.UNTESTABLE, places, [requirement.untestable])
    if not tests:
        return Verdict(requirement, Status.MISSING, places)
    by_kind: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": [], "not run": []}
    for mark in tests:
        outcome = known[mark]
        if outcome is None:
            by_kind["not run"].append(f"{mark.place} did not run")
        else:
            by_kind[outcome.outcome].append(
                f"{mark.place}: {outcome.reason}" if outcome.reason else mark.place
            )
    if by_kind["failed"]:
        return Verdict(requirement, Status.FAILED, places, _unique(by_kind["failed"]))
    if by_kind["passed"]:
        status = Status.DEVIATING if requirement.deviation else Status.PROVEN
        return Verdict(requirement, status, places)
    if by_kind["not run"]:
        return Verdict(requirement, Status.NOT_RUN, places, _unique(by_kind["not run"]))
    return Verdict(requirement, Status.SKIPPED, places, _unique(by_kind["skipped"]))


def _unique(texts: list[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def not_run(marks: Marks, outcomes: Outcomes) -> list[Mark]:
    """Tests that name a requirement and are missing in the reports: the run was partial."""
    return sorted(
        (mark for mark in marks.all() if outcomes.outcome(mark) is None),
        key=lambda mark: (mark.place, mark.test),
    )


def mark_errors(requirements: list[Requirement], marks: Marks, complete: set[str]) -> list[str]:
    """What is wrong with the marks themselves: unknown ids, tests of untestable requirements, no test."""
    known = {requirement.id for requirement in requirements}
    errors = [
        f"no requirement {name!r}, named by {', '.join(marks.places(name))}"
        for name in sorted(marks.tests.keys() - known)
    ]
    for requirement in requirements:
        if requirement.untestable and marks.tests.get(requirement.id):
            errors.append(f"{requirement.id} is listed as untestable but has a test")
        lacks_test = not requirement.untestable and not marks.tests.get(requirement.id)
        if lacks_test and requirement.deviation:
            errors.append(f"{requirement.id} is listed as a deviation but has no test of what holds instead")
        elif lacks_test and requirement.id in complete:
            errors.append(
                f"{requirement.document} §{requirement.section} is declared complete "
                f"but has no test for {requirement.id}"
            )
    return errors


def verdict_errors(verdicts: list[Verdict], is_partial: bool) -> list[str]:
    """What the verdicts say is wrong. Of a partial run, only what failed in it."""
    errors = []
    for verdict in verdicts:
        if verdict.status == Status.MISSING:
            # mark_errors reports it, where its section is declared complete.
            continue
        if verdict.status in ACCEPTED or (is_partial and verdict.status == Status.NOT_RUN):
            continue
        errors.append(f"{verdict.requirement.id} {verdict.status}: {'; '.join(verdict.reasons)}")
    return errors
