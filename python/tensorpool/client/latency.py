"""How long frames take from their publication to the consumer that has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Spread:
    """Nanoseconds of so many frames, each figure true to one part in 64. All 0 without frames."""

    count: int
    p50_ns: int
    p99_ns: int
    max_ns: int

    def __str__(self) -> str:
        if not self.count:
            return "no frames"
        figures = (f"{name} {ns / 1e3:,.1f} µs" for name, ns in self._named())
        return f"{', '.join(figures)} of {self.count}"

    def _named(self) -> list[tuple[str, int]]:
        return [("p50", self.p50_ns), ("p99", self.p99_ns), ("max", self.max_ns)]

    def as_json(self) -> dict[str, int]:
        return {"count": self.count, "p50_ns": self.p50_ns, "p99_ns": self.p99_ns, "max_ns": self.max_ns}


@dataclass(frozen=True, slots=True)
class Latency:
    """From publication until the consumer had the frame in its hands."""

    since: Literal["publish", "capture", "mixed"] | None
    """From the descriptors' publish times, or from the frames' own where there are none; None so far."""
    last: Spread
    """The last whole interval (`[context] hello_period`, 1 s)."""
    life: Spread
    """Since the consumer was made."""
    left_out: int
    """Frames whose times are not of this machine's clock: in the future, or more than a minute old."""

    @classmethod
    def of(cls, figures: dict[str, Any]) -> Latency:
        return cls(
            since=figures["since"],
            last=Spread(*figures["last"]),
            life=Spread(*figures["life"]),
            left_out=figures["left_out"],
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "since": self.since,
            "last": self.last.as_json(),
            "life": self.life.as_json(),
            "left_out": self.left_out,
        }
