"""How fast a count grows, from the last few looks at it. Pure."""

from __future__ import annotations

from typing import Final

_LOOKS: Final = 4


class Gauge:
    """A rate over the last three periods. What goes backwards begins anew."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: list[tuple[int, int]] = []

    def add(self, now_ns: int, count: int) -> None:
        looks = self._looks
        if looks:
            last_ns, last = looks[-1]
            if count < last:
                looks.clear()
            elif now_ns <= last_ns:
                looks[-1] = (last_ns, count)
                return
            elif len(looks) == _LOOKS:
                del looks[0]
        looks.append((now_ns, count))

    def clear(self) -> None:
        self._looks.clear()

    def per_s(self) -> float | None:
        """None until there were two looks."""
        if len(self._looks) < 2:
            return None
        (first_ns, first), (last_ns, last) = self._looks[0], self._looks[-1]
        return (last - first) * 1e9 / (last_ns - first_ns)
