"""The rows that a replay publishes next, and the messages to publish between them.

`playhead` says in which order and when; a `Schedule` has the rows, their blocks and how far it got.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from .. import _native
from .playhead import Times, Window
from .reader import ReplayBlock
from .stream import ReplayStream


def _empty_rows() -> _native.ReplayRows:
    u64, table = np.zeros(0, np.uint64), np.zeros((0, 8), np.int64)
    return _native.ReplayRows(
        b"", payload_at=u64, payload_bytes=u64, crc32c=np.zeros(0, np.uint32), dtype=np.zeros(0, np.int16),
        major_order=np.zeros(0, np.int16), ndims=np.zeros(0, np.uint8), dims=table.astype(np.int32),
        strides=table, timestamp_ns=u64, meta_version=np.zeros(0, np.uint32), trace_id=u64,
    )  # fmt: skip


_EMPTY_ROWS: Final = _empty_rows()


class MessagePoint(NamedTuple):
    """Messages of a stream that are due before an entry of the window.

    "links": the trace links of the frame before `entry`. "metadata": the metadata of the frame at `entry`.
    Sorted in this order: links belong to the frame that is already published.
    """

    entry: int
    kind: Literal["links", "metadata"]
    stream: int


class ScheduledBlock(NamedTuple):
    """The block of a stream, or None, and the shift of its timestamps."""

    block: ReplayBlock | None
    shift_ns: int


class NativeStream(NamedTuple):
    """A stream of `_native.replay_rows`: who publishes, what, and the time that is added to timestamps."""

    producer: _native.Producer
    rows: _native.ReplayRows
    shift_ns: int


class RowLocation(NamedTuple):
    """A row of a block."""

    block: ReplayBlock
    row: int


@dataclass(slots=True)
class Schedule:
    """A window that is being published. `position` is its next entry."""

    window: Window
    play_times: Times
    blocks: list[ScheduledBlock]
    """By stream."""
    points: deque[MessagePoint] = field(default_factory=deque)
    is_first_of_pass: bool = False
    position: int = 0

    @property
    def is_done(self) -> bool:
        """Whether all rows and messages are published."""
        return self.position == len(self.window) and not self.points

    @property
    def next_point(self) -> int:
        """The entry before which messages are due, or the end of the window."""
        return self.points[0].entry if self.points else len(self.window)

    def block(self, stream: int) -> ReplayBlock:
        """The block of a stream that has rows in the window."""
        block = self.blocks[stream].block
        assert block is not None, "every row belongs to a block"
        return block

    def locate(self, entry: int) -> RowLocation:
        """The block and row of an entry."""
        return RowLocation(self.block(int(self.window.stream[entry])), int(self.window.row[entry]))

    def native_streams(self, streams: Sequence[ReplayStream]) -> list[NativeStream]:
        """The streams as `_native.replay_rows` takes them."""
        return [
            NativeStream(stream.producer, _EMPTY_ROWS if block is None else block.native, shift_ns)
            for stream, (block, shift_ns) in zip(streams, self.blocks, strict=True)
        ]


def find_message_points(
    window: Window, blocks: list[ScheduledBlock], streams: Sequence[ReplayStream]
) -> deque[MessagePoint]:
    """Where the metadata version of a stream changes, and which frames have trace links."""
    points: list[MessagePoint] = []
    for number, ((block, _), stream) in enumerate(zip(blocks, streams, strict=True)):
        if block is None:
            continue
        entries = np.flatnonzero(window.stream == number)
        rows = window.row[entries]
        if not len(rows):
            continue
        versions = block.versions[rows]
        if versions[0] != stream.version or (versions != versions[0]).any():
            previous = np.concatenate(([stream.version], versions[:-1]))
            changes = entries[versions != previous].tolist()
            points += [MessagePoint(entry, "metadata", number) for entry in changes]
            stream.version = int(versions[-1])
        if stream.metadata.parents:
            linked = np.isin(block.trace_ids[rows], np.array(list(stream.metadata.parents), np.uint64))
            points += [MessagePoint(entry + 1, "links", number) for entry in entries[linked].tolist()]
    return deque(sorted(points))
