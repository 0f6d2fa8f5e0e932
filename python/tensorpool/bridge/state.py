"""A destination's way from wanted to there, and anew at each epoch of its source (bridge §4, §8). Pure.

The agent asks `next` what to do, does it, and says how it went.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..driver.config import nslots_fault, pools_fault

RETRY_NS: Final = 1_000_000_000
PATIENCE_NS: Final = 5_000_000_000
"""A producer that is just ending may still have the stream when a bridge starts."""


@dataclass(frozen=True, slots=True)
class DestinationLayout:
    """Slots and size classes of a stream."""

    nslots: int
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.nslots * (256 + sum(self.strides))


@dataclass(frozen=True, slots=True)
class Attach:
    """Give the old destination back, if there is one, and attach to this. No layout: as the driver has it."""

    stream_id: int
    layout: DestinationLayout | None


@dataclass(frozen=True, slots=True)
class Fail:
    """There can be no such destination."""

    reason: str


class DestinationState:
    """One mapping's destination."""

    def __init__(
        self,
        candidates: Sequence[int],
        *,
        layout: DestinationLayout | None,
        as_source: bool,
        max_bytes: int,
    ) -> None:
        """`candidates`: the ids that it may have. `as_source`: with the layout that the source announces."""
        self._candidates = candidates
        self._layout = layout
        self._as_source = as_source
        self._max_bytes = max_bytes
        self._at = 0
        self._phase: Literal["wanted", "attaching", "attached"] = "wanted"
        self._retry_ns = 0
        self._refused_since_ns: int | None = None
        self._ever = False
        self.fault = ""
        self.stream_id = candidates[0]

    @property
    def phase(self) -> str:
        return self._phase

    def next(self, now_ns: int, source: DestinationLayout | None, *, has_destination: bool) -> Attach | None:
        """What to do now, if anything. `has_destination`: that which was given is still in use."""
        if self._phase == "attaching" or has_destination or now_ns < self._retry_ns:
            return None
        layout = self._layout
        if self._as_source:
            if source is None:
                return None
            if (fault := self._why_not(source)) is not None:
                self.fault = fault
                return None
            layout = source
        self._phase = "attaching"
        return Attach(self.stream_id, layout)

    def _why_not(self, source: DestinationLayout) -> str | None:
        fault = nslots_fault(source.nslots) or pools_fault(source.strides)
        if fault is not None:
            return f"the source announces what cannot be made here: {fault}"
        if source.nbytes > self._max_bytes:
            return f"the source's layout takes {source.nbytes} bytes, more than max_destination"
        return None

    def attached(self) -> None:
        self._phase, self._ever, self._refused_since_ns, self.fault = "attached", True, None, ""

    def refused(self, now_ns: int, code: str, message: str) -> Fail | None:
        """The driver said no, or nothing. Another id is tried where there is one (bridge §4)."""
        self._phase, self.fault = "wanted", message
        self._retry_ns = now_ns + RETRY_NS
        if code == "NO_ANSWER":
            return None
        if len(self._candidates) > 1:
            self._at = (self._at + 1) % len(self._candidates)
            self.stream_id = self._candidates[self._at]
            self._retry_ns = now_ns if self._at else self._retry_ns
            return None
        if self._refused_since_ns is None:
            self._refused_since_ns = now_ns
        if not self._ever and now_ns - self._refused_since_ns >= PATIENCE_NS:
            return Fail(message)
        return None
