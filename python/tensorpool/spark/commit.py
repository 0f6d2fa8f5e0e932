"""Puts what tasks staged into the recording, once for each (query, batch). Runs beside Spark's driver.

`_sinks/<query>/state.json` has the last batch that is in, and of one that is being written where its streams
stood before. A crash leaves a part of a batch: when Spark sends the batch again, frames that got in are
passed over (see `recovery`).

Which rows of a batch an earlier attempt at it has recorded, before it was cut short.

An attempt writes under the stream's lock, so its frames lie right behind where the stream stood before. What
follows them may be someone else's: another query, a recorder. So the bytes decide, and not the count.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _native
from ..durable import replace_file, write_errors
from ..errors import InvalidFrames, LockHeld
from ..recording import Cursor, FrameBatch, Recording, RecordingWriter
from ..recording.layout import ALIGNMENT
from .staging import NO_SEQ, discard, load, query_dir

End = tuple[int, int] | None
"""Epoch and sequence of a stream's last frame."""
Mark = tuple[int, int, int, int]
"""Epoch, sequence, bytes and checksum of a frame; the first two are 0 where the sink numbers frames."""


def recorded_rows(
    root: Path, rows: Any, payloads: Any, before: End, end: End, *, has_numbers: bool
) -> npt.NDArray[np.bool_]:
    """Which of a stream's staged rows are in the recording, behind `before`."""
    if end is None or end == before or not len(rows):
        return np.zeros(len(rows), bool)
    marks = [_mark(row, payloads, has_numbers) for row in rows]
    found = _leading(root, int(rows["stream_id"][0]), before, Counter(marks), has_numbers)
    is_in = np.zeros(len(rows), bool)
    for number, mark in enumerate(marks):
        if found[mark]:
            found[mark] -= 1
            is_in[number] = True
    return is_in


def _mark(row: Any, payloads: Any, has_numbers: bool) -> Mark:
    at, size = int(row["at"]), int(row["payload_bytes"])
    crc = _native.crc32c(payloads[int(row["task"])][at : at + size])
    return (int(row["epoch"]), int(row["seq"]), size, crc) if has_numbers else (0, 0, size, crc)


def _leading(
    root: Path, stream_id: int, before: End, wanted: Counter[Mark], has_numbers: bool
) -> Counter[Mark]:
    """The frames behind `before` that are wanted, up to the first that is not."""
    found: Counter[Mark] = Counter()
    after = None if before is None else Cursor(stream_id, *before)
    for _, frames in Recording(root).by_segment(stream_id, after=after):
        for block, rows in frames.runs():
            for row in rows:
                place = (block.epoch, int(block.seq[row])) if has_numbers else (0, 0)
                mark = (*place, int(block.payload_bytes[row]), int(block.crc32c[row]))
                if found[mark] >= wanted[mark]:
                    return found
                found[mark] += 1
    return found


T = TypeVar("T")
_STATE: Final = "state.json"
_LOCK: Final = "commit.lock"
_BATCH_BYTES: Final = 8 << 20
_BATCH_ROWS: Final = 16_384


@dataclass(slots=True)
class SinkState:
    """How far a query has got in a recording."""

    done: int = -1
    writing: int | None = None
    before: dict[int, End] = field(default_factory=dict)
    """Where the streams stood before the batch that is being written."""

    @classmethod
    def load(cls, path: Path) -> SinkState:
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return cls()
        before = {
            int(stream): None if end is None else (int(end[0]), int(end[1]))
            for stream, end in found["before"].items()
        }
        return cls(found["done"], found["writing"], before)

    def save(self, path: Path) -> None:
        before = {
            str(stream): None if end is None else [str(end[0]), str(end[1])]
            for stream, end in self.before.items()
        }
        content = {"done": self.done, "writing": self.writing, "before": before}
        with write_errors(path):
            replace_file(path, json.dumps(content).encode() + b"\n")


def commit(
    root: Path, key: str, batch_id: int, names: Sequence[str], *, epoch: int | None, busy_ns: int
) -> int:
    """Records the staged frames of a batch, unless they are in already; gives how many were written now."""
    directory = query_dir(root, key)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The commit of a Spark that was killed may still be at work: it finishes first, or dies.
    lock = _wait_for_lock(
        lambda: _native.FileLock(directory / _LOCK, f"process {os.getpid()} (commit)"), busy_ns
    )
    try:
        path = directory / _STATE
        state = SinkState.load(path)
        written = 0
        if state.done < batch_id:
            written = _record(root, key, state, batch_id, names, epoch, busy_ns)
            # The writer is closed: everything is on the disk and sealed. Only now the batch counts as in.
            SinkState(batch_id).save(path)
        # Others of this batch may just be made, by a task of another attempt.
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
    staged = [load(root, key, name) for name in sorted(names, key=_task_of)]
    staged = [(index, payload) for index, payload in staged if len(index)]
    if not staged:
        return 0
    index = np.concatenate([one for one, _ in staged])
    payloads = {int(one["task"][0]): payload for one, payload in staged}
    streams = [int(stream) for stream in np.unique(index["stream_id"])]
    written = 0
    with _wait_for_lock(lambda: _writer_of(root, key, streams), busy_ns) as writer:
        ends = {stream: writer.last(stream) for stream in streams}
        if state.writing != batch_id:
            state.writing, state.before = batch_id, ends
            state.save(query_dir(root, key) / _STATE)
        for stream, end in ends.items():
            rows = index[index["stream_id"] == stream]
            rows = _left_to_write(root, rows, payloads, state.before.get(stream), end, epoch)
            for frames in _batches(stream, rows, payloads):
                writer.write_batch(frames)
            written += len(rows)
    return written


def _writer_of(root: Path, key: str, streams: Sequence[int]) -> RecordingWriter:
    """A writer that holds all the streams."""
    writer = RecordingWriter(root, holder=f"spark {key}")
    try:
        for stream in streams:
            writer.last(stream)
    except BaseException:
        writer.close()
        raise
    return writer


def _wait_for_lock(attempt: Callable[[], T], patience_ns: int) -> T:
    """Waits while someone else has it."""
    deadline = time.monotonic_ns() + patience_ns
    while True:
        try:
            return attempt()
        except LockHeld:
            if time.monotonic_ns() >= deadline:
                raise
        time.sleep(0.1)


def _task_of(name: str) -> int:
    return int(name.split("-")[1])


def _left_to_write(
    root: Path, rows: Any, payloads: Mapping[int, Any], before: End, end: End, epoch: int | None
) -> Any:
    """A stream's rows as they are to be recorded, without those that an earlier attempt has recorded."""
    if (rows["seq"] == NO_SEQ).all():
        is_in = recorded_rows(root, rows, payloads, before, end, has_numbers=False)
        return unwritten(numbered(rows[~is_in], end, epoch), end)
    rows = numbered(rows, before, epoch)
    unwritten(rows, before)
    is_in = recorded_rows(root, rows, payloads, before, end, has_numbers=True)
    return unwritten(rows[~is_in], end)


def numbered(rows: Any, before: End, epoch: int | None) -> Any:
    """Rows in the order of their sequences; those that have none follow what is there already."""
    rows = rows.copy()
    if (rows["seq"] == NO_SEQ).all():
        at = before[0] if before is not None else 1
        chosen = at if epoch is None else epoch
        first = before[1] + 1 if before is not None and chosen == before[0] else 0
        rows["epoch"] = chosen
        rows["seq"] = np.arange(first, first + len(rows), dtype=np.uint64)
        return rows
    if (rows["seq"] == NO_SEQ).any() or (rows["epoch"] == NO_SEQ).any():
        raise InvalidFrames(
            f"stream {int(rows['stream_id'][0])}: some rows have epoch and seq, and some have not"
        )
    rows = rows[np.lexsort([rows["seq"], rows["epoch"]])]
    again = (rows["seq"][1:] == rows["seq"][:-1]) & (rows["epoch"][1:] == rows["epoch"][:-1])
    if again.any():
        one = rows[int(np.flatnonzero(again)[0])]
        raise InvalidFrames(
            f"stream {int(one['stream_id'])}, epoch {int(one['epoch'])}: frame {int(one['seq'])} is "
            f"there twice; "
            "df.dropDuplicates(['stream_id', 'epoch', 'seq'])"
        )
    return rows


def unwritten(rows: Any, end: End) -> Any:
    """The same rows. UnfitFrames if one of them lies before a stream's end: someone else was there first."""
    places = list(zip(rows["epoch"].tolist(), rows["seq"].tolist(), strict=True))
    if end is not None and places and places[0] <= end:
        raise InvalidFrames(
            f"stream {int(rows['stream_id'][0])}: frame {places[0][1]} of epoch {places[0][0]} comes after "
            f"frame {end[1]} of epoch {end[0]}, which is recorded already; a recording only grows: write a "
            "later epoch (option epoch), or into another recording"
        )
    return rows


def _batches(stream: int, rows: Any, payloads: Mapping[int, Any]) -> Iterator[FrameBatch]:
    """The rows as the writer takes them: each batch of one epoch, payloads side by side."""
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
    places = np.concatenate(([0], np.cumsum(padded)))
    arena = np.zeros(int(places[-1]), np.uint8)
    for row, place in zip(rows, places.tolist(), strict=False):
        at, size = int(row["at"]), int(row["payload_bytes"])
        arena[place : place + size] = payloads[int(row["task"])][at : at + size]

    def column(name: str) -> Any:
        # A copy: a column of records is neither in one run nor aligned.
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
        payload_offset=places[:-1].astype(np.uint64),
        payload_bytes=column("payload_bytes"),
    )
