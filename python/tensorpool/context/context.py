"""The context that `tensorpool.open()` returns: a connection, a driver, and the endpoints that use them.

Methods may be called from several threads. A context belongs to the process that opened it and cannot be used
in a forked child.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, overload

from ..client import (
    Consumer,
    ConsumerKeywords,
    ConsumerOptions,
    Join,
    JoinKeywords,
    JoinOptions,
    MergeMap,
    MergeMapJoin,
    PerConsumerStreams,
    Producer,
    ProducerKeywords,
    ProducerOptions,
    ReportOptions,
    plan_join,
)
from ..client.options import (
    check_keywords,
    check_stream_id,
    with_dedicated_streams,
)
from ..discovery import DiscoveredStream, make_filter
from ..driver import DriverAgent, EmbeddedDriver, HolderWatch, qualified_namespace
from ..errors import (
    ClosedError,
    ConfigError,
    ForkedError,
)
from ..runtime.agent import CompositeAgent
from ..runtime.config import Config, Secret
from ..runtime.counters import CounterPublisher
from ..runtime.logs import Logging
from ..runtime.role import LogSettings, RuntimeSettings, reload
from ..runtime.runner import Readiness, Runner
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
    Connection,
    ServiceStreams,
    StreamAddress,
    StreamIds,
)
from .driver_host import DriverHost, DriverRequests, Mode
from .endpoints import ContextOptions, Endpoints, snapshot
from .locate import (
    StreamLocator,
    check_stream_reference,
    control_address,
    fallback_stream_id,
    find_consumer,
    find_local_stream,
)

if TYPE_CHECKING:
    from ..recorder.recorder import Recorder
    from ..replayer import Replay

_LOG = logging.getLogger(__name__)
# `next_event` needs a timeout: this one, 30 years, never ends.
_NO_TIMEOUT_S: Final = 1e9
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
    """What happened, as listed above."""
    at_ns: int
    """When, in nanoseconds of the monotonic clock."""
    stream_id: int | None
    """The stream; None if the event concerns the whole connection."""
    epoch: int | None
    """The epoch; None if the event concerns none."""
    detail: str
    """The reason or the cause, as text."""


class Context:
    """A connection to a media driver and an SHM driver, with the producers and consumers of a program.

    `tensorpool.open()` returns it. Close it, or use it in a `with` block. Any thread may use it. A forked
    child opens its own.
    """

    def __init__(self, options: ContextOptions) -> None:
        self._options = options
        self._services: set[RunningService] = set()
        self._siblings: dict[StreamAddress, Context] = {}
        self._closed = False
        self.connection = Connection.open(options.connection)
        self._locator = StreamLocator(
            self.connection, options.discovery, has_driver=options.mode != "standalone"
        )
        self._driver_host = self._create_driver_host()
        self._driver = DriverRequests(
            self._driver_host,
            self.connection,
            options.lease,
            lambda timeout: self.service("driver", timeout=timeout),
        )
        self._endpoints = Endpoints(options, self.connection, self._driver, self)
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
            find_holder=HolderWatch(options.shm_base_dir, options.namespace, options.driver.instance_id).find,
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
    def report_options(self) -> ReportOptions:
        """What producers and consumers that are opened from now on report."""
        return self._endpoints.reports

    @report_options.setter
    def report_options(self, options: ReportOptions) -> None:
        self._endpoints.reports = options

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
            yield Event(event.kind, event.at_ns, event.stream_id, event.epoch, event.detail)

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

        `pools`: payload sizes (`["64KiB", "1MiB"]`); without them the first frame gets a pool that it fits,
        where the driver allows it. `nslots`, a power of two: how many frames a consumer may
        lag behind before they are overwritten. Values that are not given are the driver's for this stream.
        All memory is allocated now.

        `name`, `tags` and `metadata` are published to every consumer (see `producer.set_metadata`). `dtype`
        declares an element type that has no number on the wire, as in "float16"; a producer with metadata
        also declares it with the first array of such a type.

        `traces=True` gives every frame a trace id and lets `offer(array, parents=[frame, …])` publish its
        lineage. `publish_timestamps` adds the time of publication to each descriptor. `prefault=False` leaves
        the memory to be paged in by the first frames. `require_hugepages`: refuse memory without huge pages.
        `per_consumer_streams=False`: decline consumers that request per-consumer streams.
        `device="cuda:0"` registers the memory of claimed slots with that GPU (extra `cuda`), so that copies
        from the GPU into them have the speed of the bus. Raises DeviceError if there is no such GPU.
        A producer without metadata announces its source without a name; `announce_source=False`: another
        program announces it, as a bridge does.
        `descriptor_stream_id`, `metadata_stream_id`, `control_stream_id` and `qos_stream_id` replace the
        configured streams; consumers of the stream get the same. `numa_node`: where the driver creates the
        memory. `copy_threads=2`: a second thread copies parts of frames of 512 KiB and more, where one core
        does not use the bandwidth of the memory and another is free; refused where there is one core only.
        `merge_map` says which frames of other streams these are made from (see `announce_merge_map`).

        A driver of another implementation takes no layout: the producer uses what it offers (`nslots`,
        `pools` of the producer), and the log says how that differs.
        """
        self._check_open()
        check_keywords("producer", options, ProducerKeywords.__annotations__)
        stream_id = check_stream_id(stream_id)
        return self._endpoints.open_producer(
            stream_id,
            with_dedicated_streams(ProducerOptions(**options), self.stream_ids.dedicated_streams(stream_id)),
        )

    def consumer(
        self,
        stream_id: int | str | None = None,
        *,
        name: str | None = None,
        tags: Sequence[str] = (),
        find_timeout: float | None = None,
        fallback_uri: str | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> Consumer:
        """A consumer of `stream_id`, which maps the stream as soon as it exists.

        A name in place of the id, `name` or `tags`: the stream is discovered (see `discover`), for
        `find_timeout` seconds at most (`[discovery] timeout`), and its own driver attaches the consumer.
        Raises StreamNotFound, AmbiguousStream if several streams match, StreamNotLocal if it is on another
        host and no bridge sends it here.

        `fallback_uri="bridge://…"` instead of the id: frames are received from a bridge into memory of this
        process, without a driver. The phase is FALLBACK; the frames are like those of any other consumer.
        Together with the id: shared memory first, and the bridge while there are no regions to map.
        `supports_shm=False` maps no regions: it reads `fallback_uri`, or waits until it is redirected to one.

        `timeout`: longest wait of an iteration. `policy="latest"` always returns the newest frame. `idle`:
        how to wait ("backoff", "busy-spin", "yield", "sleep"). `max_outstanding_seq_gap`: a consumer that is
        further behind skips frames.

        `device="cuda:0"` lets `consumer.on_device()` and `frame.to_device()` copy frames to that GPU (extra
        `cuda`). Raises DeviceError if there is no such GPU.

        `label` is what you call this consumer ("viewer"): `tensorpool top`, the supervisor, ledgers and
        metrics show it beside its number.

        `max_rate_hz` requests at most this many frames a second, evenly spaced by their timestamps, on a
        per-consumer descriptor stream. Of a rate that is no whole number (0.5) the producer is asked for the
        next one up, and the consumer keeps the rate itself. `per_consumer_stream` requests such a stream
        without a limit. A producer may decline (event `declined`): then frames arrive on the shared stream,
        and the consumer keeps the rate itself.

        `progress=True` requests partial frames (`consumer.progress()`), if possible every
        `progress_interval_us` microseconds and after `progress_bytes` or `progress_rows` more; the producer
        decides. `per_consumer_control=False` requests them on the shared control stream, where other
        consumers receive them too. `descriptor_stream_id` and `metadata_stream_id` replace the configured
        streams.
        """
        self._check_open()
        check_keywords(
            "consumer",
            options,
            ["name", "tags", "find_timeout", "fallback_uri", *ConsumerKeywords.__annotations__],
        )
        consumer_options = ConsumerOptions(**options)
        if isinstance(stream_id, str):
            if name is not None:
                raise ConfigError(f"two names, {stream_id!r} and {name!r}; give one")
            stream_id, name = None, stream_id
        if fallback_uri is not None:
            if name is not None or tags:
                raise ConfigError(
                    "fallback_uri: give the stream id beside it, or nothing, but no name or tags"
                )
            named_stream_id = fallback_stream_id(fallback_uri)
            if stream_id is None:
                stream = check_stream_id(named_stream_id)
                return self._endpoints.open_fallback_consumer(stream, fallback_uri, consumer_options)
        check_stream_reference(stream_id, name, tags)
        if stream_id is not None:
            stream = check_stream_id(stream_id)
            if not consumer_options.supports_shm:
                return self._endpoints.open_fallback_consumer(
                    stream, fallback_uri, consumer_options, sends_hello=True
                )
            return self._endpoints.open_consumer(stream, consumer_options, fallback_uri)
        if not consumer_options.supports_shm:
            raise ConfigError("supports_shm=False needs the stream's id, as in ctx.consumer(10000, …)")
        return find_consumer(
            self._locator,
            make_filter(name=name, tags=tags),
            self._locator.timeout_s(find_timeout),
            lease=self._driver.lease,
            open_stream=lambda stream: self._context_for(control_address(stream))._endpoints.open_consumer(
                stream.stream_id, consumer_options
            ),
            open_bridge=lambda uri: self._endpoints.open_fallback_consumer(
                check_stream_id(fallback_stream_id(uri)), uri, consumer_options
            ),
        )

    @overload
    def join(
        self,
        inputs: Mapping[str, int | str],
        *,
        find_timeout: float | None = None,
        consumer: ConsumerKeywords | None = None,
        **options: Unpack[JoinKeywords],
    ) -> Join: ...

    @overload
    def join(
        self,
        inputs: Mapping[str, int | str] | None = None,
        *,
        out_stream: int | Producer,
        find_timeout: float | None = None,
        consumer: ConsumerKeywords | None = None,
        **options: Unpack[JoinKeywords],
    ) -> MergeMapJoin: ...

    def join(
        self,
        inputs: Mapping[str, int | str] | None = None,
        *,
        out_stream: int | Producer | None = None,
        find_timeout: float | None = None,
        consumer: ConsumerKeywords | None = None,
        **options: Unpack[JoinKeywords],
    ) -> Join | MergeMapJoin:
        """Frames of several streams that belong together: `inputs` are streams (ids or names) by a name each.

            with ctx.join({"left": "camera-1", "right": "camera-2"}, by="sequence") as pairs:
                for joined in pairs:
                    with joined:
                        print(joined["left"].seq, joined["right"].array.mean())

        `by="sequence"`: frames with the same sequence. `by="time"`: the nearest frame of each input within
        `tolerance` of the driving input's; `timestamp="publish"` compares times of publication instead of
        capture. `by="latest"`: the newest frame of each. Durations are seconds, or text with a unit ("5ms").

        `drive`: the name of the input that drives the join (the first one by default), a number of results a
        second (not by sequence), or "any" input (by latest). Of the others, `offset={"right": 1}` takes the
        frame this much later, in sequences or as a duration; `window={"imu": "10ms"}` takes all frames of the
        last 10 ms, or `{"imu": 4}` by sequence the last 4, as a tuple. `lateness`: a result need not wait for
        inputs that are at most this much behind.

        A missing input blocks. With `stale_after`, an input without a frame for this long may be absent:
        `joined.absent` names it. `depth`: frames of an input that are held back at most. `consumer`: options
        for the consumers of the inputs, as `ctx.consumer()` takes them. `timeout`, `idle`: as there.

        `out_stream`, an id or a producer of this process, instead of rules: the join follows the merge map
        that the owner of that stream announces. `inputs` then only names its streams; `tolerance`, `drive`
        and `depth` are local.

        Raises ConfigError for rules that cannot be, StreamNotFound and the like for names that are not found.
        """
        self._check_open()
        join_options = JoinOptions(**options)
        keywords = consumer or {}
        if out_stream is not None:
            names = {
                name: self.find_stream(stream, timeout=find_timeout)
                for name, stream in (inputs or {}).items()
            }
            stream = check_stream_id(out_stream) if isinstance(out_stream, int) else out_stream
            mapped = MergeMapJoin(
                self.connection,
                stream,
                join_options,
                lambda stream_id: self.consumer(stream_id, **keywords),
                names,
            )
            mapped.owner = self
            return mapped
        if inputs is None:
            raise ConfigError(
                'ctx.join(): name the streams, as in ctx.join({"left": "camera-1", "right": "camera-2"}), or '
                "give the output stream whose merge map to follow, as in ctx.join(out_stream=30000)"
            )
        rules = plan_join(tuple(inputs), join_options)
        with ExitStack() as stack:
            consumers: dict[str, Consumer] = {}
            for name, reference in inputs.items():
                if isinstance(reference, str):
                    opened = self.consumer(name=reference, find_timeout=find_timeout, **keywords)
                else:
                    opened = self.consumer(reference, **keywords)
                consumers[name] = stack.enter_context(opened)
            join = Join(consumers, rules, timeout=join_options.timeout)
            join.owner = self
            stack.pop_all()
        return join

    def announce_merge_map(self, producer: Producer, merge_map: MergeMap) -> None:
        """Announces which frames those of `producer` are made from, until the producer is closed.

        Stages that join by it (`ctx.join(out_stream=…)`), of other implementations too, receive it within an
        announce period, or at once on request. Another map of the same producer replaces the earlier one.
        """
        self._check_open()
        self._endpoints.announce_merge_map(producer, merge_map)

    # --- other drivers

    def _context_for(self, control: StreamAddress) -> Context:
        """The context of the driver on a control stream: this one, or a second one on this media driver."""
        options = self._options
        own = self.stream_ids.control_address
        if self.mode != "standalone" and control == own:
            return self
        sibling = self._siblings.get(control)
        if sibling is None:
            connection = replace(
                options.connection,
                embed_media_driver=False,
                stream_ids=replace(
                    self.stream_ids, control=control.stream_id, control_channel=control.channel
                ),
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

    def find_stream(self, stream: int | str, *, timeout: float | None = None) -> int:
        """The id of a stream of this media driver that is given by its id or its name.

        A name is discovered for `timeout` seconds at most (`[discovery] timeout`). Raises StreamNotFound,
        AmbiguousStream, StreamNotLocal, NoProvider.
        """
        self._check_open()
        self.connection.check_process()
        if not isinstance(stream, str):
            return check_stream_id(stream)
        found = find_local_stream(self._locator, make_filter(name=stream), self._locator.timeout_s(timeout))
        return found.stream_id

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
        self, root: str | os.PathLike[str], *, streams: Sequence[int | str] | None = None, **options: Any
    ) -> Recorder:
        """Records `streams` (ids or names) into the directory `root` until closed; None: all announced ones.

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
        count = len(self._endpoints)
        return f"<Context mode={self.mode} namespace={self.namespace!r} {state} endpoints={count}>"

    def close(self) -> None:
        """Closes all producers, consumers and services, the connection, and embedded drivers."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as stack:
            # Last in, first out. Errors do not keep the others from being closed.
            stack.callback(self.connection.close)
            stack.callback(self._driver_host.close)
            stack.callback(self._endpoints.close)
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
        for context in snapshot(_open_contexts):
            stack.callback(context.close)


# A forked child has nothing to close at its exit: its contexts belong to the parent process.
os.register_at_fork(after_in_child=_open_contexts.clear)
