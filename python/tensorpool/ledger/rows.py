"""One line of the ledger: what became of the frames of a stream on one path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How a row stands."""

    EXACT = "exact"
    """Every frame is accounted for."""
    WAITING = "waiting"
    """Some are on their way: published, and not yet taken."""
    SETTLING = "settling"
    """The figures do not fit yet. They are told at different moments, so they get a while."""
    MISMATCH = "mismatch"
    """They do not fit, and that has lasted."""
    GONE = "gone"
    """Who told has left without a last word; the last that was heard."""


@dataclass(frozen=True, slots=True)
class Row:
    """`published` = `delivered` + `dropped` by reason + `waiting`."""

    stream_id: int
    path: str
    """`producer`, `consumer`, `recorder`, `bridge send`, `bridge receive`."""
    who: str
    published: int
    delivered: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    has_ended: bool = False
    problem: str = ""
    """What does not fit."""
    verdict: Verdict = Verdict.EXACT

    @property
    def unaccounted(self) -> int:
        return self.published - self.delivered - sum(self.dropped.values()) - self.waiting

    def as_json(self) -> dict[str, Any]:
        return {
            "stream_id": self.stream_id,
            "path": self.path,
            "who": self.who,
            "published": self.published,
            "delivered": self.delivered,
            "dropped": dict(sorted(self.dropped.items())),
            "waiting": self.waiting,
            "unaccounted": self.unaccounted,
            "has_ended": self.has_ended,
            "verdict": str(self.verdict),
            "problem": self.problem or None,
        }
