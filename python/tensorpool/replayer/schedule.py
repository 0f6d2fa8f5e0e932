"""What is about to be played: rows in order, the blocks they are of, and what is to be said in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from .. import _native
from .reader import Block
from .state import Times, Window
from .stream import ReplayStream


def _nothing() -> _native.ReplayRows:
    u64, table = np.zeros(0, np.uint64), np.zeros((0, 8), np.int64)
    return _native.ReplayRows(
        b"", payload_at=u64, payload_bytes=u64, crc32c=np.zeros(0, np.uint32), dtype=np.zeros(0, np.int16),
        major_order=np.zeros(0, np.int16), ndims=np.zeros(0, np.uint8), dims=table.astype(np.int32),
        strides=table, timestamp_ns=u64, meta_version=np.zeros(0, np.uint32), trace_id=u64,
    )  # fmt: skip


_NOTHING: Final = _nothing()


class Stop(NamedTuple):
    """Before `entry` is played, something is said: of the frame there, or of the one before it."""

    entry: int
    what: Literal["link", "say"]
    lane: int


@dataclass(slots=True)
class Schedule:
    """A window on its way out. `at` is the entry that comes next."""

    window: Window
    plays: Times
    """Playing times."""
    parts: list[tuple[Block | None, int]]
    """By lane: the block, and what is added to its timestamps."""
    stops: deque[Stop] = field(default_factory=deque)
    is_first_of_pass: bool = False
    at: int = 0

    @property
    def is_over(self) -> bool:
        return self.at == len(self.window) and not self.stops

    @property
    def end(self) -> int:
        """The entry up to which nothing has to be said."""
        return self.stops[0].entry if self.stops else len(self.window)

    def block(self, lane: int) -> Block:
        block = self.parts[lane][0]
        assert block is not None, "a row is always of a block"
        return block

    def place(self, entry: int) -> tuple[int, Block, int]:
        """Lane, block and row of an entry."""
        lane = int(self.window.lane[entry])
        return lane, self.block(lane), int(self.window.row[entry])

    def native(self, lanes: Sequence[ReplayStream]) -> list[tuple[_native.Producer, _native.ReplayRows, int]]:
        return [
            (lane.producer, _NOTHING if block is None else block.native, shift_ns)
            for lane, (block, shift_ns) in zip(lanes, self.parts, strict=True)
        ]


def find_stops(
    window: Window, parts: list[tuple[Block | None, int]], lanes: Sequence[ReplayStream]
) -> deque[Stop]:
    """Where the metadata version of a lane changes, and behind which frames there are links to tell of."""
    found: list[Stop] = []
    for number, ((block, _), lane) in enumerate(zip(parts, lanes, strict=True)):
        if block is None:
            continue
        entries = np.flatnonzero(window.lane == number)
        rows = window.row[entries]
        if not len(rows):
            continue
        versions = block.versions[rows]
        if versions[0] != lane.version or (versions != versions[0]).any():
            before = np.concatenate(([lane.version], versions[:-1]))
            found += [Stop(int(entries[at]), "say", number) for at in np.flatnonzero(versions != before)]
            lane.version = int(versions[-1])
        if lane.words.parents:
            linked = np.isin(block.trace_ids[rows], np.array(list(lane.words.parents), np.uint64))
            found += [Stop(int(entry) + 1, "link", number) for entry in entries[linked].tolist()]
    # "link" before "say" where both are due: it speaks of the frame that went out.
    return deque(sorted(found))
