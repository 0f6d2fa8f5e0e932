"""What is in the recording at the end: looked at file by file, and held against what was filmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .books import EpochBook
from .scene import is_whole

# Looking at every pixel takes its time; of a long demo the beginning has to do.
_MOST_LOOKED_AT = 5_000


@dataclass(frozen=True, slots=True)
class Page:
    """One epoch: span = rows + gaps."""

    epoch: str
    first_seq: int
    span: int
    rows: int
    gaps: dict[str, int]
    balanced: bool


@dataclass(slots=True)
class Recorded:
    """The recording as a reader finds it."""

    pages: list[Page] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    torn: int = 0
    size_bytes: int = 0
    segments: int = 0
    recovered: list[str] = field(default_factory=list)
    """What the killed recorder had left open, as the next one found it."""

    def faults(self, books: Sequence[EpochBook]) -> Iterator[str]:
        """Nothing if all is well: every frame that was filmed is a row or in a gap, and every row whole."""
        yield from (f"the recording: {problem}" for problem in self.problems)
        if self.torn:
            yield f"the recording has {self.torn} torn frames"
        filmed = {book.epoch: book for book in books}
        for page in self.pages:
            if not page.balanced or "unexplained" in page.gaps:
                yield f"the recording of epoch {page.epoch} does not add up"
            book = filmed.get(page.epoch)
            if book is None:
                yield f"the recording has an epoch that nobody filmed: {page.epoch}"
            # A killed camera may have committed a frame that it never told anyone of.
            elif not 0 <= book.committed - (page.first_seq + page.span) <= int(book.was_killed):
                yield f"epoch {page.epoch}: {book.committed} frames, and the recording ends elsewhere"

    def totals(self) -> tuple[int, dict[str, int]]:
        """Rows, and what is missing by reason, of all epochs."""
        gaps: Counter[str] = Counter()
        for page in self.pages:
            gaps.update(page.gaps)
        return sum(page.rows for page in self.pages), dict(gaps)

    def as_json(self) -> dict[str, Any]:
        return {
            "epochs": [
                {"epoch": one.epoch, "span": one.span, "rows": one.rows, "gaps": one.gaps}
                for one in self.pages
            ],
            "segments": self.segments,
            "bytes": self.size_bytes,
            "torn": self.torn,
            "problems": self.problems,
            "recovered": self.recovered,
        }


def look_at(root: Path, stream_id: int, recovered: list[str]) -> Recorded:
    """Checks every file, every checksum and every pixel."""
    from .. import recording

    found = Recorded(recovered=recovered)
    checked = recording.verify(root)
    found.problems = [str(one) for one in checked.problems]
    found.size_bytes, found.segments = checked.size_bytes, checked.segments
    with recording.open(root) as opened:
        if stream_id not in opened.streams:
            return found
        for one in opened.ledger(stream_id):
            found.pages.append(
                Page(str(one.epoch), one.first_seq, one.span, one.rows, one.gaps, one.balanced)
            )
        for number, frame in enumerate(opened.frames(stream_id)):
            if number >= _MOST_LOOKED_AT:
                break
            found.torn += not (frame.valid() and is_whole(frame.array, frame.seq))
    return found
