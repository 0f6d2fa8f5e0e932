"""The quality of streams by interval: rates, periods, jitter, drops, latency. Pure: events in, rows out.

An event is a frame, a gap, a reject or a trace, with its receive time. An interval is open until its stream
is past its end by the lateness. An event of a closed interval counts in the oldest open interval, so that
every event counts once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import schemas
from .table_files import dates, moments

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
    """The position of a stream: its latest receive time, and the number of its first open interval."""

    latest_ns: int | None = None
    open_from: int | None = None


class Percentiles(NamedTuple):
    """Percentiles of some values. Each is one of the values; None if there are none."""

    p50: int | None = None
    p90: int | None = None
    p99: int | None = None
    max: int | None = None


@dataclass(slots=True)
class Interval:
    """A row of `gold/quality`: one stream in one interval."""

    stream_id: int
    interval_start_ns: int
    interval_ns: int
    is_open: bool
    frames: int
    bytes: int
    drops: dict[str, int]
    """Reason → missing sequences."""
    rejects: dict[str, int]
    """Reason → rejected frames."""
    epochs: int
    depths: Ints
    """The lineage depths of traced frames."""
    period_ns: Percentiles
    jitter_ns: Percentiles
    latency_ns: Percentiles

    def column(self, name: str) -> Any:
        """The value of a column of `gold/quality`."""
        seconds = self.interval_ns / 1e9
        match name:
            case "rate_hz":
                return self.frames / seconds
            case "bytes_per_s":
                return self.bytes / seconds
            case "dropped":
                return sum(self.drops.values())
            case "rejected":
                return sum(self.rejects.values())
            case "drops" | "rejects":
                return sorted(getattr(self, name).items())
            case "duplicates":
                return self.rejects.get("duplicate", 0)
            case "traced":
                return len(self.depths)
            case "lineage_depth_mean":
                return float(self.depths.mean()) if len(self.depths) else None
            case "lineage_depth_max":
                return int(self.depths.max()) if len(self.depths) else None
        figure, _, percentile = name.rpartition("_")
        if percentile in Percentiles._fields:
            return getattr(getattr(self, figure), percentile)
        return getattr(self, name)


@dataclass(slots=True)
class StreamIntervals:
    """The intervals of one stream after a micro-batch."""

    closed: list[Interval] = field(default_factory=list)
    still_open: list[Interval] = field(default_factory=list)
    events: pa.Table = field(default_factory=EVENTS.empty_table)
    """The events of the open intervals."""
    position: StreamPosition = field(default_factory=StreamPosition)


def intervals(
    events: pa.Table, position: StreamPosition, interval_ns: int, lateness_ns: int
) -> StreamIntervals:
    """The intervals of some events, all of one stream."""
    at = events["at_ns"].to_numpy()
    if not len(at):
        return StreamIntervals(events=events, position=position)
    latest = int(at.max()) if position.latest_ns is None else max(position.latest_ns, int(at.max()))
    number = at // interval_ns
    if position.open_from is not None:
        number = np.maximum(number, position.open_from)
    # The first interval whose end is less than the lateness before the latest frame.
    open_from = (latest - lateness_ns) // interval_ns
    if position.open_from is not None:
        open_from = max(open_from, position.open_from)
    stream_id = events["stream_id"][0].as_py()
    columns = _Columns.from_events(events)
    # Sorted once, so that each interval reads only its own events.
    order = np.argsort(number, kind="stable")
    ordered = number[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    found = StreamIntervals(position=StreamPosition(latest, open_from))
    for start, end in itertools.pairwise([*starts.tolist(), len(ordered)]):
        own = int(ordered[start])
        interval = _interval(stream_id, own, interval_ns, own >= open_from, columns.take(order[start:end]))
        (found.still_open if interval.is_open else found.closed).append(interval)
    found.events = events.filter(pa.array(number >= open_from))
    return found


@dataclass(slots=True)
class _Columns:
    """Columns of events as numpy arrays."""

    kind: npt.NDArray[np.int8]
    at_ns: Ints
    epoch: Ints
    seq: Ints
    amount: Ints
    latency_ns: Ints
    has_latency: npt.NDArray[np.bool_]
    reason: npt.NDArray[np.int32]
    reasons: list[str]
    """The texts of the numbers in `reason`."""

    @classmethod
    def from_events(cls, events: pa.Table) -> _Columns:
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


def _interval(stream_id: int, number: int, interval_ns: int, is_open: bool, events: _Columns) -> Interval:
    frames = np.flatnonzero(events.kind == FRAME)
    periods = _periods(events.epoch[frames], events.seq[frames], events.at_ns[frames])
    jitter = np.abs(periods - np.median(periods)).astype(np.int64) if len(periods) else periods
    return Interval(
        stream_id=stream_id,
        interval_start_ns=number * interval_ns,
        interval_ns=interval_ns,
        is_open=is_open,
        frames=len(frames),
        bytes=int(events.amount[frames].sum()),
        drops=_counted(events, GAP),
        rejects=_counted(events, REJECT),
        epochs=len(np.unique(events.epoch[frames])),
        depths=events.amount[events.kind == TRACE],
        period_ns=percentiles(periods),
        jitter_ns=percentiles(jitter),
        latency_ns=percentiles(events.latency_ns[frames][events.has_latency[frames]]),
    )


def percentiles(values: Ints) -> Percentiles:
    """The percentiles of some values, without interpolation."""
    count = len(values)
    if not count:
        return Percentiles()
    ordered = np.sort(values)
    # The nearest rank, in integers: a float rank would be rounded.
    return Percentiles(*(int(ordered[-(-count * of // 100) - 1]) for of in (50, 90, 99, 100)))


def _periods(epoch: Ints, seq: Ints, at: Ints) -> Ints:
    """Times between frames of one epoch with consecutive sequences."""
    order = np.lexsort([seq, epoch])
    epoch, seq, at = epoch[order], seq[order], at[order]
    follow = (np.diff(epoch) == 0) & (np.diff(seq) == 1)
    periods: Ints = np.diff(at)[follow]
    return periods


def _counted(events: _Columns, kind: int) -> dict[str, int]:
    chosen = np.flatnonzero(events.kind == kind)
    if not len(chosen):
        return {}
    numbers, amounts = events.reason[chosen], events.amount[chosen]
    return {
        events.reasons[number]: int(amounts[numbers == number].sum())
        for number in np.unique(numbers).tolist()
    }


# --- all streams of a micro-batch


@dataclass(slots=True)
class Measured:
    """Rows of closed and of open intervals, the events of open intervals, and the positions of streams."""

    closed: pa.Table | None
    still_open: pa.Table | None
    events: pa.Table
    positions: dict[int, StreamPosition]


def measure(
    events: pa.Table, positions: Mapping[int, StreamPosition], interval_ns: int, lateness_ns: int
) -> Measured:
    """Measures the events of all streams, those of earlier open intervals included."""
    streams = events["stream_id"].to_numpy()
    closed: list[Interval] = []
    still_open: list[Interval] = []
    carried = [EVENTS.empty_table()]
    reached = dict(positions)
    for stream in np.unique(streams).tolist():
        own = events.filter(pa.array(streams == stream)).combine_chunks()
        found = intervals(own, reached.get(stream, StreamPosition()), interval_ns, lateness_ns)
        closed += found.closed
        still_open += found.still_open
        carried.append(found.events)
        reached[stream] = found.position
    return Measured(quality_table(closed), quality_table(still_open), pa.concat_tables(carried), reached)


def quality_table(found: Sequence[Interval]) -> pa.Table | None:
    """Intervals as rows of `gold/quality`; None if there are none."""
    if not found:
        return None
    starts = np.array([interval.interval_start_ns for interval in found], np.int64)
    columns = {
        entry.name: moments(starts)
        if entry.name == "interval_start"
        else pa.array([interval.column(entry.name) for interval in found], entry.type)
        for entry in schemas.quality().schema
    }
    return pa.table({**columns, "date": dates(starts)})


def frame_events(frames: pa.Table) -> pa.Table:
    """The events of accepted frames."""
    return _events(FRAME, frames, amount=frames["payload_bytes"], latency=frames["latency_ns"])


def gap_events(gaps: pa.Table) -> pa.Table:
    """The events of rows of `silver/gaps`."""
    renamed = gaps.rename_columns({"first_seq": "seq"})
    return _events(GAP, renamed, amount=gaps["count"], reason=gaps["reason"])


def reject_events(rejects: pa.Table) -> pa.Table:
    """The events of rejected frames."""
    ones = pa.array(np.ones(len(rejects), np.int64))
    return _events(REJECT, rejects, amount=ones, reason=rejects["reason"])


def trace_events(frames: pa.Table, depths: Sequence[int]) -> pa.Table:
    """The events of traced frames, with their lineage depths."""
    return _events(TRACE, frames, amount=pa.array(depths, pa.int64()))


def _events(kind: int, rows: pa.Table, *, amount: Any, latency: Any = None, reason: Any = None) -> pa.Table:
    count = len(rows)
    return pa.table(
        {
            "stream_id": rows["stream_id"],
            "kind": pa.array(np.full(count, kind, np.int8)),
            "at_ns": rows["receive_time_ns"],
            "epoch": rows["epoch"],
            "seq": rows["seq"],
            "amount": amount,
            "latency_ns": pa.nulls(count, pa.int64()) if latency is None else latency,
            "reason": pa.nulls(count, pa.string()) if reason is None else reason,
        }
    ).cast(EVENTS)
