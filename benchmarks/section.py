"""A section of the report: measured data, targets, notes and tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .targets import Target

Rows = list[list[str]]


class Table(NamedTuple):
    """A table of the report. A table without rows is not printed."""

    title: str
    head: list[str]
    rows: Rows


@dataclass(frozen=True, slots=True)
class Section:
    """Results of one group of measurements."""

    key: str
    """Name of the section in the JSON report."""
    data: Any
    """Measured values, for the JSON report."""
    tables: list[Table]
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    others: float | None = None
    """Largest load by other processes during a measurement, in cores."""
