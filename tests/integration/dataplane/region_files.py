"""Region files of a producer, read with the SBE codecs alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tensorpool.client import Producer
from tensorpool.sbe import ShmRegionSuperblock, SlotHeader, TensorHeader


@dataclass(frozen=True)
class RegionFiles:
    """The region files of one epoch."""

    directory: Path

    @property
    def header(self) -> Path:
        return self.directory / "header.ring"

    def superblock(self, name: str = "header.ring") -> ShmRegionSuperblock:
        return ShmRegionSuperblock.decode(self._read(name, 0, 64))

    def slot_bytes(self, index: int) -> bytes:
        return self._read("header.ring", 64 + 256 * index, 256)

    def slot(self, index: int) -> SlotHeader:
        return SlotHeader.decode(self.slot_bytes(index))

    def tensor(self, index: int) -> TensorHeader:
        return TensorHeader.decode(self.slot(index).header_bytes)

    def commit_word(self, index: int) -> int:
        return int.from_bytes(self.slot_bytes(index)[:8], "little")

    def payload(self, index: int) -> bytes:
        """The payload of a slot, located by the fields of the slot alone."""
        slot = self.slot(index)
        pool = f"{slot.pool_id}.pool"
        stride = self.superblock(pool).stride_bytes
        return self._read(pool, 64 + slot.payload_slot * stride + slot.payload_offset, slot.values_len_bytes)

    def _read(self, name: str, offset: int, length: int) -> bytes:
        with (self.directory / name).open("rb") as file:
            file.seek(offset)
            return file.read(length)


def regions_of(producer: Producer) -> RegionFiles:
    """The region files of a standalone producer."""
    assert producer.owned_regions is not None
    return RegionFiles(producer.owned_regions.files.directory)
