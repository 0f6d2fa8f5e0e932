"""Reports on the slots of a header ring file, for inspection tools (wire §8).

Reads the file and never maps it: truncation of a mapped file would kill this process, a read just ends early.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ..errors import CodecError
from ..sbe import Dtype, MajorOrder, SlotHeader, TensorHeader
from .epoch_files import HEADER_SLOT_BYTES, SUPERBLOCK_BYTES

_TENSOR_HEADER_BYTES: Final = 192
_MAX_DIMS: Final = 8
_COMMIT_WORD_BYTES: Final = 8
# Slots read by one system call.
_SLOTS_PER_READ: Final = 4096
# Reads of a slot that changes while it is read.
_MAX_READS: Final = 3

_ITEM_BYTES: Final = {
    Dtype.UINT8: 1, Dtype.INT8: 1, Dtype.BOOLEAN: 1, Dtype.BYTES: 1, Dtype.BIT: 1,
    Dtype.UINT16: 2, Dtype.INT16: 2,
    Dtype.UINT32: 4, Dtype.INT32: 4, Dtype.FLOAT32: 4,
    Dtype.UINT64: 8, Dtype.INT64: 8, Dtype.FLOAT64: 8,
}  # fmt: skip

SlotState = Literal["empty", "committed", "in_progress"]


@dataclass(frozen=True, slots=True)
class SlotReport:
    """The content of one slot. Fields of the tensor header are None where it could not be decoded."""

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
    """All slots of a header ring."""

    slots: tuple[SlotReport, ...] = field(default=())

    @property
    def newest_seq(self) -> int | None:
        """The highest committed sequence."""
        committed = (slot.seq for slot in self.slots if slot.state == "committed" and slot.seq is not None)
        return max(committed, default=None)

    def count(self, state: SlotState) -> int:
        """The number of slots in this state."""
        return sum(slot.state == state for slot in self.slots)

    def newest(self, limit: int) -> list[SlotReport]:
        """The slots that were written last, newest first."""
        written = [slot for slot in self.slots if slot.state != "empty"]
        return sorted(written, key=lambda slot: slot.seq or 0, reverse=True)[:limit]


def read_ring(fd: int, nslots: int, strides: Mapping[int, int] | None) -> RingReport:
    """Reports on the slots of the ring behind `fd`. `strides` maps pool ids to strides; None: unknown.

    A slot that changes while it is read counts as in progress, as it does for a consumer.
    """
    reports: list[SlotReport] = []
    for first in range(0, nslots, _SLOTS_PER_READ):
        count = min(_SLOTS_PER_READ, nslots - first)
        content = os.pread(fd, count * HEADER_SLOT_BYTES, _offset(first))
        for position in range(len(content) // HEADER_SLOT_BYTES):
            slot = content[position * HEADER_SLOT_BYTES : (position + 1) * HEADER_SLOT_BYTES]
            index = first + position
            reports.append(check_slot(index, _stable_slot(fd, index, slot), nslots, strides))
    return RingReport(tuple(reports))


def _offset(index: int) -> int:
    return SUPERBLOCK_BYTES + index * HEADER_SLOT_BYTES


def _stable_slot(fd: int, index: int, content: bytes) -> bytes:
    """The slot with the same commit word before and after the read; otherwise marked as in progress."""
    for _ in range(_MAX_READS):
        commit_word = os.pread(fd, _COMMIT_WORD_BYTES, _offset(index))
        if commit_word == content[:_COMMIT_WORD_BYTES]:
            return content
        content = os.pread(fd, HEADER_SLOT_BYTES, _offset(index))
    return bytes([content[0] & 0xFE]) + content[1:]


def check_slot(index: int, content: bytes, nslots: int, strides: Mapping[int, int] | None) -> SlotReport:
    """The report on the 256 bytes of one slot, with the rules they break."""
    if not any(content):
        return SlotReport(index, "empty")
    commit_word = int.from_bytes(content[:_COMMIT_WORD_BYTES], "little")
    seq = commit_word >> 1
    problems: list[str] = []
    if seq % nslots != index:
        problems.append(f"holds sequence {seq}, which belongs into slot {seq % nslots}")
    if not commit_word & 1:
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
    shape, dtype, tensor_problems = _check_tensor(slot)
    return SlotReport(
        index, "committed", seq, shape, dtype, slot.values_len_bytes, slot.pool_id, slot.timestamp_ns,
        (*problems, *tensor_problems),
    )  # fmt: skip


def _check_tensor(slot: SlotHeader) -> tuple[tuple[int, ...] | None, str | None, list[str]]:
    """Shape, element type and problems of the tensor header."""
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
    item_bytes = _ITEM_BYTES.get(tensor.dtype)
    if item_bytes is None:
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
    elif (extent := _extent(shape, tensor.strides[: tensor.ndims], item_bytes)) > slot.values_len_bytes:
        problems.append(f"the tensor spans {extent} bytes of a payload of {slot.values_len_bytes}")
    return shape, dtype, problems


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> int:
    """The bytes from the first element to the end of the last. Strides of 0 mean contiguous."""
    if 0 in shape:
        return 0
    if not any(strides):
        return math.prod(shape) * item_bytes
    return sum((dim - 1) * stride for dim, stride in zip(shape, strides, strict=True)) + item_bytes
