"""Asks who has which streams: a driver, or all registries of a fleet."""

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
from .channels import IPC, endpoint_of, is_ipc, udp_channel
from .config import DiscoverySettings
from .query import DiscoveredStream, PendingQuery, make_request
from .state import Filter

_LOG = logging.getLogger(__name__)
_AGAIN_S: Final = 0.5
_LOOK_S: Final = 0.001
# One registry of several that does not answer must not cost the whole timeout.
_GRACE_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Route:
    """Where one provider is asked, and where its answer is heard."""

    channel: str
    stream_id: int
    response_channel: str
    response_stream_id: int


def routes(settings: DiscoverySettings, control_stream_id: int) -> list[Route]:
    """To the driver's control stream, or to all registries. Raises ConfigError."""
    stream = settings.response_stream_id
    if settings.channel is None:
        return [Route(IPC, control_stream_id, IPC, stream)]
    return [
        Route(one, settings.stream_id, settings.response_channel or _response_channel(one, settings), stream)
        for one in settings.registries
    ]


def _response_channel(channel: str, settings: DiscoverySettings) -> str:
    """The address by which this machine reaches the registry: there the registry reaches it too."""
    if is_ipc(channel):
        return IPC
    endpoint = endpoint_of(channel)
    assert endpoint is not None, "the settings were checked"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(*endpoint, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # No packet is sent: it only asks for the route.
            probe.connect(address)
            return udp_channel(probe.getsockname()[0], settings.response_port)
    except OSError as error:
        raise ConfigError(
            f"discovery.channel {channel!r}: there is no way to {endpoint[0]} ({error}); check the host, or "
            "set discovery.response_channel"
        ) from None


class DiscoveryClient:
    """Keeps its streams open between questions. Safe to use from several threads, one question at a time."""

    def __init__(
        self,
        conductor: _native.Conductor,
        routes: Sequence[Route],
        *,
        client_id: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.client_id = client_id or secrets.randbelow(0xFFFF_FFFE) + 1
        self.dropped: Counter[str] = Counter()
        """What was passed over so far, by reason."""
        self._clock = clock
        self._routes = tuple(routes)
        self._lock = threading.Lock()
        # The upper half is drawn anew, so that an answer to a client of the same id is not ours.
        self._ids = itertools.count(secrets.randbits(31) << 32 | 1)
        self._questions = [_native.Publication(conductor, one.channel, one.stream_id) for one in self._routes]
        heard = dict.fromkeys((one.response_channel, one.response_stream_id) for one in self._routes)
        self._ears = [
            # A client that sleeps must not hold up the answers to others.
            _native.Subscription(conductor, f"{IPC}?tether=false" if is_ipc(channel) else channel, stream_id)
            for channel, stream_id in heard
        ]

    def find(self, wanted: Filter, *, timeout: float) -> list[DiscoveredStream]:
        """Every stream that fits, each once. Raises NoProvider if nobody answers, DiscoveryError if all
        answers are errors."""
        with self._lock:
            asking = self._ask(wanted, self._now() + timeout)
        self.dropped.update(asking.dropped)
        if not asking.is_answered:
            if asking.errors:
                raise DiscoveryError(f"discovery: {'; '.join(asking.errors.values())}")
            raise NoProvider(self._nobody(timeout))
        for why in asking.errors.values():
            _LOG.warning("one of %d registries answered with an error: %s", len(self._routes), why)
        return asking.streams()

    def _now(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _ask(self, wanted: Filter, deadline: float) -> PendingQuery:
        asking = PendingQuery(wanted, [next(self._ids) for _ in self._routes])
        again_at: dict[int, float] = {}
        while not asking.is_over and (now := self._now()) < deadline:
            self._send(asking, again_at, now)
            if not self._hear(asking):
                self._clock.sleep(_LOOK_S)
            elif asking.is_answered:
                deadline = min(deadline, now + _GRACE_S)
        return asking

    def _send(self, asking: PendingQuery, again_at: dict[int, float], now: float) -> None:
        """Each question again now and then, until it is answered: a registry may just be starting."""
        # An answer that comes before the ear is there is lost.
        if not all(ear.is_ready for ear in self._ears):
            return
        for request_id, route, publication in zip(
            asking.request_ids, self._routes, self._questions, strict=True
        ):
            if request_id not in asking.open_ids or now < again_at.get(request_id, now):
                continue
            request = make_request(
                asking.wanted,
                request_id=request_id,
                client_id=self.client_id,
                response_channel=route.response_channel,
                response_stream_id=route.response_stream_id,
            )
            if publication.offer(request.encode()) == "sent":
                again_at[request_id] = now + _AGAIN_S

    def _hear(self, asking: PendingQuery) -> int:
        count = 0
        for ear in self._ears:
            for message in ear.poll(64):
                asking.hear(message)
                count += 1
        return count

    def _nobody(self, timeout: float) -> str:
        if refused := [ear.failure for ear in self._ears if ear.failure]:
            return f"Aeron cannot hear answers: {refused[0]}; set discovery.response_channel or response_port"
        asked = ", ".join(f"{one.channel} stream {one.stream_id}" for one in self._routes)
        return (
            f"nobody answered within {timeout:g} s on {asked}; start tensorpool driver or tensorpool "
            "registry, or check [discovery]"
        )

    def close(self) -> None:
        for question in self._questions:
            question.close()
        for ear in self._ears:
            ear.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
