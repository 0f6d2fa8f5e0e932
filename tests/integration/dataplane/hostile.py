"""A producer that can violate any rule of the wire specification.

It writes region files with pwrite and encodes messages with the SBE codecs. It shares no code with the real
producer, so that the same mistake in the producer and the consumer is found. It maps nothing: all mappings of
its regions in /proc/self/maps are a consumer's.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

import tensorpool as tp
from tensorpool import _native
from tensorpool.sbe import (
    ClockDomain,
    Dtype,
    FrameDescriptor,
    MajorOrder,
    Message,
    PayloadPool,
    ShmPoolAnnounce,
    ShmRegionSuperblock,
    SlotHeader,
    TensorHeader,
)
from tensorpool.shm import EpochSpec, PoolSpec, create_epoch
from tests import leaks

SUPERBLOCK_BYTES = 64
SLOT_BYTES = 256
DEADLINE_S = 60.0
_DTYPES = {"uint8": Dtype.UINT8, "uint16": Dtype.UINT16, "float64": Dtype.FLOAT64}
_MESSAGE_HEADER = {"block_length": 0, "template_id": 2, "schema_id": 4, "version": 6}
_EMBEDDED_OFFSET = 64


def field_of(kind: type[Message], name: str) -> tuple[int, int]:
    """Offset and size of a field in the block of a message, by the schema."""
    for field in kind.layout().encoded_fields:
        if field.python_name == name:
            return field.offset, field.size
    raise KeyError(name)


def slot_field(name: str) -> tuple[int, int]:
    """Offset and size of `slot.payload_slot`, `tensor.dtype`, `message.version` or `length` in a slot."""
    part, _, field = name.partition(".")
    if name == "length":
        return 60, 4
    if part == "message":
        return _EMBEDDED_OFFSET + _MESSAGE_HEADER[field], 2
    if part == "slot":
        return field_of(SlotHeader, field)
    offset, size = field_of(TensorHeader, field)
    return _EMBEDDED_OFFSET + 8 + offset, size


def slot_of(seq: int, nslots: int, array: np.ndarray, *, pool_id: int = 1) -> bytearray:
    """The 256 bytes of a valid committed slot."""
    order = MajorOrder.ROW if array.flags.c_contiguous else MajorOrder.COLUMN
    tensor = TensorHeader(
        dtype=_DTYPES[array.dtype.name], major_order=order, ndims=array.ndim, dims=tuple(array.shape)
    )
    header = SlotHeader(
        seq_commit=seq << 1 | 1,
        values_len_bytes=array.nbytes,
        payload_slot=seq % nslots,
        pool_id=pool_id,
        timestamp_ns=time.monotonic_ns(),
        meta_version=0,
        header_bytes=tensor.encode(),
    )
    return bytearray(header.encode())


class HostileProducer:
    """The owner of a stream's regions; it may publish and write anything."""

    def __init__(
        self,
        context: tp.Context,
        base: Path,
        stream_id: int,
        *,
        epoch: int = 1_000,
        nslots: int = 8,
        pools: tuple[tuple[int, int], ...] = ((1, 1024), (2, 65536)),
    ) -> None:
        self.stream_id, self.epoch, self.nslots = stream_id, epoch, nslots
        specs = [PoolSpec(*pool) for pool in pools]
        files = create_epoch(EpochSpec(base, "default", stream_id, epoch, nslots, specs, user="mallory"))
        self.directory, self.header_uri, self.pools = files.directory, files.header_uri, files.pools
        self._ring = os.open(self.header, os.O_RDWR)
        self._payloads = {pool_id: os.open(self.pool(pool_id), os.O_RDWR) for pool_id, _ in pools}
        self._announces = context.connection.publication(context.stream_ids.announce)
        self._descriptors = context.connection.publication(context.stream_ids.descriptor)

    @property
    def header(self) -> Path:
        return self.directory / "header.ring"

    def pool(self, pool_id: int) -> Path:
        return self.directory / f"{pool_id}.pool"

    # --- announces

    def announcement(self, **changes: Any) -> ShmPoolAnnounce:
        pools = tuple(
            PayloadPool(pool_id=pool_id, pool_nslots=self.nslots, stride_bytes=stride, region_uri=uri)
            for pool_id, stride, uri in self.pools
        )
        fields: dict[str, Any] = {
            "stream_id": self.stream_id,
            "producer_id": 666,
            "epoch": self.epoch,
            "announce_timestamp_ns": time.monotonic_ns(),
            "announce_clock_domain": ClockDomain.MONOTONIC,
            "layout_version": 1,
            "header_nslots": self.nslots,
            "header_slot_bytes": SLOT_BYTES,
            "payload_pools": pools,
            "header_region_uri": self.header_uri,
        }
        return ShmPoolAnnounce(**(fields | changes))

    def announce(self, **changes: Any) -> None:
        self.send_announce(self.announcement(**changes).encode())

    def send_announce(self, message: bytes) -> None:
        _send(self._announces, message)

    def announce_until(self, condition: Callable[[], Any], **changes: Any) -> None:
        """Repeats the announce until `condition` is true."""

        def announce_and_check() -> Any:
            self.announce(**changes)
            return condition()

        assert leaks.wait_for(announce_and_check, timeout=DEADLINE_S), "no announce had the effect"

    # --- frames

    def write(
        self, seq: int, array: np.ndarray | None = None, *, pool_id: int = 1, **pokes: int | bytes
    ) -> None:
        """Writes the payload and the slot of `seq`; a keyword `slot__pool_id=9` overwrites that field."""
        if array is None:
            array = np.arange(24, dtype=np.uint16).reshape(4, 6)
        slot = slot_of(seq, self.nslots, array, pool_id=pool_id)
        for name, value in pokes.items():
            offset, size = slot_field(name.replace("__", "."))
            data = value if isinstance(value, bytes) else value.to_bytes(size, "little", signed=value < 0)
            slot[offset : offset + len(data)] = data
        index = seq % self.nslots
        stride = next((stride for known, stride, _ in self.pools if known == pool_id), 0)
        if stride:
            payload = array.tobytes(order="A")[:stride]
            os.pwrite(self._payloads[pool_id], payload, SUPERBLOCK_BYTES + index * stride)
        offset = SUPERBLOCK_BYTES + index * SLOT_BYTES
        os.pwrite(self._ring, slot[8:], offset + 8)
        os.pwrite(self._ring, slot[:8], offset)

    def write_word(self, index: int, word: int) -> None:
        """Overwrites the commit word of a slot, and nothing else."""
        os.pwrite(self._ring, word.to_bytes(8, "little"), SUPERBLOCK_BYTES + index * SLOT_BYTES)

    def describe(self, seq: int, **changes: Any) -> None:
        fields: dict[str, Any] = {"stream_id": self.stream_id, "epoch": self.epoch, "seq": seq}
        self.send_descriptor(FrameDescriptor(**(fields | changes)).encode())

    def send_descriptor(self, message: bytes) -> None:
        _send(self._descriptors, message)

    def publish(self, seq: int, array: np.ndarray | None = None, **pokes: Any) -> None:
        """Publishes a frame; `pokes` overwrite fields of its slot."""
        self.write(seq, array, **pokes)
        self.describe(seq)

    # --- superblocks

    def poke_superblock(self, path: Path, field: str, value: int) -> None:
        offset, size = field_of(ShmRegionSuperblock, field)
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(value.to_bytes(size, "little"))

    def refresh_activity(self, at_ns: int | None = None) -> None:
        """Sets the activity timestamps of all superblocks."""
        for path in (self.header, *(self.pool(pool_id) for pool_id, _, _ in self.pools)):
            self.poke_superblock(path, "activity_timestamp_ns", at_ns or time.monotonic_ns())

    # --- the end

    def close(self) -> None:
        self._announces.close()
        self._descriptors.close()
        for descriptor in (self._ring, *self._payloads.values()):
            os.close(descriptor)
        stream = self.directory.parent
        shutil.rmtree(self.directory, ignore_errors=True)
        for directory in (stream, stream.parent, stream.parent.parent):
            if directory.exists() and not any(directory.iterdir()):
                directory.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _send(publication: _native.Publication, message: bytes) -> None:
    assert leaks.wait_for(lambda: publication.offer(message) == "sent", timeout=DEADLINE_S)
