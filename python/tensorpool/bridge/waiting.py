"""What an end still waits for, said once when it has lasted: nobody looks for a fault in silence. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_LOOK_NS: Final = 1_000_000_000
_LASTED_NS: Final = 5_000_000_000


class Waiting:
    """Remembers since when, and what was said already. What came is forgotten, and said again next time."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._said: set[str] = set()
        self._next_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time for another look: now and then is enough."""
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + _LOOK_NS
        return True

    def look(self, now_ns: int, missing: Iterable[str]) -> list[str]:
        """What is to be said now."""
        self._since = {one: self._since.get(one, now_ns) for one in missing}
        self._said &= self._since.keys()
        due = [
            one
            for one, since in self._since.items()
            if now_ns - since >= _LASTED_NS and one not in self._said
        ]
        self._said.update(due)
        return due
