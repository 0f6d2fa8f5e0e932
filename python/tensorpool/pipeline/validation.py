"""The validation of frames: rules of a definition, duplicates, checksums, and the times around gaps.

Runs in executors. Rows in, accepted and rejected rows out; the pipeline's process keeps what was seen.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import _native
from ..errors import FrameNotRecorded
from . import metadata
from .definition import RuleSettings
from .metadata import Versions, latencies
from .sequence_runs import Run, SequenceRuns, StoredRuns, runs_of
from .table_files import Payloads, dates, moments

_FOREVER: Final = 1 << 63
_MAX_DETAIL: Final = 200
"""Characters of a detail that comes from an error."""
DUPLICATE, LATE, CHECKSUM, MISSING = "duplicate", "late", "checksum", "missing"


class Rejection(NamedTuple):
    """Why a frame is rejected."""

    reason: str
    detail: str


_WRONG_CHECKSUM: Final = Rejection(CHECKSUM, "the payload does not match its checksum")


@dataclass(frozen=True, slots=True)
class FrameRule:
    """One rule of the definition, as it applies to one stream."""

    dtypes: tuple[str, ...]
    shape: tuple[int, ...] | None
    max_payload_bytes: int | None

    def check(self, dtype: str, shape: Sequence[int], payload_bytes: int) -> Rejection | None:
        """Why a frame violates the rule; None if it does not."""
        if self.dtypes and dtype not in self.dtypes:
            return Rejection("dtype", f"{dtype} is not {' or '.join(self.dtypes)}")
        if self.shape is not None and not _fits(shape, self.shape):
            return Rejection("shape", f"{list(shape)} is not {list(self.shape)}")
        if self.max_payload_bytes is not None and payload_bytes > self.max_payload_bytes:
            return Rejection("size", f"{payload_bytes} bytes are more than {self.max_payload_bytes}")
        return None


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(
        want in (0, size) for size, want in zip(shape, wanted, strict=True)
    )


def rules_for(stream_id: int, rules: Iterable[RuleSettings]) -> list[FrameRule]:
    """The rules that apply to a stream."""
    return [
        FrameRule(rule.dtype, rule.shape, rule.max_payload_bytes)
        for rule in rules
        if not rule.streams or stream_id in rule.streams
    ]


class Validator:
    """Applies rules to frames. Rejections are cached by type, shape and size."""

    def __init__(self, rules: Sequence[FrameRule]) -> None:
        self._rules = rules
        self._known: dict[tuple[Any, ...], Rejection | None] = {}

    def check(self, dtype: str, shape: Sequence[int], payload_bytes: int) -> Rejection | None:
        """Why a frame is rejected; None if no rule rejects it."""
        kind = (dtype, tuple(shape), payload_bytes)
        if kind not in self._known:
            rejections = (rule.check(dtype, shape, payload_bytes) for rule in self._rules)
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[kind] = next((rejection for rejection in rejections if rejection is not None), None)
        return self._known[kind]


class Edge(NamedTuple):
    """A run of recorded sequences with the receive times of its ends, which date the gaps around it."""

    epoch: int
    first_seq: int
    last_seq: int
    first_ns: int
    last_ns: int


@dataclass(slots=True)
class StreamContext:
    """What a task has to know about a stream."""

    rules: list[FrameRule] = field(default_factory=list)
    seen: dict[int, StoredRuns] = field(default_factory=dict)
    """Epoch → the sequences that its rows may repeat."""
    metadata: Versions = field(default_factory=dict)


@dataclass(slots=True)
class Findings:
    """What the validation of one stream's rows has found."""

    accepted: dict[int, list[Run]] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)


class FrameValidator:
    """Accepts or rejects the frames of one stream."""

    def __init__(
        self,
        context: StreamContext,
        segments: Any,
        anchors: Mapping[str, list[list[int]]],
        *,
        verify: bool,
        max_runs: int,
    ) -> None:
        self._context = context
        self._segments = segments
        self._anchors = anchors
        self._verify = verify
        self._max_runs = max_runs
        self._validator = Validator(context.rules)
        self._seen = {
            epoch: SequenceRuns.load(seen, max_runs=max_runs) for epoch, seen in context.seen.items()
        }
        self.findings = Findings()

    def check(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The accepted rows, with latency and metadata, and the rejected rows, with reason and detail.

        Rows are of one recording, and have the columns `time` and `date`.
        """
        epochs, seqs = batch["epoch"].to_numpy(), batch["seq"].to_numpy()
        received = batch["receive_time_ns"].to_numpy()
        rejections: dict[int, Rejection] = {}
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            self.findings.edges += edges_of(epoch, seqs[rows], received[rows])
            rejections |= self._known(epoch, rows, seqs[rows])
        rejections |= self._unfit(batch, rejections)
        is_rejected = np.zeros(len(batch), np.bool_)
        is_rejected[list(rejections)] = True
        # Duplicates within the batch are found last: of two frames the valid one is accepted.
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero((epochs == epoch) & ~is_rejected)
            _, first = np.unique(seqs[rows], return_index=True)
            for again in np.setdiff1d(np.arange(len(rows)), first).tolist():
                rejections[int(rows[again])] = Rejection(DUPLICATE, "the recordings contain it twice")
            self._accept(epoch, seqs[rows])
        is_rejected[list(rejections)] = True
        return self._accepted(batch, is_rejected), self._rejected(batch, rejections)

    def _known(
        self, epoch: int, rows: npt.NDArray[np.intp], seqs: npt.NDArray[np.int64]
    ) -> dict[int, Rejection]:
        seen = self._seen.setdefault(epoch, SequenceRuns(max_runs=self._max_runs))
        is_late = seen.is_closed(seqs)
        again, late = rows[seen.contains(seqs) & ~is_late], rows[is_late]
        duplicate = Rejection(DUPLICATE, "another recording contains it")
        unknown = Rejection(LATE, "too late to know whether it is a duplicate")
        return dict.fromkeys(again.tolist(), duplicate) | dict.fromkeys(late.tolist(), unknown)

    def _unfit(self, batch: pa.RecordBatch, known: dict[int, Rejection]) -> dict[int, Rejection]:
        """Rejections by the rules and the checksums, for rows without a rejection."""
        dtypes, sizes = batch["dtype"].to_pylist(), batch["payload_bytes"].to_pylist()
        shapes, checksums = batch["shape"].to_pylist(), batch["crc32c"].to_pylist()
        payloads = Payloads(batch, self._segments)
        rejections: dict[int, Rejection] = {}
        for number in range(len(batch)):
            if number in known:
                continue
            rejection = self._validator.check(dtypes[number], shapes[number], sizes[number])
            if rejection is None and self._verify:
                try:
                    is_sound = _native.crc32c(payloads[number]) == checksums[number]
                except (FrameNotRecorded, OSError, ValueError) as error:
                    rejection = Rejection(MISSING, str(error)[:_MAX_DETAIL])
                else:
                    rejection = None if is_sound else _WRONG_CHECKSUM
            if rejection is not None:
                rejections[number] = rejection
        return rejections

    def _accept(self, epoch: int, seqs: npt.NDArray[np.int64]) -> None:
        runs = runs_of(seqs)
        self._seen[epoch].add(runs)
        if runs:
            self.findings.accepted.setdefault(epoch, []).extend(runs)

    def _rejected(self, batch: pa.RecordBatch, rejections: dict[int, Rejection]) -> pa.RecordBatch:
        order = sorted(rejections)
        self.findings.reasons.update(rejections[row].reason for row in order)
        rejected = batch.take(pa.array(order, pa.int64()))
        rejected = rejected.append_column(
            "reason", pa.array([rejections[row].reason for row in order], pa.string())
        )
        return rejected.append_column(
            "detail", pa.array([rejections[row].detail for row in order], pa.string())
        )

    def _accepted(self, batch: pa.RecordBatch, is_rejected: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        taken = batch.filter(pa.array(~is_rejected)) if is_rejected.any() else batch
        taken = taken.append_column("latency_ns", self._latencies(taken))
        texts = metadata.column(
            taken["epoch"].to_pylist(), taken["meta_version"].to_pylist(), self._context.metadata
        )
        return taken.append_column("metadata", texts)

    def _latencies(self, rows: pa.RecordBatch) -> pa.Array:
        received = rows["receive_time_ns"].to_numpy()
        source, published = rows["timestamp_ns"], rows["publish_timestamp_ns"]
        sent = np.where(
            published.is_null().to_numpy(zero_copy_only=False),
            source.to_numpy(),
            published.fill_null(0).to_numpy(),
        )
        anchors = self._anchors.get(rows["recording"][0].as_py(), []) if len(rows) else []
        latency_ns, is_known = latencies(sent, received, anchors)
        return pa.array(latency_ns, mask=~is_known)


def edges_of(epoch: int, seqs: npt.NDArray[np.int64], received: npt.NDArray[np.int64]) -> list[Edge]:
    """The runs of some frames of an epoch."""
    if not len(seqs):
        return []
    order = np.argsort(seqs, kind="stable")
    ordered, times = seqs[order], received[order]
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    lows = np.concatenate(([0], breaks + 1)).tolist()
    highs = np.concatenate((breaks, [len(ordered) - 1])).tolist()
    return [
        Edge(epoch, int(ordered[low]), int(ordered[high]), int(times[low]), int(times[high]))
        for low, high in zip(lows, highs, strict=True)
    ]


class GapTimes:
    """Receive times of gaps, from the frames around them."""

    def __init__(self, edges: Iterable[Edge]) -> None:
        known = list(edges)
        self._firsts = sorted((edge.first_seq, edge.first_ns) for edge in known)
        self._lasts = sorted((edge.last_seq, edge.last_ns) for edge in known)

    def between(self, first: int, last: int) -> int | None:
        """The receive time of the frame after the gap, else of the frame before it, else None."""
        at = bisect.bisect_right(self._firsts, (last, _FOREVER))
        if at < len(self._firsts):
            return self._firsts[at][1]
        at = bisect.bisect_left(self._lasts, (first, -_FOREVER))
        return self._lasts[at - 1][1] if at else None


@dataclass(frozen=True, slots=True)
class MissingRun:
    """A row of `silver/gaps`: consecutive sequences that no recording has."""

    stream_id: int
    epoch: int
    first_seq: int
    count: int
    reason: str
    receive_time_ns: int


def missing_table(rows: Sequence[MissingRun]) -> pa.Table:
    """Rows of `silver/gaps`, with their time and day."""
    gaps = pa.table(
        {
            "stream_id": pa.array([row.stream_id for row in rows], pa.int64()),
            "epoch": pa.array([row.epoch for row in rows], pa.int64()),
            "first_seq": pa.array([row.first_seq for row in rows], pa.int64()),
            "count": pa.array([row.count for row in rows], pa.int64()),
            "reason": pa.array([row.reason for row in rows], pa.string()),
            "receive_time_ns": pa.array([row.receive_time_ns for row in rows], pa.int64()),
        }
    )
    times = gaps["receive_time_ns"].to_numpy()
    return gaps.append_column("time", moments(times)).append_column("date", dates(times))
