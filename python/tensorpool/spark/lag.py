"""How far a streaming query is behind its recording."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import offsets
from .offsets import START

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


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


def _places(value: Any) -> offsets.Offsets:
    if isinstance(value, str):
        value = json.loads(value)
    try:
        return offsets.from_json(value) if isinstance(value, Mapping) else {}
    except ValueError:
        return {}
