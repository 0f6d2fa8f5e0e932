"""Places in a recording as Spark keeps them: for each stream, the first frame that was not read yet.

In the checkpoint they are JSON, `{"10000": {"epoch": "1", "seq": "500"}}`. They name epoch and sequence and
no file, so they stay valid over restarts, rotation and retention. Pure.

How far a streaming query is behind its recording.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from ..recording import Cursor

_LAST_SEQ: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Before the frame with this epoch and sequence, whether it exists or not."""

    epoch: int = 0
    seq: int = 0

    @classmethod
    def from_json(cls, value: Any) -> Position:
        """Numbers may be strings, since JSON's own stop at 2**53."""
        if not isinstance(value, Mapping) or set(value) != {"epoch", "seq"}:
            raise ValueError(f"{value!r} is no place: it has epoch and seq")
        found = cls(int(value["epoch"]), int(value["seq"]))
        if not (0 <= found.epoch < 1 << 64 and 0 <= found.seq <= 1 << 64):
            raise ValueError(f"{value!r} is out of range")
        return found

    def to_json(self) -> dict[str, str]:
        return {"epoch": str(self.epoch), "seq": str(self.seq)}

    @classmethod
    def behind(cls, cursor: Cursor) -> Position:
        """The place behind a frame."""
        return cls(cursor.epoch, cursor.seq + 1)

    def cursor_before(self, stream_id: int) -> Cursor | None:
        """The last frame that can lie before this place; None if none can."""
        from ..recording import Cursor

        if self.seq > 0:
            return Cursor(stream_id, self.epoch, self.seq - 1)
        return Cursor(stream_id, self.epoch - 1, _LAST_SEQ) if self.epoch > 0 else None


Offsets = dict[int, Position]
START: Final = Position()


def to_json(offsets: Offsets) -> dict[str, dict[str, str]]:
    return {str(stream): offsets[stream].to_json() for stream in sorted(offsets)}


def from_json(value: Mapping[str, Any]) -> Offsets:
    """What `to_json` made, from a checkpoint that may be older than this program."""
    try:
        return {int(stream): Position.from_json(place) for stream, place in value.items()}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"the checkpoint holds offsets that tensorpool did not write: {error}") from None


def latest_of(one: Offsets, other: Offsets) -> Offsets:
    """Of each stream the later place: a source never goes back."""
    return {stream: max(one.get(stream, START), other.get(stream, START)) for stream in {*one, *other}}


def limit_to(offsets: Offsets, by: Offsets) -> Offsets:
    """Of each stream in `by` the earlier place; other streams are left out."""
    return {stream: min(offsets[stream], by[stream]) for stream in offsets if stream in by}


def lag(query: StreamingQuery) -> dict[int, int]:
    """Stream → sequences that are recorded and not read yet, by the query's last progress.

    Of a stream that has gone on to a later epoch, what is left of the epochs before is not counted.
    """
    found: dict[int, int] = {}
    progress = query.lastProgress
    for source in _sources(progress):
        # Offsets of other sources have another form, and none of these places.
        end, latest = _places(_get(source, "endOffset")), _places(_get(source, "latestOffset"))
        for stream, place in latest.items():
            read = end.get(stream, START)
            if place.epoch == read.epoch:
                found[stream] = max(place.seq - read.seq, 0)
            else:
                found[stream] = place.seq if place > read else 0
    return found


def _sources(progress: Any) -> list[Any]:
    return list(_get(progress, "sources") or []) if progress is not None else []


def _get(value: Any, name: str) -> Any:
    # A progress is a dictionary or an object, by version and kind of session.
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _places(value: Any) -> Offsets:
    if isinstance(value, str):
        value = json.loads(value)
    try:
        return from_json(value) if isinstance(value, Mapping) else {}
    except ValueError:
        return {}
