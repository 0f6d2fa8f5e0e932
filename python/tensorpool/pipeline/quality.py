"""How well a stream came in, interval by interval. Pure: events in, rows out.

An event is a frame, a gap or a reject, each with the time that it counts at. An interval is open until its
stream has gone past its end by the lateness; what comes for a closed one counts in the first that is open, so
that every event counts once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
FRAME, GAP, REJECT, TRACE = 0, 1, 2, 3
EVENTS: Final = pa.schema(
    [
        pa.field("stream_id", pa.int64()),
        pa.field("kind", pa.int8()),
        pa.field("at_ns", pa.int64()),
        pa.field("epoch", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("amount", pa.int64()),
        pa.field("latency_ns", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)
"""`amount`: payload bytes of a frame, sequences of a gap, 1 for a reject, lineage depth of a traced frame."""


@dataclass(slots=True)
class StreamPosition:
    """How far a stream is: the latest receive time, and the first interval that is open."""

    latest_ns: int | None = None
    open_from: int | None = None

    def to_json(self) -> list[int | None]:
        return [self.latest_ns, self.open_from]


def intervals(
    events: pa.Table, place: StreamPosition, interval_ns: int, lateness_ns: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], pa.Table, StreamPosition]:
    """Of one stream's events: rows of closed intervals, rows of open ones, the events to keep, and the
    place."""
    at = events["at_ns"].to_numpy()
    if not len(at):
        return [], [], events, place
    latest = int(at.max()) if place.latest_ns is None else max(place.latest_ns, int(at.max()))
    number = at // interval_ns
    if place.open_from is not None:
        number = np.maximum(number, place.open_from)
    # The first interval that ends less than the lateness before the latest frame.
    open_from = (latest - lateness_ns) // interval_ns
    if place.open_from is not None:
        open_from = max(open_from, place.open_from)
    stream_id = events["stream_id"][0].as_py()
    columns = _Columns.of(events)
    # Sorted once: however many intervals there are, each looks at its own events only.
    order = np.argsort(number, kind="stable")
    ordered = number[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    closed: list[dict[str, Any]] = []
    still_open: list[dict[str, Any]] = []
    for start, end in itertools.pairwise([*starts.tolist(), len(ordered)]):
        one = int(ordered[start])
        is_open = one >= open_from
        times = {"interval_start_ns": one * interval_ns, "interval_ns": interval_ns, "is_open": is_open}
        row = {"stream_id": stream_id, **times, **_figures(columns.take(order[start:end]), interval_ns)}
        (still_open if is_open else closed).append(row)
    return closed, still_open, events.filter(pa.array(number >= open_from)), StreamPosition(latest, open_from)


@dataclass(slots=True)
class _Columns:
    """Events as numpy has them."""

    kind: npt.NDArray[np.int8]
    at_ns: Ints
    epoch: Ints
    seq: Ints
    amount: Ints
    latency_ns: Ints
    has_latency: npt.NDArray[np.bool_]
    reason: npt.NDArray[np.int32]
    reasons: list[str]
    """What the numbers in `reason` mean."""

    @classmethod
    def of(cls, events: pa.Table) -> _Columns:
        reasons = events["reason"].fill_null("").combine_chunks().dictionary_encode()
        return cls(
            kind=events["kind"].to_numpy(),
            at_ns=events["at_ns"].to_numpy(),
            epoch=events["epoch"].to_numpy(),
            seq=events["seq"].to_numpy(),
            amount=events["amount"].to_numpy(),
            latency_ns=events["latency_ns"].fill_null(0).to_numpy(),
            has_latency=events["latency_ns"].is_valid().to_numpy(),
            reason=reasons.indices.to_numpy(),
            reasons=reasons.dictionary.to_pylist(),
        )

    def take(self, rows: npt.NDArray[np.intp]) -> _Columns:
        return _Columns(
            kind=self.kind[rows],
            at_ns=self.at_ns[rows],
            epoch=self.epoch[rows],
            seq=self.seq[rows],
            amount=self.amount[rows],
            latency_ns=self.latency_ns[rows],
            has_latency=self.has_latency[rows],
            reason=self.reason[rows],
            reasons=self.reasons,
        )


def _figures(events: _Columns, interval_ns: int) -> dict[str, Any]:
    frames = np.flatnonzero(events.kind == FRAME)
    count, size = len(frames), int(events.amount[frames].sum())
    latency = events.latency_ns[frames][events.has_latency[frames]]
    periods = _periods(events.epoch[frames], events.seq[frames], events.at_ns[frames])
    drops, rejects = _counted(events, GAP), _counted(events, REJECT)
    depths = events.amount[events.kind == TRACE]
    seconds = interval_ns / 1e9
    found: dict[str, Any] = {
        "frames": count,
        "bytes": size,
        "rate_hz": count / seconds,
        "bytes_per_s": size / seconds,
        "dropped": sum(drops.values()),
        "drops": sorted(drops.items()),
        "rejected": sum(rejects.values()),
        "rejects": sorted(rejects.items()),
        "duplicates": rejects.get("duplicate", 0),
        "epochs": len(np.unique(events.epoch[frames])),
        "traced": len(depths),
        "lineage_depth_mean": float(depths.mean()) if len(depths) else None,
        "lineage_depth_max": int(depths.max()) if len(depths) else None,
    }
    jitter = np.abs(periods - np.median(periods)).astype(np.int64) if len(periods) else periods
    for name, values in (("period", periods), ("jitter", jitter), ("latency", latency)):
        for label, value in zip(("p50", "p90", "p99", "max"), percentiles(values), strict=True):
            found[f"{name}_ns_{label}"] = value
    return found


def percentiles(values: Ints) -> list[int | None]:
    """The middle, nine tenths, 99 of 100, and the largest; values that occurred, none in between."""
    count = len(values)
    if not count:
        return [None] * 4
    ordered = np.sort(values)
    # The least value that so many of a hundred are not above; in whole numbers, for floats are a little off.
    return [int(ordered[-(-count * of // 100) - 1]) for of in (50, 90, 99, 100)]


def _periods(epoch: Ints, seq: Ints, at: Ints) -> Ints:
    """Times between frames of one epoch whose sequences follow one another."""
    order = np.lexsort([seq, epoch])
    epoch, seq, at = epoch[order], seq[order], at[order]
    follow = (np.diff(epoch) == 0) & (np.diff(seq) == 1)
    found: Ints = np.diff(at)[follow]
    return found


def _counted(events: _Columns, kind: int) -> dict[str, int]:
    chosen = np.flatnonzero(events.kind == kind)
    if not len(chosen):
        return {}
    numbers, amounts = events.reason[chosen], events.amount[chosen]
    return {events.reasons[one]: int(amounts[numbers == one].sum()) for one in np.unique(numbers).tolist()}
