"""Silver, the part that runs in executors: every frame of some bronze files is taken or turned away."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from .. import _native
from ..errors import FrameNotRecorded
from . import metadata, schemas
from .latency import latencies
from .payloads import Payloads
from .sequence_runs import Run, SequenceRuns, runs_of
from .table_files import TableFileWriter, moments
from .validation import CHECKSUM, DUPLICATE, LATE, MISSING, Rule, Validator, Verdict

_ROWS: Final = 16_384
_INLINE_ROWS: Final = 64


def validate_files(item: dict[str, Any]) -> dict[str, Any]:
    """The work of one task: files of one stream, in order, each frame of which becomes a row or a reject."""
    return _Silver(item).run()


class _Silver:
    def __init__(self, item: dict[str, Any]) -> None:
        from ..spark.tensors.segments import Segments

        self._item = item
        self._segments = Segments()
        self._validator = Validator([Rule.from_json(one) for one in item["rules"]])
        self._files = TableFileWriter(item["staging"], item["target_bytes"])
        self._frames = schemas.silver_frames(item["payload"])
        self._rejects = schemas.silver_rejects(item["payload"])
        self._seen = {
            int(epoch): SequenceRuns(one["runs"], closed=one["closed"], most=item["max_runs"])
            for epoch, one in item["seen"].items()
        }
        self._accepted: dict[int, list[Run]] = {}
        self._edges: list[list[int]] = []
        self._reasons: Counter[str] = Counter()
        self._rows = self._bytes = 0

    def run(self) -> dict[str, Any]:
        rows = _INLINE_ROWS if self._item["payload"] == "inline" else _ROWS
        for path in self._item["files"]:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(rows, use_threads=False):
                    self._take(batch)
        return {
            "files": [one.to_json() for one in self._files.close()],
            "accepted": {str(epoch): runs for epoch, runs in self._accepted.items()},
            "edges": self._edges,
            "reasons": dict(self._reasons),
            "rows": self._rows,
            "bytes": self._bytes,
        }

    def _take(self, batch: pa.RecordBatch) -> None:
        epochs, seqs = batch["epoch"].to_numpy(), batch["seq"].to_numpy()
        received = batch["receive_time_ns"].to_numpy()
        verdicts: dict[int, Verdict] = {}
        for epoch in np.unique(epochs).tolist():
            of = np.flatnonzero(epochs == epoch)
            self._note_edges(epoch, seqs[of], received[of])
            verdicts |= self._known(epoch, of, seqs[of])
        verdicts |= self._unfit(batch, verdicts)
        turned_away = np.zeros(len(batch), np.bool_)
        turned_away[list(verdicts)] = True
        # Duplicates among these rows: only now is it known which of two is sound.
        for epoch in np.unique(epochs).tolist():
            of = np.flatnonzero((epochs == epoch) & ~turned_away)
            _, first = np.unique(seqs[of], return_index=True)
            for again in np.setdiff1d(np.arange(len(of)), first).tolist():
                verdicts[int(of[again])] = DUPLICATE, "came twice"
            self._accept(epoch, seqs[of])
        turned_away[list(verdicts)] = True
        self._write(batch, received, turned_away, verdicts)

    def _known(
        self, epoch: int, rows: npt.NDArray[np.intp], seqs: npt.NDArray[np.int64]
    ) -> dict[int, Verdict]:
        seen = self._seen.setdefault(epoch, SequenceRuns(most=self._item["max_runs"]))
        is_late = seen.is_closed(seqs)
        again, late = rows[seen.contains(seqs) & ~is_late], rows[is_late]
        found: dict[int, Verdict] = {int(row): (DUPLICATE, "another recording has it") for row in again}
        return found | {int(row): (LATE, "too far behind to know whether it came before") for row in late}

    def _unfit(self, batch: pa.RecordBatch, known: dict[int, Verdict]) -> dict[int, Verdict]:
        """What rules and checksums say of the others."""
        dtypes, sizes = batch["dtype"].to_pylist(), batch["payload_bytes"].to_pylist()
        shapes, checksums = batch["shape"].to_pylist(), batch["crc32c"].to_pylist()
        payloads, verify = Payloads(batch, self._segments), self._item["verify"]
        found: dict[int, Verdict] = {}
        for number in range(len(batch)):
            if number in known:
                continue
            verdict = self._validator.check(dtypes[number], shapes[number], sizes[number])
            if verdict is None and verify:
                try:
                    is_sound = _native.crc32c(payloads[number]) == checksums[number]
                except (FrameNotRecorded, OSError, ValueError) as error:
                    verdict = MISSING, str(error)[:200]
                else:
                    verdict = None if is_sound else (CHECKSUM, "the payload is not what was written")
            if verdict is not None:
                found[number] = verdict
        return found

    def _accept(self, epoch: int, seqs: npt.NDArray[np.int64]) -> None:
        runs = runs_of(seqs)
        self._seen[epoch].add(runs)
        if runs:
            kept = self._accepted.setdefault(epoch, [])
            kept.extend(runs)

    def _note_edges(self, epoch: int, seqs: npt.NDArray[np.int64], received: npt.NDArray[np.int64]) -> None:
        """Where runs begin and end, and when those frames came: it dates the gaps between them."""
        order = np.argsort(seqs, kind="stable")
        ordered, times = seqs[order], received[order]
        breaks = np.flatnonzero(np.diff(ordered) > 1)
        for low, high in zip(
            np.concatenate(([0], breaks + 1)).tolist(),
            np.concatenate((breaks, [len(ordered) - 1])).tolist(),
            strict=True,
        ):
            self._edges.append(
                [epoch, *(int(v) for v in (ordered[low], ordered[high], times[low], times[high]))]
            )

    def _write(
        self,
        batch: pa.RecordBatch,
        received: npt.NDArray[np.int64],
        turned_away: npt.NDArray[np.bool_],
        verdicts: dict[int, Verdict],
    ) -> None:
        stream = pa.array(np.full(len(batch), self._item["stream_id"], np.int64))
        from .table_files import dates

        whole = (
            batch.append_column("stream_id", stream)
            .append_column("date", dates(received))
            .append_column("time", moments(received))
        )
        if verdicts:
            order = sorted(verdicts)
            rejected = whole.take(pa.array(order))
            rejected = rejected.append_column(
                "reason", pa.array([verdicts[row][0] for row in order], pa.string())
            )
            rejected = rejected.append_column(
                "detail", pa.array([verdicts[row][1] for row in order], pa.string())
            )
            self._files.add(self._rejects, rejected)
            self._reasons.update(verdicts[row][0] for row in order)
        taken = whole.filter(pa.array(~turned_away)) if verdicts else whole
        if len(taken):
            taken = taken.append_column("latency_ns", self._latencies(taken))
            about = metadata.column(
                taken["epoch"].to_pylist(), taken["meta_version"].to_pylist(), self._item["notes"]
            )
            self._files.add(self._frames, taken.append_column("metadata", about))
            self._rows += len(taken)
            self._bytes += int(taken["payload_bytes"].to_numpy().sum())

    def _latencies(self, rows: pa.RecordBatch) -> pa.Array:
        received = rows["receive_time_ns"].to_numpy()
        source, published = rows["timestamp_ns"], rows["publish_timestamp_ns"]
        sent = np.where(
            published.is_null().to_numpy(zero_copy_only=False),
            source.to_numpy(),
            published.fill_null(0).to_numpy(),
        )
        names = rows["recording"].to_pylist()
        anchors = self._item["anchors"].get(names[0] if names else "", [])
        found, is_known = latencies(sent, received, anchors)
        return pa.array(found, mask=~is_known)
