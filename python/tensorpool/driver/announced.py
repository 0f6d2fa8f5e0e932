"""What a driver says of its streams beside their memory: name, tags and data source id of its plans. Pure.

Producers speak for themselves on the metadata stream. A plan's words go out beside the announces, as metadata
version 0, which no producer has: so registries know them, and no consumer takes them for its frames'.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ..attributes.tags import MAX_NAME_BYTES, make_attributes, to_wire, wire_length
from ..discovery.index import DRIVER_VERSION
from ..sbe.wire import DataSourceAnnounce, DataSourceMeta
from .plan import StreamPlan

# A thousand streams that are due at once must not hold up anybody's keepalive.
_MOST_A_TURN: Final = 16


@dataclass(slots=True)
class _Said:
    plan: StreamPlan | None
    epoch: int
    producer_id: int
    messages: tuple[bytes, ...] = ()


class PlanWords:
    """The words of the streams that are announced, each said again after a period."""

    def __init__(self, plan_of: Callable[[int], StreamPlan | None], *, period_ns: int) -> None:
        self._plan_of = plan_of
        self._period_ns = period_ns
        self._said: dict[int, _Said] = {}
        # In the order in which they fall due: all wait for the same time.
        self._due: deque[tuple[int, int, _Said]] = deque()

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._said

    def is_own(self, stream_id: int, message: bytes) -> bool:
        """Whether words of metadata version 0 are the driver's: its plan's, or another's of a stream of which
        the plan says nothing, as a bridge brings them along."""
        said = self._said.get(stream_id)
        messages = () if said is None else self._messages(stream_id, said)
        return not messages or message in messages

    def put(self, stream_id: int, epoch: int, producer_id: int, now_ns: int) -> tuple[bytes, ...]:
        """A stream is announced under that epoch from now on. Returns what is to be said of it at once."""
        said = self._said[stream_id] = _Said(None, epoch, producer_id)
        self._due.append((now_ns + self._period_ns, stream_id, said))
        return self._messages(stream_id, said)

    def remove(self, stream_id: int) -> None:
        self._said.pop(stream_id, None)

    def due(self, now_ns: int) -> Iterator[bytes]:
        """What is to be said again; a few streams at a time."""
        for _ in range(_MOST_A_TURN):
            if not self._due or self._due[0][0] > now_ns:
                return
            _, stream_id, said = self._due.popleft()
            if self._said.get(stream_id) is said:
                self._due.append((now_ns + self._period_ns, stream_id, said))
                yield from self._messages(stream_id, said)

    def _messages(self, stream_id: int, said: _Said) -> tuple[bytes, ...]:
        plan = self._plan_of(stream_id)
        if plan is not said.plan:
            said.plan, said.messages = plan, _encoded(plan, said)
        return said.messages


def _encoded(plan: StreamPlan | None, said: _Said) -> tuple[bytes, ...]:
    if plan is None or not (plan.name or plan.tags or plan.data_source_id is not None):
        return ()
    name = to_wire(plan.name)
    announce = DataSourceAnnounce(
        stream_id=plan.stream_id,
        producer_id=said.producer_id,
        epoch=said.epoch,
        meta_version=DRIVER_VERSION,
        name=name if wire_length(name) <= MAX_NAME_BYTES else "",
    )
    meta = DataSourceMeta(
        stream_id=plan.stream_id,
        meta_version=DRIVER_VERSION,
        timestamp_ns=0,
        attributes=make_attributes(plan.tags, plan.data_source_id),
    )
    return announce.encode(), meta.encode()
