"""The client of discovery: sends requests to a driver or to all registries, and collects the responses."""

from __future__ import annotations

import itertools
import logging
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ConfigError, DiscoveryError, NoProvider
from ..transport import StreamAddress
from ..transport.channels import tethered, untethered
from ..units import MAX_U32
from .channels import IPC, endpoint_of, is_ipc, udp_channel
from .client_query import DiscoveredStream, Filter, PendingQuery, make_request
from .config import DiscoverySettings

_LOG = logging.getLogger(__name__)
_RETRY_S: Final = 0.5
_POLL_S: Final = 0.001
_GRACE_S: Final = 0.25
"""Wait for further responses after the first one: a registry that does not answer must not cost the whole
timeout."""
_POLL_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class Route:
    """The address of a provider, and the address for its responses."""

    channel: str
    stream_id: int
    response_channel: str
    response_stream_id: int


def routes(settings: DiscoverySettings, control: StreamAddress) -> list[Route]:
    """The routes to all registries or, without any, to the driver's control stream. Raises ConfigError."""
    stream_id = settings.response_stream_id
    if settings.channel is None:
        return [Route(control.channel, control.stream_id, IPC, stream_id)]
    return [
        Route(
            channel,
            settings.stream_id,
            settings.response_channel or _response_channel(channel, settings),
            stream_id,
        )
        for channel in settings.registries
    ]


def _response_channel(channel: str, settings: DiscoverySettings) -> str:
    """The local address of the route to the registry, which the registry can reach in turn."""
    if is_ipc(channel):
        return IPC
    endpoint = endpoint_of(channel)
    assert endpoint is not None, "the settings were checked"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(*endpoint, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # Connecting a UDP socket sends no packet: it only selects the route.
            probe.connect(address)
            return udp_channel(probe.getsockname()[0], settings.response_port)
    except OSError as error:
        raise ConfigError(
            f"discovery.channel {channel!r}: no route to {endpoint[0]} ({error}); check the host, or set "
            "discovery.response_channel"
        ) from None


class DiscoveryClient:
    """Keeps its streams open between queries. Threads may share it; it runs one query at a time."""

    def __init__(
        self,
        conductor: _native.Conductor,
        routes: Sequence[Route],
        *,
        client_id: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.client_id = client_id or secrets.randbelow(MAX_U32) + 1
        self.dropped: Counter[str] = Counter()
        """Ignored messages and results of all queries, by reason."""
        self._clock = clock
        self._routes = tuple(routes)
        self._lock = threading.Lock()
        # Random upper half: a response to another client with the same client id does not match.
        self._ids = itertools.count(secrets.randbits(31) << 32 | 1)
        self._publications = [
            _native.Publication(conductor, route.channel, route.stream_id) for route in self._routes
        ]
        addresses = dict.fromkeys(
            (route.response_channel, route.response_stream_id) for route in self._routes
        )
        self._subscriptions = [
            # Untethered: a client that does not poll must not delay the responses to others.
            _native.Subscription(
                conductor, untethered(channel) if is_ipc(channel) else tethered(channel), stream_id
            )
            for channel, stream_id in addresses
        ]

    def find(self, query: Filter, *, timeout: float) -> list[DiscoveredStream]:
        """Every matching stream, each once. Raises NoProvider if there is no response, and DiscoveryError if
        all responses are errors."""
        with self._lock:
            pending = self._run(query, self._now() + timeout)
        self.dropped.update(pending.dropped)
        if not pending.is_answered:
            if pending.errors:
                raise DiscoveryError(f"discovery: {'; '.join(pending.errors.values())}")
            raise NoProvider(self._no_response_text(timeout))
        for error in pending.errors.values():
            _LOG.warning("a registry of %d answered with an error: %s", len(self._routes), error)
        return pending.streams()

    def _now(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _run(self, query: Filter, deadline: float) -> PendingQuery:
        pending = PendingQuery(query, [next(self._ids) for _ in self._routes])
        retry_at: dict[int, float] = {}
        while not pending.is_complete and (now := self._now()) < deadline:
            self._send(pending, retry_at, now)
            if not self._poll(pending):
                self._clock.sleep(_POLL_S)
            elif pending.is_answered:
                deadline = min(deadline, now + _GRACE_S)
        return pending

    def _send(self, pending: PendingQuery, retry_at: dict[int, float], now: float) -> None:
        """Repeats each request until it has a response: a registry may just be starting."""
        # A response that is sent before the subscription is ready would be lost.
        if not all(subscription.is_ready for subscription in self._subscriptions):
            return
        for request_id, route, publication in zip(
            pending.request_ids, self._routes, self._publications, strict=True
        ):
            if request_id not in pending.open_ids or now < retry_at.get(request_id, now):
                continue
            request = make_request(
                pending.query,
                request_id=request_id,
                client_id=self.client_id,
                response_channel=route.response_channel,
                response_stream_id=route.response_stream_id,
            )
            if publication.offer(request.encode()) == "sent":
                retry_at[request_id] = now + _RETRY_S

    def _poll(self, pending: PendingQuery) -> int:
        received = 0
        for subscription in self._subscriptions:
            for message in subscription.poll(_POLL_LIMIT):
                pending.on_response(message)
                received += 1
        return received

    def _no_response_text(self, timeout: float) -> str:
        failures = [subscription.failure for subscription in self._subscriptions if subscription.failure]
        if failures:
            return (
                f"Aeron cannot subscribe to responses: {failures[0]}; set discovery.response_channel or "
                "response_port"
            )
        addresses = ", ".join(f"{route.channel} stream {route.stream_id}" for route in self._routes)
        return (
            f"no response within {timeout:g} s on {addresses}; start tensorpool driver or tensorpool "
            "registry, or check [discovery]"
        )

    def close(self) -> None:
        """Closes all streams."""
        for publication in self._publications:
            publication.close()
        for subscription in self._subscriptions:
            subscription.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
