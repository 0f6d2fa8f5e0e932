"""How well a stream came in, interval by interval. Pure: events in, rows out.

An event is a frame, a gap or a reject, each with the time that it counts at. An interval is open until its
stream has gone past its end by the lateness; what comes for a closed one counts in the first that is open, so
that every event counts once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
class Place:
    """How far a stream is: the latest receive time, and the first interval that is open."""

    latest_ns: int | None = None
    open_from: int | None = None

    def as_json(self) -> list[int | None]:
        return [self.latest_ns, self.open_from]


def intervals(
    events: pa.Table, place: Place, interval_ns: int, lateness_ns: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], pa.Table, Place]:
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
    closed: list[dict[str, Any]] = []
    still_open: list[dict[str, Any]] = []
    for one in np.unique(number).tolist():
        rows = events.filter(pa.array(number == one))
        is_open = one >= open_from
        (still_open if is_open else closed).append(
            _row(rows, one * interval_ns, interval_ns, is_open=is_open)
        )
    return closed, still_open, events.filter(pa.array(number >= open_from)), Place(latest, open_from)


def _row(events: pa.Table, start_ns: int, interval_ns: int, *, is_open: bool) -> dict[str, Any]:
    kind = events["kind"].to_numpy()
    amount = events["amount"].to_numpy()
    frames = kind == FRAME
    count, size = int(frames.sum()), int(amount[frames].sum())
    latency = events["latency_ns"].filter(pa.array(frames)).drop_null().to_numpy()
    periods = _periods(events.filter(pa.array(frames)))
    drops, rejects = _counted(events, kind == GAP), _counted(events, kind == REJECT)
    depths = amount[kind == TRACE]
    seconds = interval_ns / 1e9
    found: dict[str, Any] = {
        "stream_id": events["stream_id"][0].as_py(),
        "interval_start_ns": start_ns,
        "interval_ns": interval_ns,
        "is_open": is_open,
        "frames": count,
        "bytes": size,
        "rate_hz": count / seconds,
        "bytes_per_s": size / seconds,
        "dropped": sum(drops.values()),
        "drops": sorted(drops.items()),
        "rejected": sum(rejects.values()),
        "rejects": sorted(rejects.items()),
        "duplicates": rejects.get("duplicate", 0),
        "epochs": len(np.unique(events["epoch"].to_numpy()[frames])),
        "traced": len(depths),
        "lineage_depth_mean": float(depths.mean()) if len(depths) else None,
        "lineage_depth_max": int(depths.max()) if len(depths) else None,
    }
    jitter = np.abs(periods - np.median(periods)).astype(np.int64) if len(periods) else periods
    for name, values in (("period", periods), ("jitter", jitter), ("latency", latency)):
        for label, value in zip(("p50", "p90", "p99", "max"), percentiles(values), strict=True):
            found[f"{name}_ns_{label}"] = value
    return found


def percentiles(values: npt.NDArray[np.int64]) -> list[int | None]:
    """The middle, nine tenths, 99 of 100, and the largest; values that occurred, none in between."""
    if not len(values):
        return [None] * 4
    found = np.percentile(values, [50, 90, 99, 100], method="inverted_cdf")
    return [int(one) for one in found]


def _periods(frames: pa.Table) -> npt.NDArray[np.int64]:
    """Times between frames of one epoch whose sequences follow one another."""
    epoch, seq, at = (frames[name].to_numpy() for name in ("epoch", "seq", "at_ns"))
    order = np.lexsort([seq, epoch])
    epoch, seq, at = epoch[order], seq[order], at[order]
    follow = (np.diff(epoch) == 0) & (np.diff(seq) == 1)
    found: npt.NDArray[np.int64] = np.diff(at)[follow]
    return found


def _counted(events: pa.Table, chosen: npt.NDArray[np.bool_]) -> Counter[str]:
    found: Counter[str] = Counter()
    rows = events.filter(pa.array(chosen))
    for reason, amount in zip(rows["reason"].to_pylist(), rows["amount"].to_pylist(), strict=True):
        found[reason] += amount
    return found
