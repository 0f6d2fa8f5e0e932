"""The producers and consumers of a context: how they are opened, attached, reported and closed.

Several threads may open endpoints of one context. They share what is costly: the listener of a metadata
stream, the trace node, the thread that announces merge maps.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from .. import _native
from ..attributes.metadata import describe
from ..client import (
    Consumer,
    ConsumerOptions,
    LeaseOptions,
    MergeMap,
    MergeMapAnnouncer,
    MetadataOptions,
    PerConsumerStreams,
    Producer,
    ProducerOptions,
    ReportOptions,
    SourceDescription,
    TraceIds,
    Tracer,
    wait_attached,
)
from ..client.lease import lease_status
from ..client.options import FRESH_PERIODS, metadata_stream_id, with_dedicated_streams
from ..discovery import DiscoverySettings
from ..driver import DriverSettings
from ..errors import ConfigError
from ..runtime.config import Secret
from ..transport import Connection, ConnectionOptions, StreamAddress, descriptor_channel
from .driver_host import DriverRequests, Mode, create_regions

# At most this many endpoints of a context publish reports: a media driver has room for some thousand
# counters, and a program may have a thousand streams.
_MAX_REPORTERS: Final = 64
# Held only while an endpoint opens.
_reporters_lock = threading.Lock()
_T = TypeVar("_T")


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


class Endpoints:
    """Opens the producers and consumers of one context, and closes those that are still open."""

    def __init__(
        self, options: ContextOptions, connection: Connection, driver: DriverRequests, owner: object
    ) -> None:
        """`owner`: the context, which an endpoint keeps alive."""
        self._options = options
        self._connection = connection
        self._driver = driver
        self._owner = owner
        self.reports = options.reports
        """What endpoints that are opened from now on report."""
        self._shared_parts_lock = threading.Lock()
        """Held while a part is created that several endpoints share. Several threads may open endpoints."""
        self._trace_ids: TraceIds | None = None
        self._merge_maps: MergeMapAnnouncer | None = None
        self._metadata_listeners: dict[int, _native.MetadataListener] = {}
        self.opened: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        """Those that still exist."""
        self._reporting: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self.opened)

    @property
    def _is_standalone(self) -> bool:
        return self._options.mode == "standalone"

    # --- producers

    def open_producer(
        self, stream_id: int, options: ProducerOptions, *, is_reopened: bool = False
    ) -> Producer:
        """The producer of a stream, attached. Raises AttachError if the driver refuses."""
        context, stream_ids = self._options, self._connection.stream_ids
        description = None
        if options.describes_source:
            description = SourceDescription(
                name=options.name, tags=options.tags, metadata=options.metadata, dtype=options.dtype
            )
        streams = context.per_consumer_streams
        regions, lease, is_provisioned = None, None, True
        if self._is_standalone:
            if options.numa_node is not None:
                raise ConfigError("numa_node: only with a driver; run this program under numactl instead")
            regions = create_regions(
                stream_id,
                options,
                context.driver,
                base_dir=context.shm_base_dir,
                namespace=context.namespace,
                stale_after_ns=FRESH_PERIODS * self._connection.announce_period_ns,
            )
        else:
            if options.needs_provision:
                is_provisioned = self._driver.provision(stream_id, options, is_reopened=is_reopened)
            self._driver.adopt_period()
            lease = self._driver.lease
        # After the period of the driver is known.
        metadata_options = MetadataOptions(
            stream_ids.metadata_channel,
            metadata_stream_id(options, stream_ids),
            self._connection.announce_period_ns,
        )
        producer = Producer.open(
            self._connection,
            stream_id,
            options,
            descriptor_channel=descriptor_channel(context.descriptor_term_bytes),
            streams=streams if options.per_consumer_streams else replace(streams, channels=()),
            metadata=metadata_options,
            lease=lease,
            owned_regions=regions,
        )
        if options.traces:
            try:
                producer.tracer = self._create_tracer(options)
            except BaseException:
                producer.close()
                raise
        self._start(producer)
        if not is_provisioned and not self._driver.accepts_layout(producer, options):
            producer.close()
            return self.open_producer(stream_id, options, is_reopened=True)
        if lease is not None and options.pools is None:
            # A weak reference: the producer would keep itself alive.
            producer.fit_pools = partial(self._driver.add_pool, weakref.ref(producer), options)
        try:
            if description is not None or options.announce_source:
                producer.publish_description(description)
            if options.merge_map is not None:
                self.announce_merge_map(producer, options.merge_map)
        except BaseException:
            producer.close()
            raise
        return producer

    def announce_merge_map(self, producer: Producer, merge_map: MergeMap) -> None:
        """Announces the map of `producer` until it is closed, on a thread that all producers share."""
        with self._shared_parts_lock:
            if self._merge_maps is None:
                self._merge_maps = MergeMapAnnouncer(self._connection)
        self._merge_maps.add(producer, merge_map)

    def _create_tracer(self, options: ProducerOptions) -> Tracer:
        """The tracer of a new producer. All producers of a context share one trace node."""
        with self._shared_parts_lock:
            if self._trace_ids is None:
                self._trace_ids = TraceIds()
        ids = self._connection.stream_ids
        control = StreamAddress(ids.control_channel, options.control_stream_id or ids.control)
        return Tracer(self._trace_ids, self._connection.publication(control))

    # --- consumers

    def open_consumer(
        self, stream_id: int, options: ConsumerOptions, fallback_uri: str | None = None
    ) -> Consumer:
        """A consumer that maps the regions of a stream; with `fallback_uri`, a bridge while it has none."""
        if not self._is_standalone:
            self._driver.adopt_period()
        return self._open_consumer(
            stream_id,
            options,
            lease=None if self._is_standalone else self._driver.lease,
            fallback_uri=fallback_uri,
            sends_hello_unmapped=fallback_uri is not None,
        )

    def open_fallback_consumer(
        self, stream_id: int, uri: str | None, options: ConsumerOptions, *, sends_hello: bool = False
    ) -> Consumer:
        """A consumer that maps no regions. `sends_hello`: it sends hellos, so that it can be redirected."""
        return self._open_consumer(
            stream_id,
            replace(options, supports_shm=False),
            lease=None,
            fallback_uri=uri,
            sends_hello_unmapped=sends_hello,
        )

    def _open_consumer(
        self,
        stream_id: int,
        options: ConsumerOptions,
        *,
        lease: LeaseOptions | None,
        fallback_uri: str | None,
        sends_hello_unmapped: bool,
    ) -> Consumer:
        stream_ids = self._connection.stream_ids
        options = with_dedicated_streams(options, stream_ids.dedicated_streams(stream_id))
        consumer = Consumer.open(
            self._connection,
            stream_id,
            options,
            streams=self._options.per_consumer_streams,
            lease=lease,
            metadata=self._metadata_listener(metadata_stream_id(options, stream_ids)),
            fallback_uri=fallback_uri,
            sends_hello_unmapped=sends_hello_unmapped,
        )
        self._start(consumer)
        return consumer

    def _metadata_listener(self, stream_id: int) -> _native.MetadataListener:
        """The listener of a metadata stream, shared by all consumers.

        It must be connected before a consumer sends its ConsumerHello, which producers answer with metadata.
        """
        with self._shared_parts_lock:
            listener = self._metadata_listeners.get(stream_id)
            if listener is None:
                listener = self._metadata_listeners[stream_id] = _native.MetadataListener(
                    self._connection.conductor,
                    self._connection.stream_ids.metadata_channel,
                    stream_id,
                    describe,
                )
        self._connection.wait_ready(listener)
        return listener

    # --- both

    def _start(self, endpoint: Producer | Consumer) -> None:
        """Waits for the Aeron handle and the lease of a new endpoint, and starts its reports."""
        self.opened.add(endpoint)
        # A program may keep only the endpoint: it keeps the context, and so the close at exit.
        endpoint.owner = self._owner
        try:
            self._connection.wait_ready(endpoint)
            if not self._is_standalone and endpoint.lease() is not None:
                wait_attached(endpoint, self._driver.lease, self._driver.answers)
                # The next endpoint asks in the revision that the driver answers in.
                self._driver.use_revision(lease_status(endpoint).revision)
            self._start_reporter(endpoint)
        except BaseException:
            endpoint.close()
            raise

    def _start_reporter(self, endpoint: Producer | Consumer) -> None:
        with _reporters_lock:
            for reporting in [each for each in self._reporting if each.reporter is None]:
                self._reporting.discard(reporting)
            if len(self._reporting) < _MAX_REPORTERS:
                label = endpoint.label if isinstance(endpoint, Consumer) else ""
                endpoint.reporter = self.reports.start_reporter(endpoint, self._connection, label=label)
                self._reporting.add(endpoint)

    def close(self) -> None:
        """Closes all endpoints and the parts that they share. Errors do not keep the others from it."""
        with ExitStack() as stack:
            # Last in, first out.
            if self._trace_ids is not None:
                stack.callback(self._trace_ids.close)
            for endpoint in snapshot(self.opened):
                stack.callback(endpoint.close)
            if self._merge_maps is not None:
                stack.callback(self._merge_maps.close)


def snapshot(items: weakref.WeakSet[_T]) -> list[_T]:
    """The items of a set to which another thread may add at the same time."""
    while True:
        try:
            return list(items)
        except RuntimeError:
            continue
