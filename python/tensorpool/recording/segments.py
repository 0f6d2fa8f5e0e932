"""Segments and batches that a reader has open: a few are kept, since neighbours are read together."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final

from ..errors import FrameNotRecorded
from . import layout
from .descriptions import Descriptions
from .rows import RowBlock
from .scan import SegmentFile

# Address space is plentiful, but a process has a limited number of mappings.
_FILES_KEPT: Final = 64
_BLOCKS_KEPT: Final = 8


class OpenSegment:
    """One segment as a reader sees it."""

    def __init__(self, path: Path, descriptions: Descriptions, *, is_sealed: bool) -> None:
        self.file = SegmentFile(path, growing=not is_sealed)
        self.is_sealed = is_sealed
        self._descriptions = descriptions
        self._blocks: OrderedDict[int, RowBlock] = OrderedDict()

    def block(self, number: int) -> RowBlock:
        """The rows of a batch; the last few are kept."""
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        block = RowBlock(self.file, self.file.scan.batches[number], self._descriptions)
        self._blocks[number] = block
        if len(self._blocks) > _BLOCKS_KEPT:
            self._blocks.popitem(last=False)
        return block


class SegmentCache:
    """Opens segments by name, and keeps the ones used last."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.descriptions = Descriptions(root)
        self._kept: OrderedDict[layout.SegmentName, OpenSegment] = OrderedDict()

    def open(self, name: layout.SegmentName, *, is_sealed: bool = False) -> OpenSegment:
        """The segment, with all batches that are complete by now. FrameNotRecorded if it is gone.

        `is_sealed`: whether it is known to be.
        """
        found = self._kept.get(name)
        if found is not None and not found.is_sealed:
            try:
                found.file.refresh()
            except FileNotFoundError:
                # Sealed since, under its final name.
                found = None
        if found is None:
            found = self._open(name, is_sealed)
            self._kept[name] = found
            if len(self._kept) > _FILES_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        found.file.scan_more()
        return found

    def _open(self, name: layout.SegmentName, is_sealed: bool) -> OpenSegment:
        # It may be sealed between the two looks, but never the other way round.
        for is_final in (True,) if is_sealed else (False, True):
            path = name.sealed(self._root) if is_final else name.partial(self._root)
            try:
                return OpenSegment(path, self.descriptions, is_sealed=is_final)
            except FileNotFoundError:
                continue
        raise FrameNotRecorded(
            f"{name.sealed(self._root)} is gone: retention removed it, or someone; refresh() the recording",
            path=name.sealed(self._root),
        )

    def clear(self) -> None:
        self._kept.clear()
