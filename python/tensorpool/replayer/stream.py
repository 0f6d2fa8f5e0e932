"""How large the pools of a played stream are: as they were, or as the frames are.

A stream on its way out: what it is read from, the producer it goes to, and what was said of it.
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
from .reader import Block, ReplayReader

DEFAULT_NSLOTS: Final = 16
_SMALLEST, _LARGEST = 64, 1 << 31


def stride_for(nbytes: int) -> int:
    """The pool that a payload of this size needs."""
    return max(_SMALLEST, 1 << max(0, nbytes - 1).bit_length())


def recorded_layouts(recording: Recording, stream_ids: Iterable[int]) -> dict[int, sbe.ShmPoolAnnounce]:
    """The last layout that each stream was announced with, as far as that was recorded."""
    table = recording.table("announces")
    found: dict[int, sbe.ShmPoolAnnounce] = {}
    for stream_id in stream_ids:
        # From the end: the table may be as long as the recording.
        for message in reversed(table.filter(pc.field("stream_id") == stream_id)["message"]):
            try:
                decoded = sbe.decode(message.as_py())
            except CodecError:
                continue
            if isinstance(decoded, sbe.ShmPoolAnnounce):
                found[stream_id] = decoded
                break
    return found


def pools_for(announce: sbe.ShmPoolAnnounce | None, records: Any, first_bytes: int) -> list[int]:
    """Strides for a stream: those it was announced with, and one for the largest frame that is known of.

    Frames are not all looked at for this: a larger one that comes later makes the stream begin anew.
    """
    strides = set()
    if announce is not None:
        sizes = (pool.stride_bytes for pool in announce.payload_pools)
        strides = {size for size in sizes if _SMALLEST <= size <= _LARGEST and size & (size - 1) == 0}
    rows = records["rows"]
    means = records["payload_bytes"][rows > 0] / rows[rows > 0]
    needed = stride_for(max(first_bytes, math.ceil(means.max(initial=0))))
    if not strides or max(strides) < needed:
        strides.add(needed)
    return sorted(strides)


def slots_for(announce: sbe.ShmPoolAnnounce | None, wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    slots = announce.header_nslots if announce is not None else DEFAULT_NSLOTS
    return slots if 0 < slots <= 1 << 20 and slots & (slots - 1) == 0 else DEFAULT_NSLOTS


_OUTCOMES: Final = ("published", "back_pressured", "not_connected", "closed")

_BLOCKS_AHEAD: Final = 2


@dataclass(slots=True)
class ReplayStream:
    """One stream of a replay. `target` is the stream id that it is played as."""

    source: ReplayReader
    words: RecordedMetadata
    target: int
    producer: Producer
    pools: list[int]
    nslots: int
    reader: Executor
    """Reads ahead, on a thread of its own."""
    ahead: deque[Future[Block | None]]
    """The blocks that come next. Empty only between `next_block` and `read_on`."""
    block: Block | None = None
    """In the merge."""
    version: int = 0
    """What frames carry that are in the merge by now."""
    shift_ns: int = 0
    latest_ns: int | None = None
    """The highest timestamp of what was read so far, shifted."""
    jumped: bool = False
    frames: int = 0
    earlier: dict[str, int] = field(default_factory=dict)
    """What became of the frames of producers before this one."""
    reopened: int = 0
    last: Cursor | None = None
    """The frame that was played last."""

    def read_on(self) -> None:
        """Reads ahead. Called when the interpreter is about to be free: the reader needs it too."""
        while len(self.ahead) < _BLOCKS_AHEAD:
            self.ahead.append(self.reader.submit(self.source.next_block))

    def outcomes(self) -> dict[str, int]:
        """Frames by what became of them, without the zeros."""
        counters = self.producer.counters()
        found = {name: counters[name] + self.earlier.get(name, 0) for name in _OUTCOMES}
        return {name: count for name, count in found.items() if count}

    def next_block(self, lead_ns: int) -> Block | None:
        """The next rows. After a jump back their timestamps are shifted, so that none runs backwards."""
        block = self.ahead[0].result()
        if block is None:
            self.block = None
            return None
        self.ahead.popleft()
        is_new = self.jumped or self.block is None or self.block.epoch != block.epoch
        if (
            is_new
            and self.latest_ns is not None
            and block.first_timestamp_ns + self.shift_ns <= self.latest_ns
        ):
            self.shift_ns = self.latest_ns + max(1, lead_ns) - block.first_timestamp_ns
        self.jumped = False
        self.latest_ns = max(self.latest_ns or 0, block.last_timestamp_ns + self.shift_ns)
        self.block = block
        return block

    def rewind(self, *, after: Cursor | None = None, since: Time | None = None) -> None:
        """Goes on elsewhere; at the beginning, if nothing is given."""
        self.settle()
        self.source.rewind(after=after, since=since)
        self.jumped = True
        self.ahead = deque([self.reader.submit(self.source.next_block)])

    def settle(self) -> None:
        """Returns when nothing is being read."""
        wait(self.ahead)

    def say(self, block: Block, row: int) -> None:
        """Tells what holds for this frame and those behind it."""
        speech = self.words.speech(block.epoch, int(block.recorded_versions[row]), self.target)
        if speech is not None:
            self.producer.republish_metadata(speech.version, speech.announce, speech.meta, speech.blobs)

    def link(self, trace_id: int, control: _native.Publication) -> None:
        """Tells what the frame that went out last was made from. Lineage may be lost, never a frame."""
        epoch = self.producer.epoch
        if epoch is None:
            return
        parents = tuple(TraceParent(trace_id=parent) for parent in self.words.parents[trace_id])
        links = TraceLinkSet(
            stream_id=self.target, epoch=epoch, seq=self.producer.next_seq - 1, trace_id=trace_id,
            parents=parents,
        )  # fmt: skip
        control.offer(links.encode())

    def reopen(self, ctx: Context, nbytes: int) -> None:
        """Begins anew, in a later epoch, with room for a larger frame."""
        self.pools = sorted({*self.pools, stride_for(nbytes)})
        self.earlier = self.outcomes()
        self.producer.close()
        self.producer = ctx.producer(
            self.target, pools=self.pools, nslots=self.nslots, publish_timestamps=True
        )
        self.reopened += 1
