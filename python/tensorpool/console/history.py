"""Figures over time: rings of samples for the whole system and for single streams.

Pure. Two resolutions: a second for the last ten minutes, twenty seconds for the last four hours. Memory is
bounded: so many streams get a track, and of a track so many drop reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypedDict

import numpy as np
import numpy.typing as npt

from ..monitor.snapshot import Snapshot, StreamView
from .state import rounded, system_totals

FINE: Final = 600
"""Samples of the fine ring, one a period."""
COARSE: Final = 720
STEP: Final = 20
"""Fine samples that become one coarse sample."""
MAX_TRACKS: Final = 300
MAX_REASONS: Final = 8
OTHER: Final = "other"
SYSTEM: Final = "system"
"""The track of the whole system; the others are named by the stream's id."""

_FIGURES: Final = ("rate", "bytes", "p50", "p99", "lost", "memory")
_WORST: Final = frozenset({"p99", "p50"})
"""Of these a coarse sample is the highest fine one; of all others the mean."""
_Values = npt.NDArray[np.float32]


class HistoryReply(TypedDict):
    """Samples of one track. `null` where nothing was reported."""

    track: str
    span: str
    at: list[int]
    series: dict[str, list[float | None]]


class PointReply(TypedDict):
    """The newest sample of one track."""

    track: str
    at: int
    values: dict[str, float | None]


@dataclass(slots=True)
class _Track:
    names: list[str] = field(default_factory=lambda: list(_FIGURES))
    fine: _Values = field(default_factory=lambda: _empty(len(_FIGURES), FINE))
    coarse: _Values = field(default_factory=lambda: _empty(len(_FIGURES), COARSE))
    used: int = 0
    """The tick of the last sample: the track that was used longest ago makes room."""

    def row(self, name: str) -> int:
        if name in self.names:
            return self.names.index(name)
        if len(self.names) >= len(_FIGURES) + MAX_REASONS and name != f"drop:{OTHER}":
            return self.row(f"drop:{OTHER}")
        self.names.append(name)
        self.fine = np.vstack([self.fine, _empty(1, FINE)])
        self.coarse = np.vstack([self.coarse, _empty(1, COARSE)])
        return len(self.names) - 1


def _empty(rows: int, columns: int) -> _Values:
    return np.full((rows, columns), np.nan, np.float32)


class History:
    """`add` takes a snapshot a period; `read` returns the samples of one track."""

    def __init__(self) -> None:
        self._tick = 0
        self._fine_at = np.zeros(FINE, np.int64)
        self._coarse_at = np.zeros(COARSE, np.int64)
        self._tracks: dict[str, _Track] = {}
        self._dropped: dict[tuple[int, int], Mapping[str, int]] = {}
        self._added_ns: int | None = None

    def add(self, snapshot: Snapshot, now_ms: int) -> None:
        """Takes the figures of a snapshot."""
        self._fine_at[self._tick % FINE] = now_ms
        elapsed_s = 1.0 if self._added_ns is None else max((snapshot.now_ns - self._added_ns) / 1e9, 1e-3)
        self._added_ns = snapshot.now_ns
        dropped = self._new_drops(snapshot, elapsed_s)
        totals = system_totals(snapshot)
        sums: dict[str, float] = {}
        for reasons in dropped.values():
            for reason, count in reasons.items():
                sums[reason] = sums.get(reason, 0) + count
        self._put(
            SYSTEM,
            {
                "rate": totals.rate_hz,
                "bytes": totals.bytes_per_s,
                "p50": None if totals.p50_ns is None else totals.p50_ns / 1e3,
                "p99": None if totals.p99_ns is None else totals.p99_ns / 1e3,
                "lost": totals.lost_per_s,
                "memory": totals.nbytes,
            },
            sums,
        )
        for stream in snapshot.streams[:MAX_TRACKS]:
            self._put(str(stream.stream_id), _figures(stream), dropped.get(stream.stream_id, {}))
        self._forget()
        self._tick += 1
        if self._tick % STEP == 0:
            self._add_coarse(now_ms)

    def _new_drops(self, snapshot: Snapshot, elapsed_s: float) -> dict[int, dict[str, float]]:
        """Frames a second that were dropped since the last snapshot, by stream and reason. A consumer that is
        new or restarted has no difference yet."""
        seen: dict[tuple[int, int], Mapping[str, int]] = {}
        result: dict[int, dict[str, float]] = {}
        for stream in snapshot.streams:
            for consumer in stream.consumers:
                key = (consumer.stream_id, consumer.consumer_id)
                seen[key] = consumer.dropped
                before = self._dropped.get(key)
                if before is None or not (before or consumer.dropped):
                    continue
                reasons = result.setdefault(stream.stream_id, {})
                for reason, count in consumer.dropped.items():
                    if (more := count - before.get(reason, 0)) > 0:
                        reasons[reason] = reasons.get(reason, 0) + more / elapsed_s
        self._dropped = seen
        return result

    def _put(self, name: str, figures: Mapping[str, float | None], dropped: Mapping[str, float]) -> None:
        track = self._tracks.get(name)
        if track is None:
            track = self._tracks[name] = _Track()
        column = self._tick % FINE
        # Reasons that were counted before are 0 now, not unknown.
        values = [0.0 if name.startswith("drop:") else np.nan for name in track.names]
        track.fine[:, column] = values
        for figure, value in figures.items():
            if value is not None:
                track.fine[track.row(figure), column] = value
        for reason, count in dropped.items():
            row = track.row(f"drop:{reason}")
            known = track.fine[row, column]
            track.fine[row, column] = count if np.isnan(known) else known + count
        track.used = self._tick

    def _forget(self) -> None:
        """Blanks this sample where a track got none; drops tracks without a sample in the coarse span."""
        for name, track in list(self._tracks.items()):
            if track.used == self._tick:
                continue
            track.fine[:, self._tick % FINE] = np.nan
            if self._tick - track.used > COARSE * STEP or len(self._tracks) > 2 * MAX_TRACKS:
                del self._tracks[name]

    def _add_coarse(self, now_ms: int) -> None:
        number = self._tick // STEP - 1
        self._coarse_at[number % COARSE] = now_ms
        columns = [tick % FINE for tick in range(self._tick - STEP, self._tick)]
        for track in self._tracks.values():
            recent = track.fine[:, columns]
            is_known = ~np.isnan(recent)
            counts = is_known.sum(axis=1)
            sums = np.where(is_known, recent, 0).sum(axis=1)
            worst = np.where(is_known, recent, -np.inf).max(axis=1)
            with np.errstate(invalid="ignore"):
                means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
            for row, name in enumerate(track.names):
                value = worst[row] if name in _WORST and counts[row] else means[row]
                track.coarse[row, number % COARSE] = value

    def read(self, track: str, span: str) -> HistoryReply:
        """The samples of a track, oldest first; `span` is `minutes` or `hours`."""
        is_fine = span != "hours"
        size, count = (FINE, self._tick) if is_fine else (COARSE, self._tick // STEP)
        columns = [index % size for index in range(max(0, count - size), count)]
        known = self._tracks.get(track)
        times = self._fine_at if is_fine else self._coarse_at
        series: dict[str, list[float | None]] = {}
        if known is not None:
            values = known.fine if is_fine else known.coarse
            for row, name in enumerate(known.names):
                series[name] = [rounded(float(value)) for value in values[row, columns]]
        return {
            "track": track,
            "span": span,
            "at": [int(times[column]) for column in columns],
            "series": series,
        }

    def newest(self, track: str) -> PointReply | None:
        """The last sample of a track."""
        known = self._tracks.get(track)
        if known is None or self._tick == 0:
            return None
        column = (self._tick - 1) % FINE
        values = {name: rounded(float(known.fine[row, column])) for row, name in enumerate(known.names)}
        return {"track": track, "at": int(self._fine_at[column]), "values": values}


def _figures(stream: StreamView) -> dict[str, float | None]:
    latency = stream.latency
    return {
        "rate": stream.rate_hz,
        "bytes": stream.bytes_per_s,
        "p50": None if latency is None else latency.p50_ns / 1e3,
        "p99": None if latency is None else latency.p99_ns / 1e3,
        "lost": sum(consumer.dropped_per_s or 0.0 for consumer in stream.consumers),
        "memory": stream.nbytes,
    }
