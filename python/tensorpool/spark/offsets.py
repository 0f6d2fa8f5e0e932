"""Offsets of a streaming query, and its lag. Pure.

An offset has the position of the first unread frame of each stream. In Spark's checkpoint it is JSON,
`{"10000": {"epoch": "1", "seq": "500"}}`. It names epoch and sequence, not files, so it stays valid across
restarts, rotation and retention.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from ..recording import Cursor


class PositionJson(TypedDict):
    """A position in a checkpoint. The numbers are texts: JSON numbers are exact up to 2**53 only."""

    epoch: str
    seq: str


OffsetsJson: TypeAlias = dict[str, PositionJson]
"""Offsets in a checkpoint, by stream id."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The position before a frame, by its epoch and sequence. The frame need not exist."""

    epoch: int = 0
    seq: int = 0

    @classmethod
    def from_json(cls, value: Any) -> Position:
        """The position in a JSON value, where numbers may be texts."""
        if not isinstance(value, Mapping) or set(value) != {"epoch", "seq"}:
            raise ValueError(f"{value!r} is not a position with epoch and seq")
        position = cls(int(value["epoch"]), int(value["seq"]))
        if not (0 <= position.epoch < 1 << 64 and 0 <= position.seq <= 1 << 64):
            raise ValueError(f"{value!r} is out of range")
        return position

    def to_json(self) -> PositionJson:
        """The position as JSON."""
        return {"epoch": str(self.epoch), "seq": str(self.seq)}

    @classmethod
    def behind(cls, cursor: Cursor) -> Position:
        """The position behind a frame."""
        return cls(cursor.epoch, cursor.seq + 1)

    def cursor_before(self, stream_id: int) -> Cursor | None:
        """The last frame that can be before this position; None at the very start."""
        from ..recording import Cursor

        return Cursor.before(stream_id, self.epoch, self.seq)


Offsets = dict[int, Position]
START: Final = Position()


def to_json(offsets: Offsets) -> OffsetsJson:
    """Offsets as JSON, sorted by stream."""
    return {str(stream): offsets[stream].to_json() for stream in sorted(offsets)}


def from_json(value: Mapping[str, Any]) -> Offsets:
    """Offsets from the JSON of a checkpoint, which an older version may have written."""
    try:
        return {int(stream): Position.from_json(position) for stream, position in value.items()}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"the checkpoint has offsets that tensorpool did not write: {error}") from None


def to_cursors(offsets: Offsets) -> list[Cursor | int]:
    """The cursors of a reader lease on the unread frames: a stream id stands for the whole stream."""
    return [position.cursor_before(stream) or stream for stream, position in offsets.items()]


def latest_of(first: Offsets, second: Offsets) -> Offsets:
    """The later position of each stream: a source never goes back."""
    streams = {*first, *second}
    return {stream: max(first.get(stream, START), second.get(stream, START)) for stream in streams}


def limit_to(offsets: Offsets, by: Offsets) -> Offsets:
    """The earlier position of each stream in both; other streams are left out."""
    return {stream: min(offsets[stream], by[stream]) for stream in offsets if stream in by}


def lag(query: StreamingQuery) -> dict[int, int]:
    """Stream → number of recorded sequences that are not read yet, by the query's last progress.

    If the stream has a later epoch, the unread frames of earlier epochs are not counted.
    """
    unread: dict[int, int] = {}
    progress = query.lastProgress
    for source in _sources(progress):
        # Other sources have other offsets, from which `_parse_offsets` gets no positions.
        end, latest = _parse_offsets(_get(source, "endOffset")), _parse_offsets(_get(source, "latestOffset"))
        for stream, position in latest.items():
            read = end.get(stream, START)
            if position.epoch == read.epoch:
                unread[stream] = max(position.seq - read.seq, 0)
            else:
                unread[stream] = position.seq if position > read else 0
    return unread


def _sources(progress: Any) -> list[Any]:
    return list(_get(progress, "sources") or []) if progress is not None else []


def _get(value: Any, name: str) -> Any:
    # A progress is a dictionary or an object, depending on the version and the kind of session.
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _parse_offsets(value: Any) -> Offsets:
    if isinstance(value, str):
        value = json.loads(value)
    try:
        return from_json(value) if isinstance(value, Mapping) else {}
    except ValueError:
        return {}
