"""Requests that were answered, so that one that comes again is answered again and not done again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from ..errors import CodecError
from .events import ERROR, Event

_MAX_REQUESTS = 1024
_MAX_BYTES = 4 << 20


class Answered:
    """The last requests by their correlation id, bounded in number and in bytes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[bytes, list[Event], int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def recall(self, event: Event) -> list[Event] | None:
        """The answers to this very request; None if it is new. Raises nothing: a stranger under a known id
        is new too, and is refused by its own answer."""
        known = self._kept.get(event.correlation_id)
        if known is None or not event.correlation_id:
            return None
        if known[0] == _content(event):
            return known[1]
        why = f"correlation id {event.correlation_id} was used for another request"
        tag = known[1][0].tag if known[1] else event.tag
        return [Event(tag, event.key + ERROR, why, event.correlation_id)]

    def keep(self, event: Event, replies: list[Event]) -> None:
        if not event.correlation_id:
            return
        content = _content(event)
        size = len(content) + sum(map(_size, replies))
        self._kept[event.correlation_id] = (content, replies, size)
        self._bytes += size
        while self._kept and (len(self._kept) > _MAX_REQUESTS or self._bytes > _MAX_BYTES):
            _, (_, _, gone) = self._kept.popitem(last=False)
            self._bytes -= gone


def _size(reply: Event) -> int:
    try:
        return len(reply.encode())
    except CodecError:
        # The author's value has no place on the wire; whoever publishes the answer says so.
        return 0


def _content(event: Event) -> bytes:
    """What makes a request that request: everything but when it was sent."""
    return replace(event, timestamp_ns=1).encode()
