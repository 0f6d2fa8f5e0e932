"""The figures of a report, from which the page and the JSON are made."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ...text import JsonMapping
from .timeline import BucketSeries, Floats, TimeRange

Counts = dict[str, int]


@dataclass(slots=True)
class StreamFigures:
    """The figures of one stream, over its whole time."""

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
        """The time from the first frame to the last."""
        if self.first_ns is None or self.last_ns is None:
            return 0.0
        return (self.last_ns - self.first_ns) / 1e9

    @property
    def rate_hz(self) -> float | None:
        """The mean rate between the first frame and the last."""
        return (self.frames - 1) / self.seconds if self.frames > 1 and self.seconds > 0 else None


@dataclass(slots=True)
class AlignmentFigures:
    """The figures of one alignment."""

    name: str
    by: str | None
    streams: list[int]
    rows: int = 0
    unaligned: Counts = field(default_factory=dict)
    spread: dict[str, int | None] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """The share of the first stream's frames that have all partners."""
        decided = self.rows + sum(count for reason, count in self.unaligned.items() if reason != "late")
        return self.rows / decided if decided else None


@dataclass(slots=True)
class TableFigures:
    """The size of one table."""

    name: str
    rows: int
    files: int
    bytes: int


@dataclass(slots=True)
class Sample:
    """A preview of a frame: `image` is a PNG, `line` the values of a tensor with one dimension."""

    stream_id: int
    epoch: int
    seq: int
    time_ns: int | None
    dtype: str
    shape: tuple[int, ...]
    image: bytes | None = None
    line: list[float] | None = None
    problem: str | None = None
    """Why there is no preview."""


@dataclass(slots=True)
class Report:
    """All figures that the page shows."""

    root: str
    made_ns: int
    made_by: str
    pipeline_id: str
    versions: dict[str, int]
    definition: JsonMapping
    """The definition that was last run, as the values of a TOML file."""
    span: TimeRange | None = None
    streams: list[StreamFigures] = field(default_factory=list)
    series: dict[int, BucketSeries] = field(default_factory=dict)
    tensors: dict[int, BucketSeries] = field(default_factory=dict)
    alignments: list[AlignmentFigures] = field(default_factory=list)
    aligned_series: dict[str, BucketSeries] = field(default_factory=dict)
    tables: list[TableFigures] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Differences between the tables, or between tables and recordings."""
    unread_recordings: list[str] = field(default_factory=list)
    """Recordings whose ledgers could not be compared with the tables, each with the reason."""

    @property
    def name(self) -> str:
        """The title of the page: the name of the directory."""
        return Path(self.root).name

    def total(self, key: str) -> int:
        """The sum of a figure over all streams."""
        return int(sum(getattr(stream, key) for stream in self.streams))

    def reasons(self, key: str) -> Counts:
        """Counts by reason over all streams, the most frequent first."""
        counts: Counts = {}
        for stream in self.streams:
            for reason, count in getattr(stream, key).items():
                counts[reason] = counts.get(reason, 0) + count
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def to_json(self) -> JsonMapping:
        """The figures as JSON, without previews."""
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
                asdict(item) | {"rate_hz": item.rate_hz, "seconds": item.seconds} for item in self.streams
            ],
            "alignments": [asdict(item) | {"share": item.share} for item in self.alignments],
            "tables": [asdict(item) for item in self.tables],
            "series": None if self.span is None else self._series_json(self.span),
            "samples": [
                {"stream_id": item.stream_id, "epoch": str(item.epoch), "seq": str(item.seq)}
                for item in self.samples
            ],
        }

    def _series_json(self, span: TimeRange) -> JsonMapping:
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
    """Values for JSON, which has no NaN."""
    return [float(value) if np.isfinite(value) else None for value in values]
