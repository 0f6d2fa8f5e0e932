"""Orders to consumers that are in force, and the messages that keep them so (wire §10.1.3). Pure.

A producer takes an order over until the consumer leaves; another producer, or another epoch, knows nothing of
it. So an order is said again until the consumer reports what was ordered, and whenever it no longer does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from ..monitor.snapshot import ConsumerView
from ..sbe.wire import ConsumerConfig, ConsumerConfigR2, Mode
from .policy import Decision

_AGAIN_NS: Final = 2_000_000_000
_MOST: Final = 100_000


@dataclass(slots=True)
class _Order:
    by: str
    max_rate_hz: int
    fallback_uri: str
    own_stream_id: int
    said_ns: int | None = None
    epoch: int = 0


class OrderView(Protocol):
    """Who is there."""

    def consumer(self, stream_id: int, consumer_id: int) -> ConsumerView | None: ...

    def own_stream_ids(self) -> set[int]: ...


class Orders:
    """By stream and consumer."""

    def __init__(self, channel: str, own_ids: tuple[int, int]) -> None:
        self._channel = channel
        self._own_ids = own_ids
        self._orders: dict[tuple[int, int], _Order] = {}

    @property
    def manual(self) -> frozenset[tuple[int, int]]:
        return frozenset(who for who, order in self._orders.items() if order.by == MANUAL)

    def take(self, decision: Decision, sight: OrderView) -> list[ConsumerConfig | ConsumerConfigR2]:
        """A decision about a consumer. What is to be said at once comes back; the rest follows by `due`."""
        if decision.consumer_id is None or decision.action not in ("limit", "redirect", "release"):
            return []
        who = (decision.stream_id, decision.consumer_id)
        consumer = sight.consumer(*who)
        if decision.action == "release":
            self._orders.pop(who, None)
            return [] if consumer is None else [self._released(consumer)]
        if len(self._orders) < _MOST or who in self._orders:
            # A stream that it has already is kept, whatever is ordered: going back would lose frames.
            own = 0 if consumer is None else consumer.own_stream_id
            if decision.action == "limit":
                own = own or self._free_id(who, sight)
            self._orders[who] = _Order(decision.by, decision.max_rate_hz, decision.fallback_uri, own)
        return []

    def due(self, sight: OrderView, now_ns: int) -> Iterator[ConsumerConfig | ConsumerConfigR2]:
        """What has to be said now so that every order is in force."""
        for who, order in list(self._orders.items()):
            consumer = sight.consumer(*who)
            if consumer is None:
                del self._orders[who]
                continue
            is_new = order.said_ns is None or order.epoch != consumer.epoch
            is_heeded = (
                consumer.mode == "rate_limited"
                if order.max_rate_hz
                else consumer.fallback_uri == order.fallback_uri
            )
            if is_new or (not is_heeded and now_ns - (order.said_ns or 0) >= _AGAIN_NS):
                if not is_new and order.max_rate_hz and not consumer.own_stream_id:
                    # Declined: somebody else has that stream.
                    order.own_stream_id = self._free_id((*who, now_ns), sight)
                order.said_ns, order.epoch = now_ns, consumer.epoch
                yield self._said(who, order)

    def _said(self, who: tuple[int, int], order: _Order) -> ConsumerConfig | ConsumerConfigR2:
        stream_id, consumer_id = who
        if order.max_rate_hz:
            return ConsumerConfigR2(
                stream_id=stream_id,
                consumer_id=consumer_id,
                use_shm=True,
                mode=Mode.RATE_LIMITED,
                descriptor_stream_id=order.own_stream_id,
                max_rate_hz=order.max_rate_hz,
                descriptor_channel=self._channel,
            )
        return ConsumerConfig(
            stream_id=stream_id,
            consumer_id=consumer_id,
            use_shm=False,
            mode=Mode.STREAM,
            descriptor_stream_id=order.own_stream_id,
            payload_fallback_uri=order.fallback_uri,
            descriptor_channel=self._channel if order.own_stream_id else "",
        )

    def _released(self, consumer: ConsumerView) -> ConsumerConfig:
        """As it wants it itself. It keeps its stream, if it has one: on the way back frames would be lost."""
        own = consumer.own_stream_id
        return ConsumerConfig(
            stream_id=consumer.stream_id,
            consumer_id=consumer.consumer_id,
            use_shm=True,
            mode=Mode.RATE_LIMITED if consumer.wants_limit else Mode.STREAM,
            descriptor_stream_id=own,
            descriptor_channel=self._channel if own else "",
        )

    def _free_id(self, seed: Iterable[int], sight: OrderView) -> int:
        """An id of the range that nobody is known to have; the producer has the last word."""
        first, last = self._own_ids
        taken = sight.own_stream_ids() | {one.own_stream_id for one in self._orders.values()}
        count = last - first + 1
        start = hash(tuple(seed)) % count
        for step in range(count):
            candidate = first + (start + step) % count
            if candidate not in taken:
                return candidate
        return first + start


MANUAL: Final = "manual"
