"""A context: one native conductor thread, its media driver, and the producers and consumers on it."""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

import numpy.typing as npt

from .. import _native
from ..client import (
    Consumer,
    Description,
    LeasedProducer,
    LeaseTerms,
    OwnStreams,
    Producer,
    StandaloneProducer,
    TracedLeasedProducer,
    TracedProducer,
    TracedStandaloneProducer,
    TraceIds,
    Tracer,
    wait_attached,
)
from ..client.leased import attach_error
from ..driver import DEFAULT_NSLOTS, DriverAgent, DriverSettings, EmbeddedDriver, place_of
from ..errors import (
    ClosedError,
    CommandFailed,
    ConfigError,
    ForkedError,
    MediaDriverUnavailable,
    NoSuchService,
    Rejected,
    ServiceError,
    ServiceTimeout,
)
from ..runtime.config import Secret
from ..service import RunningService, ServiceStreams
from ..shm import parse_pools
from ..transport import StreamIds, descriptor_channel, embed_lock_path
from .describing import WithMetadata
from .host import DriverHost, Mode
from .services import WithServices

_LOG = logging.getLogger(__name__)
_SHARED_CHANNEL = "aeron:ipc"
_READY_TIMEOUT_S = 10.0
_Endpoint = TypeVar("_Endpoint", Producer, Consumer)
_open_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the connection.

    media_driver_connected, media_driver_lost, mapped, unmapped, refused, aeron_error; on a driver attached,
    attach_refused, revoked, driver_shutdown, driver_lost; between a consumer and its producer declined,
    fallback, fallback_over, fallback_refused, id_collision.
    """

    kind: str
    at_ns: int
    stream_id: int | None
    epoch: int | None
    detail: str


class Context(WithServices, WithMetadata):
    """What `tensorpool.open()` returns. Close it, or use it in a `with` block."""

    def __init__(
        self,
        *,
        mode: Mode,
        aeron_dir: str,
        embed: bool,
        aeron_dir_mode: int,
        namespace: str,
        shm_base_dir: Path,
        allowed_base_dirs: Sequence[Path],
        stream_ids: StreamIds,
        service_streams: ServiceStreams,
        service_token: Secret | None,
        driver_settings: DriverSettings,
        terms: LeaseTerms,
        descriptor_term_bytes: int,
        streams: OwnStreams,
        connect_timeout: float,
        driver_timeout: float,
        announce_period: float,
    ) -> None:
        self.mode = mode
        self.aeron_dir = aeron_dir
        self.namespace = namespace
        self._terms = terms
        self._streams = streams
        self._descriptor_term_bytes = descriptor_term_bytes
        self.stream_ids = stream_ids
        self._base = shm_base_dir
        self._announce_period_ns = int(announce_period * 1e9)
        self.service_streams = service_streams
        self._service_token = service_token
        self._trace_ids = TraceIds()
        self._endpoints: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        self._running: set[RunningService] = set()
        self._ears = {}
        self._closed = False
        self._knows_period = False
        self._conductor = _native.Conductor(
            aeron_dir=aeron_dir,
            media_driver_lock=embed_lock_path(aeron_dir),
            embed=embed,
            dir_mode=aeron_dir_mode,
            driver_timeout_ms=int(driver_timeout * 1000),
            announce_channel=_SHARED_CHANNEL,
            announce_stream_id=stream_ids.announce,
            announce_period_ns=self._announce_period_ns,
            control_channel=_SHARED_CHANNEL,
            control_stream_id=stream_ids.control,
            qos_stream_id=stream_ids.qos,
            allowed_base_dirs=list(allowed_base_dirs),
        )
        if not self._conductor.wait_connected(connect_timeout):
            why = _closed_to_us(aeron_dir) or self._conductor.status()["last_error"] or "no answer"
            self._conductor.close()
            raise MediaDriverUnavailable(
                f"{why}; start one (tensorpool.MediaDriver({aeron_dir!r}) or aeronmd), check aeron_dir, or "
                "let open() embed one with media_driver='auto'",
                aeron_dir=aeron_dir,
            )
        self._host = self._driver_host(driver_settings)
        try:
            self._host.start()
        except BaseException:
            self._conductor.close()
            raise
        _open_contexts.add(self)

    def _driver_host(self, settings: DriverSettings) -> DriverHost:
        # What clients of a driver inside a program want made, they may have made.
        embedded = replace(settings, any_stream=True)

        def embed() -> EmbeddedDriver:
            agent = DriverAgent(
                self._conductor,
                settings=embedded,
                namespace=self.namespace,
                base_dir=self._base,
                aeron_dir=self.aeron_dir,
                stream_ids=self.stream_ids,
                service_streams=self.service_streams,
                service_token=self._service_token,
                announce_period_ns=self._announce_period_ns,
                embedded=True,
            )
            return EmbeddedDriver(agent)

        return DriverHost(
            self.mode,
            embed=embed,
            is_connected=lambda: self.connected,
            place=place_of(self.namespace, settings.instance_id),
            aeron_dir=self.aeron_dir,
            control_stream_id=self.stream_ids.control,
        )

    @property
    def embeds_driver(self) -> bool:
        """Whether the SHM driver runs inside this process."""
        self._conductor.status()  # raises in a forked child, where nothing runs
        return self._host.is_here

    @property
    def embeds_media_driver(self) -> bool:
        """Whether the media driver runs inside this process."""
        return bool(self._conductor.status()["embeds_driver"])

    @property
    def connected(self) -> bool:
        """Whether the media driver answers at the moment; it is reconnected by itself."""
        return bool(self._conductor.status()["connected"])

    @property
    def closed(self) -> bool:
        return self._closed

    @overload
    def producer(
        self,
        stream_id: int,
        *,
        pools: Sequence[str | int] | str | int | None = None,
        nslots: int | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        dtype: npt.DTypeLike | None = None,
        descriptor_stream_id: int | None = None,
        metadata_stream_id: int | None = None,
        publish_timestamps: bool = False,
        prefault: bool = True,
        require_hugepages: bool = False,
        traces: Literal[True],
    ) -> TracedProducer: ...
    @overload
    def producer(
        self,
        stream_id: int,
        *,
        pools: Sequence[str | int] | str | int | None = None,
        nslots: int | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        dtype: npt.DTypeLike | None = None,
        descriptor_stream_id: int | None = None,
        metadata_stream_id: int | None = None,
        publish_timestamps: bool = False,
        prefault: bool = True,
        require_hugepages: bool = False,
        traces: bool = False,
    ) -> Producer: ...
    def producer(
        self,
        stream_id: int,
        *,
        pools: Sequence[str | int] | str | int | None = None,
        nslots: int | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        dtype: npt.DTypeLike | None = None,
        descriptor_stream_id: int | None = None,
        metadata_stream_id: int | None = None,
        publish_timestamps: bool = False,
        prefault: bool = True,
        require_hugepages: bool = False,
        traces: bool = False,
    ) -> Producer:
        """The producer of `stream_id`: a stream has one at a time.

        `pools` are the size classes of payloads (`["64KiB", "1MiB"]`), `nslots` how many frames a reader
        may lag behind before they are overwritten: a power of two. What is not given is as the driver has it
        for this stream. All memory is allocated now. `traces` gives every frame a trace id and lets
        `offer(array, parents=[frame, …])` tell of its lineage. `require_hugepages`: on huge pages or not at
        all. Raises AttachError if the driver says no.

        `name`, `tags` and `metadata` travel to every consumer (see `producer.set_metadata`). `dtype` says
        that frames are of a type that the wire has no number for, as in "float16"; where there is metadata,
        the first array of such a type says so too.
        """
        self._check_open()
        _checked_stream_id(stream_id)
        terms, first = self._metadata_terms(metadata_stream_id), None
        if name is not None or tags or metadata is not None or dtype is not None:
            first = Description(name=name, tags=tags, metadata=metadata, dtype=dtype)
        if nslots is not None:
            _checked_nslots(nslots)
        common: dict[str, Any] = {
            "descriptor_channel": descriptor_channel(self._descriptor_term_bytes),
            "descriptor_stream_id": self._descriptor_stream(descriptor_stream_id),
            "publish_timestamps": publish_timestamps,
            "streams": self._streams,
            "prefault": prefault,
        }
        producer: Producer
        if self.mode == "standalone":
            kind = TracedStandaloneProducer if traces else StandaloneProducer
            producer = kind.create(
                self._conductor,
                stream_id,
                base=self._base,
                namespace=self.namespace,
                nslots=nslots or DEFAULT_NSLOTS,
                pools=parse_pools(pools),
                announce_period_ns=self._announce_period_ns,
                **common,
            )
        else:
            if not (pools is None and nslots is None and name is None and not tags):
                self._provision(stream_id, pools, nslots, name, tags)
            self._learn_period()
            leased = TracedLeasedProducer if traces else LeasedProducer
            producer = leased.attach(
                self._conductor, stream_id, self._terms, require_hugepages=require_hugepages, **common
            )
        if isinstance(producer, TracedProducer):
            control = _native.Publication(self._conductor, _SHARED_CHANNEL, self.stream_ids.control)
            producer.tracer = Tracer(self._trace_ids, control)
        self._ready(producer)
        try:
            producer._start_describing(terms, first)
        except BaseException:
            producer.close()
            raise
        return producer

    def _provision(
        self,
        stream_id: int,
        pools: Sequence[str | int] | str | int | None,
        nslots: int | None,
        name: str | None,
        tags: Sequence[str],
    ) -> None:
        """Tells the driver the layout of a stream that the producer is about to attach to."""
        wanted: dict[str, Any] = {"stream_id": stream_id}
        if pools is not None:
            wanted["pools"] = [stride for _, stride in parse_pools(pools)]
        if nslots is not None:
            wanted["nslots"] = nslots
        if name is not None:
            wanted["name"] = name
        if tags:
            wanted["tags"] = list(tags)
        try:
            with self.service("driver", timeout=self._terms.attach_timeout_ns / 1e9) as driver:
                driver.call("provision", wanted)
        except (Rejected, CommandFailed) as error:
            raise attach_error(stream_id, "REJECTED", str(error), self._terms) from None
        except (NoSuchService, ServiceTimeout):
            raise attach_error(stream_id, "NO_ANSWER", "", self._terms) from None

    def consumer(
        self,
        stream_id: int,
        *,
        policy: Literal["stream", "latest"] = "stream",
        idle: Literal["backoff", "busy-spin", "yield", "sleep"] = "backoff",
        timeout: float | None = None,
        max_rate_hz: int | None = None,
        own_stream: bool = False,
        progress: bool = False,
        progress_interval_us: int | None = None,
        progress_bytes: int | None = None,
        progress_rows: int | None = None,
        max_outstanding_seq_gap: int = 256,
        descriptor_stream_id: int | None = None,
        metadata_stream_id: int | None = None,
    ) -> Consumer:
        """A consumer of `stream_id`; it maps the stream when there is one, now or later.

        `timeout` bounds each wait of an iteration. `policy="latest"` always gives the newest frame.
        `max_rate_hz` asks the producer for so many frames a second at most, evenly spaced by their own
        timestamps, on a descriptor stream of this consumer's own; `own_stream` asks for such a stream
        without a limit. A producer may decline: then all frames come on the shared one (event `declined`).
        `progress` asks to hear of frames that are still filling (`consumer.progress()`), at best every
        `progress_interval_us`, and for `progress_bytes` or `progress_rows` more; the producer decides.
        """
        self._check_open()
        if max_outstanding_seq_gap < 0:
            raise ConfigError(f"max_outstanding_seq_gap {max_outstanding_seq_gap}: use 0 or more frames")
        if policy not in ("stream", "latest"):
            raise ConfigError(f"policy {policy!r}: use 'stream' or 'latest'")
        self._learn_period()
        consumer = Consumer(
            self._conductor,
            stream_id=_checked_stream_id(stream_id),
            descriptor_channel="aeron:ipc",
            descriptor_stream_id=self._descriptor_stream(descriptor_stream_id),
            max_outstanding_seq_gap=max_outstanding_seq_gap,
            freshness_ns=3 * self._announce_period_ns,
            hello_period_ns=self._streams.period_ns,
            wanted=self._streams.wishes(
                max_rate_hz=max_rate_hz,
                own_stream=own_stream,
                progress=progress,
                progress_interval_us=progress_interval_us,
                progress_bytes=progress_bytes,
                progress_rows=progress_rows,
            ),
            idle=idle,
            latest_only=policy == "latest",
            lease=None if self.mode == "standalone" else self._terms.native(may_create=False),
            metadata=self._metadata_ear(metadata_stream_id),
        )
        consumer._timeout = timeout
        return self._ready(consumer)

    def _descriptor_stream(self, given: int | None) -> int:
        stream = self.stream_ids.descriptor if given is None else given
        if not 0 < stream < 1 << 31:
            raise ConfigError(f"descriptor stream id {stream}: use 1 to 2147483647, as in 1100")
        return stream

    def _ready(self, endpoint: _Endpoint) -> _Endpoint:
        """Waits until Aeron has given the endpoint its handle."""
        self._endpoints.add(endpoint)
        # Whoever keeps only the endpoint keeps the context too, and so the close at exit.
        endpoint._context = self
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not endpoint.is_ready:
            if time.monotonic() > deadline:
                endpoint.close()
                why = self._conductor.status()["last_error"] or "it did not answer"
                raise MediaDriverUnavailable(
                    f"the media driver in {self.aeron_dir} gave no stream: {why}; check that it runs",
                    aeron_dir=self.aeron_dir,
                )
            time.sleep(0.001)
        if self.mode != "standalone":
            try:
                wait_attached(endpoint, self._terms, self._driver_answers)
            except BaseException:
                endpoint.close()
                raise
        return endpoint

    def _driver_answers(self) -> bool:
        """Whether there is a driver at all: it may be busy with what was asked for."""
        try:
            with self.service("driver", timeout=1.0) as driver:
                driver.ping()
        except ServiceError:
            return False
        return True

    def _learn_period(self) -> None:
        """Freshness is judged by the driver's announce period: once, the driver is asked for it."""
        if self.mode == "standalone" or self._knows_period or self._host.is_here:
            return
        try:
            with self.service("driver", timeout=1.0) as driver:
                period_ns = round(driver.call("status")["announce_period_s"] * 1e9)
        except (ServiceError, KeyError, TypeError):
            # A driver of another make, or none yet: our own setting has to do.
            return
        self._knows_period = True
        if period_ns != self._announce_period_ns:
            _LOG.info("the driver announces every %.3g s: taken over", period_ns / 1e9)
            self._announce_period_ns = period_ns
            self._terms = replace(self._terms, announce_period_ns=period_ns)

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """What happened, in order; waits for more until closed, or until `timeout` seconds of silence."""
        while (event := self._conductor.next_event(1e9 if timeout is None else timeout)) is not None:
            yield Event(*event)

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Calls back for what has happened since the last look; returns at once."""
        for event in self.events(timeout=0.0):
            callback(event)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this context is closed; open a new one")

    def close(self) -> None:
        """Closes every producer and consumer, the connection, and what is embedded here."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as rest:
            # Last in, first out: whatever one of them raises, the others are closed too.
            rest.callback(self._conductor.close)
            rest.callback(self._host.close)
            for endpoint in list(self._endpoints):
                rest.callback(endpoint.close)
            for running in list(self._running):
                rest.callback(running.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the block belongs to the parent: there is nothing to close.
        with suppress(ForkedError):
            self.close()


def _closed_to_us(directory: str) -> str | None:
    """A media driver's directory that is there and another user's alone."""
    if not os.path.isdir(directory) or os.access(directory, os.R_OK | os.X_OK):
        return None
    return f"{directory} belongs to user id {os.stat(directory).st_uid}, and you may not enter it"


def _checked_nslots(nslots: Any) -> int:
    if not isinstance(nslots, int) or not 0 < nslots <= 1 << 20 or nslots & (nslots - 1):
        raise ConfigError(f"nslots {nslots!r}: use a power of two from 1 to 1048576, as in 8")
    return nslots


def _checked_stream_id(stream_id: Any) -> int:
    if not isinstance(stream_id, int):
        raise ConfigError(f"stream id {stream_id!r}: use a whole number, as in 10000")
    if not 0 < stream_id < 0xFFFF_FFFF:
        raise ConfigError(f"stream id {stream_id}: use 1 to 4294967294, as in 10000")
    return stream_id


@atexit.register
def _close_all() -> None:
    """A program that ends without closing leaves no media driver directory and no regions behind."""
    for context in list(_open_contexts):
        context.close()


# A forked child has nothing to close at its exit: all of it is the parent's.
os.register_at_fork(after_in_child=_open_contexts.clear)
