"""Alignments: frames of several streams become sets, or stay pending.

`align` is pure: rows in, sets of rows out. The first stream drives an alignment: each of its frames gets the
nearest frame of each other stream within the tolerance; of two equally near frames, the earlier. A frame is
settled when all other streams are past the tolerance, or when recorded time has advanced by `wait_ns` since
its receipt. Only frames that are not settled, and frames that may become their partners, are kept. The sets
do not depend on the limits of batches, as long as no stream is behind the others by more than `wait_ns` at
the end of a batch.

`align_frames` makes the rows of the tables.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .definition import AlignmentSettings
from .schemas import MEMBER
from .table_files import dates, moments

ALIGNED, MISSING, TIMEOUT, LATE = "aligned", "missing", "timeout", "late"
_EPOCH_SHIFT: Final = 48
_MAX_EPOCHS: Final = 64
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AlignmentTerms:
    """The settings of an alignment. The first stream drives it."""

    streams: tuple[int, ...]
    tolerance: int
    wait_ns: int
    max_pending: int


class UnalignedRow(NamedTuple):
    """A row without a set."""

    row: int
    reason: str
    lacking: list[int]
    """The streams that have no partner."""


@dataclass(slots=True)
class AlignedBatch:
    """What becomes of the frames of one batch. Row numbers refer to the columns of the batch."""

    aligned: list[list[int]] = field(default_factory=list)
    """Sets: the row of each stream, in the order of the alignment's streams."""
    unaligned: list[UnalignedRow] = field(default_factory=list)
    kept: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows that belong to the next batch too."""


@dataclass(slots=True)
class Progress:
    """The state between batches: the position of each stream, and up to which key frames are settled."""

    frontier: dict[int, int] = field(default_factory=dict)
    now_ns: int = -(1 << 62)
    floor: int | None = None
    """The largest settled key of the driving stream. Partners that arrive later are late."""


def align(
    terms: AlignmentTerms,
    stream: Ints,
    key: Ints,
    received: Ints,
    is_new: npt.NDArray[np.bool_],
    progress: Progress,
    *,
    closing: bool = False,
) -> tuple[AlignedBatch, Progress]:
    """Aligns the rows of a batch. Rows of one stream are in recorded order. `closing`: the last batch."""
    driving, others = terms.streams[0], terms.streams[1:]
    rows = {stream_id: np.flatnonzero(stream == stream_id) for stream_id in terms.streams}
    frontier = dict(progress.frontier)
    for stream_id, positions in rows.items():
        if len(positions):
            frontier[stream_id] = int(key[positions[-1]])
    now_ns = max(progress.now_ns, int(received.max()) if len(received) else progress.now_ns)
    batch = AlignedBatch()
    ordered = {
        stream_id: positions[np.argsort(key[positions], kind="stable")]
        for stream_id, positions in rows.items()
    }
    partners = {
        stream_id: _nearest(key[rows[driving]], key[ordered[stream_id]], terms.tolerance)
        for stream_id in others
    }
    unsettled = np.zeros(len(rows[driving]), np.bool_)
    passed = {
        stream_id: _passed(key[rows[driving]], frontier.get(stream_id), terms.tolerance)
        for stream_id in others
    }
    is_due = received[rows[driving]] + terms.wait_ns <= now_ns
    excess = len(stream) - terms.max_pending
    floor = progress.floor
    for number, row in enumerate(rows[driving].tolist()):
        waits = [stream_id for stream_id in others if not passed[stream_id][number]]
        if waits and not is_due[number] and not closing and number >= excess:
            unsettled[number] = True
            continue
        nearest = [int(partners[stream_id][number]) for stream_id in others]
        lacking = [stream_id for stream_id, at in zip(others, nearest, strict=True) if at < 0]
        if not lacking:
            batch.aligned.append(
                [row, *(int(ordered[stream_id][at]) for stream_id, at in zip(others, nearest, strict=True))]
            )
        else:
            reason = TIMEOUT if any(stream_id in waits for stream_id in lacking) else MISSING
            batch.unaligned.append(UnalignedRow(row, reason, lacking))
        floor = int(key[row]) if floor is None else max(floor, int(key[row]))
    pending = rows[driving][unsettled]
    for stream_id in others:
        if progress.floor is not None:
            # All frames that the late frame could have been a partner of are settled.
            new = rows[stream_id][is_new[rows[stream_id]]]
            late = new[key[new] + terms.tolerance <= progress.floor]
            batch.unaligned += [UnalignedRow(row, LATE, [stream_id]) for row in late.tolist()]
    keep = [
        pending,
        *(
            _needed(terms, key, received, rows[stream_id], pending, frontier.get(driving), now_ns)
            for stream_id in others
        ),
    ]
    batch.kept = np.sort(np.concatenate(keep)) if not closing else np.empty(0, np.int64)
    return batch, Progress(frontier, now_ns, floor)


def _nearest(wanted: Ints, keys: Ints, tolerance: int) -> Ints:
    """The index of the nearest key for each wanted key, the earlier of two; -1 if none is near enough."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    right = np.searchsorted(keys, wanted, "left")
    left = np.maximum(right - 1, 0)
    # Of equal keys, the first recorded one, which a stable sort keeps first.
    left = np.searchsorted(keys, keys[left], "left")
    right = np.minimum(right, len(keys) - 1)
    chosen = np.where(np.abs(keys[left] - wanted) <= np.abs(keys[right] - wanted), left, right)
    nearest: Ints = np.where(np.abs(keys[chosen] - wanted) <= tolerance, chosen, -1)
    return nearest


def _passed(wanted: Ints, frontier: int | None, tolerance: int) -> npt.NDArray[np.bool_]:
    if frontier is None:
        return np.zeros(len(wanted), np.bool_)
    is_passed: npt.NDArray[np.bool_] = wanted + tolerance <= frontier
    return is_passed


def _needed(
    terms: AlignmentTerms,
    key: Ints,
    received: Ints,
    rows: Ints,
    pending: Ints,
    driving_frontier: int | None,
    now_ns: int,
) -> Ints:
    """Rows that may become partners of pending frames, or of frames that have not arrived yet."""
    lowest = [int(key[pending].min())] if len(pending) else []
    lowest += [] if driving_frontier is None else [driving_frontier]
    is_needed = received[rows] + 2 * terms.wait_ns >= now_ns
    if lowest:
        is_needed &= key[rows] + terms.tolerance >= min(lowest)
    kept = rows[is_needed]
    return kept[-terms.max_pending :]


@dataclass(slots=True)
class EpochOrder:
    """Ordinal numbers of the latest epochs of each stream. Sequences begin again in each epoch."""

    known: dict[int, dict[int, int]] = field(default_factory=dict)

    def keys(self, stream: Ints, epoch: Ints, seq: Ints) -> Ints:
        """Keys that grow with the ordinal number of the epoch, and then with the sequence."""
        bases = np.zeros(len(seq), np.int64)
        for stream_id in np.unique(stream).tolist():
            order = self.known.setdefault(stream_id, {})
            of = stream == stream_id
            for later in np.unique(epoch[of]).tolist():
                if later not in order:
                    order[later] = max(order.values(), default=-1) + 1
                bases[of & (epoch == later)] = order[later] << _EPOCH_SHIFT
            for old in sorted(order)[:-_MAX_EPOCHS]:
                del order[old]
        return bases + seq


# --- the tables of an alignment

_MEMBERS: Final = [field.name for field in MEMBER]
PENDING: Final = pa.schema(list(MEMBER))
"""The columns of pending frames."""


class ProgressJson(TypedDict):
    """A `Progress` as JSON, whose keys are text."""

    frontier: dict[str, int]
    now_ns: int
    floor: int | None


class AlignmentJson(TypedDict):
    """An `AlignmentState` as JSON, whose keys are text."""

    progress: ProgressJson
    epochs: dict[str, dict[str, int]]
    """Stream → epoch → its ordinal number."""
    pending: int


@dataclass(slots=True)
class AlignmentState:
    """What an alignment hands to the next micro-batch, beside its pending frames."""

    progress: Progress = field(default_factory=Progress)
    epochs: EpochOrder = field(default_factory=EpochOrder)
    pending: int = 0
    """The number of pending frames."""

    def to_json(self) -> AlignmentJson:
        """The state as JSON."""
        return {
            "progress": {
                "frontier": {str(stream): key for stream, key in self.progress.frontier.items()},
                "now_ns": self.progress.now_ns,
                "floor": self.progress.floor,
            },
            "epochs": {
                str(stream): {str(epoch): number for epoch, number in order.items()}
                for stream, order in self.epochs.known.items()
            },
            "pending": self.pending,
        }

    @classmethod
    def from_json(cls, values: AlignmentJson) -> AlignmentState:
        """The state of `to_json`."""
        progress = values["progress"]
        frontier = {int(stream): key for stream, key in progress["frontier"].items()}
        known = {
            int(stream): {int(epoch): number for epoch, number in order.items()}
            for stream, order in values["epochs"].items()
        }
        return cls(
            Progress(frontier, progress["now_ns"], progress["floor"]), EpochOrder(known), values["pending"]
        )


@dataclass(slots=True)
class AlignmentResult:
    """Rows of the tables, pending frames, and the state for the next micro-batch."""

    aligned: pa.Table | None
    unaligned: pa.Table | None
    pending: pa.Table
    state: AlignmentState
    counts: dict[str, int]


def align_frames(
    settings: AlignmentSettings, frames: pa.Table, pending: pa.Table, state: AlignmentState, *, closing: bool
) -> AlignmentResult:
    """Aligns accepted frames of any streams with the pending ones. `closing`: there are no later frames."""
    terms = AlignmentTerms(settings.streams, settings.tolerance, settings.wait_ns, settings.max_pending)
    order = EpochOrder({stream: dict(epochs) for stream, epochs in state.epochs.known.items()})
    rows, is_new = _rows(settings, frames, pending, order)
    stream, key = (rows[name].to_numpy() for name in ("stream_id", "key"))
    received = rows["receive_time_ns"].to_numpy()
    batch, progress = align(terms, stream, key, received, is_new, state.progress, closing=closing)
    counts = Counter(frame.reason for frame in batch.unaligned)
    counts[ALIGNED] += len(batch.aligned)
    kept = len(batch.kept)
    return AlignmentResult(
        _aligned(rows, key, np.array(batch.aligned, np.int64)) if batch.aligned else None,
        _unaligned(rows, batch.unaligned) if batch.unaligned else None,
        rows.take(pa.array(batch.kept)) if kept else PENDING.empty_table(),
        AlignmentState(progress, order, kept),
        dict(counts),
    )


def _rows(
    settings: AlignmentSettings, frames: pa.Table, pending: pa.Table, order: EpochOrder
) -> tuple[pa.Table, Any]:
    """All rows, sorted by stream, epoch and sequence, and which of them are new."""
    own = frames.filter(pc.is_in(frames["stream_id"], pa.array(settings.streams, pa.int64())))
    own = own.append_column("key", own["stream_id"]).select(_MEMBERS).cast(PENDING)
    whole = pa.concat_tables([pending.select(_MEMBERS).cast(PENDING), own])
    if not len(whole):
        return PENDING.empty_table(), np.zeros(0, np.bool_)
    is_new = np.arange(len(whole)) >= len(pending)
    sorting = pc.sort_indices(
        whole, [("stream_id", "ascending"), ("epoch", "ascending"), ("seq", "ascending")]
    )
    whole, is_new = whole.take(sorting).combine_chunks(), is_new[sorting.to_numpy()]
    column = {"timestamp": "timestamp_ns", "receive_time": "receive_time_ns"}.get(settings.by)
    if column is not None:
        key = whole[column].to_numpy()
    else:
        key = order.keys(*(whole[name].to_numpy() for name in ("stream_id", "epoch", "seq")))
    at = whole.schema.get_field_index("key")
    return whole.set_column(at, PENDING.field("key"), pa.array(key)), is_new


def _aligned(rows: pa.Table, key: Any, sets: Any) -> pa.Table:
    count, width = sets.shape
    members = rows.select(_MEMBERS).to_struct_array()
    members = members.combine_chunks() if isinstance(members, pa.ChunkedArray) else members
    flat = members.take(pa.array(sets.reshape(-1))).cast(MEMBER)
    offsets = pa.array(np.arange(0, (count + 1) * width, width, dtype=np.int32))
    frames = pa.ListArray.from_arrays(
        offsets, flat, type=pa.list_(pa.field("element", MEMBER, nullable=False))
    )
    received = rows["receive_time_ns"].to_numpy()[sets[:, 0]]
    spread = np.abs(key[sets] - key[sets[:, :1]]).max(axis=1)
    return pa.table(
        {
            "key": key[sets[:, 0]],
            "time": moments(received),
            "spread": spread,
            "frames": frames,
            "date": dates(received),
        }
    )


def _unaligned(rows: pa.Table, unaligned: list[UnalignedRow]) -> pa.Table:
    chosen = rows.take(pa.array([frame.row for frame in unaligned]))
    received = chosen["receive_time_ns"].to_numpy()
    table = chosen.select(["stream_id", "epoch", "seq", "key"])
    table = table.append_column("time", moments(received))
    table = table.append_column("reason", pa.array([frame.reason for frame in unaligned], pa.string()))
    table = table.append_column(
        "streams", pa.array([frame.lacking for frame in unaligned], pa.list_(pa.int64()))
    )
    return table.append_column("date", dates(received))
