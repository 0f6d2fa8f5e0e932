"""What the sources said of their frames while they were recorded: the attributes of each metadata version."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..attributes import Extension, Metadata, describe
from ..errors import CodecError
from ..sbe import DataSourceAnnounce, DataSourceMeta, decode
from . import layout
from .tables import read_table

_KINDS: Final = ("DataSourceAnnounce", "DataSourceMeta")
Key = tuple[int, int | None, int]
"""Stream, epoch (None: not known) and version."""


class Descriptions:
    """Read when a frame first asks, since most are never asked; then as they were."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Key, tuple[Metadata, Extension | None]] | None = None

    def forget(self) -> None:
        """What was said since counts from now on."""
        self._known = None

    def of(self, stream_id: int, epoch: int, version: int) -> tuple[Metadata, Extension | None] | None:
        """The attributes, and how elements are carried, if they are; None for a version nobody described."""
        if self._known is None:
            self._known = _read(read_table(self._root, "metadata"))
        return self._known.get((stream_id, epoch, version)) or self._known.get((stream_id, None, version))


def _read(table: pa.Table) -> dict[Key, tuple[Metadata, Extension | None]]:
    # Blobs and the links of traces are there too, and many.
    table = table.filter(pc.is_in(table["kind"], pa.array(_KINDS))).sort_by("receive_time_ns")
    found: dict[Key, tuple[Metadata, Extension | None]] = {}
    epochs: dict[int, int] = {}
    for row in table.select(["stream_id", "epoch", "message"]).to_pylist():
        try:
            message = decode(row["message"])
        except CodecError:
            continue
        match message:
            case DataSourceAnnounce():
                epochs[row["stream_id"]] = message.epoch
            case DataSourceMeta():
                # It names no epoch: if the recorder did not know either, it is of the one announced last.
                told = row["epoch"]
                epoch = epochs.get(row["stream_id"]) if told is None else layout.unsigned(told)
                attributes = [(one.key, one.format, bytes(one.value)) for one in message.attributes]
                found[row["stream_id"], epoch, message.meta_version] = describe(
                    attributes, message.meta_version, message.timestamp_ns
                )
            case _:
                pass
    return found
