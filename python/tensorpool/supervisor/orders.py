"""Orders to consumers that are in force, and the messages that keep them in force (wire §10.1.3). Pure.

A producer applies an order until the consumer leaves. After a change of producer or epoch the order is lost.
An order is therefore repeated until the consumer reports it, and whenever the consumer no longer does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from ..monitor.snapshot import ConsumerView
from ..sbe.wire import ConsumerConfig, ConsumerConfigR2, Mode
from .policy import Decision

MANUAL: Final = "manual"
"""`Decision.by` of a decision that a command made, not a rule."""
_RETRY_NS: Final = 2_000_000_000
_MAX_ORDERS: Final = 100_000

Config: TypeAlias = ConsumerConfig | ConsumerConfigR2
ConsumerKey: TypeAlias = tuple[int, int]
"""Stream id and consumer id."""


@dataclass(slots=True)
class _Order:
    by: str
    max_rate_hz: int
    fallback_uri: str
    per_consumer_stream_id: int
    sent_ns: int | None = None
    epoch: int = 0


class OrderView(Protocol):
    """The part of a model that orders need."""

    def consumer(self, stream_id: int, consumer_id: int) -> ConsumerView | None:
        """The consumer; None if it has left."""

    def per_consumer_stream_ids(self) -> set[int]:
        """Descriptor streams that were granted to single consumers."""
        ...


class Orders:
    """Orders by stream and consumer."""

    def __init__(self, channel: str, per_consumer_ids: tuple[int, int]) -> None:
        """`channel` and `per_consumer_ids` (first and last) are those of per-consumer descriptor streams."""
        self._channel = channel
        self._per_consumer_ids = per_consumer_ids
        self._orders: dict[ConsumerKey, _Order] = {}

    @property
    def manual(self) -> frozenset[ConsumerKey]:
        """Consumers whose order a command gave; rules do not apply to them."""
        return frozenset(key for key, order in self._orders.items() if order.by == MANUAL)

    def apply(self, decision: Decision, view: OrderView) -> list[Config]:
        """Takes a decision about a consumer. Returns the messages to send now; `due` yields the others."""
        if decision.consumer_id is None or decision.action not in ("limit", "redirect", "release"):
            return []
        key = (decision.stream_id, decision.consumer_id)
        consumer = view.consumer(*key)
        if decision.action == "release":
            self._orders.pop(key, None)
            return [] if consumer is None else [self._release_config(consumer)]
        if len(self._orders) < _MAX_ORDERS or key in self._orders:
            # A granted stream is kept with every order: a change back to the shared stream would lose frames.
            stream_id = 0 if consumer is None else consumer.per_consumer_stream_id
            if decision.action == "limit":
                stream_id = stream_id or self._free_stream_id(key, view)
            self._orders[key] = _Order(decision.by, decision.max_rate_hz, decision.fallback_uri, stream_id)
        return []

    def due(self, view: OrderView, now_ns: int) -> Iterator[Config]:
        """The messages to send now. Orders of consumers that have left are dropped."""
        for key, order in list(self._orders.items()):
            consumer = view.consumer(*key)
            if consumer is None:
                del self._orders[key]
                continue
            is_new = order.sent_ns is None or order.epoch != consumer.epoch
            # Without a per-consumer stream the consumer keeps the rate itself; one may be granted later.
            is_in_force = (
                consumer.mode == "rate_limited" and consumer.per_consumer_stream_id != 0
                if order.max_rate_hz
                else consumer.fallback_uri == order.fallback_uri
            )
            if is_new or (not is_in_force and now_ns - (order.sent_ns or 0) >= _RETRY_NS):
                if not is_new and order.max_rate_hz and not consumer.per_consumer_stream_id:
                    # The producer declined: the stream is in use.
                    order.per_consumer_stream_id = self._free_stream_id((*key, now_ns), view)
                order.sent_ns, order.epoch = now_ns, consumer.epoch
                yield self._order_config(key, order)

    def _order_config(self, key: ConsumerKey, order: _Order) -> Config:
        stream_id, consumer_id = key
        if order.max_rate_hz:
            return ConsumerConfigR2(
                stream_id=stream_id,
                consumer_id=consumer_id,
                use_shm=True,
                mode=Mode.RATE_LIMITED,
                descriptor_stream_id=order.per_consumer_stream_id,
                max_rate_hz=order.max_rate_hz,
                descriptor_channel=self._channel,
            )
        return ConsumerConfig(
            stream_id=stream_id,
            consumer_id=consumer_id,
            use_shm=False,
            mode=Mode.STREAM,
            descriptor_stream_id=order.per_consumer_stream_id,
            payload_fallback_uri=order.fallback_uri,
            descriptor_channel=self._channel if order.per_consumer_stream_id else "",
        )

    def _release_config(self, consumer: ConsumerView) -> Config:
        """The consumer's own request. It keeps a granted stream: a change back would lose frames.

        The rate 0 ends an order that the consumer keeps itself: without it this would be a producer's answer.
        """
        descriptor_stream_id = consumer.per_consumer_stream_id
        return ConsumerConfigR2(
            stream_id=consumer.stream_id,
            consumer_id=consumer.consumer_id,
            use_shm=True,
            mode=Mode.RATE_LIMITED if consumer.requested_limit else Mode.STREAM,
            descriptor_stream_id=descriptor_stream_id,
            max_rate_hz=None if consumer.requested_limit else 0,
            descriptor_channel=self._channel if descriptor_stream_id else "",
        )

    def _free_stream_id(self, seed: Iterable[int], view: OrderView) -> int:
        """An id of the range that no known consumer uses; the producer may still decline it."""
        first, last = self._per_consumer_ids
        used = view.per_consumer_stream_ids()
        used |= {order.per_consumer_stream_id for order in self._orders.values()}
        count = last - first + 1
        start = hash(tuple(seed)) % count
        for step in range(count):
            candidate = first + (start + step) % count
            if candidate not in used:
                return candidate
        return first + start
