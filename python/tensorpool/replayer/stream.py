"""One stream of a replay: its reader, its producer, its metadata, and the pools that the producer needs.

The replayer's thread owns it; blocks are read ahead on another thread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow.compute as pc

from .. import _native, sbe
from ..client import Producer
from ..context import Context
from ..errors import CodecError
from ..recording import Cursor, Recording
from ..recording.recording import Time
from ..sbe import TraceLinkSet, TraceParent
from .metadata import RecordedMetadata
from .reader import ReplayBlock, ReplayReader

DEFAULT_NSLOTS: Final = 16
_MAX_NSLOTS: Final = 1 << 20
_MIN_STRIDE_BYTES: Final = 64
_MAX_STRIDE_BYTES: Final = 1 << 31
_OUTCOMES: Final = ("published", "back_pressured", "not_connected", "closed")
_BLOCKS_AHEAD: Final = 2


@dataclass(slots=True)
class ReplayStream:
    """One stream of a replay. `target` is the stream id under which it is published."""

    reader: ReplayReader
    metadata: RecordedMetadata
    target: int
    producer: Producer
    pools: list[int]
    nslots: int
    executor: Executor
    """The thread that reads ahead."""
    next_blocks: deque[Future[ReplayBlock | None]]
    """Blocks that are being read. Empty only between `next_block` and `read_ahead`."""
    block: ReplayBlock | None = None
    """The block whose rows are in the merge."""
    version: int = 0
    """Metadata version of the last scheduled frame."""
    shift_ns: int = 0
    latest_ns: int | None = None
    """The highest timestamp read so far, shifted."""
    has_moved: bool = False
    """Whether the next block follows a loop or a seek."""
    frames: int = 0
    closed_outcomes: dict[str, int] = field(default_factory=dict)
    """Outcomes of the frames of producers that `reopen` closed."""
    reopened: int = 0
    last: Cursor | None = None
    """The recorded frame that was published last."""

    def read_ahead(self) -> None:
        """Start to read the next blocks. Call it before a native call: the reader needs the interpreter."""
        while len(self.next_blocks) < _BLOCKS_AHEAD:
            self.next_blocks.append(self.executor.submit(self.reader.next_block))

    def outcomes(self) -> dict[str, int]:
        """Frames by outcome of their publication, without zeros."""
        counters = self.producer.counters()
        outcomes = {name: getattr(counters, name) + self.closed_outcomes.get(name, 0) for name in _OUTCOMES}
        return {name: count for name, count in outcomes.items() if count}

    def next_block(self, lead_ns: int) -> ReplayBlock | None:
        """The next rows. After a step back their timestamps are shifted, so that timestamps always grow."""
        block = self.next_blocks[0].result()
        if block is None:
            self.block = None
            return None
        self.next_blocks.popleft()
        is_new = self.has_moved or self.block is None or self.block.epoch != block.epoch
        if (
            is_new
            and self.latest_ns is not None
            and block.first_timestamp_ns + self.shift_ns <= self.latest_ns
        ):
            self.shift_ns = self.latest_ns + max(1, lead_ns) - block.first_timestamp_ns
        self.has_moved = False
        self.latest_ns = max(self.latest_ns or 0, block.last_timestamp_ns + self.shift_ns)
        self.block = block
        return block

    def rewind(self, *, after: Cursor | None = None, since: Time | None = None) -> None:
        """Continue behind a frame, from a time on, or at the beginning."""
        self.wait_idle()
        self.reader.rewind(after=after, since=since)
        self.has_moved = True
        self.next_blocks = deque([self.executor.submit(self.reader.next_block)])

    def wait_idle(self) -> None:
        """Return when no block is being read."""
        wait(self.next_blocks)

    def publish_metadata(self, block: ReplayBlock, row: int) -> None:
        """Publish the metadata of this frame, which also hold for the following frames."""
        version = int(block.recorded_versions[row])
        update = self.metadata.update_for(block.epoch, version, self.target)
        if update is not None:
            self.producer.republish_metadata(update.version, update.announce, update.meta, update.blobs)

    def publish_links(self, trace_id: int, control: _native.Publication) -> None:
        """Publish the parents of the last published frame. May be lost: frames never wait for it."""
        epoch = self.producer.epoch
        if epoch is None:
            return
        parents = tuple(TraceParent(trace_id=parent) for parent in self.metadata.parents[trace_id])
        links = TraceLinkSet(
            stream_id=self.target, epoch=epoch, seq=self.producer.next_seq - 1, trace_id=trace_id,
            parents=parents,
        )  # fmt: skip
        control.offer(links.encode())

    def reopen(self, context: Context, nbytes: int) -> None:
        """Replace the producer, in a new epoch, by a producer with a pool for a larger frame."""
        self.pools = sorted({*self.pools, stride_for(nbytes)})
        self.closed_outcomes = self.outcomes()
        self.producer.close()
        self.producer = context.producer(
            self.target, pools=self.pools, nslots=self.nslots, publish_timestamps=True
        )
        self.reopened += 1


def recorded_layouts(recording: Recording, stream_ids: Iterable[int]) -> dict[int, sbe.ShmPoolAnnounce]:
    """The last recorded announce of each stream, if there is one."""
    table = recording.table("announces")
    layouts: dict[int, sbe.ShmPoolAnnounce] = {}
    for stream_id in stream_ids:
        # From the end: the table may be as long as the recording.
        for message in reversed(table.filter(pc.field("stream_id") == stream_id)["message"]):
            try:
                decoded = sbe.decode(message.as_py())
            except CodecError:
                continue
            if isinstance(decoded, sbe.ShmPoolAnnounce):
                layouts[stream_id] = decoded
                break
    return layouts


def stride_for(nbytes: int) -> int:
    """The stride of a pool for payloads of this size."""
    return max(_MIN_STRIDE_BYTES, 1 << max(0, nbytes - 1).bit_length())


def pools_for(layout: sbe.ShmPoolAnnounce | None, records: Any, first_bytes: int) -> list[int]:
    """Strides of a stream's pools: those of its recorded layout, and one for the largest known frame.

    `records` are the stream's segments, `first_bytes` is the largest frame of its first block. Other frames
    are not read for this: a larger frame reopens the stream.
    """
    strides = set()
    if layout is not None:
        sizes = (pool.stride_bytes for pool in layout.payload_pools)
        strides = {
            size
            for size in sizes
            if _MIN_STRIDE_BYTES <= size <= _MAX_STRIDE_BYTES and size & (size - 1) == 0
        }
    rows = records["rows"]
    means = records["payload_bytes"][rows > 0] / rows[rows > 0]
    needed = stride_for(max(first_bytes, math.ceil(means.max(initial=0))))
    if not strides or max(strides) < needed:
        strides.add(needed)
    return sorted(strides)


def slots_for(layout: sbe.ShmPoolAnnounce | None, nslots: int | None) -> int:
    """Slots of a stream's header ring: `nslots`, else those of its recorded layout if they are valid."""
    if nslots is not None:
        return nslots
    slots = layout.header_nslots if layout is not None else DEFAULT_NSLOTS
    return slots if 0 < slots <= _MAX_NSLOTS and slots & (slots - 1) == 0 else DEFAULT_NSLOTS
