"""A context: one native conductor thread, its media driver, and the producers and consumers on it."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from .. import _native
from ..client import Consumer, Producer, StandaloneProducer, TracedProducer, TraceIds, Tracer
from ..errors import ClosedError, ConfigError, ForkedError, MediaDriverUnavailable
from ..runtime.aeron_counters import AeronExposure
from ..runtime.agent import CompositeAgent
from ..runtime.config import Config, Secret
from ..runtime.logs import Logging
from ..runtime.ready import Readiness
from ..runtime.role import reload
from ..runtime.runner import Runner
from ..runtime.settings import LogSettings, RuntimeSettings
from ..service import Event as ServiceEvent
from ..service import (
    RunningService,
    Service,
    ServiceAgent,
    ServiceClient,
    ServiceStreams,
    find_services,
    watch_all,
)
from ..service.client import DEFAULT_TIMEOUT_S
from ..shm import parse_pools
from ..transport import StreamIds, descriptor_channel, embed_lock_path

_SHARED_CHANNEL = "aeron:ipc"
_READY_TIMEOUT_S = 10.0
_Endpoint = TypeVar("_Endpoint", Producer, Consumer)
_open_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the connection.

    media_driver_connected, media_driver_lost, mapped, unmapped, refused, aeron_error.
    """

    kind: str
    at_ns: int
    stream_id: int | None
    epoch: int | None
    detail: str


class Context:
    """What `tensorpool.open()` returns. Close it, or use it in a `with` block."""

    def __init__(
        self,
        *,
        aeron_dir: str,
        embed: bool,
        namespace: str,
        shm_base_dir: Path,
        allowed_base_dirs: Sequence[Path],
        stream_ids: StreamIds,
        service_streams: ServiceStreams,
        service_token: Secret | None,
        connect_timeout: float,
        driver_timeout: float,
        announce_period: float,
    ) -> None:
        self.aeron_dir = aeron_dir
        self.namespace = namespace
        self.stream_ids = stream_ids
        self._base = shm_base_dir
        self._announce_period_ns = int(announce_period * 1e9)
        self.service_streams = service_streams
        self._service_token = service_token
        self._trace_ids = TraceIds()
        self._endpoints: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()
        self._running: set[RunningService] = set()
        self._closed = False
        self._conductor = _native.Conductor(
            aeron_dir=aeron_dir,
            embed_lock=embed_lock_path(aeron_dir) if embed else None,
            driver_timeout_ms=int(driver_timeout * 1000),
            announce_channel=_SHARED_CHANNEL,
            announce_stream_id=stream_ids.announce,
            announce_period_ns=self._announce_period_ns,
            allowed_base_dirs=list(allowed_base_dirs),
        )
        if not self._conductor.wait_connected(connect_timeout):
            why = self._conductor.status()["last_error"] or "no answer"
            self._conductor.close()
            raise MediaDriverUnavailable(
                f"{why}; start one (tensorpool.MediaDriver({aeron_dir!r}) or aeronmd), check aeron_dir, or "
                "let open() embed one with media_driver='auto'",
                aeron_dir=aeron_dir,
            )
        _open_contexts.add(self)

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
        nslots: int = 8,
        descriptor_stream_id: int | None = None,
        publish_timestamps: bool = False,
        prefault: bool = True,
        traces: Literal[True],
    ) -> TracedProducer: ...
    @overload
    def producer(
        self,
        stream_id: int,
        *,
        pools: Sequence[str | int] | str | int | None = None,
        nslots: int = 8,
        descriptor_stream_id: int | None = None,
        publish_timestamps: bool = False,
        prefault: bool = True,
        traces: bool = False,
    ) -> Producer: ...
    def producer(
        self,
        stream_id: int,
        *,
        pools: Sequence[str | int] | str | int | None = None,
        nslots: int = 8,
        descriptor_stream_id: int | None = None,
        publish_timestamps: bool = False,
        prefault: bool = True,
        traces: bool = False,
    ) -> Producer:
        """A producer that owns the memory of `stream_id`.

        `pools` are the size classes of payloads (`["64KiB", "1MiB"]`), `nslots` how many frames a reader
        may lag behind before they are overwritten: a power of two. All memory is allocated now.
        `traces` gives every frame a trace id and lets `offer(array, parents=[frame, …])` tell of its lineage.
        """
        self._check_open()
        kind = TracedProducer if traces else StandaloneProducer
        producer = kind.create(
            self._conductor,
            _checked_stream_id(stream_id),
            base=self._base,
            namespace=self.namespace,
            nslots=_checked_nslots(nslots),
            pools=parse_pools(pools),
            descriptor_channel=descriptor_channel(),
            descriptor_stream_id=self._descriptor_stream(descriptor_stream_id),
            announce_period_ns=self._announce_period_ns,
            publish_timestamps=publish_timestamps,
            prefault=prefault,
        )
        if isinstance(producer, TracedProducer):
            control = _native.Publication(self._conductor, _SHARED_CHANNEL, self.stream_ids.control)
            producer.tracer = Tracer(self._trace_ids, control)
        return self._ready(producer)

    def consumer(
        self,
        stream_id: int,
        *,
        policy: Literal["stream", "latest"] = "stream",
        idle: Literal["backoff", "busy-spin", "yield", "sleep"] = "backoff",
        timeout: float | None = None,
        max_outstanding_seq_gap: int = 256,
        descriptor_stream_id: int | None = None,
    ) -> Consumer:
        """A consumer of `stream_id`; it maps the stream when its producer is heard, now or later.

        `timeout` bounds each wait of an iteration. `policy="latest"` always gives the newest frame.
        """
        self._check_open()
        if max_outstanding_seq_gap < 0:
            raise ConfigError(f"max_outstanding_seq_gap {max_outstanding_seq_gap}: use 0 or more frames")
        if policy not in ("stream", "latest"):
            raise ConfigError(f"policy {policy!r}: use 'stream' or 'latest'")
        consumer = Consumer(
            self._conductor,
            stream_id=_checked_stream_id(stream_id),
            descriptor_channel="aeron:ipc",
            descriptor_stream_id=self._descriptor_stream(descriptor_stream_id),
            max_outstanding_seq_gap=max_outstanding_seq_gap,
            freshness_ns=3 * self._announce_period_ns,
            idle=idle,
            latest_only=policy == "latest",
        )
        consumer._timeout = timeout
        return self._ready(consumer)

    def service(
        self,
        name: str,
        *,
        instance: str | None = None,
        token: str | Secret | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> ServiceClient:
        """A client of the service `name`: get, set, call, watch. The token is the configured one, if any."""
        self._check_open()
        return ServiceClient(
            self._conductor,
            name,
            instance=instance,
            token=token or self._service_token,
            timeout=timeout,
            streams=self.service_streams,
        )

    def serve(self, service: Service) -> RunningService:
        """Runs `service` on a thread of its own until it, or the context, is closed."""
        self._check_open()
        running = RunningService(self._agent(service))
        self._running.add(running)
        return running

    def run(self, service: Service, config: Config | None = None) -> None:
        """Runs `service` here until SIGTERM or Ctrl-C: the main of a program that is a service.

        Logs to stderr, writes the ready file and tells systemd as `[log]` and `[runtime]` of the
        configuration (a file, or the environment) say; SIGHUP reads it again.
        """
        self._check_open()
        loaded = config or Config.load(RuntimeSettings, LogSettings)
        runtime, log = loaded[RuntimeSettings], loaded[LogSettings]
        who = service.instance or runtime.instance
        with Logging(service.name, who, form=log.format, level=log.level, repeats=log.repeats) as logs:
            agent = self._agent(service)
            shown = AeronExposure(self._conductor, agent.counters)
            both = CompositeAgent(agent, shown, name=agent.name)
            Runner(
                both,
                idle=agent,
                readiness=Readiness(runtime.ready_file),
                on_hangup=lambda: reload(loaded, both, logs),
            ).run()

    def _agent(self, service: Service) -> ServiceAgent:
        service.use_token(self._service_token)
        return ServiceAgent(service, self._conductor, self.service_streams)

    def services(self, timeout: float = 1.0) -> list[dict[str, Any]]:
        """Every service that answers within `timeout` seconds."""
        self._check_open()
        return find_services(self._conductor, timeout=timeout, streams=self.service_streams)

    def status_events(self, timeout: float | None = None) -> Generator[ServiceEvent, None, None]:
        """Everything on the services' status stream: the record of what was accepted."""
        self._check_open()
        return watch_all(self._conductor, streams=self.service_streams, timeout=timeout)

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
        return endpoint

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
        """Closes every producer and consumer, the connection, and an embedded media driver."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as rest:
            # Last in, first out: whatever one of them raises, the others are closed too.
            rest.callback(self._conductor.close)
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
