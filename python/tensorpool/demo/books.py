"""The joined ledger: every frame that a camera committed, and what became of it at each viewer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

# A camera writes one frame at a time: between its commit and its descriptor there is one at most.
_MOST_IN_FLIGHT = 1


@dataclass(frozen=True, slots=True)
class Page:
    """One epoch at one viewer."""

    received: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    torn: int = 0
    balanced: bool = True

    @property
    def heard(self) -> int:
        """Frames that the viewer knows of."""
        return self.received + sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class EpochBook:
    """One life of the camera. Killed, it told nothing: `committed` is what its ring says."""

    epoch: str
    committed: int
    pages: dict[str, Page]
    was_killed: bool = False
    half_written: int = 0
    published: int | None = None
    unpublished: dict[str, int] = field(default_factory=dict)

    def in_flight(self, page: Page) -> int:
        """Committed, and the descriptor had not left when the camera died."""
        return self.committed - page.heard

    def faults(self) -> list[str]:
        found = []
        if self.published is not None and self.committed != self.published + sum(self.unpublished.values()):
            found.append("the camera's frames do not add up")
        most = _MOST_IN_FLIGHT if self.was_killed else 0
        for name, page in self.pages.items():
            if page.torn:
                found.append(f"the {name} saw {page.torn} torn frames")
            if not page.balanced:
                found.append(f"the {name}'s frames do not add up")
            if not 0 <= self.in_flight(page) <= most:
                found.append(f"the {name} accounts for {page.heard} of {self.committed} frames")
        return [f"epoch {self.epoch}: {fault}" for fault in found]

    def as_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "committed": self.committed,
            "committed_as_told_by": "the header ring" if self.was_killed else "the camera",
            "half_written": self.half_written,
            "published": self.published,
            "unpublished": self.unpublished,
            "viewers": {
                name: {
                    "received": page.received,
                    "dropped": page.dropped,
                    "in_flight": self.in_flight(page),
                    "torn": page.torn,
                }
                for name, page in self.pages.items()
            },
        }


def pages_of(epoch: str, ledgers: dict[str, dict[str, Any]]) -> dict[str, Page]:
    """What each viewer wrote about one epoch; nothing heard is a page too."""
    found = {}
    for name, ledger in ledgers.items():
        one = next((page for page in ledger["pages"] if page["epoch"] == epoch), None)
        found[name] = (
            Page() if one is None else Page(one["received"], one["dropped"], one["torn"], one["balanced"])
        )
    return found


def all_faults(books: Sequence[EpochBook], ledgers: dict[str, dict[str, Any]]) -> list[str]:
    """Everything that does not add up, over all epochs."""
    found = [fault for book in books for fault in book.faults()]
    for before, after in pairwise(books):
        if int(after.epoch) <= int(before.epoch):
            found.append(f"epoch {after.epoch} is not above {before.epoch}")
    known = {book.epoch for book in books}
    for name, ledger in ledgers.items():
        strange = [page["epoch"] for page in ledger["pages"] if page["epoch"] not in known]
        if strange:
            found.append(f"the {name} heard of epochs that nobody filmed: {', '.join(strange)}")
    return found
