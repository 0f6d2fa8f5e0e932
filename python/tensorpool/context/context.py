"""A context: one native conductor thread, its media driver, and the producers and consumers on it."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from ..client import LeaseOptions, PerConsumerStreams, ReportOptions, TraceIds
from ..discovery import DiscoverySettings
from ..driver import DriverAgent, DriverSettings, EmbeddedDriver, qualified_namespace
from ..errors import ClosedError, ForkedError
from ..runtime.config import Secret
from ..transport import Connection, ConnectionOptions, StreamIds
from ..transport.channels import ServiceStreams
from .consumers import WithConsumers
from .driver_host import DriverHost, Mode
from .history import WithHistory
from .locate import WithDiscovery
from .producers import WithProducers

_T = TypeVar("_T")
_open_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the connection.

    media_driver_connected, media_driver_lost, mapped, unmapped, refused, aeron_error; on a driver attached,
    attach_refused, revoked, driver_shutdown, driver_lost; between a consumer and its producer declined,
    fallback, fallback_mapped, fallback_failed, fallback_over, fallback_refused, id_collision.
    """

    kind: str
    at_ns: int
    stream_id: int | None
    epoch: int | None
    detail: str


class Context(WithProducers, WithConsumers, WithDiscovery, WithHistory):
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
        discovery: DiscoverySettings,
        terms: LeaseOptions,
        descriptor_term_bytes: int,
        streams: PerConsumerStreams,
        reports: ReportOptions,
        connect_timeout: float,
        driver_timeout: float,
        announce_period: float,
    ) -> None:
        self.mode = mode
        self.aeron_dir = aeron_dir
        self.namespace = namespace
        self._terms = terms
        self.per_consumer_streams = self._streams = streams
        self._reports = reports
        self._descriptor_term_bytes = descriptor_term_bytes
        self.stream_ids = stream_ids
        self._base = shm_base_dir
        self._announce_period_ns = int(announce_period * 1e9)
        self.service_streams = service_streams
        self._service_token = service_token
        self._trace_ids = TraceIds()
        self._endpoints = weakref.WeakSet()
        self._reported = weakref.WeakSet()
        self._running = set()
        self._ears = {}
        self._discovery = discovery
        self._finder = None
        self._own_finder = None
        self._siblings = {}
        self._closed = False
        self._knows_period = False
        # For streams of another driver on the same media driver, which are found by name.
        self._sibling = partial(
            Context,
            mode="driver",
            aeron_dir=aeron_dir,
            embed=False,
            aeron_dir_mode=aeron_dir_mode,
            namespace=namespace,
            shm_base_dir=shm_base_dir,
            allowed_base_dirs=allowed_base_dirs,
            service_streams=service_streams,
            service_token=service_token,
            driver_settings=driver_settings,
            discovery=discovery,
            descriptor_term_bytes=descriptor_term_bytes,
            streams=streams,
            reports=reports,
            connect_timeout=connect_timeout,
            driver_timeout=driver_timeout,
            announce_period=announce_period,
        )
        self.connection = Connection.open(
            ConnectionOptions(
                aeron_dir=aeron_dir,
                embed_media_driver=embed,
                aeron_dir_mode=aeron_dir_mode,
                allowed_base_dirs=tuple(allowed_base_dirs),
                stream_ids=stream_ids,
                services=service_streams,
                connect_timeout_s=connect_timeout,
                driver_timeout_s=driver_timeout,
                announce_period_ns=self._announce_period_ns,
                report_period_ns=streams.period_ns,
            )
        )
        self._conductor = self.connection.conductor
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
                discovery=self._discovery,
            )
            return EmbeddedDriver(agent)

        return DriverHost(
            self.mode,
            embed=embed,
            is_connected=lambda: self.connected,
            place=qualified_namespace(self.namespace, settings.instance_id),
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
            for endpoint in _all(self._endpoints):
                rest.callback(endpoint.close)
            rest.callback(self._close_finder)
            for sibling in list(self._siblings.values()):
                rest.callback(sibling.close)
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


@atexit.register
def _close_all() -> None:
    """A program that ends without closing leaves no media driver directory and no regions behind."""
    with ExitStack() as rest:
        # Whatever one of them raises, the others are closed too.
        for context in _all(_open_contexts):
            rest.callback(context.close)


def _all(found: weakref.WeakSet[_T]) -> list[_T]:
    """What is in it: another thread may add something right when it is looked through."""
    while True:
        try:
            return list(found)
        except RuntimeError:
            continue


# A forked child has nothing to close at its exit: all of it is the parent's.
os.register_at_fork(after_in_child=_open_contexts.clear)
