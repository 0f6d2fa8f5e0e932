"""A registry at work: announces and metadata of many drivers in, answers out.

It hands nothing on: attaches go to the drivers themselves, at the endpoints that it names (discovery §8).
Several registries of one fleet need not know of each other. One thread owns it all.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any, Final

from .. import _native
from ..attributes.tags import to_wire
from ..clock import SYSTEM_CLOCK, Clock
from ..discovery import (
    AnnounceReader,
    DiscoveryCounters,
    DiscoveryIndex,
    DiscoveryProvider,
    DiscoverySettings,
    DriverIdentity,
)
from ..discovery.channels import is_ipc
from ..errors import ClosedError, RoleFailed
from ..runtime.config import Config, Secret
from ..runtime.counters import CounterPublisher
from ..service import ServiceAgent
from ..transport.channels import ServiceStreams
from .config import DriverSource, RegistrySettings
from .service import RegistryService

_LOG = logging.getLogger(__name__)
_POLL_LIMIT: Final = 256


class RegistryAgent:
    """Give it to a `Runner`, or to `run_role`."""

    name = "registry"

    def __init__(
        self,
        conductor: _native.Conductor,
        *,
        settings: RegistrySettings,
        discovery: DiscoverySettings,
        service_streams: ServiceStreams,
        service_token: Secret | None = None,
        instance: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.conductor = conductor
        self.settings = settings
        self.discovery = discovery
        self.service_streams = service_streams
        self.service_token = service_token
        self.instance = instance
        self.clock = clock
        self.counters = DiscoveryCounters(instance=instance)
        self.index = DiscoveryIndex(max_streams=settings.max_streams)
        self.started_ns = clock.monotonic_ns()
        self._parts: _Resources | None = None

    @property
    def _running(self) -> _Resources:
        if self._parts is None:
            raise ClosedError("the registry has not started, or has ended")
        return self._parts

    def on_start(self) -> None:
        self._parts = _Resources(self)
        self._parts.listen_to(self.settings.drivers)
        _LOG.info(
            "registry of %d drivers, asked on %s stream %d",
            len(self.settings.drivers),
            self.settings.channel,
            self.settings.stream_id,
        )

    def is_ready(self) -> bool:
        return self._parts is not None and self._parts.is_ready

    def do_work(self) -> int:
        return self._running.do_work(self.clock.monotonic_ns())

    def on_reload(self, config: Config) -> None:
        """Drivers that came, went or moved."""
        self.settings = config[RegistrySettings]
        self._running.listen_to(self.settings.drivers)

    def on_close(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.close()

    def drivers(self) -> list[dict[str, Any]]:
        """Each driver, and how much is known of it."""
        return [
            {
                "instance_id": one.instance_id,
                "announce_channel": one.announce_channel,
                "announce_stream_id": one.announce_stream_id,
                "control_channel": one.control_channel,
                "control_stream_id": one.control_stream_id,
                "streams": self.index.count_of(one.instance_id),
            }
            for one in self.settings.drivers
        ]


class _Resources:
    """What a registry holds while it runs."""

    def __init__(self, agent: RegistryAgent) -> None:
        self._agent = agent
        now_ns = agent.clock.monotonic_ns()
        self._ears: dict[tuple[str, int], _native.Subscription] = {}
        self._intakes: dict[tuple[str, int], list[AnnounceReader]] = {}
        with ExitStack() as stack:
            self._provider = DiscoveryProvider(
                agent.conductor,
                agent.index,
                agent.discovery.provider,
                agent.counters,
                reserved=frozenset((agent.service_streams.control, agent.service_streams.status)),
                now_ns=now_ns,
            )
            stack.callback(self._provider.close)
            settings = agent.settings
            self._requests = _native.Subscription(
                agent.conductor, _untethered(settings.channel), settings.stream_id
            )
            stack.callback(self._requests.close)
            service = RegistryService(agent, instance=agent.instance or None, token=agent.service_token)
            self._service = ServiceAgent(service, agent.conductor, agent.service_streams, clock=agent.clock)
            stack.callback(self._service.on_close)
            self._exposure = CounterPublisher(agent.conductor, agent.counters, clock=agent.clock)
            stack.callback(self._exposure.close)
            stack.callback(self._close_ears)
            self._stack = stack.pop_all()

    @property
    def is_ready(self) -> bool:
        ears = all(ear.is_ready for ear in self._ears.values())
        return ears and self._requests.is_ready and self._service.is_ready()

    def listen_to(self, drivers: tuple[DriverSource, ...]) -> None:
        """These and no others."""
        index = self._agent.index
        wanted = {one.instance_id for one in drivers}
        for known in index.drivers:
            if known.instance_id not in wanted:
                index.drop_driver(known.instance_id)
        self._intakes = {}
        for one in drivers:
            tags = tuple(map(to_wire, one.tags))
            identity = DriverIdentity(one.instance_id, one.control_channel, one.control_stream_id, tags)
            index.set_driver(identity, announce_period_ns=one.announce_period_ns)
            intake = AnnounceReader(index, one.instance_id, self._agent.counters, one.has)
            for place in dict.fromkeys(one.places):
                self._intakes.setdefault(place, []).append(intake)
        for place in self._ears.keys() - self._intakes.keys():
            self._ears.pop(place).close()
        for channel, stream_id in self._intakes.keys() - self._ears.keys():
            self._ears[channel, stream_id] = _native.Subscription(
                self._agent.conductor, _untethered(channel), stream_id
            )

    def do_work(self, now_ns: int) -> int:
        # Announces lead to nothing that is to be done: they must not keep an idle strategy from resting.
        for place, ear in self._ears.items():
            messages = ear.poll(_POLL_LIMIT)
            for message in messages:
                if not any(intake.hear(message, now_ns) for intake in self._intakes[place]):
                    self._agent.counters.foreign.add()
            if not messages and ear.failure is not None:
                raise RoleFailed(f"Aeron cannot listen to {place[0]} stream {place[1]}: {ear.failure}")
        requests = self._requests.poll(_POLL_LIMIT)
        for message in requests:
            if not self._provider.accept(message, now_ns):
                self._agent.counters.foreign.add()
        if not requests and self._requests.failure is not None:
            where = f"{self._agent.settings.channel} stream {self._agent.settings.stream_id}"
            raise RoleFailed(f"Aeron cannot listen to {where}: {self._requests.failure}")
        self._exposure.do_work()
        return len(requests) + self._provider.do_work(now_ns) + self._service.do_work()

    def _close_ears(self) -> None:
        for ear in self._ears.values():
            ear.close()

    def close(self) -> None:
        self._stack.close()


def _untethered(channel: str) -> str:
    """A registry that falls behind must not hold up those who announce: what it missed comes again."""
    if not is_ipc(channel) or "tether=" in channel:
        return channel
    return f"{channel}{'|' if '?' in channel else '?'}tether=false"
