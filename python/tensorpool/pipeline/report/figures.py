"""What a report says, as plain figures: the page and the JSON are both made of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .timeline import BucketSeries, Floats, TimeRange

Counts = dict[str, int]


@dataclass(slots=True)
class StreamFigures:
    """One stream, over the whole time."""

    stream_id: int
    name: str | None = None
    recorded: int = 0
    """Rows of bronze."""
    frames: int = 0
    """Rows of silver."""
    bytes: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    dropped: Counts = field(default_factory=dict)
    rejected: Counts = field(default_factory=dict)
    epochs: int | None = None
    counted: int = 0
    """Frames that gold counts."""
    latency_ns: dict[str, int | None] = field(default_factory=dict)
    jitter_ns: dict[str, int | None] = field(default_factory=dict)
    traced: int = 0
    lineage_depth_max: int | None = None

    @property
    def seconds(self) -> float:
        if self.first_ns is None or self.last_ns is None:
            return 0.0
        return (self.last_ns - self.first_ns) / 1e9

    @property
    def rate_hz(self) -> float | None:
        """Between the first frame and the last."""
        return (self.frames - 1) / self.seconds if self.frames > 1 and self.seconds > 0 else None


@dataclass(slots=True)
class AlignmentFigures:
    """One alignment."""

    name: str
    by: str | None
    streams: list[int]
    rows: int = 0
    unaligned: Counts = field(default_factory=dict)
    spread: dict[str, int | None] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """Of the first stream's frames, those that have all partners. A late frame was decided before."""
        decided = self.rows + sum(count for reason, count in self.unaligned.items() if reason != "late")
        return self.rows / decided if decided else None


@dataclass(slots=True)
class TableFigures:
    name: str
    rows: int
    files: int
    bytes: int


@dataclass(slots=True)
class Sample:
    """A frame to look at. `image` is a PNG, `line` the values of one that has one dimension."""

    stream_id: int
    epoch: int
    seq: int
    time_ns: int | None
    dtype: str
    shape: tuple[int, ...]
    image: bytes | None = None
    line: list[float] | None = None
    problem: str | None = None
    """Why there is neither."""


@dataclass(slots=True)
class Report:
    """Everything that the page shows."""

    root: str
    made_ns: int
    made_by: str
    pipeline_id: str
    versions: dict[str, int]
    definition: dict[str, Any]
    span: TimeRange | None = None
    streams: list[StreamFigures] = field(default_factory=list)
    series: dict[int, BucketSeries] = field(default_factory=dict)
    tensors: dict[int, BucketSeries] = field(default_factory=dict)
    alignments: list[AlignmentFigures] = field(default_factory=list)
    aligned_series: dict[str, BucketSeries] = field(default_factory=dict)
    tables: list[TableFigures] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What does not add up."""
    unread_recordings: list[str] = field(default_factory=list)
    """Recordings whose ledgers could not be compared with the tables, each with the reason."""

    @property
    def name(self) -> str:
        """What the page is headed with: the directory's own name."""
        return Path(self.root).name

    def total(self, key: str) -> int:
        return int(sum(getattr(one, key) for one in self.streams))

    def reasons(self, key: str) -> Counts:
        """Counts by reason over all streams, the most frequent first."""
        found: Counts = {}
        for stream in self.streams:
            for reason, count in getattr(stream, key).items():
                found[reason] = found.get(reason, 0) + count
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))

    def to_json(self) -> dict[str, Any]:
        """The same figures for programs; pictures are left out."""
        return {
            "root": self.root,
            "made_ns": str(self.made_ns),
            "made_by": self.made_by,
            "pipeline": {
                "id": self.pipeline_id,
                "versions": self.versions,
                "definition": self.definition,
            },
            "totals": {
                "recorded": self.total("recorded"),
                "frames": self.total("frames"),
                "bytes": self.total("bytes"),
                "counted": self.total("counted"),
                "rejected": self.reasons("rejected"),
                "dropped": self.reasons("dropped"),
            },
            "balanced": not self.faults,
            "unread_recordings": self.unread_recordings,
            "faults": self.faults,
            "streams": [
                asdict(one) | {"rate_hz": one.rate_hz, "seconds": one.seconds} for one in self.streams
            ],
            "alignments": [asdict(one) | {"share": one.share} for one in self.alignments],
            "tables": [asdict(one) for one in self.tables],
            "series": None if self.span is None else self._series_json(self.span),
            "samples": [
                {"stream_id": one.stream_id, "epoch": str(one.epoch), "seq": str(one.seq)}
                for one in self.samples
            ],
        }

    def _series_json(self, span: TimeRange) -> dict[str, Any]:
        return {
            "start_ns": str(span.start_ns),
            "bucket_ns": str(span.bucket_ns),
            "streams": {
                str(stream_id): {
                    **{name: _plain(values) for name, values in sorted(series.sums.items())},
                    **{name: _plain(values) for name, values in sorted(series.peaks.items())},
                    **{name: _plain(series.mean(name)) for name in sorted(series.weighted)},
                }
                for stream_id, series in sorted(self.series.items())
            },
        }


def _plain(values: Floats) -> list[float | None]:
    """JSON has no NaN."""
    return [float(one) if np.isfinite(one) else None for one in values]
