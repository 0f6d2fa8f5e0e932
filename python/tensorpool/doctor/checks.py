"""The outcome of a check: its finding, its meaning and a remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from ..text import JsonMapping


class CheckStatus(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARN = "warn"
    """It works, with a disadvantage."""
    FAIL = "fail"
    """It does not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """A finding. `meaning` and `remedy` are empty if the status is ok."""

    name: str
    status: CheckStatus
    found: str
    meaning: str = ""
    remedy: str = ""

    def to_json(self) -> JsonMapping:
        """The fields by name."""
        return asdict(self)


def ok(name: str, found: str) -> Check:
    """A finding that needs no action."""
    return Check(name, CheckStatus.OK, found)


def warn(name: str, found: str, meaning: str, remedy: str) -> Check:
    """A finding that has a disadvantage."""
    return Check(name, CheckStatus.WARN, found, meaning, remedy)


def fail(name: str, found: str, meaning: str, remedy: str) -> Check:
    """A finding that keeps something from working."""
    return Check(name, CheckStatus.FAIL, found, meaning, remedy)


def worst(checks: Iterable[Check]) -> CheckStatus:
    """The most serious status of the checks; ok without any."""
    statuses = {check.status for check in checks}
    return next(
        (status for status in (CheckStatus.FAIL, CheckStatus.WARN) if status in statuses), CheckStatus.OK
    )
