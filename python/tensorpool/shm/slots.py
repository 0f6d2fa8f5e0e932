"""The slots of a header ring as they lie in its file (wire §8), for people who look at one.

Reads, never maps: a file that is cut short meanwhile ends a read, where it would kill a mapping's owner.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ..errors import CodecError
from ..sbe import Dtype, MajorOrder, SlotHeader, TensorHeader

SUPERBLOCK_BYTES: Final = 64
HEADER_SLOT_BYTES: Final = 256
_TENSOR_HEADER_BYTES: Final = 192
_MAX_DIMS: Final = 8
_WORD_BYTES: Final = 8
# Slots read at once: a large ring is not one system call a slot.
_BATCH: Final = 4096
# Looks at a slot that changes under the look.
_TRIES: Final = 3

_ITEM_BYTES: Final = {
    Dtype.UINT8: 1, Dtype.INT8: 1, Dtype.BOOLEAN: 1, Dtype.BYTES: 1, Dtype.BIT: 1,
    Dtype.UINT16: 2, Dtype.INT16: 2,
    Dtype.UINT32: 4, Dtype.INT32: 4, Dtype.FLOAT32: 4,
    Dtype.UINT64: 8, Dtype.INT64: 8, Dtype.FLOAT64: 8,
}  # fmt: skip

SlotState = Literal["empty", "committed", "in_progress"]


@dataclass(frozen=True, slots=True)
class SlotReport:
    """One slot. What its tensor header says is there only where it could be read."""

    index: int
    state: SlotState
    seq: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    values_bytes: int | None = None
    pool_id: int | None = None
    timestamp_ns: int | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RingReport:
    """All slots of a header ring, and what follows from them."""

    slots: tuple[SlotReport, ...] = field(default=())

    @property
    def newest_seq(self) -> int | None:
        """The highest sequence that is committed."""
        return max(
            (one.seq for one in self.slots if one.state == "committed" and one.seq is not None), default=None
        )

    def count(self, state: SlotState) -> int:
        return sum(one.state == state for one in self.slots)

    def newest(self, limit: int) -> list[SlotReport]:
        """The slots that were written last, newest first."""
        written = [one for one in self.slots if one.state != "empty"]
        return sorted(written, key=lambda one: one.seq or 0, reverse=True)[:limit]


def read_ring(fd: int, nslots: int, strides: Mapping[int, int] | None) -> RingReport:
    """The slots of the ring behind `fd`. `strides` has the stride of each pool, None where they are unknown.

    A slot that does not hold still while it is read counts as in progress, as it does for a consumer.
    """
    found: list[SlotReport] = []
    for first in range(0, nslots, _BATCH):
        many = min(_BATCH, nslots - first)
        content = os.pread(fd, many * HEADER_SLOT_BYTES, _offset(first))
        for at in range(len(content) // HEADER_SLOT_BYTES):
            slot = content[at * HEADER_SLOT_BYTES : (at + 1) * HEADER_SLOT_BYTES]
            found.append(check_slot(first + at, _stable_slot(fd, first + at, slot), nslots, strides))
    return RingReport(tuple(found))


def _offset(index: int) -> int:
    return SUPERBLOCK_BYTES + index * HEADER_SLOT_BYTES


def _stable_slot(fd: int, index: int, content: bytes) -> bytes:
    """The slot with the same commit word before and after it was read; or else marked as in progress."""
    for _ in range(_TRIES):
        word = os.pread(fd, _WORD_BYTES, _offset(index))
        if word == content[:_WORD_BYTES]:
            return content
        content = os.pread(fd, HEADER_SLOT_BYTES, _offset(index))
    return bytes([content[0] & 0xFE]) + content[1:]


def check_slot(index: int, content: bytes, nslots: int, strides: Mapping[int, int] | None) -> SlotReport:
    """What the 256 bytes of one slot say, and which rules they break."""
    if not any(content):
        return SlotReport(index, "empty")
    word = int.from_bytes(content[:_WORD_BYTES], "little")
    seq = word >> 1
    problems: list[str] = []
    if seq % nslots != index:
        problems.append(f"holds sequence {seq}, which belongs into slot {seq % nslots}")
    if not word & 1:
        return SlotReport(index, "in_progress", seq, problems=tuple(problems))
    try:
        slot = SlotHeader.decode(content)
    except CodecError as error:
        return SlotReport(index, "committed", seq, problems=(*problems, f"unreadable: {error}"))
    if slot.payload_offset != 0:
        problems.append(f"the payload starts at offset {slot.payload_offset}, not at 0")
    if slot.payload_slot != index:
        problems.append(f"the payload slot is {slot.payload_slot}, not {index}")
    if strides is not None:
        if slot.pool_id not in strides:
            problems.append(f"there is no pool {slot.pool_id}")
        elif slot.values_len_bytes > strides[slot.pool_id]:
            problems.append(f"{slot.values_len_bytes} bytes do not fit the stride {strides[slot.pool_id]}")
    shape, dtype, wrong = _tensor(slot)
    return SlotReport(
        index, "committed", seq, shape, dtype, slot.values_len_bytes, slot.pool_id, slot.timestamp_ns,
        (*problems, *wrong),
    )  # fmt: skip


def _tensor(slot: SlotHeader) -> tuple[tuple[int, ...] | None, str | None, list[str]]:
    """Shape, element type, and what is wrong with the tensor header."""
    if len(slot.header_bytes) != _TENSOR_HEADER_BYTES:
        return (
            None,
            None,
            [f"the tensor header has {len(slot.header_bytes)} bytes, not {_TENSOR_HEADER_BYTES}"],
        )
    try:
        tensor = TensorHeader.decode(slot.header_bytes)
    except CodecError as error:
        return None, None, [f"the tensor header is unreadable: {error}"]
    item = _ITEM_BYTES.get(tensor.dtype)
    if item is None:
        return None, None, ["the element type is unknown"]
    dtype = tensor.dtype.name.lower()
    if not 1 <= tensor.ndims <= _MAX_DIMS:
        return None, dtype, [f"{tensor.ndims} dimensions, not 1 to {_MAX_DIMS}"]
    shape = tensor.dims[: tensor.ndims]
    problems = []
    if tensor.major_order is MajorOrder.UNKNOWN:
        problems.append("the major order is unknown")
    if min(shape) < 0:
        problems.append("a dimension is negative")
    elif (extent := _extent(shape, tensor.strides[: tensor.ndims], item)) > slot.values_len_bytes:
        problems.append(f"the tensor spans {extent} bytes of a payload of {slot.values_len_bytes}")
    return shape, dtype, problems


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> int:
    """The bytes from the first element to the end of the last; strides of 0 mean contiguous."""
    if 0 in shape:
        return 0
    if not any(strides):
        return math.prod(shape) * item
    return sum((dim - 1) * stride for dim, stride in zip(shape, strides, strict=True)) + item
