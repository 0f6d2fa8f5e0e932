"""The destination of a mapping: attached when it is needed, and again in each epoch of its source. Pure.

Bridge §4, §8. The agent calls `next_step`, performs the step and reports its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..driver.config import nslots_fault, pools_fault
from ..shm.epoch_files import HEADER_SLOT_BYTES

RETRY_NS: Final = 1_000_000_000
MAX_REFUSED_NS: Final = 5_000_000_000
"""Time for which refusals are retried: a producer that is closing may still hold the stream."""

Phase = Literal["wanted", "attaching", "attached"]


@dataclass(frozen=True, slots=True)
class DestinationLayout:
    """Slots and pool strides of a stream."""

    nslots: int
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Memory of the header ring and the pools."""
        return self.nslots * (HEADER_SLOT_BYTES + sum(self.strides))


@dataclass(frozen=True, slots=True)
class AttachStep:
    """Close the previous producer, if there is one, and attach. No layout: the driver's configuration."""

    stream_id: int
    layout: DestinationLayout | None


@dataclass(frozen=True, slots=True)
class DestinationFailure:
    """The destination cannot be attached."""

    reason: str


class DestinationState:
    """The destination of one mapping."""

    def __init__(
        self,
        candidates: Sequence[int],
        *,
        layout: DestinationLayout | None,
        uses_source_layout: bool,
        max_bytes: int,
    ) -> None:
        """`candidates`: possible stream ids. `uses_source_layout`: as the source announces it."""
        self._candidates = candidates
        self._layout = layout
        self._uses_source_layout = uses_source_layout
        self._max_bytes = max_bytes
        self._candidate = 0
        self._phase: Phase = "wanted"
        self._retry_ns = 0
        self._refused_since_ns: int | None = None
        self._was_attached = False
        self.fault = ""
        self.stream_id = candidates[0]

    @property
    def phase(self) -> Phase:
        """Whether the destination is wanted, being attached, or attached."""
        return self._phase

    def next_step(
        self, now_ns: int, source: DestinationLayout | None, *, has_destination: bool
    ) -> AttachStep | None:
        """The step that is due, if any. `has_destination`: the native receiver still uses its producer."""
        if self._phase == "attaching" or has_destination or now_ns < self._retry_ns:
            return None
        layout = self._layout
        if self._uses_source_layout:
            if source is None:
                return None
            if (fault := self._layout_fault(source)) is not None:
                self.fault = fault
                return None
            layout = source
        self._phase = "attaching"
        return AttachStep(self.stream_id, layout)

    def _layout_fault(self, source: DestinationLayout) -> str | None:
        fault = nslots_fault(source.nslots) or pools_fault(source.strides)
        if fault is not None:
            return f"the layout announced by the source is not possible here: {fault}"
        if source.nbytes > self._max_bytes:
            return f"the source's layout takes {source.nbytes} bytes, more than max_destination"
        return None

    def on_attached(self) -> None:
        """Report that the step succeeded."""
        self._phase, self._was_attached, self._refused_since_ns, self.fault = "attached", True, None, ""

    def on_refused(self, now_ns: int, code: str, message: str) -> DestinationFailure | None:
        """Report a refusal or a missing answer of the driver. Another candidate is tried (bridge §4)."""
        self._phase, self.fault = "wanted", message
        self._retry_ns = now_ns + RETRY_NS
        if code == "NO_ANSWER":
            return None
        if len(self._candidates) > 1:
            self._candidate = (self._candidate + 1) % len(self._candidates)
            self.stream_id = self._candidates[self._candidate]
            self._retry_ns = now_ns if self._candidate else self._retry_ns
            return None
        if self._refused_since_ns is None:
            self._refused_since_ns = now_ns
        if not self._was_attached and now_ns - self._refused_since_ns >= MAX_REFUSED_NS:
            return DestinationFailure(message)
        return None
