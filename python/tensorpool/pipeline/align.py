"""Which frames of several streams belong together. Pure: rows in, decisions out.

For each frame of the first stream (the pace) the nearest frame of each other one is looked for, within a
tolerance; of two that are equally near, the earlier. A frame is decided when every other stream has gone past
what could be near, or when recorded time has gone on by `wait_ns` since its receipt. Only what is undecided,
and what it may still need, is kept.

What is decided does not depend on how rows were cut into batches, as long as no stream lags behind by more
than `wait_ns` where a batch ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ALIGNED, MISSING, TIMEOUT, LATE = "aligned", "missing", "timeout", "late"
_EPOCH_SHIFT: Final = 48
_MAX_EPOCHS: Final = 64
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AlignmentTerms:
    streams: tuple[int, ...]
    tolerance: int
    wait_ns: int
    max_pending: int


@dataclass(slots=True)
class Decision:
    """Row numbers refer to the columns that were handed over."""

    aligned: list[list[int]] = field(default_factory=list)
    """Of each set, the row of each stream, in the order of the terms' streams."""
    unaligned: list[tuple[int, str, list[int]]] = field(default_factory=list)
    """A row, why it has no set, and which streams lacked."""
    kept: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows to hand over again next time."""


@dataclass(slots=True)
class Progress:
    """What is remembered beside rows: how far each stream is, and up to where the pace was decided."""

    frontier: dict[int, int] = field(default_factory=dict)
    now_ns: int = -(1 << 62)
    floor: int | None = None
    """The largest key of the pace that was decided: what comes for it later is late."""

    def to_json(self) -> dict[str, Any]:
        return {
            "frontier": {str(k): v for k, v in self.frontier.items()},
            "now_ns": self.now_ns,
            "floor": self.floor,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Progress:
        frontier = {int(stream): key for stream, key in found.get("frontier", {}).items()}
        return cls(frontier, found.get("now_ns", -(1 << 62)), found.get("floor"))


def decide(
    terms: AlignmentTerms,
    stream: Ints,
    key: Ints,
    received: Ints,
    is_new: npt.NDArray[np.bool_],
    progress: Progress,
    *,
    closing: bool = False,
) -> tuple[Decision, Progress]:
    """Rows of one stream are in the order in which they were recorded. `closing`: nothing more will come."""
    pace, others = terms.streams[0], terms.streams[1:]
    rows = {one: np.flatnonzero(stream == one) for one in terms.streams}
    frontier = dict(progress.frontier)
    for one, of in rows.items():
        if len(of):
            frontier[one] = int(key[of[-1]])
    now_ns = max(progress.now_ns, int(received.max()) if len(received) else progress.now_ns)
    made = Decision()
    ordered = {one: of[np.argsort(key[of], kind="stable")] for one, of in rows.items()}
    partners = {one: _nearest(key[rows[pace]], key[ordered[one]], terms.tolerance) for one in others}
    undecided = np.zeros(len(rows[pace]), np.bool_)
    passed = {one: _passed(key[rows[pace]], frontier.get(one), terms.tolerance) for one in others}
    is_due = received[rows[pace]] + terms.wait_ns <= now_ns
    excess = len(stream) - terms.max_pending
    floor = progress.floor
    for number, row in enumerate(rows[pace].tolist()):
        waits = [one for one in others if not passed[one][number]]
        if waits and not is_due[number] and not closing and number >= excess:
            undecided[number] = True
            continue
        found = [int(partners[one][number]) for one in others]
        lacking = [one for one, at in zip(others, found, strict=True) if at < 0]
        if not lacking:
            made.aligned.append(
                [row, *(int(ordered[one][at]) for one, at in zip(others, found, strict=True))]
            )
        else:
            reason = TIMEOUT if any(one in waits for one in lacking) else MISSING
            made.unaligned.append((row, reason, lacking))
        floor = int(key[row]) if floor is None else max(floor, int(key[row]))
    pending = rows[pace][undecided]
    for one in others:
        if progress.floor is not None:
            # Whatever it could have belonged to was decided before it came.
            new = rows[one][is_new[rows[one]]]
            late = new[key[new] + terms.tolerance <= progress.floor]
            made.unaligned += [(row, LATE, [one]) for row in late.tolist()]
    keep = [
        pending,
        *(_needed(terms, key, received, rows[one], pending, frontier.get(pace), now_ns) for one in others),
    ]
    made.kept = np.sort(np.concatenate(keep)) if not closing else np.empty(0, np.int64)
    return made, Progress(frontier, now_ns, floor)


def _nearest(wanted: Ints, keys: Ints, tolerance: int) -> Ints:
    """The place of the nearest key of each, the earlier of two; -1 where none is near enough."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    right = np.searchsorted(keys, wanted, "left")
    left = np.maximum(right - 1, 0)
    # Of equal keys the first one recorded: a stable sort has kept it first.
    left = np.searchsorted(keys, keys[left], "left")
    right = np.minimum(right, len(keys) - 1)
    chosen = np.where(np.abs(keys[left] - wanted) <= np.abs(keys[right] - wanted), left, right)
    found: Ints = np.where(np.abs(keys[chosen] - wanted) <= tolerance, chosen, -1)
    return found


def _passed(wanted: Ints, frontier: int | None, tolerance: int) -> npt.NDArray[np.bool_]:
    if frontier is None:
        return np.zeros(len(wanted), np.bool_)
    found: npt.NDArray[np.bool_] = wanted + tolerance <= frontier
    return found


def _needed(
    terms: AlignmentTerms,
    key: Ints,
    received: Ints,
    rows: Ints,
    pending: Ints,
    pace_frontier: int | None,
    now_ns: int,
) -> Ints:
    """Partners that a frame which waits, or is still to come, may take."""
    lowest = [int(key[pending].min())] if len(pending) else []
    lowest += [] if pace_frontier is None else [pace_frontier]
    is_needed = received[rows] + 2 * terms.wait_ns >= now_ns
    if lowest:
        is_needed &= key[rows] + terms.tolerance >= min(lowest)
    kept = rows[is_needed]
    return kept[-terms.max_pending :]


@dataclass(slots=True)
class EpochOrder:
    """Which epoch of its stream an epoch is: sequences begin anew in each. Kept for the last ones."""

    known: dict[int, dict[int, int]] = field(default_factory=dict)

    def keys(self, stream: Ints, epoch: Ints, seq: Ints) -> Ints:
        """Keys that grow with the epoch's number and the sequence."""
        found = np.zeros(len(seq), np.int64)
        for one in np.unique(stream).tolist():
            order = self.known.setdefault(one, {})
            of = stream == one
            for later in np.unique(epoch[of]).tolist():
                if later not in order:
                    order[later] = max(order.values(), default=-1) + 1
                found[of & (epoch == later)] = order[later] << _EPOCH_SHIFT
            for old in sorted(order)[:-_MAX_EPOCHS]:
                del order[old]
        return found + seq

    def to_json(self) -> dict[str, dict[str, int]]:
        return {str(s): {str(e): n for e, n in order.items()} for s, order in self.known.items()}

    @classmethod
    def from_json(cls, found: dict[str, dict[str, int]]) -> EpochOrder:
        return cls({int(s): {int(e): n for e, n in order.items()} for s, order in found.items()})
