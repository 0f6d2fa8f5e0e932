"""The receiving mappings of an instance: native loops put frames together, and this gives them their places.

A destination is a producer on this host's driver, taken up when it is needed and anew at each epoch of its
source. Taking one up may wait for the driver, so it is done on threads of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from .. import _native
from ..client import Producer
from ..clock import Clock
from ..context.context import Context
from ..errors import AttachError, CodecError, RoleFailed, StreamBusy, TensorPoolError
from ..service import Event
from ..transport import StreamAddress
from .config import AS_DRIVER, AS_SOURCE, BridgeSettings
from .counters import BridgeCounters, sum_each
from .forwarding import (
    METADATA,
    QOS,
    SOURCE_ANNOUNCE,
    SOURCE_META,
    read_info,
    version_of,
    with_source,
    with_stream,
)
from .ledger import LEDGER_KEY, MappingLedger, ReceiverLedger, SenderLedger
from .mappings import FallbackUri, ResolvedMapping
from .state import Attach, DestinationLayout, DestinationState, Fail

_LOG = logging.getLogger(__name__)
_IPC: Final = "aeron:ipc"
_LIMIT: Final = 256
_ATTACHING: Final = 4
# Far above any announce period: by then a source that went back to lower epochs is believed.
_SILENT_PERIODS: Final = 5
_MAX_SAID: Final = 16
_MAX_KEPT_BYTES: Final = 64 << 10
# Mappings that wait for their source are looked at no more often than this.
_LOOK_NS: Final = 5_000_000


@dataclass(eq=False)
class _Arrival:
    """A mapping at its destination."""

    route: ResolvedMapping
    receiver: _native.BridgeReceiver
    state: DestinationState
    producer: Producer | None = None
    attaching: Future[Producer] | None = None
    book: MappingLedger = field(default_factory=MappingLedger)
    said: dict[tuple[int, int | None], bytes] = field(default_factory=dict)
    """Metadata heard last, to be said again under a new local epoch."""

    def received(self, sessions: tuple[int, ...]) -> tuple[ReceiverLedger, bool]:
        delivered, turned_away, lost, is_all = self.receiver.received(self.route.source_stream_id, sessions)
        return ReceiverLedger(delivered, turned_away, lost), is_all

    def cut(self, session: int, position: int | None) -> ReceiverLedger | None:
        found = self.receiver.cut(self.route.source_stream_id, session, position)
        return None if found is None else ReceiverLedger(*found)


class ReceiverMappings:
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
        self._ctx = ctx
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._stack = ExitStack()
        self._receivers: dict[tuple[StreamAddress, StreamAddress], _native.BridgeReceiver] = {}
        self._arrivals: list[_Arrival] = []
        self._by_stream: dict[tuple[_native.BridgeReceiver, int], _Arrival] = {}
        self._unsettled: list[_Arrival] = []
        """Whose sender was heard of, and it is not known yet where its account begins."""
        self._publications: dict[int, _native.Publication] = {}
        self._metadata_ears: dict[StreamAddress, _native.Subscription] = {}
        self._next_look_ns = 0
        self._threads = ThreadPoolExecutor(_ATTACHING, "tp-bridge-attach")
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    # --- what is opened

    def _open(self) -> None:
        settings, ctx = self._settings, self._ctx
        free = list(settings.dest_stream_id_range or ())
        for number, route in enumerate(self.routes):
            receiver = self._receiver(route)
            candidates = [route.dest_stream_id] if route.dest_stream_id else free[number:] + free[:number]
            arrival = _Arrival(route, receiver, self._destination(route, candidates))
            self._arrivals.append(arrival)
            self._by_stream[receiver, route.source_stream_id] = arrival
            control = route.mapping.dest_control_stream_id
            progress = (_IPC, control) if settings.forward_progress and control else None
            receiver.add(route.source_stream_id, arrival.state.stream_id, progress)
            if settings.forward_qos and control:
                self._publication(control)
            if route.metadata is not None:
                self._publication(ctx.stream_ids.metadata)
                self._publication(ctx.stream_ids.announce)
                if route.metadata not in self._metadata_ears:
                    self._metadata_ears[route.metadata] = ear = _native.Subscription(
                        ctx.connection.conductor, route.metadata.channel, route.metadata.stream_id
                    )
                    self._stack.callback(ear.close)

    def _receiver(self, route: ResolvedMapping) -> _native.BridgeReceiver:
        settings = self._settings
        way = (route.payload, route.control)
        if way not in self._receivers:
            bounds = [settings.max_chunk_bytes, settings.chunk_bytes]
            bounds.append(None if settings.mtu_bytes is None else settings.mtu_bytes - 128)
            self._receivers[way] = made = _native.BridgeReceiver(
                self._ctx.connection.conductor,
                route.payload.channel,
                route.payload.stream_id,
                route.control.channel,
                route.control.stream_id,
                chunk_bytes=min(one for one in bounds if one is not None),
                max_payload_bytes=settings.max_payload_bytes,
                timeout_ns=settings.assembly_timeout_ms * 1_000_000,
                silence_ns=_SILENT_PERIODS * self._ctx.connection.announce_period_ns,
                integrity=settings.integrity,
                idle=settings.idle,
            )
            self._stack.callback(made.close)
        return self._receivers[way]

    def _destination(self, route: ResolvedMapping, candidates: list[int]) -> DestinationState:
        profile = route.mapping.profile
        layout = None
        if profile not in (AS_SOURCE, AS_DRIVER):
            found = next(one for one in self._settings.profiles if one.name == profile)
            layout = DestinationLayout(found.nslots, found.pools)
        return DestinationState(
            candidates,
            layout=layout,
            as_source=profile == AS_SOURCE,
            max_bytes=self._settings.max_destination_bytes,
        )

    def _publication(self, stream_id: int) -> _native.Publication:
        if stream_id not in self._publications:
            made = _native.Publication(self._ctx.connection.conductor, _IPC, stream_id)
            self._stack.callback(made.close)
            self._publications[stream_id] = made
        return self._publications[stream_id]

    def is_ready(self) -> bool:
        """Subscribed; and every destination that does not wait for its source is there."""
        return all(one.is_ready for one in self._receivers.values()) and all(
            one.state.phase == "attached" or one.route.mapping.profile == AS_SOURCE for one in self._arrivals
        )

    def missing(self) -> Iterator[str]:
        """What keeps frames from arriving, in words."""
        for (payload, control), receiver in self._receivers.items():
            if not receiver.is_ready:
                yield (
                    f"the media driver does not open {payload} or {control}; "
                    "is the address one of this host, and is the port free?"
                )

    # --- the turns

    def do_work(self) -> int:
        work = 0
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + _LOOK_NS
            for receiver in self._receivers.values():
                for stream_id in receiver.wanting():
                    work += self._settle(self._by_stream[receiver, stream_id])
            if self._unsettled:
                self._unsettled = [one for one in self._unsettled if not one.book.settle(one)]
        for receiver in self._receivers.values():
            for word in receiver.words(_LIMIT):
                self._on_word(receiver, word)
                work += 1
        for at, ear in self._metadata_ears.items():
            for message in ear.poll(_LIMIT):
                self._on_metadata(at, message)
                work += 1
        return work

    def _settle(self, arrival: _Arrival) -> int:
        """Moves a destination on: the step that is due, and what came of the last one."""
        if arrival.attaching is not None:
            return self._finish(arrival) if arrival.attaching.done() else 0
        standing = arrival.receiver.standing(arrival.route.source_stream_id)
        source = None
        if standing["epoch"] is not None:
            strides = tuple(sorted(stride for _, stride in standing["pools"]))
            source = DestinationLayout(standing["nslots"], strides)
        now_ns = self._clock.monotonic_ns()
        step = arrival.state.next(now_ns, source, has_destination=standing["has_destination"])
        if step is None:
            return 0
        before, arrival.producer = arrival.producer, None
        arrival.attaching = self._threads.submit(self._attach, step, arrival.route, before)
        return 1

    def _attach(self, step: Attach, route: ResolvedMapping, before: Producer | None) -> Producer:
        """On a thread of its own. The old producer goes first: a stream has one."""
        if before is not None:
            before.close()
        return self._ctx.producer(
            step.stream_id,
            pools=None if step.layout is None else list(step.layout.strides),
            nslots=None if step.layout is None else step.layout.nslots,
            descriptor_stream_id=route.mapping.descriptor_stream_id,
            per_consumer_streams=False,
        )

    def _finish(self, arrival: _Arrival) -> int:
        attaching, arrival.attaching = arrival.attaching, None
        assert attaching is not None, "only called for one that is done"
        route = arrival.route
        try:
            arrival.producer = producer = attaching.result()
        except (AttachError, StreamBusy) as error:
            self._counters.refusals.add()
            code = error.code if isinstance(error, AttachError) else "REJECTED"
            fail = arrival.state.refused(self._clock.monotonic_ns(), code, str(error))
            if isinstance(fail, Fail):
                reason = f"bridge.{route.key}.dest_stream_id {arrival.state.stream_id}: {fail.reason}"
                raise RoleFailed(reason) from error
            _LOG.warning("no destination for stream %d yet: %s", route.source_stream_id, error)
            return 1
        except TensorPoolError as error:
            arrival.state.refused(self._clock.monotonic_ns(), "NO_ANSWER", str(error))
            _LOG.warning("no destination for stream %d yet: %s", route.source_stream_id, error)
            return 1
        arrival.state.attached()
        arrival.receiver.give(route.source_stream_id, producer)
        self._counters.attaches.add()
        _LOG.info("stream %d arrives as %d", route.source_stream_id, arrival.state.stream_id)
        self._repeat_metadata(arrival)
        return 1

    # --- words

    def _on_word(self, receiver: _native.BridgeReceiver, word: bytes) -> None:
        head = read_info(word)
        if head is None:
            self._on_ledger(receiver, word)
            return
        if not self._settings.forward_qos or head.template_id not in QOS:
            return
        arrival = self._by_stream.get((receiver, head.stream_id))
        control = 0 if arrival is None else arrival.route.mapping.dest_control_stream_id
        if arrival is not None and control:
            sent = self._publication(control).offer(with_stream(word, arrival.state.stream_id)) == "sent"
            (self._counters.forwarded if sent else self._counters.unforwarded)["qos"].add()

    def _on_ledger(self, receiver: _native.BridgeReceiver, word: bytes) -> None:
        try:
            event = Event.decode(word)
        except CodecError:
            self._counters.unusable["word"].add()
            return
        sent = SenderLedger.decode(event.value) if event.key == LEDGER_KEY else None
        if sent is None:
            self._counters.unusable["ledger"].add()
            return
        arrival = self._by_stream.get((receiver, sent.source_stream_id))
        if arrival is not None:
            arrival.book.hear(sent, arrival)
            if not arrival.book.settle(arrival) and arrival not in self._unsettled:
                self._unsettled.append(arrival)

    def _on_metadata(self, at: StreamAddress, message: bytes) -> None:
        head = read_info(message)
        if head is None or head.template_id not in METADATA:
            self._counters.unusable["metadata"].add()
            return
        for arrival in self._arrivals:
            if arrival.route.metadata == at and arrival.route.source_stream_id == head.stream_id:
                # One of each kind and version: what a newcomer, or a new epoch, has to be told.
                if head.template_id in (SOURCE_ANNOUNCE, SOURCE_META) and len(message) <= _MAX_KEPT_BYTES:
                    version = version_of(message, head.template_id)
                    arrival.said.pop((head.template_id, version), None)
                    arrival.said[head.template_id, version] = message
                    if len(arrival.said) > _MAX_SAID:
                        arrival.said.pop(next(iter(arrival.said)))
                self._say_metadata(arrival, message)

    def _say_metadata(self, arrival: _Arrival, message: bytes) -> None:
        head = read_info(message)
        assert head is not None, "judged before"
        stream_id = arrival.route.mapping.metadata_stream_id or arrival.state.stream_id
        said: bytes | None = with_stream(message, stream_id)
        if head.template_id == SOURCE_ANNOUNCE:
            producer = arrival.producer
            lease = None if producer is None else producer.lease()
            epoch = None if producer is None else producer.epoch
            if epoch is None:
                # There is nothing yet that it could speak of; it is said when there is.
                return
            said = with_source(message, stream_id, (lease or {}).get("client_id") or 1, epoch)
        # What a driver's configuration says (version 0) goes where drivers say it: to no consumer's ear.
        ids = self._ctx.stream_ids
        by_driver = version_of(message, head.template_id) == 0
        sent = (
            said is not None
            and self._publication(ids.announce if by_driver else ids.metadata).offer(said) == "sent"
        )
        (self._counters.forwarded if sent else self._counters.unforwarded)["metadata"].add()

    def _repeat_metadata(self, arrival: _Arrival) -> None:
        # The announce first: what follows is of the epoch that it names.
        for message in sorted(arrival.said.values(), key=lambda one: one[2:4] != b"\x07\x00"):
            self._say_metadata(arrival, message)

    # --- how it stands

    def sums(self) -> tuple[int, int, int]:
        """Frames delivered, their bytes, and those of which chunks came and no frame."""
        return sum_each(one.sums() for one in self._receivers.values())

    def rows(self) -> list[dict[str, Any]]:
        """How each mapping stands, joined with what its sender told."""
        return [self._row(one) for one in self._arrivals]

    def _row(self, arrival: _Arrival) -> dict[str, Any]:
        standing = arrival.receiver.standing(arrival.route.source_stream_id)
        received = ReceiverLedger.of(standing)
        joined = arrival.book.join(arrival)
        producer = arrival.producer
        local = None if producer is None else producer.epoch
        return {
            "direction": "receive",
            "source_stream_id": arrival.route.source_stream_id,
            "dest_stream_id": arrival.state.stream_id,
            "payload": str(arrival.route.payload),
            "fallback_uri": str(FallbackUri.of(self._settings.instance_id, arrival.route)),
            "connected": arrival.receiver.is_connected,
            "source_epoch": None if standing["epoch"] is None else str(standing["epoch"]),
            "epoch": None if local is None else str(local),
            "destination": arrival.state.phase,
            "fault": arrival.state.fault,
            "delivered": received.delivered,
            "bytes": standing["bytes"],
            "chunks": standing["chunks"],
            "dropped": received.dropped,
            "incomplete": received.incomplete,
            "chunks_ignored": {name: n for name, n in standing["chunks_ignored"].items() if n},
            "refused": {name: n for name, n in arrival.receiver.refused().items() if n},
            "progress_said": standing["progress_said"],
            "ledger": None if joined is None else joined.as_dict(),
        }

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        # The native loops stop before the memory that they write to goes.
        self._stack.close()
        for arrival in self._arrivals:
            if arrival.attaching is not None and arrival.producer is None:
                with suppress(TensorPoolError):
                    arrival.producer = arrival.attaching.result()
            if arrival.producer is not None:
                arrival.producer.close()
