"""The sending mappings of an instance: native senders for frames, and the messages around them.

Announces of mapped streams go out on the control channel before any frame of their epoch; then metadata, QoS
and progress if they are forwarded, and once a second the sender's ledger (bridge §7, §9). The agent's thread
owns them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

from .. import _native
from ..client import Consumer
from ..clock import Clock
from ..context.context import Context
from ..errors import CodecError
from ..sbe.wire import ShmPoolAnnounce
from ..service import Event
from ..transport import Connection, StreamAddress
from .config import BridgeSettings
from .counters import BridgeCounters, FrameTotals, sum_totals
from .forwarding import (
    METADATA,
    PROGRESS,
    QOS,
    SHM_POOL_ANNOUNCE,
    PendingLinks,
    read_info,
    read_traced_stream,
)
from .ledger import LEDGER_KEY, SenderLedger
from .mappings import FallbackUri, ResolvedMapping, SourceStreams
from .seal import BridgeKeyRing, BridgePublication
from .service import SenderRow

_MAX_FRAGMENTS: Final = 256
_LEDGER_PERIOD_NS: Final = 1_000_000_000
_FRESH_PERIODS: Final = 3
"""Counters of a native sender that are no drop reasons."""


class _LatestAnnounce(NamedTuple):
    """The latest announce of a stream."""

    message: bytes
    epoch: int
    received_ns: int


class _FrameCounts(NamedTuple):
    """The counters of a native sender, and dropped frames by reason."""

    counters: _native.BridgeSenderCounters
    dropped: dict[str, int]


class SenderMappings:
    """All sending mappings of an instance."""

    def __init__(
        self,
        context: Context,
        settings: BridgeSettings,
        mappings: list[ResolvedMapping],
        counters: BridgeCounters,
        clock: Clock,
        keys: BridgeKeyRing | None,
    ) -> None:
        self.mappings = mappings
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._keys = keys
        self._stack = ExitStack()
        self._run = secrets.token_hex(8)
        self._next_ledger_ns = 0
        self._by_stream: dict[int, list[ResolvedMapping]] = {}
        self._senders: dict[StreamAddress, _native.BridgeSender] = {}
        self._consumers: dict[ResolvedMapping, Consumer] = {}
        self._publications: dict[StreamAddress, BridgePublication] = {}
        self._links: dict[StreamAddress, PendingLinks] = {}
        """By control address."""
        self._announces: dict[int, _LatestAnnounce] = {}
        self._unsent: set[tuple[int, StreamAddress]] = set()
        """Streams whose latest announce is not yet sent, with the address to send it to."""
        self._with_ledger: set[ResolvedMapping] = set()
        """Mappings whose first ledger is sent."""
        self._conductor = context.connection.conductor
        self._freshness_ns = _FRESH_PERIODS * context.connection.announce_period_ns
        try:
            self._open(context)
        except BaseException:
            self.close()
            raise

    def _open(self, context: Context) -> None:
        settings, counters = self._settings, self._counters
        for mapping in self.mappings:
            self._by_stream.setdefault(mapping.source_stream_id, []).append(mapping)
            if mapping.payload not in self._senders:
                keys = None if self._keys is None else self._keys.native
                self._senders[mapping.payload] = sender = _native.BridgeSender(
                    self._conductor, mapping.payload, settings, keys
                )
                self._stack.callback(sender.close)
            control = self._open_publication(mapping.control, "control")
            if mapping.control not in self._links:
                self._links[mapping.control] = PendingLinks(
                    control.offer, partial(counters.count_forwarded, "traces")
                )
            if mapping.metadata is not None:
                self._open_publication(mapping.metadata, "metadata")
        connection, sources = (
            context.connection,
            SourceStreams.from_mappings(settings, self.mappings, context.stream_ids),
        )
        self._announce_subscription = self._subscribe(connection, sources.announce)
        self._control_subscriptions = [self._subscribe(connection, each) for each in sources.control]
        self._trace_subscriptions = [self._subscribe(connection, each) for each in sources.traces]
        self._metadata_subscriptions = [self._subscribe(connection, each) for each in sources.metadata]
        for mapping in self.mappings:
            # A producer publishes progress only on request: this consumer requests it for remote ones.
            consumer = context.consumer(
                mapping.source_stream_id,
                descriptor_stream_id=mapping.settings.descriptor_stream_id,
                progress=settings.forward_progress,
                per_consumer_control=False,
            )
            self._stack.callback(consumer.close)
            self._consumers[mapping] = consumer
            self._senders[mapping.payload].add(consumer)

    def _open_publication(self, address: StreamAddress, purpose: str) -> BridgePublication:
        if address not in self._publications:
            publication = BridgePublication(self._conductor, address, purpose, self._keys)
            self._publications[address] = publication
            self._stack.callback(publication.close)
        return self._publications[address]

    def _subscribe(self, connection: Connection, address: StreamAddress) -> _native.Subscription:
        # Untethered: a bridge that pauses must not hold publishers back.
        subscription = connection.subscription(address)
        self._stack.callback(subscription.close)
        return subscription

    def is_ready(self) -> bool:
        """Whether the media driver has opened all channels."""
        return (
            all(sender.is_ready for sender in self._senders.values())
            and all(publication.is_ready for publication in self._publications.values())
            and self._announce_subscription.is_ready
        )

    def failure(self) -> str | None:
        """Why the media driver refused a channel; None if it refused none."""
        publications = self._publications.values()
        return next((failure for publication in publications if (failure := publication.failure)), None)

    def obstacles(self) -> Iterator[str]:
        """Why frames cannot be sent, one text per mapping."""
        for mapping, consumer in self._consumers.items():
            lease = consumer.lease()
            if lease is not None and lease.granted == 0 and lease.code is not None:
                reason = lease.message or lease.code
                yield f"stream {mapping.source_stream_id} cannot be read: {reason}"

    def do_work(self) -> int:
        """Forward messages, and publish the ledgers that are due."""
        work = 0
        for message in self._announce_subscription.poll(_MAX_FRAGMENTS):
            self._on_announce(message)
            # A driver publishes the metadata of its configuration on the announce stream.
            work += 1 + self._forward_metadata(message)
        work += self._send_announces()
        templates = (PROGRESS if self._settings.forward_progress else frozenset()) | (
            QOS if self._settings.forward_qos else frozenset()
        )
        for subscription in self._control_subscriptions:
            for message in subscription.poll(_MAX_FRAGMENTS):
                work += self._forward_control(message, templates)
        now_ns = self._clock.monotonic_ns()
        work += sum(links.send(now_ns) for links in self._links.values())
        for subscription in self._trace_subscriptions:
            for message in subscription.poll(_MAX_FRAGMENTS):
                work += self._forward_links(message, now_ns)
        for subscription in self._metadata_subscriptions:
            for message in subscription.poll(_MAX_FRAGMENTS):
                work += self._forward_metadata(message)
        if now_ns >= self._next_ledger_ns:
            self._next_ledger_ns = now_ns + _LEDGER_PERIOD_NS
            for mapping in self._with_ledger.copy():
                self._publish_ledger(mapping)
        return work

    def _on_announce(self, message: bytes) -> None:
        info = read_info(message)
        if info is None or info.template_id != SHM_POOL_ANNOUNCE or info.stream_id not in self._by_stream:
            return
        try:
            announce = ShmPoolAnnounce.decode(message)
        except CodecError:
            self._counters.invalid["announce"].add()
            return
        now_ns = self._clock.monotonic_ns()
        self._announces[info.stream_id] = _LatestAnnounce(message, announce.epoch, now_ns)
        self._unsent |= {(info.stream_id, mapping.control) for mapping in self._by_stream[info.stream_id]}

    def _send_announces(self) -> int:
        """Send announces. A ledger precedes the first announce of a mapping, and both precede its frames."""
        sent = 0
        for stream_id, address in tuple(self._unsent):
            message, epoch, received_ns = self._announces[stream_id]
            if self._clock.monotonic_ns() - received_ns > self._freshness_ns:
                self._unsent.discard((stream_id, address))
                continue
            mappings = [mapping for mapping in self._by_stream[stream_id] if mapping.control == address]
            without_ledger = [mapping for mapping in mappings if mapping not in self._with_ledger]
            if not all(self._publish_ledger(mapping) for mapping in without_ledger):
                continue
            if not self._publications[address].offer(message):
                # No receiver, or back pressure: retried until there is a newer announce.
                continue
            self._unsent.discard((stream_id, address))
            self._counters.announces.add()
            sent += 1
            for mapping in mappings:
                self._senders[mapping.payload].on_announce(stream_id, epoch)
        return sent

    def _forward_control(self, message: bytes, templates: frozenset[int]) -> int:
        info = read_info(message)
        if info is None or info.template_id not in templates:
            return 0
        mappings = self._by_stream.get(info.stream_id, ())
        kind = "progress" if info.template_id in PROGRESS else "qos"
        for address in {mapping.control for mapping in mappings if mapping.settings.source_control_stream_id}:
            self._forward(message, address, kind)
        return len(mappings)

    def _forward_links(self, message: bytes, now_ns: int) -> int:
        mappings = self._by_stream.get(read_traced_stream(message) or 0, ())
        for address in {mapping.control for mapping in mappings}:
            self._links[address].add(message, now_ns)
        return len(mappings)

    def _forward_metadata(self, message: bytes) -> int:
        info = read_info(message)
        if info is None or info.template_id not in METADATA:
            return 0
        mappings = self._by_stream.get(info.stream_id, ())
        for address in {mapping.metadata for mapping in mappings if mapping.metadata is not None}:
            self._forward(message, address, "metadata")
        return len(mappings)

    def _forward(self, message: bytes, address: StreamAddress, kind: str) -> None:
        self._counters.count_forwarded(kind, self._publications[address].offer(message))

    def _publish_ledger(self, mapping: ResolvedMapping) -> bool:
        position = self._senders[mapping.payload].position(mapping.source_stream_id)
        if position is None:
            return False
        ledger = SenderLedger(
            self._run,
            mapping.source_stream_id,
            position.sent,
            self._count_frames(mapping).dropped,
            tuple(position.sessions),
            position.position,
        )
        event = Event(f"bridge:{self._settings.instance_id}", LEDGER_KEY, ledger.encode())
        if not self._publications[mapping.control].offer(event.encode(self._clock)):
            return False
        self._with_ledger.add(mapping)
        return True

    def _count_frames(self, mapping: ResolvedMapping) -> _FrameCounts:
        counters = self._senders[mapping.payload].counters(mapping.source_stream_id)
        dropped = counters.dropped
        for name, n in self._consumers[mapping].ledger().dropped.items():
            dropped[name] = dropped.get(name, 0) + n
        return _FrameCounts(counters, dropped)

    def counters(self, source_stream_id: int) -> _native.BridgeSenderCounters:
        """The counters of a source stream. Raises KeyError if no mapping sends it."""
        for mapping in self._consumers:
            if mapping.source_stream_id == source_stream_id:
                return self._senders[mapping.payload].counters(source_stream_id)
        raise KeyError(source_stream_id)

    def totals(self) -> FrameTotals:
        """Frames sent, their bytes, and frames dropped."""
        return sum_totals(sender.totals() for sender in self._senders.values())

    def rows(self) -> list[SenderRow]:
        """The status of each mapping, as JSON."""
        return [self._row(mapping) for mapping in self.mappings]

    def _row(self, mapping: ResolvedMapping) -> SenderRow:
        counters, dropped = self._count_frames(mapping)
        sender = self._senders[mapping.payload]
        epoch = self._consumers[mapping].epoch
        sizes = sender.chunk_sizes
        return {
            "direction": "send",
            "source_stream_id": mapping.source_stream_id,
            "dest_stream_id": mapping.dest_stream_id,
            "payload": str(mapping.payload),
            "fallback_uri": FallbackUri.of_row(self._settings, mapping),
            "connected": sender.is_connected,
            "chunk_bytes": None if sizes is None else sizes.rest_bytes,
            "epoch": None if epoch is None else str(epoch),
            "published": counters.sent + sum(dropped.values()),
            "sent": counters.sent,
            "chunks": counters.chunks,
            "bytes": counters.bytes,
            "dropped": {name: n for name, n in dropped.items() if n},
        }

    def close(self) -> None:
        """Close consumers, senders, publications and subscriptions."""
        self._stack.close()
