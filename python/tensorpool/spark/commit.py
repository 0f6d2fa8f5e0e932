"""Commit of staged rows to the recording, once for each (query, batch). Runs beside Spark's driver.

`_sinks/<query>/state.json` has the last committed batch; while a batch is being written, also the former end
of its streams. A crash may leave a part of a batch in the recording. When Spark sends that batch again, the
rows that were recorded are skipped. An attempt writes under the stream's lock, so its frames follow the
former end directly. Frames behind them may be of another query or a recorder: so rows are recognised by their
content and not by their number.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _native
from ..durable import JsonState
from ..errors import InvalidFrames, LockHeld
from ..recording import Cursor, FrameBatch, Recording, RecordingWriter
from ..recording.layout import ALIGNMENT
from .staging import NO_SEQ, discard, load, query_dir

T = TypeVar("T")
StreamEnd = tuple[int, int] | None
"""Epoch and sequence of a stream's last frame; None for an empty stream."""
_STATE: Final = "state.json"
_LOCK: Final = "commit.lock"
_BATCH_BYTES: Final = 8 << 20
_BATCH_ROWS: Final = 16_384


class _FrameKey(NamedTuple):
    """Content of a frame. Epoch and sequence are 0 if the sink numbers the frames."""

    epoch: int
    seq: int
    payload_bytes: int
    crc32c: int


def recorded_rows(
    root: Path, rows: Any, payloads: Any, before: StreamEnd, end: StreamEnd, *, has_numbers: bool
) -> npt.NDArray[np.bool_]:
    """Which of a stream's staged rows are in the recording behind `before`."""
    if end is None or end == before or not len(rows):
        return np.zeros(len(rows), bool)
    keys = [_row_key(row, payloads, has_numbers) for row in rows]
    recorded = _recorded_keys(root, int(rows["stream_id"][0]), before, Counter(keys), has_numbers)
    is_recorded = np.zeros(len(rows), bool)
    for number, key in enumerate(keys):
        if recorded[key]:
            recorded[key] -= 1
            is_recorded[number] = True
    return is_recorded


def _row_key(row: Any, payloads: Any, has_numbers: bool) -> _FrameKey:
    at, size = int(row["at"]), int(row["payload_bytes"])
    crc = _native.crc32c(payloads[int(row["task"])][at : at + size])
    epoch, seq = (int(row["epoch"]), int(row["seq"])) if has_numbers else (0, 0)
    return _FrameKey(epoch, seq, size, crc)


def _recorded_keys(
    root: Path, stream_id: int, before: StreamEnd, staged: Counter[_FrameKey], has_numbers: bool
) -> Counter[_FrameKey]:
    """The frames behind `before` that are among the staged ones, up to the first that is not."""
    recorded: Counter[_FrameKey] = Counter()
    after = None if before is None else Cursor(stream_id, *before)
    for _, frames in Recording(root).by_segment(stream_id, after=after):
        for block, rows in frames.runs():
            for row in rows:
                epoch, seq = (block.epoch, int(block.seq[row])) if has_numbers else (0, 0)
                key = _FrameKey(epoch, seq, int(block.payload_bytes[row]), int(block.crc32c[row]))
                if recorded[key] >= staged[key]:
                    return recorded
                recorded[key] += 1
    return recorded


class _SinkStateJson(TypedDict):
    """A `SinkState` as JSON. Epochs and sequences are text."""

    done: int
    writing: int | None
    before: Mapping[str, list[str] | None]


@dataclass(slots=True)
class SinkState:
    """The commit state of a query: the last committed batch, and the batch that is being written."""

    done: int = -1
    writing: int | None = None
    before: dict[int, StreamEnd] = field(default_factory=dict)
    """Stream → its end before the batch that is being written."""

    @classmethod
    def load(cls, path: Path) -> SinkState:
        """The saved state; the initial one if there is none."""
        content: _SinkStateJson | None = JsonState(path).load()
        if content is None:
            return cls()
        before = {
            int(stream): None if end is None else _read_end(*end) for stream, end in content["before"].items()
        }
        return cls(content["done"], content["writing"], before)

    def save(self, path: Path) -> None:
        """Makes the state durable."""
        before = {
            str(stream): None if end is None else list(map(str, end)) for stream, end in self.before.items()
        }
        content: _SinkStateJson = {"done": self.done, "writing": self.writing, "before": before}
        JsonState(path).save(content)


def commit(
    root: Path, key: str, batch_id: int, names: Sequence[str], *, epoch: int | None, busy_ns: int
) -> int:
    """Records the staged rows of a batch unless it was committed before. Returns the number of new frames."""
    directory = query_dir(root, key)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The commit of a killed Spark driver may still be running: wait until it has finished.
    lock = _wait_for_lock(
        lambda: _native.FileLock(directory / _LOCK, f"process {os.getpid()} (commit)"), busy_ns
    )
    try:
        path = directory / _STATE
        state = SinkState.load(path)
        written = 0
        if state.done < batch_id:
            written = _record(root, key, state, batch_id, names, epoch, busy_ns)
            # The writer is closed: all frames are durable and sealed. Only now is the batch committed.
            SinkState(batch_id).save(path)
        # Not the other directories of this batch: a task of another attempt may be writing one.
        discard(root, key, up_to=batch_id - 1, only=names)
        return written
    finally:
        lock.release()


def _record(
    root: Path,
    key: str,
    state: SinkState,
    batch_id: int,
    names: Sequence[str],
    epoch: int | None,
    busy_ns: int,
) -> int:
    staged = [load(root, key, name) for name in sorted(names, key=_task_number)]
    staged = [rows for rows in staged if len(rows.index)]
    if not staged:
        return 0
    index = np.concatenate([rows.index for rows in staged])
    payloads = {int(rows.index["task"][0]): rows.payload for rows in staged}
    streams = [int(stream) for stream in np.unique(index["stream_id"])]
    written = 0
    with _wait_for_lock(lambda: _open_writer(root, key, streams), busy_ns) as writer:
        ends = {stream: writer.last(stream) for stream in streams}
        if state.writing != batch_id:
            state.writing, state.before = batch_id, ends
            state.save(query_dir(root, key) / _STATE)
        for stream, end in ends.items():
            rows = index[index["stream_id"] == stream]
            rows = _unrecorded_rows(root, rows, payloads, state.before.get(stream), end, epoch)
            for frames in _batches(stream, rows, payloads):
                writer.write_batch(frames)
            written += len(rows)
    return written


def _open_writer(root: Path, key: str, streams: Sequence[int]) -> RecordingWriter:
    """A writer that holds the locks of all streams."""
    writer = RecordingWriter(root, holder=f"spark {key}")
    try:
        for stream in streams:
            writer.last(stream)
    except BaseException:
        writer.close()
        raise
    return writer


def _wait_for_lock(attempt: Callable[[], T], timeout_ns: int) -> T:
    """The result of `attempt`, which is repeated while another process holds the lock."""
    deadline = time.monotonic_ns() + timeout_ns
    while True:
        try:
            return attempt()
        except LockHeld:
            if time.monotonic_ns() >= deadline:
                raise
        time.sleep(0.1)


def _read_end(epoch: str, seq: str) -> tuple[int, int]:
    return int(epoch), int(seq)


def _task_number(name: str) -> int:
    _, task, _ = name.split("-")
    return int(task)


def _unrecorded_rows(
    root: Path, rows: Any, payloads: Mapping[int, Any], before: StreamEnd, end: StreamEnd, epoch: int | None
) -> Any:
    """A stream's rows with epoch and sequence, without those that an earlier attempt recorded."""
    if (rows["seq"] == NO_SEQ).all():
        is_recorded = recorded_rows(root, rows, payloads, before, end, has_numbers=False)
        return check_order(number_rows(rows[~is_recorded], end, epoch), end)
    rows = number_rows(rows, before, epoch)
    check_order(rows, before)
    is_recorded = recorded_rows(root, rows, payloads, before, end, has_numbers=True)
    return check_order(rows[~is_recorded], end)


def number_rows(rows: Any, before: StreamEnd, epoch: int | None) -> Any:
    """Rows in order of epoch and sequence. Rows without numbers continue behind the stream's end."""
    rows = rows.copy()
    if (rows["seq"] == NO_SEQ).all():
        last_epoch, last_seq = before if before is not None else (1, -1)
        new_epoch = last_epoch if epoch is None else epoch
        first = last_seq + 1 if new_epoch == last_epoch else 0
        rows["epoch"] = new_epoch
        rows["seq"] = np.arange(first, first + len(rows), dtype=np.uint64)
        return rows
    if (rows["seq"] == NO_SEQ).any() or (rows["epoch"] == NO_SEQ).any():
        raise InvalidFrames(
            f"stream {int(rows['stream_id'][0])}: some rows have epoch and seq, and others do not"
        )
    rows = rows[np.lexsort([rows["seq"], rows["epoch"]])]
    is_duplicate = (rows["seq"][1:] == rows["seq"][:-1]) & (rows["epoch"][1:] == rows["epoch"][:-1])
    if is_duplicate.any():
        row = rows[int(np.flatnonzero(is_duplicate)[0])]
        raise InvalidFrames(
            f"stream {int(row['stream_id'])}, epoch {int(row['epoch'])}: frame {int(row['seq'])} occurs "
            "twice; use df.dropDuplicates(['stream_id', 'epoch', 'seq'])"
        )
    return rows


def check_order(rows: Any, end: StreamEnd) -> Any:
    """The same rows. InvalidFrames if the first one is not behind the stream's end."""
    if end is None or not len(rows):
        return rows
    epoch, seq = int(rows["epoch"][0]), int(rows["seq"][0])
    last_epoch, last_seq = end
    if (epoch, seq) <= end:
        raise InvalidFrames(
            f"stream {int(rows['stream_id'][0])}: frame {seq} of epoch {epoch} comes after frame {last_seq} "
            f"of epoch {last_epoch}, which is recorded already; a recording only grows: write a later epoch "
            "(option epoch), or into another recording"
        )
    return rows


def _batches(stream: int, rows: Any, payloads: Mapping[int, Any]) -> Iterator[FrameBatch]:
    """The rows as batches for the writer: one epoch each, with packed payloads."""
    start = 0
    padded = -(-rows["payload_bytes"].astype(np.int64) // ALIGNMENT) * ALIGNMENT
    while start < len(rows):
        stop, size = start + 1, int(padded[start])
        while (
            stop < len(rows)
            and stop - start < _BATCH_ROWS
            and rows["epoch"][stop] == rows["epoch"][start]
            and size + int(padded[stop]) <= _BATCH_BYTES
        ):
            size += int(padded[stop])
            stop += 1
        yield _batch(stream, rows[start:stop], padded[start:stop], payloads)
        start = stop


def _batch(stream: int, rows: Any, padded: Any, payloads: Mapping[int, Any]) -> FrameBatch:
    offsets = np.concatenate(([0], np.cumsum(padded)))
    arena = np.zeros(int(offsets[-1]), np.uint8)
    for row, offset in zip(rows, offsets.tolist(), strict=False):
        at, size = int(row["at"]), int(row["payload_bytes"])
        arena[offset : offset + size] = payloads[int(row["task"])][at : at + size]

    def column(name: str) -> Any:
        # A copy: a column of records is neither contiguous nor aligned.
        return np.array(rows[name], order="C", copy=True)

    return FrameBatch(
        stream_id=stream,
        epoch=int(rows["epoch"][0]),
        arena=arena,
        seq=column("seq"),
        timestamp_ns=column("timestamp_ns"),
        publish_timestamp_ns=column("publish_timestamp_ns"),
        receive_time_ns=column("receive_time_ns"),
        meta_version=column("meta_version"),
        trace_id=column("trace_id"),
        dtype=column("dtype"),
        major_order=column("major_order"),
        ndims=column("ndims"),
        dims=column("dims"),
        strides=column("strides"),
        payload_offset=offsets[:-1].astype(np.uint64),
        payload_bytes=column("payload_bytes"),
    )
