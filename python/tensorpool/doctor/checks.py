"""The outcome of one check: what was found, what it means, what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, and something will disappoint."""
    FAIL = "fail"
    """It does not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """`meaning` and `remedy` are for whoever has to do something about it; empty where all is well."""

    name: str
    status: Status
    found: str
    meaning: str = ""
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def ok(name: str, found: str) -> Check:
    return Check(name, Status.OK, found)


def warn(name: str, found: str, meaning: str, remedy: str) -> Check:
    return Check(name, Status.WARN, found, meaning, remedy)


def fail(name: str, found: str, meaning: str, remedy: str) -> Check:
    return Check(name, Status.FAIL, found, meaning, remedy)


def worst(checks: list[Check]) -> Status:
    """Fail beats warn beats ok."""
    found = {one.status for one in checks}
    return next((status for status in (Status.FAIL, Status.WARN) if status in found), Status.OK)
