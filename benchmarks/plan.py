"""Base class of the plans that child processes of a measurement get as JSON on their command line."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Self


class JsonPlan:
    """JSON conversion for frozen dataclasses. JSON lists become tuples."""

    __slots__ = ()

    def to_json(self) -> str:
        """Encodes the plan as JSON."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decodes a plan that `to_json` encoded."""
        fields = json.loads(text)
        return cls(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        )
