"""The context that `tensorpool.open()` returns: a connection, a driver, and the endpoints that use them.

Methods may be called from several threads. A context belongs to the process that opened it and cannot be used
in a forked child.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from .. import _native
from ..attributes.metadata import describe
from ..client import (
    Consumer,
    ConsumerKeywords,
    ConsumerOptions,
    LeaseOptions,
    MetadataOptions,
    PerConsumerStreams,
    Producer,
    ProducerKeywords,
    ProducerOptions,
    ReportOptions,
    SourceDescription,
    TraceIds,
    Tracer,
    wait_attached,
)
from ..client.lease import attach_error, lease_status
from ..client.options import FRESH_PERIODS, check_stream_id, metadata_stream_id
from ..discovery import DiscoveredStream, DiscoverySettings, make_filter
from ..driver import DriverAgent, DriverSettings, EmbeddedDriver, namespace_on, qualified_namespace
from ..errors import (
    AttachError,
    ClosedError,
    CommandFailed,
    ConfigError,
    ForkedError,
    NoSuchService,
    RequestRejected,
    ServiceError,
    ServiceTimeout,
)
from ..runtime.agent import CompositeAgent
from ..runtime.config import Config, Secret
from ..runtime.counters import CounterPublisher
from ..runtime.logs import Logging
from ..runtime.process import Readiness
from ..runtime.role import LogSettings, RuntimeSettings, reload
from ..runtime.runner import Runner
from ..service import Event as ServiceEvent
from ..service import (
    RunningService,
    Service,
    ServiceAgent,
    ServiceClient,
    ServiceIdentity,
    find_services,
    watch_all,
)
from ..service.client import DEFAULT_TIMEOUT_S
from ..transport import (
    SHARED_CHANNEL,
    Connection,
    ConnectionOptions,
    ServiceStreams,
    StreamAddress,
    StreamIds,
    descriptor_channel,
)
from .driver_host import DriverHost, Mode, layout_fault, provision_stream, query_announce_period
from .locate import (
    StreamLocator,
    check_stream_reference,
    control_address,
    fallback_stream_id,
    find_consumer,
)
from .standalone import create_regions

if TYPE_CHECKING:
    from ..recorder.recorder import Recorder
    from ..replayer import Replay

_LOG = logging.getLogger(__name__)
_DRIVER_TIMEOUT_S: Final = 1.0
_PROVISION_RETRY_S: Final = 0.01
# `next_event` needs a timeout: this one, 30 years, never ends.
_NO_TIMEOUT_S: Final = 1e9
# At most so many endpoints of a context publish reports: a media driver has room for some thousand counters,
# and a program may have a thousand streams.
_MAX_REPORTERS: Final = 64
# Held only while an endpoint opens.
_reporters_lock = threading.Lock()
_T = TypeVar("_T")
_open_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a connection, or of one of its producers and consumers.

    media_driver_connected, media_driver_lost; for UDP channels network_connected, network_lost,
    network_failed; mapped, unmapped, refused, aeron_error; with a driver attached,
    attach_refused, revoked, driver_shutdown, driver_lost; between a consumer and its producer declined,
    fallback, fallback_mapped, fallback_failed, fallback_ended, fallback_unsupported, id_collision,
    regions_lost.
    """

    kind: str
    at_ns: int
    stream_id: int | None
    epoch: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Everything that `tensorpool.open()` takes from its arguments and the configuration."""

    mode: Mode
    namespace: str
    shm_base_dir: Path
    connection: ConnectionOptions
    service_token: Secret | None
    driver: DriverSettings
    """Settings of a driver that this context embeds."""
    discovery: DiscoverySettings
    lease: LeaseOptions
    descriptor_term_bytes: int
    per_consumer_streams: PerConsumerStreams
    reports: ReportOptions


class Context:
    """A connection to a media driver and an SHM driver, with the producers and consumers of a program.

    `tensorpool.open()` returns it. Close it, or use it in a `with` block.
    """

    def __init__(self, options: ContextOptions) -> None:
        self._options = options
        self.report_options = options.reports
        """What producers and consumers that are opened from now on report."""
        self._trace_ids: TraceIds | None = None
        self._endpoints: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        self._reporting: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        self._services: set[RunningService] = set()
        self._metadata_listeners: dict[int, _native.MetadataListener] = {}
        self._siblings: dict[StreamAddress, Context] = {}
        self._closed = False
        self._has_driver_period = False
        self._lease = options.lease
        self.connection = Connection.open(options.connection)
        self._locator = StreamLocator(
            self.connection, options.discovery, has_driver=options.mode != "standalone"
        )
        self._driver_host = self._create_driver_host()
        try:
            self._driver_host.start()
        except BaseException:
            self.connection.close()
            raise
        _open_contexts.add(self)

    def _create_driver_host(self) -> DriverHost:
        options, connection = self._options, self.connection
        # Clients of an embedded driver may create any stream: it has no operator who could list them.
        settings = replace(options.driver, any_stream=True)

        def embed() -> EmbeddedDriver:
            agent = DriverAgent(
                connection.conductor,
                settings=settings,
                namespace=options.namespace,
                base_dir=options.shm_base_dir,
                aeron_dir=connection.aeron_dir,
                stream_ids=connection.stream_ids,
                service_streams=connection.services,
                service_token=options.service_token,
                announce_period_ns=connection.announce_period_ns,
                embedded=True,
                discovery=options.discovery,
            )
            return EmbeddedDriver(agent)

        return DriverHost(
            options.mode,
            embed=embed,
            # Refers to the context: a context without references is then closed at exit, by `_close_all`, and
            # not freed before it is closed.
            is_connected=lambda: self.connected,
            qualified_namespace=qualified_namespace(options.namespace, options.driver.instance_id),
            aeron_dir=connection.aeron_dir,
            control_stream_id=connection.stream_ids.control,
        )

    # --- state

    @property
    def mode(self) -> Mode:
        """How this context gets its memory: auto, driver, embedded or standalone."""
        return self._options.mode

    @property
    def namespace(self) -> str:
        """The namespace whose driver this context uses."""
        return self._options.namespace

    @property
    def shm_base_dir(self) -> Path:
        """The directory below which regions are created."""
        return self._options.shm_base_dir

    @property
    def aeron_dir(self) -> str:
        """The directory of the media driver."""
        return self.connection.aeron_dir

    @property
    def stream_ids(self) -> StreamIds:
        """The ids of the shared streams."""
        return self.connection.stream_ids

    @property
    def service_streams(self) -> ServiceStreams:
        """The streams of all services."""
        return self.connection.services

    @property
    def per_consumer_streams(self) -> PerConsumerStreams:
        """Channels and id ranges of per-consumer streams."""
        return self._options.per_consumer_streams

    @property
    def embeds_driver(self) -> bool:
        """Whether the SHM driver runs inside this process."""
        self.connection.check_process()
        return self._driver_host.is_embedded

    @property
    def embeds_media_driver(self) -> bool:
        """Whether the media driver runs inside this process."""
        return self.connection.embeds_media_driver

    @property
    def connected(self) -> bool:
        """Whether the media driver answers at the moment. The conductor reconnects by itself."""
        return self.connection.connected

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """Events in order; waits for more until closed, or until `timeout` seconds pass without one."""
        wait_s = _NO_TIMEOUT_S if timeout is None else timeout
        while (event := self.connection.conductor.next_event(wait_s)) is not None:
            yield Event(*event)

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Calls `callback` with each event since the last call; returns at once."""
        for event in self.events(timeout=0.0):
            callback(event)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this context is closed; open a new one")

    # --- producers and consumers

    def producer(self, stream_id: int, **options: Unpack[ProducerKeywords]) -> Producer:
        """The producer of `stream_id`: a stream has one at a time. Raises AttachError if the driver refuses.

        `pools`: payload sizes (`["64KiB", "1MiB"]`). `nslots`, a power of two: how many frames a consumer may
        lag behind before they are overwritten. Values that are not given are the driver's for this stream.
        All memory is allocated now.

        `name`, `tags` and `metadata` are published to every consumer (see `producer.set_metadata`). `dtype`
        declares an element type that has no number on the wire, as in "float16"; a producer with metadata
        also declares it with the first array of such a type.

        `traces=True` gives every frame a trace id and lets `offer(array, parents=[frame, …])` publish its
        lineage. `publish_timestamps` adds the time of publication to each descriptor. `prefault=False` leaves
        the memory to be paged in by the first frames. `require_hugepages`: refuse memory without huge pages.
        `per_consumer_streams=False`: decline consumers that request per-consumer streams.
        A producer without metadata announces its source without a name; `announce_source=False`: somebody
        else announces it, as a bridge does.
        `descriptor_stream_id`, `metadata_stream_id`, `control_stream_id` and `qos_stream_id` replace the
        configured streams; consumers of the stream get the same. `numa_node`: where the driver creates the
        memory.

        A driver of another implementation takes no layout: the producer uses what it offers (`nslots`,
        `pools` of the producer), and the log says how that differs.
        """
        self._check_open()
        return self._open_producer(check_stream_id(stream_id), ProducerOptions(**options))

    def consumer(
        self,
        stream_id: int | None = None,
        *,
        name: str | None = None,
        tags: Sequence[str] = (),
        find_timeout: float | None = None,
        fallback_uri: str | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> Consumer:
        """A consumer of `stream_id`, which maps the stream as soon as it exists.

        `name` or `tags` instead of the id: the stream is discovered (see `discover`), for `find_timeout`
        seconds at most (`[discovery] timeout`), and its own driver attaches the consumer. Raises
        StreamNotFound, AmbiguousStream if several streams match, StreamNotLocal if the stream is on another
        host and no bridge sends it here.

        `fallback_uri="bridge://…"` instead of the id: frames are received from a bridge into memory of this
        process, without a driver. The phase is FALLBACK; the frames are like those of any other consumer.
        Together with the id: shared memory first, and the bridge while there are no regions to map.
        `supports_shm=False` maps no regions: it reads `fallback_uri`, or waits until it is redirected to one.

        `timeout`: longest wait of an iteration. `policy="latest"` always returns the newest frame. `idle`:
        how to wait ("backoff", "busy-spin", "yield", "sleep"). `max_outstanding_seq_gap`: a consumer that is
        further behind skips frames.

        `max_rate_hz` requests at most so many frames a second, evenly spaced by their timestamps, on a
        per-consumer descriptor stream; `per_consumer_stream` requests such a stream without a limit. A
        producer may decline (event `declined`): then all frames arrive on the shared stream.

        `progress=True` requests partial frames (`consumer.progress()`), if possible every
        `progress_interval_us` microseconds and after `progress_bytes` or `progress_rows` more; the producer
        decides. `per_consumer_control=False` requests them on the shared control stream, where other
        consumers receive them too. `descriptor_stream_id` and `metadata_stream_id` replace the configured
        streams.
        """
        self._check_open()
        consumer_options = ConsumerOptions(**options)
        if fallback_uri is not None:
            if name is not None or tags:
                raise ConfigError(
                    "fallback_uri: give the stream id beside it, or nothing, but no name or tags"
                )
            named_stream_id = fallback_stream_id(fallback_uri)
            if stream_id is None:
                stream = check_stream_id(named_stream_id)
                return self._open_fallback_consumer(stream, fallback_uri, consumer_options)
        check_stream_reference(stream_id, name, tags)
        if stream_id is not None:
            stream = check_stream_id(stream_id)
            if not consumer_options.supports_shm:
                return self._open_fallback_consumer(stream, fallback_uri, consumer_options, sends_hello=True)
            return self._open_consumer(stream, consumer_options, fallback_uri)
        if not consumer_options.supports_shm:
            raise ConfigError("supports_shm=False needs the stream's id, as in ctx.consumer(10000, …)")
        return find_consumer(
            self._locator,
            make_filter(name=name, tags=tags),
            self._locator.timeout_s(find_timeout),
            lease=self._lease,
            open_stream=lambda stream: self._context_for(control_address(stream))._open_consumer(
                stream.stream_id, consumer_options
            ),
            open_bridge=lambda uri: self._open_fallback_consumer(
                check_stream_id(fallback_stream_id(uri)), uri, consumer_options
            ),
        )

    def _open_producer(
        self, stream_id: int, options: ProducerOptions, *, is_reopened: bool = False
    ) -> Producer:
        context = self._options
        description = None
        if options.describes_source:
            description = SourceDescription(
                name=options.name, tags=options.tags, metadata=options.metadata, dtype=options.dtype
            )
        streams = context.per_consumer_streams
        regions, lease, is_provisioned = None, None, True
        if context.mode == "standalone":
            if options.numa_node is not None:
                raise ConfigError("numa_node: only with a driver; run this program under numactl instead")
            regions = create_regions(
                stream_id,
                options,
                context.driver,
                base_dir=context.shm_base_dir,
                namespace=context.namespace,
                stale_after_ns=FRESH_PERIODS * self.connection.announce_period_ns,
            )
        else:
            if options.needs_provision:
                is_provisioned = self._provision(stream_id, options, is_reopened=is_reopened)
            self._adopt_driver_period()
            lease = self._lease
        # After the period of the driver is known.
        metadata_options = MetadataOptions(
            SHARED_CHANNEL,
            metadata_stream_id(options, self.stream_ids),
            self.connection.announce_period_ns,
        )
        producer = Producer.open(
            self.connection,
            stream_id,
            options,
            descriptor_channel=descriptor_channel(context.descriptor_term_bytes),
            streams=streams if options.per_consumer_streams else replace(streams, channels=()),
            metadata=metadata_options,
            lease=lease,
            owned_regions=regions,
        )
        if options.traces:
            if self._trace_ids is None:
                self._trace_ids = TraceIds()
            control = options.control_stream_id or self.stream_ids.control
            producer.tracer = Tracer(self._trace_ids, self.connection.publication(control))
        self._start_endpoint(producer)
        if not is_provisioned and not self._is_accepted(producer, options):
            producer.close()
            return self._open_producer(stream_id, options, is_reopened=True)
        if description is not None or options.announce_source:
            try:
                producer.publish_description(description)
            except BaseException:
                producer.close()
                raise
        return producer

    def _open_consumer(
        self, stream_id: int, options: ConsumerOptions, fallback_uri: str | None = None
    ) -> Consumer:
        is_standalone = self.mode == "standalone"
        if not is_standalone:
            self._adopt_driver_period()
        consumer = Consumer.open(
            self.connection,
            stream_id,
            options,
            streams=self.per_consumer_streams,
            lease=None if is_standalone else self._lease,
            metadata=self._metadata_listener(metadata_stream_id(options, self.stream_ids)),
            fallback_uri=fallback_uri,
            sends_hello_unmapped=fallback_uri is not None,
        )
        self._start_endpoint(consumer)
        return consumer

    def _open_fallback_consumer(
        self, stream_id: int, uri: str | None, options: ConsumerOptions, *, sends_hello: bool = False
    ) -> Consumer:
        """A consumer that maps no regions. `sends_hello`: it sends hellos, so that it can be redirected."""
        consumer = Consumer.open(
            self.connection,
            stream_id,
            replace(options, supports_shm=False),
            streams=self.per_consumer_streams,
            metadata=self._metadata_listener(metadata_stream_id(options, self.stream_ids)),
            fallback_uri=uri,
            sends_hello_unmapped=sends_hello,
        )
        self._start_endpoint(consumer)
        return consumer

    def _start_endpoint(self, endpoint: Producer | Consumer) -> None:
        """Waits for the Aeron handle and the lease of a new endpoint, and starts its reports."""
        self._endpoints.add(endpoint)
        # A program may keep only the endpoint: it keeps the context, and so the close at exit.
        endpoint.owner = self
        try:
            self.connection.wait_ready(endpoint)
            if self.mode != "standalone" and endpoint.lease() is not None:
                wait_attached(endpoint, self._lease, self._driver_answers)
                # The next endpoint asks in the revision that the driver answers in.
                self._lease = replace(self._lease, revision=lease_status(endpoint).revision)
        except BaseException:
            endpoint.close()
            raise
        with _reporters_lock:
            for reporting in [each for each in self._reporting if each.reporter is None]:
                self._reporting.discard(reporting)
            if len(self._reporting) < _MAX_REPORTERS:
                endpoint.reporter = self.report_options.start_reporter(endpoint, self.connection)
                self._reporting.add(endpoint)

    def _metadata_listener(self, stream_id: int) -> _native.MetadataListener:
        """The listener of a metadata stream, shared by all consumers.

        It must be connected before a consumer sends its ConsumerHello, which producers answer with metadata.
        """
        listener = self._metadata_listeners.get(stream_id)
        if listener is None:
            listener = self._metadata_listeners[stream_id] = _native.MetadataListener(
                self.connection.conductor, SHARED_CHANNEL, stream_id, describe
            )
        self.connection.wait_ready(listener)
        return listener

    # --- the driver

    @property
    def _has_own_driver(self) -> bool:
        """Whether a driver of this package runs on the control stream. Others have no service to call."""
        control = self.stream_ids.control
        return self._driver_host.is_embedded or namespace_on(self.aeron_dir, control) is not None

    def _provision(self, stream_id: int, options: ProducerOptions, *, is_reopened: bool) -> bool:
        """Tells the driver the layout and the names of a stream; False if no driver can be told."""
        if not self._has_own_driver:
            return False
        # The driver refuses a layout until it has read the detach of a producer that was closed just now.
        deadline = time.monotonic() + (_DRIVER_TIMEOUT_S if is_reopened else 0.0)
        while True:
            try:
                self._request_provision(stream_id, options)
            except AttachError as error:
                if error.code != "REJECTED" or time.monotonic() > deadline:
                    raise
                time.sleep(_PROVISION_RETRY_S)
            else:
                return True

    def _request_provision(self, stream_id: int, options: ProducerOptions) -> None:
        lease = self._lease
        try:
            with self.service("driver", timeout=lease.attach_timeout_ns / 1e9) as driver:
                provision_stream(driver, stream_id, options)
        except (RequestRejected, CommandFailed) as error:
            raise attach_error(stream_id, "REJECTED", str(error), lease) from None
        except (NoSuchService, ServiceTimeout):
            raise attach_error(stream_id, "NO_ANSWER", "", lease) from None

    def _is_accepted(self, producer: Producer, options: ProducerOptions) -> bool:
        """Whether a producer that could not provision its stream keeps what it was granted.

        A driver of this package that started meanwhile can be told the layout now. A foreign driver cannot:
        the producer uses what it offers, and the log says how that differs.
        """
        if self._has_own_driver:
            return False
        fault = layout_fault(producer, options)
        # Such a driver reports no period either.
        self._has_driver_period = True
        if fault is not None:
            _LOG.warning(
                "stream %d: the driver on control stream %d is of another implementation and takes no layout "
                "from its clients: it granted %s; configure the stream there",
                producer.stream_id,
                self.stream_ids.control,
                fault,
            )
        return True

    def _driver_answers(self) -> bool:
        """Whether the driver of this control stream runs. The service may be that of another driver."""
        if not self._has_own_driver:
            return False
        try:
            with self.service("driver", timeout=_DRIVER_TIMEOUT_S) as driver:
                driver.ping()
        except ServiceError:
            return False
        return True

    def _adopt_driver_period(self) -> None:
        """Queries the announce period of a running driver, once: freshness depends on it."""
        if self._has_driver_period or self._driver_host.is_embedded:
            return
        try:
            with self.service("driver", timeout=_DRIVER_TIMEOUT_S) as driver:
                period_ns = query_announce_period(driver)
        except ServiceError:
            period_ns = None
        if period_ns is None:
            # No driver yet, or one of another implementation: the configured period has to do.
            return
        self._has_driver_period = True
        if period_ns and period_ns != self.connection.announce_period_ns:
            _LOG.info("the driver announces every %.3g s: using this period", period_ns / 1e9)
            self.connection.announce_period_ns = period_ns

    def _context_for(self, control: StreamAddress) -> Context:
        """The context of the driver on a control stream: this one, or a second one on this media driver."""
        options = self._options
        own = StreamAddress(options.connection.control_channel, self.stream_ids.control)
        if self.mode != "standalone" and control == own:
            return self
        sibling = self._siblings.get(control)
        if sibling is None:
            connection = replace(
                options.connection,
                embed_media_driver=False,
                stream_ids=replace(self.stream_ids, control=control.stream_id),
                control_channel=control.channel,
            )
            sibling = self._siblings[control] = Context(
                replace(
                    options,
                    mode="driver",
                    connection=connection,
                    lease=replace(options.lease, control_stream_id=control.stream_id),
                    reports=self.report_options,
                )
            )
        return sibling

    # --- discovery

    def discover(
        self,
        *,
        name: str | None = None,
        tags: Sequence[str] = (),
        stream_id: int | None = None,
        producer_id: int | None = None,
        data_source_id: int | None = None,
        timeout: float | None = None,
    ) -> list[DiscoveredStream]:
        """The streams that match all arguments; without arguments, all streams.

        Queries the driver, or the registries that `[discovery]` names. Names and tags are compared byte for
        byte. A result does not imply that this process may attach to the stream. Raises NoProvider if there
        is no answer within `timeout` seconds.
        """
        query = make_filter(
            name=name, tags=tags, stream_id=stream_id, producer_id=producer_id, data_source_id=data_source_id
        )
        self._check_open()
        return self._locator.find(query, self._locator.timeout_s(timeout))

    def discover_async(self, **query: Any) -> Coroutine[Any, Any, list[DiscoveredStream]]:
        """`discover` for asyncio: waits on a thread, and the event loop stays free."""
        # Raises here in a forked child, and not only when the result is awaited.
        self.connection.check_process()
        return asyncio.to_thread(self.discover, **query)

    # --- services

    def service(
        self,
        name: str,
        *,
        instance: str | None = None,
        token: str | Secret | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> ServiceClient:
        """A client of the service `name`: get, set, call, watch. The token defaults to the configured one."""
        self._check_open()
        return ServiceClient(
            self.connection.conductor,
            name,
            instance=instance,
            token=token or self._options.service_token,
            timeout=timeout,
            streams=self.service_streams,
        )

    def serve(self, service: Service) -> RunningService:
        """Runs `service` on its own thread until the service or the context is closed."""
        self._check_open()
        running = RunningService(self._service_agent(service))
        self._services.add(running)
        return running

    def run(self, service: Service, config: Config | None = None) -> None:
        """Runs `service` on this thread until SIGTERM or Ctrl-C: the main function of a service program.

        `[log]` and `[runtime]` of the configuration (a file, or the environment) set the log on stderr, the
        ready file and the notification of systemd; SIGHUP reloads them.
        """
        self._check_open()
        loaded = config or Config.load(RuntimeSettings, LogSettings)
        runtime, log = loaded[RuntimeSettings], loaded[LogSettings]
        instance = service.instance or runtime.instance
        with Logging(service.name, instance, form=log.format, level=log.level, repeats=log.repeats) as logs:
            agent = self._service_agent(service)
            counters = CounterPublisher(self.connection.conductor, agent.counters)
            both = CompositeAgent(agent, counters, name=agent.name)
            Runner(
                both,
                idle=agent,
                readiness=Readiness(runtime.ready_file),
                on_hangup=lambda: reload(loaded, both, logs),
            ).run()

    def _service_agent(self, service: Service) -> ServiceAgent:
        service.use_token(self._options.service_token)
        return ServiceAgent(service, self.connection.conductor, self.service_streams)

    def services(self, timeout: float = 1.0) -> list[ServiceIdentity]:
        """All services that answer within `timeout` seconds."""
        self._check_open()
        return find_services(self.connection.conductor, timeout=timeout, streams=self.service_streams)

    def status_events(self, timeout: float | None = None) -> Generator[ServiceEvent, None, None]:
        """All events on the status stream of the services: echoes of accepted commands, and status."""
        self._check_open()
        return watch_all(self.connection.conductor, streams=self.service_streams, timeout=timeout)

    # --- recordings

    def record(
        self, root: str | os.PathLike[str], *, streams: Sequence[int] | None = None, **options: Any
    ) -> Recorder:
        """Records `streams` into the directory `root` until closed; None: all announced streams.

        The options are those of `tensorpool.record`.
        """
        # Imported here: the recorder is a layer above, and imports pyarrow.
        from ..recorder import record

        self._check_open()
        self.connection.check_process()
        return record(root, streams=streams, context=self, **options)

    def replay(self, root: str | os.PathLike[str], **options: Any) -> Replay:
        """Replays a recording through this context: see `tensorpool.replay`."""
        # Imported here: the replayer is a layer above, and imports pyarrow.
        from ..replayer import replay

        self._check_open()
        self.connection.check_process()
        return replay(root, context=self, **options)

    # --- the end

    def __repr__(self) -> str:
        if self.closed:
            return f"<Context mode={self.mode} closed>"
        state = "connected" if self.connected else "not connected"
        endpoints = len(self._endpoints)
        return f"<Context mode={self.mode} namespace={self.namespace!r} {state} endpoints={endpoints}>"

    def close(self) -> None:
        """Closes all producers, consumers and services, the connection, and embedded drivers."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as stack:
            # Last in, first out. Errors do not keep the others from being closed.
            stack.callback(self.connection.close)
            stack.callback(self._driver_host.close)
            if self._trace_ids is not None:
                stack.callback(self._trace_ids.close)
            for endpoint in _snapshot(self._endpoints):
                stack.callback(endpoint.close)
            stack.callback(self._locator.close)
            for sibling in list(self._siblings.values()):
                stack.callback(sibling.close)
            for service in list(self._services):
                stack.callback(service.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the context belongs to the parent process: there is nothing to close.
        with suppress(ForkedError):
            self.close()


@atexit.register
def _close_all() -> None:
    """A program that ends without a close leaves no media driver directory and no regions behind."""
    with ExitStack() as stack:
        # Errors do not keep the others from being closed.
        for context in _snapshot(_open_contexts):
            stack.callback(context.close)


def _snapshot(items: weakref.WeakSet[_T]) -> list[_T]:
    """The items of a set to which another thread may add at the same time."""
    while True:
        try:
            return list(items)
        except RuntimeError:
            continue


# A forked child has nothing to close at its exit: its contexts belong to the parent process.
os.register_at_fork(after_in_child=_open_contexts.clear)
