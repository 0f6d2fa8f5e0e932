"""The receiving mappings of an instance: native receivers assemble frames, and this attaches destinations.

A destination is a producer on this host's driver. It is attached when it is needed, and again in each epoch
of its source (bridge §4, §8). An attach may wait for the driver, so other threads do it. The agent's thread
owns everything else.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from .. import _native
from ..client import Producer
from ..clock import Clock
from ..context.context import Context
from ..errors import AttachError, CodecError, ConfigError, RoleFailed, StreamBusy, TensorPoolError
from ..service import Event
from ..transport import SHARED_CHANNEL, StreamAddress
from .config import DRIVER_PROFILE, SOURCE_PROFILE, BridgeSettings
from .counters import BridgeCounters, FrameTotals, sum_totals
from .destination import AttachStep, DestinationFailure, DestinationLayout, DestinationState
from .faults import check_destinations
from .forwarding import (
    DATA_SOURCE_ANNOUNCE,
    DATA_SOURCE_META,
    METADATA,
    QOS,
    MessageInfo,
    PendingLinks,
    is_undescribed,
    read_info,
    read_meta_version,
    read_traced_stream,
    replace_source,
    replace_stream,
    replace_trace,
)
from .ledger import LEDGER_KEY, MappingLedger, ReceiverLedger, SenderLedger, SessionTotals
from .mappings import FallbackUri, ResolvedMapping, channel_mtu, dynamic_ids
from .seal import BridgeKeyRing, BridgeSubscription
from .service import ReceiverRow

_LOG = logging.getLogger(__name__)
_MAX_FRAGMENTS: Final = 256
_ATTACH_THREADS: Final = 4
_CHUNK_OVERHEAD_BYTES: Final = 128
# Announce periods without an announce after which lower epochs of a source are accepted.
_SILENT_PERIODS: Final = 5
_MAX_CACHED_MESSAGES: Final = 16
_MAX_CACHED_BYTES: Final = 64 << 10
# What to do about rejected messages, by reason.
_REJECTIONS: Final = {
    "unchecked": "the sender sends no checksums; set integrity = true there, or integrity = false here for a "
    "program that knows the first revision only",
    "sealed": "the sender seals, and there is no key here; set key_file",
    "unsealed": "the sender does not seal; set the same key_file there",
    "wrong_key": "the sender uses a key that is not in this host's key_file; compare them (bridge status)",
    "altered": "a program without the key changes or invents messages, or the network corrupts them",
    "reflected": "a program without the key sends this host its own messages, or both ends of the bridge use "
    "one media driver; such ends need no key",
    "replayed": "a program without the key sends recorded messages again",
    "stale": "the clocks of the hosts differ by more than key_max_age, or old messages are sent again",
}
# Mappings that wait for their source are polled no more often than this.
_DESTINATION_PERIOD_NS: Final = 5_000_000
# A busy host may be silent for seconds; its sender sends a ledger every second.
_WATCH_PERIOD_NS: Final = 500_000_000
MIN_PATIENCE_NS: Final = 10_000_000_000
MAX_PATIENCE_NS: Final = 160_000_000_000
# Where nothing says whether something was sent, it is supposed to be so once in this time.
SILENCE_NS: Final = 30_000_000_000
# A ledger that counts what has arrived already may come so much later.
LATE_NS: Final = 3_000_000_000


class _MetadataKey(NamedTuple):
    """A kind of metadata message and its version."""

    template_id: int
    version: int | None


class _CachedMetadata(NamedTuple):
    """A metadata message, kept for the next local epoch."""

    info: MessageInfo
    message: bytes


@dataclass(frozen=True, slots=True)
class ReceiverLimits:
    """What a receiver expects of its senders, computed from the settings and the channel."""

    chunk_bytes: int
    """The largest chunk that is accepted."""
    fits_session_mtu: bool
    """Whether chunks also have to fit the MTU of their sender."""
    silence_ns: int
    """A source without an announce for so long is stale."""


class StreamWatch:
    """Notices a stream of Aeron that has stopped for good. Pure.

    A media driver has no checksum over its own headers. One datagram that was changed on the way may take a
    place in the stream that it does not belong to, and what lies before it is then requested without end. A
    new subscription begins at the position that the sender has then.
    """

    def __init__(self) -> None:
        self._received = 0
        self._sent: int | None = None
        self._since_ns: int | None = None
        self._settled_ns = 0
        self._patience_ns = MIN_PATIENCE_NS

    def has_stopped(self, now_ns: int, received: int, sent: int) -> bool:
        """Whether nothing was received for a time in which its sender had something to send.

        After each time it is true once, and then only after twice as long.
        """
        if received != self._received:
            self._received, self._patience_ns = received, MIN_PATIENCE_NS
            self.restart(now_ns)
        if self._sent is None or now_ns < self._settled_ns:
            # A sender says what it has sent later than that arrives, and not more often than once a second.
            self._sent = sent
        elif self._since_ns is None:
            if sent > self._sent:
                self._since_ns = now_ns
            # A sender that starts again counts from zero.
            self._sent = sent
        elif now_ns - self._since_ns >= self._patience_ns:
            self._sent = sent
            self._patience_ns = min(2 * self._patience_ns, MAX_PATIENCE_NS)
            self.restart(now_ns)
            return True
        return False

    def restart(self, now_ns: int) -> None:
        """Wait anew, with the same patience: the stream was opened, or is not there."""
        self._since_ns, self._settled_ns = None, now_ns + LATE_NS


@dataclass(eq=False)
class _MappingWatch:
    """The streams of one mapping's source. Another source on the same port does not hide that it stopped."""

    payload: StreamWatch = field(default_factory=StreamWatch)
    control: StreamWatch = field(default_factory=StreamWatch)
    messages: int = 0
    """Of the control stream, without those that the native receiver counts."""
    offered: int | None = None
    """Frames that the source had for the network; None without a ledger."""


@dataclass(eq=False)
class _MetadataStream:
    """The subscription to a metadata stream."""

    subscription: BridgeSubscription
    watch: StreamWatch = field(default_factory=StreamWatch)
    messages: int = 0
    """Of mapped streams."""


@dataclass(eq=False)
class _ReceiverMapping:
    """One receiving mapping: its receiver, its destination and its ledger."""

    resolved: ResolvedMapping
    receiver: _native.BridgeReceiver
    destination: DestinationState
    producer: Producer | None = None
    attaching: Future[Producer] | None = None
    ledger: MappingLedger = field(default_factory=MappingLedger)
    metadata: dict[_MetadataKey, _CachedMetadata] = field(default_factory=dict)
    """The latest metadata messages, to be published again in a new local epoch."""
    watch: _MappingWatch = field(default_factory=_MappingWatch)

    def received(self, sessions: tuple[int, ...]) -> SessionTotals:
        """The counts of these sessions."""
        counts = self.receiver.received(self.resolved.source_stream_id, sessions)
        return SessionTotals(_receiver_ledger(counts), counts.is_complete)

    def ledger_start(self, session: int, position: int | None) -> ReceiverLedger | None:
        """The counts of a session at a position, or at its beginning; None if unknown or not reached yet."""
        counts = self.receiver.ledger_start(self.resolved.source_stream_id, session, position)
        return None if counts is None else _receiver_ledger(counts)


def _receiver_ledger(counts: _native.SessionCounts) -> ReceiverLedger:
    return ReceiverLedger(counts.delivered, counts.not_ready, counts.lost)


class ReceiverMappings:
    """All receiving mappings of an instance."""

    def __init__(
        self,
        context: Context,
        settings: BridgeSettings,
        mappings: list[ResolvedMapping],
        counters: BridgeCounters,
        clock: Clock,
        keys: BridgeKeyRing | None,
    ) -> None:
        self._context = context
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._keys = keys
        self._stack = ExitStack()
        self._receivers: dict[tuple[StreamAddress, StreamAddress], _native.BridgeReceiver] = {}
        """By payload and control address."""
        self._mappings: list[_ReceiverMapping] = []
        self._by_stream: dict[tuple[_native.BridgeReceiver, int], _ReceiverMapping] = {}
        self._without_start: list[_ReceiverMapping] = []
        """Mappings with a sender's ledger, but without a known start of the joined ledger."""
        self._publications: dict[StreamAddress, _native.Publication] = {}
        self._links: dict[StreamAddress, PendingLinks] = {}
        """By control address."""
        self._metadata_streams: dict[StreamAddress, _MetadataStream] = {}
        self._silences: dict[_native.BridgeReceiver, StreamWatch] = {}
        """Of control streams on which no mapped source says anything."""
        self._next_destinations_ns = 0
        self._next_watch_ns = 0
        self._is_checked = not mappings or check_destinations(context, settings)
        """Whether the ids of the destinations were compared with those of the driver and of other bridges.
        If the driver was not running at the start, that is done at the first attach."""
        self._threads = ThreadPoolExecutor(_ATTACH_THREADS, "tp-bridge-attach")
        try:
            self._open(mappings)
        except BaseException:
            self.close()
            raise

    # --- opening

    def _open(self, mappings: list[ResolvedMapping]) -> None:
        settings, context = self._settings, self._context
        free_ids = dynamic_ids(settings)
        for number, resolved in enumerate(mappings):
            receiver = self._receiver(resolved)
            candidates = (
                [resolved.dest_stream_id]
                if resolved.dest_stream_id
                else free_ids[number:] + free_ids[:number]
            )
            mapping = _ReceiverMapping(resolved, receiver, self._destination(resolved, candidates))
            self._mappings.append(mapping)
            self._by_stream[receiver, resolved.source_stream_id] = mapping
            control = resolved.settings.dest_control_stream_id
            progress = self._dest_control(control) if settings.forward_progress and control else None
            receiver.add(resolved.source_stream_id, mapping.destination.stream_id, progress)
            if settings.forward_qos and control:
                self._publication(self._dest_control(control))
            if resolved.metadata is not None:
                self._publication(context.stream_ids.metadata_address_of(mapping.destination.stream_id))
                self._publication(StreamAddress(SHARED_CHANNEL, context.stream_ids.announce))
                self._subscribe_metadata(resolved.metadata)

    def _subscribe_metadata(self, address: StreamAddress) -> None:
        if address not in self._metadata_streams:
            subscription = BridgeSubscription(
                self._context.connection.conductor,
                address,
                "metadata",
                self._keys,
                self._settings.key_max_age_ns,
            )
            self._metadata_streams[address] = _MetadataStream(subscription)
            self._stack.callback(subscription.close)

    def _receiver(self, mapping: ResolvedMapping) -> _native.BridgeReceiver:
        settings = self._settings
        addresses = (mapping.payload, mapping.control)
        if addresses not in self._receivers:
            mtu = settings.mtu_bytes or channel_mtu(mapping.payload.channel)
            limits = [settings.max_chunk_bytes, settings.chunk_bytes]
            limits.append(None if mtu is None else mtu - _CHUNK_OVERHEAD_BYTES)
            receiver = _native.BridgeReceiver(
                self._context.connection.conductor,
                mapping.payload,
                mapping.control,
                settings,
                ReceiverLimits(
                    chunk_bytes=min(limit for limit in limits if limit is not None),
                    # Without a configured MTU the channel's is the one that the sender reports.
                    fits_session_mtu=mtu is None,
                    silence_ns=_SILENT_PERIODS * self._context.connection.announce_period_ns,
                ),
                None if self._keys is None else self._keys.native,
            )
            self._receivers[addresses] = receiver
            self._silences[receiver] = StreamWatch()
            self._stack.callback(receiver.close)
        return self._receivers[addresses]

    def _destination(self, mapping: ResolvedMapping, candidates: list[int]) -> DestinationState:
        name = mapping.settings.profile
        layout = None
        if name not in (SOURCE_PROFILE, DRIVER_PROFILE):
            profile = next(profile for profile in self._settings.profiles if profile.name == name)
            layout = DestinationLayout(profile.nslots, profile.pools)
        return DestinationState(
            candidates,
            layout=layout,
            uses_source_layout=name == SOURCE_PROFILE,
            max_bytes=self._settings.max_destination_bytes,
        )

    def _publication(self, address: StreamAddress) -> _native.Publication:
        if address not in self._publications:
            publication = self._context.connection.publication(address)
            self._stack.callback(publication.close)
            self._publications[address] = publication
        return self._publications[address]

    def _dest_control(self, stream_id: int) -> StreamAddress:
        """The stream of forwarded progress and QoS reports that a mapping names."""
        return StreamAddress(self._context.stream_ids.control_channel, stream_id)

    def is_ready(self) -> bool:
        """Whether all receivers are subscribed and all destinations are attached that need no source."""
        return all(receiver.is_ready for receiver in self._receivers.values()) and all(
            mapping.destination.phase == "attached" or mapping.resolved.settings.profile == SOURCE_PROFILE
            for mapping in self._mappings
        )

    def obstacles(self) -> Iterator[str]:
        """Why frames cannot be received, one text per receiver."""
        for (payload, control), receiver in self._receivers.items():
            if not receiver.is_ready:
                yield (
                    f"the media driver does not open {payload} or {control}; "
                    "is the address one of this host, and is the port free?"
                )

    def rejections(self) -> Iterator[str]:
        """Why messages of senders are rejected, one text per receiver and reason."""
        for (payload, control), receiver in self._receivers.items():
            rejected = receiver.rejected()
            for reason, text in _REJECTIONS.items():
                if rejected[reason]:
                    yield f"messages on {payload} or {control} are rejected ({reason}): {text}"

    # --- duty cycle

    def do_work(self) -> int:
        """Attach destinations that are needed, and forward received messages."""
        work = 0
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_destinations_ns:
            self._next_destinations_ns = now_ns + _DESTINATION_PERIOD_NS
            for receiver in self._receivers.values():
                for stream_id in receiver.without_destination():
                    work += self._advance_destination(self._by_stream[receiver, stream_id])
            if self._without_start:
                self._without_start = [
                    mapping for mapping in self._without_start if not mapping.ledger.find_start(mapping)
                ]
        if now_ns >= self._next_watch_ns:
            self._next_watch_ns = now_ns + _WATCH_PERIOD_NS
            for (payload, control), receiver in self._receivers.items():
                self._watch(receiver, payload, control, now_ns)
            for address, stream in self._metadata_streams.items():
                self._watch_metadata(address, stream, now_ns)
        work += sum(links.send(now_ns) for links in self._links.values())
        for receiver in self._receivers.values():
            for message in receiver.poll_messages(_MAX_FRAGMENTS):
                self._on_message(receiver, message)
                work += 1
        for address, stream in self._metadata_streams.items():
            for message in stream.subscription.poll(_MAX_FRAGMENTS):
                self._on_metadata(address, stream, message)
                work += 1
        return work

    def _watch(
        self, receiver: _native.BridgeReceiver, payload: StreamAddress, control: StreamAddress, now_ns: int
    ) -> None:
        """Subscribe again to a stream that has stopped."""
        stopped_payload, stopped_control, messages = [], [], 0
        watches = []
        for stream_id, (chunks, native_messages) in receiver.traffic().items():
            watch = self._by_stream[receiver, stream_id].watch
            watches.append(watch)
            received = native_messages + watch.messages
            messages += received
            if watch.offered is not None and watch.payload.has_stopped(now_ns, chunks, watch.offered):
                stopped_payload.append(stream_id)
            # A sender says something on the control stream while it sends frames.
            if watch.control.has_stopped(now_ns, received, chunks):
                stopped_control.append(stream_id)
        if stopped_payload:
            _LOG.warning(
                "nothing arrives on %s of %s, though the sender has frames: it is opened again",
                payload,
                stopped_payload,
            )
            receiver.reopen_payload()
            # That is for all sources at once. The others lose frames by it, so each is waited for anew.
            for watch in watches:
                watch.payload.restart(now_ns)
        # Where no source says anything it costs nothing to try, and without it no check would find that both
        # streams have stopped.
        silence = self._silences[receiver]
        if not receiver.is_connected:
            silence.restart(now_ns)
        is_silent = silence.has_stopped(now_ns, messages, now_ns // SILENCE_NS)
        if stopped_control:
            _LOG.info("nothing arrives on %s of %s: it is opened again", control, stopped_control)
        elif is_silent:
            _LOG.debug("nothing arrives on %s: it is opened again", control)
        if stopped_control or is_silent:
            receiver.reopen_control()
            for watch in watches:
                watch.control.restart(now_ns)
            silence.restart(now_ns)

    @staticmethod
    def _watch_metadata(address: StreamAddress, stream: _MetadataStream, now_ns: int) -> None:
        """Subscribe again to a metadata stream that is silent: nothing says whether there was something."""
        if not stream.subscription.is_connected:
            stream.watch.restart(now_ns)
        if stream.watch.has_stopped(now_ns, stream.messages, now_ns // SILENCE_NS):
            _LOG.debug("nothing arrives on %s: it is opened again", address)
            stream.subscription.reopen()

    def _advance_destination(self, mapping: _ReceiverMapping) -> int:
        """Start the attach that is due, or finish the one that is done."""
        if mapping.attaching is not None:
            return self._finish_attach(mapping) if mapping.attaching.done() else 0
        state = mapping.receiver.state(mapping.resolved.source_stream_id)
        source = None
        if state.epoch is not None:
            strides = tuple(sorted(pool.stride_bytes for pool in state.pools))
            source = DestinationLayout(state.nslots or 0, strides)
        now_ns = self._clock.monotonic_ns()
        step = mapping.destination.next_step(now_ns, source, has_destination=state.has_destination)
        if step is None:
            return 0
        previous, mapping.producer = mapping.producer, None
        mapping.attaching = self._threads.submit(self._attach, step, mapping.resolved, previous)
        return 1

    def _attach(self, step: AttachStep, mapping: ResolvedMapping, previous: Producer | None) -> Producer:
        """Attach on another thread. The previous producer is closed first: a stream has one."""
        self._check_destinations()
        if previous is not None:
            previous.close()
        producer = self._context.producer(
            step.stream_id,
            pools=None if step.layout is None else list(step.layout.strides),
            nslots=None if step.layout is None else step.layout.nslots,
            descriptor_stream_id=mapping.settings.descriptor_stream_id,
            per_consumer_streams=False,
            # The forwarded announces are its announces: another one would hide the name of the source.
            announce_source=mapping.metadata is None,
        )
        try:
            # The driver may have started while this attach was waiting for it.
            self._check_destinations()
        except ConfigError:
            producer.close()
            raise
        return producer

    def _check_destinations(self) -> None:
        if not self._is_checked:
            self._is_checked = check_destinations(self._context, self._settings)

    def _finish_attach(self, mapping: _ReceiverMapping) -> int:
        attaching, mapping.attaching = mapping.attaching, None
        assert attaching is not None, "only called for an attach that is done"
        resolved, destination = mapping.resolved, mapping.destination
        try:
            mapping.producer = producer = attaching.result()
        except (AttachError, StreamBusy) as error:
            self._counters.refusals.add()
            code = error.code if isinstance(error, AttachError) else "REJECTED"
            failure = destination.on_refused(self._clock.monotonic_ns(), code, str(error))
            if isinstance(failure, DestinationFailure):
                reason = f"bridge.{resolved.key}.dest_stream_id {destination.stream_id}: {failure.reason}"
                raise RoleFailed(reason) from error
            _LOG.warning("no destination for stream %d yet: %s", resolved.source_stream_id, error)
            return 1
        except ConfigError as error:
            raise RoleFailed(str(error)) from error
        except TensorPoolError as error:
            destination.on_refused(self._clock.monotonic_ns(), "NO_ANSWER", str(error))
            _LOG.warning("no destination for stream %d yet: %s", resolved.source_stream_id, error)
            return 1
        destination.on_attached()
        if self._settings.forward_traces:
            # Opened before the first links come, so that they do not wait for it.
            self._pending_links(mapping)
        mapping.receiver.set_destination(resolved.source_stream_id, producer)
        self._counters.attaches.add()
        _LOG.info("stream %d is published as %d", resolved.source_stream_id, destination.stream_id)
        self._republish_metadata(mapping)
        return 1

    # --- messages

    def _on_message(self, receiver: _native.BridgeReceiver, message: bytes) -> None:
        """Forward a QoS report, or read a sender's ledger. Native threads forward progress."""
        info = read_info(message)
        if info is None:
            traced = read_traced_stream(message)
            if traced is None:
                self._on_ledger(receiver, message)
            else:
                self._publish_links(self._mapping_of_message(receiver, traced), message)
            return
        mapping = self._mapping_of_message(receiver, info.stream_id)
        if mapping is None or not self._settings.forward_qos or info.template_id not in QOS:
            return
        if control := mapping.resolved.settings.dest_control_stream_id:
            forwarded = replace_stream(message, mapping.destination.stream_id)
            is_sent = self._publication(self._dest_control(control)).offer(forwarded) == "sent"
            self._counters.count_forwarded("qos", is_sent)

    def _mapping_of_message(
        self, receiver: _native.BridgeReceiver, stream_id: int
    ) -> _ReceiverMapping | None:
        """The mapping that a message of the control stream belongs to; the message is counted there."""
        mapping = self._by_stream.get((receiver, stream_id))
        if mapping is not None:
            mapping.watch.messages += 1
        return mapping

    def _publish_links(self, mapping: _ReceiverMapping | None, message: bytes) -> None:
        """Publishes which frames a frame was made from, as the producer of the copy would."""
        producer = None if mapping is None else mapping.producer
        epoch = None if producer is None else producer.epoch
        if mapping is None or epoch is None or not self._settings.forward_traces:
            return
        links = replace_trace(message, mapping.destination.stream_id, epoch)
        if links is None:
            self._counters.count_forwarded("traces", False)
            return
        self._pending_links(mapping).add(links, self._clock.monotonic_ns())

    def _pending_links(self, mapping: _ReceiverMapping) -> PendingLinks:
        address = self._context.stream_ids.control_address_of(mapping.destination.stream_id)
        if address not in self._links:
            control = self._publication(address)
            self._links[address] = PendingLinks(
                lambda links: control.offer(links) == "sent",
                partial(self._counters.count_forwarded, "traces"),
            )
        return self._links[address]

    def _on_ledger(self, receiver: _native.BridgeReceiver, message: bytes) -> None:
        try:
            event = Event.decode(message)
        except CodecError:
            self._counters.invalid["control"].add()
            return
        sent = SenderLedger.decode(event.value) if event.key == LEDGER_KEY else None
        if sent is None:
            self._counters.invalid["ledger"].add()
            return
        mapping = self._mapping_of_message(receiver, sent.source_stream_id)
        if mapping is not None:
            mapping.watch.offered = sent.offered
            mapping.ledger.on_sender_ledger(sent, mapping)
            if not mapping.ledger.find_start(mapping) and mapping not in self._without_start:
                self._without_start.append(mapping)

    def _on_metadata(self, address: StreamAddress, stream: _MetadataStream, message: bytes) -> None:
        info = read_info(message)
        if info is None or info.template_id not in METADATA:
            self._counters.invalid["metadata"].add()
            return
        for mapping in self._mappings:
            resolved = mapping.resolved
            if resolved.metadata == address and resolved.source_stream_id == info.stream_id:
                stream.messages += 1
                self._cache_metadata(mapping, info, message)
                self._publish_metadata(mapping, info, message)

    @staticmethod
    def _cache_metadata(mapping: _ReceiverMapping, info: MessageInfo, message: bytes) -> None:
        """Keep the latest message of each kind and version for the next local epoch."""
        if info.template_id not in (DATA_SOURCE_ANNOUNCE, DATA_SOURCE_META):
            return
        if len(message) > _MAX_CACHED_BYTES:
            return
        key = _MetadataKey(info.template_id, read_meta_version(message, info.template_id))
        mapping.metadata.pop(key, None)
        mapping.metadata[key] = _CachedMetadata(info, message)
        if len(mapping.metadata) > _MAX_CACHED_MESSAGES:
            mapping.metadata.pop(next(iter(mapping.metadata)))

    def _publish_metadata(self, mapping: _ReceiverMapping, info: MessageInfo, message: bytes) -> None:
        stream_id = mapping.resolved.settings.metadata_stream_id or mapping.destination.stream_id
        forwarded: bytes | None = replace_stream(message, stream_id)
        if info.template_id == DATA_SOURCE_ANNOUNCE:
            producer = mapping.producer
            lease = None if producer is None else producer.lease()
            epoch = None if producer is None else producer.epoch
            if epoch is None:
                # There is no local epoch yet; the announce is published when there is one.
                return
            client_id = None if lease is None else lease.client_id
            forwarded = replace_source(message, stream_id, client_id or 1, epoch)
        # Version 0 is the metadata of a driver's configuration. Drivers publish it on the announce stream,
        # where consumers do not read it. Without any text it is of a producer that has no metadata.
        ids = self._context.stream_ids
        is_from_driver = read_meta_version(message, info.template_id) == 0 and not is_undescribed(
            info, message
        )
        address = (
            StreamAddress(SHARED_CHANNEL, ids.announce)
            if is_from_driver
            else ids.metadata_address_of(mapping.destination.stream_id)
        )
        is_sent = forwarded is not None and self._publication(address).offer(forwarded) == "sent"
        self._counters.count_forwarded("metadata", is_sent)

    def _republish_metadata(self, mapping: _ReceiverMapping) -> None:
        # Announces come first: DataSourceMeta belongs to the epoch of the announce before it.
        cached = mapping.metadata.values()
        for info, message in sorted(cached, key=lambda kept: kept.info.template_id != DATA_SOURCE_ANNOUNCE):
            self._publish_metadata(mapping, info, message)

    # --- status

    def totals(self) -> FrameTotals:
        """Frames delivered, their bytes, and frames received incompletely or dropped."""
        return sum_totals(receiver.totals() for receiver in self._receivers.values())

    def rows(self) -> list[ReceiverRow]:
        """The status of each mapping, with the joined ledger, as JSON."""
        return [self._row(mapping) for mapping in self._mappings]

    def _row(self, mapping: _ReceiverMapping) -> ReceiverRow:
        resolved, destination = mapping.resolved, mapping.destination
        state = mapping.receiver.state(resolved.source_stream_id)
        received = ReceiverLedger.from_state(state)
        joined = mapping.ledger.join(mapping)
        epoch = None if mapping.producer is None else mapping.producer.epoch
        return {
            "direction": "receive",
            "source_stream_id": resolved.source_stream_id,
            "dest_stream_id": destination.stream_id,
            "payload": str(resolved.payload),
            "fallback_uri": FallbackUri.of_row(self._settings, resolved),
            "connected": mapping.receiver.is_connected,
            "source_epoch": None if state.epoch is None else str(state.epoch),
            "epoch": None if epoch is None else str(epoch),
            "destination": destination.phase,
            "fault": destination.fault,
            "delivered": received.delivered,
            "bytes": state.bytes,
            "chunks": state.chunks,
            "dropped": received.dropped,
            "incomplete": received.incomplete,
            "chunks_ignored": {name: n for name, n in state.chunks_ignored.items() if n},
            "refused": self._count_rejected(mapping),
            "progress_sent": state.progress_sent,
            "ledger": None if joined is None else joined.to_json(),
        }

    def _count_rejected(self, mapping: _ReceiverMapping) -> dict[str, int]:
        """Rejected messages of the mapping's payload, control and metadata streams, by reason."""
        rejected = Counter(mapping.receiver.rejected())
        if mapping.resolved.metadata is not None:
            rejected += self._metadata_streams[mapping.resolved.metadata].subscription.rejected()
        return {name: n for name, n in rejected.items() if n}

    def close(self) -> None:
        """Close receivers, publications and destinations."""
        self._threads.shutdown(wait=True)
        # Native receivers stop before the memory that they write to is unmapped.
        self._stack.close()
        for mapping in self._mappings:
            if mapping.attaching is not None and mapping.producer is None:
                with suppress(TensorPoolError):
                    mapping.producer = mapping.attaching.result()
            if mapping.producer is not None:
                mapping.producer.close()
