"""The sending mappings of an instance: native loops for frames, and the words around them.

Announces of mapped streams go out on the control channel, before any frame of their epoch; metadata, QoS and
progress where they are forwarded; and once a second the account of what was sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

from .. import _native
from ..client import Consumer
from ..clock import Clock
from ..context.context import Context
from ..errors import CodecError
from ..sbe.wire import ShmPoolAnnounce
from ..service import Event
from ..transport import StreamAddress
from .config import BridgeSettings
from .counters import BridgeCounters, sum_each
from .forwarding import METADATA, POOL_ANNOUNCE, PROGRESS, QOS, read_info
from .ledger import LEDGER_KEY, SenderLedger
from .mappings import FallbackUri, ResolvedMapping

_IPC: Final = "aeron:ipc?tether=false"
_LIMIT: Final = 256
_LEDGER_NS: Final = 1_000_000_000
_FRAMES: Final = ("sent", "chunks", "bytes")


class SenderMappings:
    """Owned by the agent's thread."""

    def __init__(
        self,
        ctx: Context,
        settings: BridgeSettings,
        routes: list[ResolvedMapping],
        counters: BridgeCounters,
        clock: Clock,
    ) -> None:
        self.routes = routes
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._stack = ExitStack()
        self._run = secrets.token_hex(8)
        self._next_ledger_ns = 0
        self._by_stream: dict[int, list[ResolvedMapping]] = {}
        self._senders: dict[StreamAddress, _native.BridgeSender] = {}
        self._consumers: dict[ResolvedMapping, Consumer] = {}
        self._publications: dict[StreamAddress, _native.Publication] = {}
        self._announces: dict[int, tuple[bytes, int, int]] = {}
        """By stream: the latest announce, its epoch, when it was heard."""
        self._unsent: set[tuple[int, StreamAddress]] = set()
        self._told: set[ResolvedMapping] = set()
        self._conductor = ctx.connection.conductor
        self._freshness_ns = 3 * ctx.connection.announce_period_ns
        try:
            self._open(ctx)
        except BaseException:
            self.close()
            raise

    def _open(self, ctx: Context) -> None:
        settings = self._settings
        for route in self.routes:
            self._by_stream.setdefault(route.source_stream_id, []).append(route)
            if route.payload not in self._senders:
                self._senders[route.payload] = sender = _native.BridgeSender(
                    self._conductor,
                    route.payload.channel,
                    route.payload.stream_id,
                    mtu_bytes=settings.mtu_bytes,
                    chunk_bytes=settings.chunk_bytes,
                    max_chunk_bytes=settings.max_chunk_bytes,
                    max_payload_bytes=settings.max_payload_bytes,
                    integrity=settings.integrity,
                    idle=settings.idle,
                )
                self._stack.callback(sender.close)
            self._publish(route.control)
            if route.metadata is not None:
                self._publish(route.metadata)
        self._ears = [self._ear(ctx.stream_ids.announce)]
        controls = {route.mapping.source_control_stream_id for route in self.routes} - {0}
        if settings.forward_qos:
            controls.add(ctx.stream_ids.qos)
        self._control_ears = (
            [self._ear(stream_id) for stream_id in sorted(controls)]
            if settings.forward_qos or settings.forward_progress
            else []
        )
        metadata_stream = settings.source_metadata_stream_id or ctx.stream_ids.metadata
        has_metadata = any(route.metadata is not None for route in self.routes)
        self._metadata_ears = [self._ear(metadata_stream)] if has_metadata else []
        for route in self.routes:
            # A producer tells of frames that fill only if somebody wants to hear of it: here, for others.
            consumer = ctx.consumer(
                route.source_stream_id,
                descriptor_stream_id=route.mapping.descriptor_stream_id,
                progress=settings.forward_progress,
                per_consumer_control=False,
            )
            self._stack.callback(consumer.close)
            self._consumers[route] = consumer
            self._senders[route.payload].add(consumer)

    def _publish(self, at: StreamAddress) -> None:
        if at not in self._publications:
            self._publications[at] = made = _native.Publication(self._conductor, at.channel, at.stream_id)
            self._stack.callback(made.close)

    def _ear(self, stream_id: int) -> _native.Subscription:
        ear = _native.Subscription(self._conductor, _IPC, stream_id)
        self._stack.callback(ear.close)
        return ear

    def is_ready(self) -> bool:
        return (
            all(one.is_ready for one in self._senders.values())
            and all(one.is_ready for one in self._publications.values())
            and all(one.is_ready for one in self._ears)
        )

    def failure(self) -> str | None:
        """Why the media driver refused a channel, if it did."""
        return next((why for one in self._publications.values() if (why := one.failure)), None)

    def missing(self) -> Iterator[str]:
        """What keeps frames from going out, in words."""
        for route, consumer in self._consumers.items():
            lease = consumer.lease()
            if lease is not None and lease["granted"] == 0 and lease["code"] is not None:
                yield f"stream {route.source_stream_id} cannot be read: {lease['message'] or lease['code']}"

    def do_work(self) -> int:
        work = 0
        for ear in self._ears:
            for message in ear.poll(_LIMIT):
                self._on_announce(message)
                # What a driver's configuration says of a stream comes beside its announces.
                work += 1 + self._forward_metadata(message)
        work += self._send_announces()
        wanted = (PROGRESS if self._settings.forward_progress else frozenset()) | (
            QOS if self._settings.forward_qos else frozenset()
        )
        for ear in self._control_ears:
            for message in ear.poll(_LIMIT):
                work += self._forward(message, wanted)
        for ear in self._metadata_ears:
            for message in ear.poll(_LIMIT):
                work += self._forward_metadata(message)
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_ledger_ns:
            self._next_ledger_ns = now_ns + _LEDGER_NS
            for route in self._told.copy():
                self._tell(route)
        return work

    def _on_announce(self, message: bytes) -> None:
        head = read_info(message)
        if head is None or head.template_id != POOL_ANNOUNCE or head.stream_id not in self._by_stream:
            return
        try:
            announce = ShmPoolAnnounce.decode(message)
        except CodecError:
            self._counters.unusable["announce"].add()
            return
        self._announces[head.stream_id] = (message, announce.epoch, self._clock.monotonic_ns())
        self._unsent |= {(head.stream_id, route.control) for route in self._by_stream[head.stream_id]}

    def _send_announces(self) -> int:
        """Before the first announce goes the account that there is nothing yet, and no frame before both."""
        sent = 0
        for stream_id, at in tuple(self._unsent):
            message, epoch, heard_ns = self._announces[stream_id]
            if self._clock.monotonic_ns() - heard_ns > self._freshness_ns:
                self._unsent.discard((stream_id, at))
                continue
            routes = [route for route in self._by_stream[stream_id] if route.control == at]
            if not all(self._tell(route) for route in routes if route not in self._told):
                continue
            if self._publications[at].offer(message) != "sent":
                # Nobody there, or no room: it is tried again until there is a fresher one.
                continue
            self._unsent.discard((stream_id, at))
            self._counters.announces.add()
            sent += 1
            for route in routes:
                self._senders[route.payload].announced(stream_id, epoch)
        return sent

    def _forward(self, message: bytes, wanted: frozenset[int]) -> int:
        head = read_info(message)
        if head is None or head.template_id not in wanted:
            return 0
        routes = self._by_stream.get(head.stream_id, ())
        for at in {route.control for route in routes if route.mapping.source_control_stream_id}:
            is_sent = self._publications[at].offer(message) == "sent"
            kind = "progress" if head.template_id in PROGRESS else "qos"
            (self._counters.forwarded if is_sent else self._counters.unforwarded)[kind].add()
        return len(routes)

    def _forward_metadata(self, message: bytes) -> int:
        head = read_info(message)
        if head is None or head.template_id not in METADATA:
            return 0
        routes = self._by_stream.get(head.stream_id, ())
        for at in {route.metadata for route in routes if route.metadata is not None}:
            is_sent = self._publications[at].offer(message) == "sent"
            (self._counters.forwarded if is_sent else self._counters.unforwarded)["metadata"].add()
        return len(routes)

    def _tell(self, route: ResolvedMapping) -> bool:
        place = self._senders[route.payload].place(route.source_stream_id)
        if place is None:
            return False
        sessions, position, sent = place
        _, dropped = self._account(route)
        account = SenderLedger(self._run, route.source_stream_id, sent, dropped, tuple(sessions), position)
        event = Event(f"bridge:{self._settings.instance_id}", LEDGER_KEY, account.encode())
        if self._publications[route.control].offer(event.encode(self._clock)) != "sent":
            return False
        self._told.add(route)
        return True

    def _account(self, route: ResolvedMapping) -> tuple[Mapping[str, int], dict[str, int]]:
        """What was sent, and what was not by reason."""
        counters = self._senders[route.payload].counters(route.source_stream_id)
        dropped = {name: n for name, n in counters.items() if name not in _FRAMES}
        for name, n in self._consumers[route].ledger().dropped.items():
            dropped[name] = dropped.get(name, 0) + n
        return counters, dropped

    def sums(self) -> tuple[int, int, int]:
        """Frames sent, their bytes, and those that were not."""
        return sum_each(one.sums() for one in self._senders.values())

    def rows(self) -> list[dict[str, Any]]:
        """How each mapping stands."""
        return [self._row(route) for route in self.routes]

    def _row(self, route: ResolvedMapping) -> dict[str, Any]:
        counters, dropped = self._account(route)
        sender = self._senders[route.payload]
        consumer = self._consumers[route]
        epoch = consumer.epoch
        return {
            "direction": "send",
            "source_stream_id": route.source_stream_id,
            "dest_stream_id": route.dest_stream_id,
            "payload": str(route.payload),
            "fallback_uri": str(FallbackUri.of(self._settings.instance_id, route)),
            "connected": sender.is_connected,
            "chunk_bytes": None if (slices := sender.slices) is None else slices[1],
            "epoch": None if epoch is None else str(epoch),
            "published": counters["sent"] + sum(dropped.values()),
            "sent": counters["sent"],
            "chunks": counters["chunks"],
            "bytes": counters["bytes"],
            "dropped": {name: n for name, n in dropped.items() if n},
        }

    def close(self) -> None:
        self._stack.close()
