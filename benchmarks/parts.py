"""A section of the report: what was measured, what was to be reached, and the words and tables about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .targets import Target

Rows = list[list[str]]


class Figures(NamedTuple):
    """A table; without rows it is not shown."""

    title: str
    head: list[str]
    rows: Rows


@dataclass(frozen=True, slots=True)
class Part:
    key: str
    """Its name in the JSON."""
    data: Any
    """What was measured, for the JSON."""
    tables: list[Figures]
    targets: list[Target] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    others: float | None = None
    """The most that other processes used meanwhile, in cores."""
