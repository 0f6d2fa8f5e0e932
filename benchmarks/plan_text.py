"""What a process of a measurement is told on its command line, as text."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Self


class PlanText:
    """Derive a frozen dataclass from it. Lists of JSON are tuples here."""

    __slots__ = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, text: str) -> Self:
        given = json.loads(text)
        return cls(**{name: tuple(one) if isinstance(one, list) else one for name, one in given.items()})
