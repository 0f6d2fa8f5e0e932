"""Rate limiters: the newest frames of a stream on another stream, at most this many a second.

Each limiter has one thread, which copies frames without the GIL (`crates/dataplane/src/limiter.rs`) and
forwards metadata in between. `LimiterAgent` is the role of `tensorpool limit`: several limiters in a process.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Literal, Self, TypedDict

from . import _native, sbe
from .attributes.metadata import BLOBS_KEY
from .client import Consumer, ConsumerLedger, Producer, ProducerKeywords
from .context import Context
from .errors import AttachError, ClosedError, CodecError, ConfigError, DiscoveryError, TensorPoolError
from .runtime.config import Secret, SizeBytes, setting, settings, table
from .sbe import DataSourceAnnounce, DataSourceMeta, FrameProgress, QosConsumer, QosProducer
from .service import Service, ServiceAgent, command
from .transport import StreamAddress
from .units import MAX_STREAM_ID, MAX_U32

Idle = Literal["backoff", "busy-spin", "yield", "sleep"]

_LOG = logging.getLogger(__name__)
_SLICE_S: Final = 0.05
_RETRY_S: Final = 0.1
_MAX_DETACH_ATTEMPTS: Final = 5
_NS: Final = 1_000_000_000
_MAX_MESSAGES: Final = 256
_MAX_AERON_STREAM: Final = (1 << 31) - 1


@table
class LimiterMapping:
    """One stream that is published again at a lower rate."""

    source_stream_id: int = setting("Stream that is read.", minimum=1, maximum=MAX_STREAM_ID)
    dest_stream_id: int = setting(
        "Stream that is published. The limiter is its only producer.", minimum=1, maximum=MAX_STREAM_ID
    )
    max_rate_hz: int | None = setting(
        "Frames a second at most. 0: all. None: as `limiter.max_rate_hz`.",
        default=None,
        minimum=0,
        maximum=MAX_U32,
    )
    metadata_stream_id: int = setting(
        "Aeron stream of forwarded metadata. 0: the shared metadata stream.",
        default=0,
        minimum=0,
        maximum=_MAX_AERON_STREAM,
    )
    nslots: int | None = setting(
        "Slots of the destination's header ring. None: as the source.", default=None, minimum=2
    )
    pools: tuple[SizeBytes, ...] = setting(
        "Strides of the destination's payload pools. Empty: as the source.", default=()
    )


@settings("limiter")
class LimiterSettings:
    """Rate limiters: publish streams again, at most this many frames a second."""

    instance_id: str = setting(
        "Name of this instance in logs and `service:limiter:<instance_id>`.", default=""
    )
    mappings: tuple[LimiterMapping, ...] = setting("Streams that are limited.", default=())
    max_rate_hz: int = setting(
        "Frames a second of mappings that set none. 0: all.", default=0, minimum=0, maximum=MAX_U32
    )
    forward_metadata: bool = setting("Forward names and attributes of the source.", default=True)
    forward_progress: bool = setting("Forward FrameProgress; needs both control stream ids.", default=False)
    forward_qos: bool = setting("Forward QoS reports; needs both QoS stream ids.", default=False)
    source_control_stream_id: int = setting(
        "Aeron stream of the sources' progress. 0: none.", default=0, minimum=0, maximum=_MAX_AERON_STREAM
    )
    dest_control_stream_id: int = setting(
        "Aeron stream of forwarded progress. 0: none.", default=0, minimum=0, maximum=_MAX_AERON_STREAM
    )
    source_qos_stream_id: int = setting(
        "Aeron stream of the sources' QoS. 0: none.", default=0, minimum=0, maximum=_MAX_AERON_STREAM
    )
    dest_qos_stream_id: int = setting(
        "Aeron stream of forwarded QoS. 0: none.", default=0, minimum=0, maximum=_MAX_AERON_STREAM
    )
    idle: Idle = setting(
        "Idle strategy of the threads that move frames; busy-spin and yield use a core each.",
        default="backoff",
    )

    def check(self) -> Iterator[tuple[str, str]]:
        """The faults of settings that depend on each other."""
        for stream_id, count in Counter(each.dest_stream_id for each in self.mappings).items():
            if count > 1:
                yield (
                    "mappings",
                    f"stream {stream_id} is the destination of {count} mappings: give each its own",
                )
        sources = {each.source_stream_id for each in self.mappings}
        for each in self.mappings:
            if each.dest_stream_id in sources:
                yield (
                    "mappings",
                    f"stream {each.dest_stream_id} is source and destination: chain limiters by two files",
                )
        for kind, first, second in (
            ("progress", self.source_control_stream_id, self.dest_control_stream_id),
            ("qos", self.source_qos_stream_id, self.dest_qos_stream_id),
        ):
            if getattr(self, f"forward_{kind}") and not (first and second):
                name = "control" if kind == "progress" else "qos"
                yield (
                    f"forward_{kind}",
                    f"set source_{name}_stream_id and dest_{name}_stream_id, or forward_{kind} = false",
                )


@dataclass(frozen=True, slots=True)
class LimiterLedger:
    """What became of the frames of the source.

    Frames that were left out are `rate_limited` in the ledger of the source; those that had their turn are
    `forwarded`, or dropped by reason. While the limiter runs, one frame may wait for its turn and is in no
    count; after `close` all are counted.
    """

    source: ConsumerLedger
    forwarded: int
    """Published on the destination, with or without a subscriber."""
    dropped: dict[str, int]
    """Frames that had their turn and could not be copied: overwritten, no_pool, no_slot."""

    def __str__(self) -> str:
        """One line, without the zeros."""
        dropped = ", ".join(f"{reason} {count}" for reason, count in self.dropped.items() if count)
        return f"forwarded {self.forwarded}; dropped: {dropped or '0'}; source: {self.source}"


class Limiter:
    """Publishes the newest frames of one stream on another, at most `max_rate_hz` a second.

        with tp.Limiter(ctx, "camera", 30000, max_rate_hz=10) as limiter:
            ...    # consumers of 30000 receive 10 frames a second
            print(limiter.ledger())

    Sequences, capture times, metadata versions and trace ids are those of the source. It never waits for a
    consumer. Another epoch of the source begins another one of the destination. `pools` and `nslots` of the
    destination are by default those of the source.
    """

    def __init__(
        self,
        context: Context,
        source: int | str,
        destination: int,
        *,
        max_rate_hz: float,
        pools: Sequence[int | str] | None = None,
        nslots: int | None = None,
        forward_metadata: bool = True,
        metadata_stream_id: int | None = None,
        idle: Idle = "backoff",
        forwarding: Sequence[Forwarding] = (),
    ) -> None:
        if isinstance(max_rate_hz, bool) or not 0 <= max_rate_hz <= MAX_U32:
            raise ConfigError(f"max_rate_hz {max_rate_hz!r}: use frames a second, as in 10; 0: all frames")
        self.source_stream_id = context.find_stream(source)
        """The stream that is read."""
        self.dest_stream_id = destination
        """The stream that is published."""
        if self.source_stream_id == destination:
            raise ConfigError(f"stream {destination} cannot be its own source: use another destination")
        self.max_rate_hz = max_rate_hz
        """Frames a second at most; 0: all."""
        self._context = context
        self._pools, self._nslots = pools, nslots
        self._metadata_stream_id = metadata_stream_id
        self._idle = idle
        self._forwarding = tuple(forwarding)
        self._stopping = threading.Event()
        self.error: BaseException | None = None
        """The error that ended the limiter; None while it runs."""
        self._warned = ""
        self._past: Counter[str] = Counter()
        self._native: _native.StreamLimiter | None = None
        self._producer: Producer | None = None
        self.consumer: Consumer = context.consumer(
            self.source_stream_id, label=f"limiter to {destination}", idle=idle
        )
        """The consumer of the source."""
        self._metadata = _MetadataForwarder(context, self.consumer) if forward_metadata else None
        self._thread = threading.Thread(target=self._run, name=f"tp-limiter-{destination}", daemon=True)
        self._thread.start()

    @property
    def producer(self) -> Producer | None:
        """The producer of the destination; None until the source is there."""
        return self._producer

    @property
    def is_running(self) -> bool:
        """Whether frames are forwarded, or will be once the source is there."""
        return self._thread.is_alive()

    def wait_ready(self, timeout: float = 10.0) -> bool:
        """Waits until the destination exists; False if that takes over `timeout` seconds."""
        deadline = threading.Event()
        for _ in range(max(1, int(timeout / 0.005))):
            if self._producer is not None or not self.is_running:
                break
            deadline.wait(0.005)
        return self._producer is not None

    def ledger(self) -> LimiterLedger:
        """What became of the frames of the source."""
        counts = Counter(self._past)
        native = self._native
        if native is not None:
            counts.update(native.counters())
        dropped = {reason: counts[reason] for reason in ("overwritten", "no_pool", "no_slot")}
        return LimiterLedger(self.consumer.ledger(), counts["forwarded"] + counts["unpublished"], dropped)

    def _run(self) -> None:
        """Forwards until closed; opens the destination again if that fails."""
        while not self._stopping.is_set():
            try:
                self._forward_frames()
                return
            except ConfigError as error:
                # The next attempt would fail too.
                self._end(error)
                return
            except TensorPoolError as error:
                if not (self._stopping.is_set() or self._context.closed):
                    self._warn(f"{error}; trying again")
                self._stopping.wait(_RETRY_S)
            except Exception as error:
                self._end(error)
                raise

    def _forward_frames(self) -> None:
        """Forwards until closed. Raises what goes wrong with the destination."""
        while not (self._stopping.is_set() or self._context.closed):
            producer = self._producer or self._open_destination()
            if producer is None or self._native is None:
                return
            stopped = self._native.run(_SLICE_S)
            if stopped == "closed":
                return
            if stopped == "epoch":
                # The source began another epoch, and its sequences begin again: so does the destination.
                self._producer = None
                producer.close()
            else:
                self._forward(producer)

    def _open_destination(self) -> Producer | None:
        """A new producer of the destination, for frames and metadata; None when closed."""
        producer = self._open_producer()
        if producer is None:
            return None
        # Kept at once, so that `close` finds it.
        self._producer = producer
        if self._native is None:
            interval_ns = round(_NS / self.max_rate_hz) if self.max_rate_hz else 0
            self._native = _native.StreamLimiter(self.consumer, producer, interval_ns, self._idle)
        else:
            self._native.set_producer(producer)
            if self._metadata is not None:
                self._metadata.republish(producer)
        return producer

    def _end(self, error: Exception) -> None:
        if not self._stopping.is_set():
            self.error = error
            _LOG.error("the limiter of stream %d ended: %s", self.dest_stream_id, error)

    def _warn(self, message: str) -> None:
        """Logs why there is no destination: once, until another reason comes."""
        if message != self._warned:
            self._warned = message
            _LOG.warning("the limiter of stream %d waits: %s", self.dest_stream_id, message)

    def _open_producer(self) -> Producer | None:
        """The producer of the destination, as soon as the source is there; None when closed."""
        attempts = 0
        while not (self._stopping.is_set() or self.consumer.closed):
            layout = self._layout()
            if layout is not None:
                pools, nslots = layout
                options: ProducerKeywords = {"pools": pools, "nslots": nslots, "announce_source": False}
                if self._metadata_stream_id:
                    options["metadata_stream_id"] = self._metadata_stream_id
                try:
                    producer = self._context.producer(self.dest_stream_id, **options)
                except AttachError as error:
                    if error.code != "REJECTED":
                        raise
                    # The driver may not have read the detach of the producer before yet. After a while it is
                    # another program's.
                    attempts += 1
                    if attempts >= _MAX_DETACH_ATTEMPTS:
                        self._warn(f"{error.reason}; {error.remedy}")
                else:
                    self._warned = ""
                    producer.report_source(self.source_stream_id)
                    return producer
            self._stopping.wait(_RETRY_S)
        return None

    def _layout(self) -> tuple[list[int | str], int] | None:
        """Pools and slots of the destination; None while the source is not there."""
        if self._pools and self._nslots:
            return list(self._pools), self._nslots
        if self.consumer.epoch is None:
            return None
        try:
            found = self._context.discover(stream_id=self.source_stream_id)
        except DiscoveryError as error:
            if self._pools:
                return list(self._pools), self._nslots or self.consumer.nslots or 8
            raise ConfigError(
                f"the layout of stream {self.source_stream_id} cannot be discovered ({error}); give the "
                'limiter pools and nslots, as in pools=["64KiB"], nslots=16'
            ) from None
        if not found:
            return None
        return list(self._pools or found[0].pools), self._nslots or found[0].nslots

    def _forward(self, producer: Producer) -> None:
        if self._metadata is not None:
            self._metadata.do_work(producer)
        for forwarding in self._forwarding:
            forwarding.do_work(self.source_stream_id, self.dest_stream_id, producer.epoch)

    def _count_last(self) -> None:
        """Keeps the counts of the native limiter, whose end counts the frame that waited for its turn."""
        if self._native is not None:
            self._past.update(self._native.counters())
            self._native = None

    def close(self) -> None:
        """Ends the limiter and its destination."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
            self._count_last()
        with ExitStack() as stack:
            if self._producer is not None:
                stack.callback(self._producer.close)
            stack.callback(self.consumer.close)
            if self._metadata is not None:
                stack.callback(self._metadata.close)

    def __repr__(self) -> str:
        state = "running" if self.is_running else "ended"
        return (
            f"<Limiter {self.source_stream_id} -> {self.dest_stream_id} "
            f"max_rate_hz={self.max_rate_hz:g} {state}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _MetadataForwarder:
    """Publishes name, attributes and blobs of a source under another stream id, with the same versions."""

    def __init__(self, context: Context, consumer: Consumer) -> None:
        ids = context.stream_ids
        self._consumer = consumer
        self._stream_id = consumer.stream_id
        self._subscription = context.connection.subscription(
            StreamAddress(ids.metadata_channel, ids.metadata)
        )
        self._announce: DataSourceAnnounce | None = None
        self._meta: DataSourceMeta | None = None
        self._blobs: dict[int, tuple[int, bytes]] = {}
        """The blobs of the current attributes that are complete, by type, with their version."""
        self._published: tuple[DataSourceAnnounce, DataSourceMeta, dict[int, int]] | None = None

    def do_work(self, producer: Producer) -> None:
        """Publishes what has changed."""
        for message in self._subscription.poll(_MAX_MESSAGES):
            with suppress(CodecError):
                decoded = sbe.decode(message)
                if isinstance(decoded, DataSourceAnnounce) and decoded.stream_id == self._stream_id:
                    self._announce = decoded
                elif isinstance(decoded, DataSourceMeta) and decoded.stream_id == self._stream_id:
                    self._meta = decoded
        self._publish(producer)

    def republish(self, producer: Producer) -> None:
        """Publishes everything again, on a new producer."""
        self._published = None
        self._blobs.clear()
        self._publish(producer)

    def _publish(self, producer: Producer) -> None:
        announce, meta = self._announce, self._meta
        if announce is None or meta is None or announce.meta_version != meta.meta_version:
            return
        # Producer id and epoch of the announce are filled in by the publisher: only the content counts.
        self._collect_blobs()
        versions = {blob_type: version for blob_type, (version, _) in self._blobs.items()}
        content = (replace(announce, epoch=0, producer_id=0), meta, versions)
        if content == self._published:
            return
        stream_id = producer.stream_id
        producer.republish_metadata(
            meta.meta_version,
            replace(announce, stream_id=stream_id).encode(),
            replace(meta, stream_id=stream_id).encode(),
            self._blobs,
        )
        self._published = content

    def _collect_blobs(self) -> None:
        """Takes the blobs that the attributes name and whose chunks have all arrived."""
        epoch, attributes = self._consumer.epoch, self._consumer.metadata or {}
        named = attributes.get(BLOBS_KEY)
        named = named if isinstance(named, dict) else {}
        wanted = {
            int(key): version
            for key, version in named.items()
            if key.isdecimal() and isinstance(version, int) and 0 <= version <= MAX_U32
        }
        self._blobs = {
            blob_type: blob for blob_type, blob in self._blobs.items() if wanted.get(blob_type) == blob[0]
        }
        for blob_type, version in wanted.items():
            if epoch is not None and blob_type not in self._blobs and blob_type <= MAX_U32:
                blob = self._consumer.find_blob(blob_type, (epoch, version), exact=True)
                if blob is not None:
                    self._blobs[blob_type] = version, blob

    def close(self) -> None:
        """Closes the subscription."""
        self._subscription.close()


class Forwarding:
    """Messages of one kind about a source, published again under the id of its destination."""

    def __init__(
        self,
        context: Context,
        kinds: tuple[type[FrameProgress | QosConsumer | QosProducer], ...],
        channel: str,
        source_stream_id: int,
        dest_stream_id: int,
    ) -> None:
        self._kinds = kinds
        self._messages = context.connection.subscription(StreamAddress(channel, source_stream_id))
        self._publication = context.connection.publication(StreamAddress(channel, dest_stream_id))

    def do_work(self, source_stream_id: int, dest_stream_id: int, epoch: int | None) -> None:
        """Forwards what has arrived. Sequences are kept; the epoch is the destination's."""
        for message in self._messages.poll(_MAX_MESSAGES):
            with suppress(CodecError):
                decoded = sbe.decode(message)
                if isinstance(decoded, self._kinds) and decoded.stream_id == source_stream_id and epoch:
                    self._publication.offer(replace(decoded, stream_id=dest_stream_id, epoch=epoch).encode())

    def close(self) -> None:
        """Closes subscription and publication."""
        self._messages.close()
        self._publication.close()


class LimiterStatus(TypedDict):
    """One mapping in the status of a limiter."""

    source_stream_id: int
    dest_stream_id: int
    max_rate_hz: float
    running: bool
    source_epoch: str | None
    epoch: str | None
    forwarded: int
    dropped: dict[str, int]
    rate_limited: int


class LimiterReply(TypedDict):
    """The reply to `status()` of a limiter process."""

    pid: int
    mappings: list[LimiterStatus]


class LimiterService(Service, name="limiter"):
    """The service of a limiter process."""

    def __init__(self, agent: LimiterAgent, *, instance: str | None, token: Secret | None) -> None:
        super().__init__(instance=instance, token=token)
        self._agent = agent

    @command(reads=True)
    def status(self) -> LimiterReply:
        """The mappings, their epochs and their counts."""
        return {"pid": os.getpid(), "mappings": self._agent.status()}


class LimiterAgent:
    """The limiters of a configuration, for a `Runner` or `run_role`."""

    name = "limiter"

    def __init__(
        self, context: Context, *, settings: LimiterSettings, service_token: Secret | None = None
    ) -> None:
        self._context = context
        self._settings = settings
        self._token = service_token
        self._stack = ExitStack()
        self._limiters: list[Limiter] = []
        self._service: ServiceAgent | None = None

    def on_start(self) -> None:
        """Opens all mappings. Raises ConfigError without any."""
        settings, context = self._settings, self._context
        if not settings.mappings:
            raise ConfigError(
                "limiter.mappings: name the streams, as in [[limiter.mappings]] source_stream_id = 10000, "
                "dest_stream_id = 30000, max_rate_hz = 10"
            )
        for mapping in settings.mappings:
            rate = settings.max_rate_hz if mapping.max_rate_hz is None else mapping.max_rate_hz
            limiter = Limiter(
                context,
                mapping.source_stream_id,
                mapping.dest_stream_id,
                max_rate_hz=rate,
                pools=mapping.pools or None,
                nslots=mapping.nslots,
                forward_metadata=settings.forward_metadata,
                metadata_stream_id=mapping.metadata_stream_id or None,
                idle=settings.idle,
                forwarding=self._forwarding(),
            )
            self._limiters.append(self._stack.enter_context(limiter))
        connection = context.connection
        service = LimiterService(self, instance=settings.instance_id or None, token=self._token)
        self._service = ServiceAgent(service, connection.conductor, connection.services)
        self._stack.callback(self._service.on_close)

    def _forwarding(self) -> list[Forwarding]:
        settings, ids = self._settings, self._context.stream_ids
        forwarding = []
        if settings.forward_progress:
            streams = settings.source_control_stream_id, settings.dest_control_stream_id
            forwarding.append(Forwarding(self._context, (FrameProgress,), ids.control_channel, *streams))
        if settings.forward_qos:
            streams = settings.source_qos_stream_id, settings.dest_qos_stream_id
            kinds = (QosConsumer, QosProducer)
            forwarding.append(Forwarding(self._context, kinds, ids.qos_channel, *streams))
        for each in forwarding:
            self._stack.callback(each.close)
        return forwarding

    def is_ready(self) -> bool:
        """Whether the service answers. The sources may come later."""
        return self._service is not None and self._service.is_ready()

    def do_work(self) -> int:
        """Answers requests. Raises the error of a limiter that ended."""
        if self._service is None:
            raise ClosedError("the limiter has not started, or is closed")
        for limiter in self._limiters:
            if limiter.error is not None:
                error, limiter.error = limiter.error, None
                raise error
        return self._service.do_work()

    def status(self) -> list[LimiterStatus]:
        """All mappings."""
        return [_status(limiter) for limiter in self._limiters]

    def on_close(self) -> None:
        """Closes all mappings."""
        self._stack.close()


def _status(limiter: Limiter) -> LimiterStatus:
    ledger, producer = limiter.ledger(), limiter.producer
    source_epoch = limiter.consumer.epoch
    epoch = None if producer is None else producer.epoch
    return {
        "source_stream_id": limiter.source_stream_id,
        "dest_stream_id": limiter.dest_stream_id,
        "max_rate_hz": limiter.max_rate_hz,
        "running": limiter.is_running,
        "source_epoch": None if source_epoch is None else str(source_epoch),
        "epoch": None if epoch is None else str(epoch),
        "forwarded": ledger.forwarded,
        "dropped": ledger.dropped,
        "rate_limited": ledger.source.dropped.get("rate_limited", 0),
    }
