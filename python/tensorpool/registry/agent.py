"""The agent of a registry, and `service:registry`: announces and metadata of many drivers in, responses out.

A registry forwards nothing: clients attach at the drivers, whose addresses are in the results (discovery §8).
Registries of one fleet do not depend on each other. The agent's thread owns all of it.
Commands of the service run in its duty cycle.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, TypedDict

from .. import _native
from ..attributes.tags import REACH_LOCAL, to_wire
from ..clock import SYSTEM_CLOCK, Clock
from ..discovery import DiscoverySettings
from ..discovery.channels import is_ipc
from ..discovery.index import DiscoveryIndex, DriverIdentity
from ..discovery.provider import DiscoveryProvider, IndexUpdater
from ..discovery.requests import DiscoveryCounters
from ..errors import ClosedError, RoleFailed
from ..runtime.config import Config, Secret
from ..runtime.counters import CounterPublisher, CounterSnapshot
from ..service import Service, ServiceAgent, command
from ..shm.epoch_files import user_name
from ..transport import Connection, StreamAddress
from .config import DriverSource, RegistrySettings

if TYPE_CHECKING:
    pass


class RegistryStatus(TypedDict):
    """The reply to `status()`."""

    instance: str
    pid: int
    user: str
    uptime_s: float
    channel: str
    stream_id: int
    drivers: list[DriverSummary]
    streams: int
    has_rules: bool
    counters: CounterSnapshot


class RegistryService(Service, name="registry"):
    """The service of a registry."""

    def __init__(
        self, agent: RegistryAgent, *, instance: str | None = None, token: Secret | None = None
    ) -> None:
        super().__init__(instance=instance, token=token)
        self._agent = agent

    @command(reads=True)
    def status(self) -> RegistryStatus:
        """The registry's drivers, streams and counters."""
        agent = self._agent
        now_ns = agent.clock.monotonic_ns()
        agent.index.expire(now_ns)
        return {
            "instance": agent.instance,
            "pid": os.getpid(),
            "user": user_name(),
            "uptime_s": (now_ns - agent.started_ns) / 1e9,
            "channel": agent.settings.channel,
            "stream_id": agent.settings.stream_id,
            "drivers": agent.drivers(),
            "streams": len(agent.index),
            "has_rules": bool(agent.discovery.provider.rules),
            "counters": agent.counters.snapshot(),
        }


_LOG = logging.getLogger(__name__)
_POLL_LIMIT: Final = 256


class DriverSummary(TypedDict):
    """A driver in the status of a registry."""

    instance_id: str
    announce_channel: str
    announce_stream_id: int
    control_channel: str
    control_stream_id: int
    streams: int


class RegistryAgent:
    """A registry, for a `Runner` or `run_role`."""

    name = "registry"

    def __init__(
        self,
        connection: Connection,
        *,
        settings: RegistrySettings,
        discovery: DiscoverySettings,
        service_token: Secret | None = None,
        instance: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.connection = connection
        self.settings = settings
        self.discovery = discovery
        self.service_token = service_token
        self.instance = instance
        self.clock = clock
        self.counters = DiscoveryCounters(instance=instance)
        self.index = DiscoveryIndex(max_streams=settings.max_streams)
        self.started_ns = clock.monotonic_ns()
        self._started: _Resources | None = None

    @property
    def _resources(self) -> _Resources:
        if self._started is None:
            raise ClosedError("the registry has not started, or is closed")
        return self._started

    def on_start(self) -> None:
        """Opens the streams."""
        self._started = _Resources(self)
        self._started.set_drivers(self.settings.drivers)
        _LOG.info(
            "registry of %d drivers, requests on %s stream %d",
            len(self.settings.drivers),
            self.settings.channel,
            self.settings.stream_id,
        )

    def is_ready(self) -> bool:
        """Whether the media driver has registered all streams."""
        return self._started is not None and self._started.is_ready

    def do_work(self) -> int:
        """One duty cycle."""
        return self._resources.do_work(self.clock.monotonic_ns())

    def on_reload(self, config: Config) -> None:
        """Applies a changed list of drivers."""
        self.settings = config[RegistrySettings]
        self._resources.set_drivers(self.settings.drivers)

    def on_close(self) -> None:
        """Closes the streams."""
        resources, self._started = self._started, None
        if resources is not None:
            resources.close()

    def drivers(self) -> list[DriverSummary]:
        """The configured drivers, with the number of their streams."""
        return [
            {
                "instance_id": driver.instance_id,
                "announce_channel": driver.announce_channel,
                "announce_stream_id": driver.announce_stream_id,
                "control_channel": driver.control_channel,
                "control_stream_id": driver.control_stream_id,
                "streams": self.index.count_streams(driver.instance_id),
            }
            for driver in self.settings.drivers
        ]


class _Resources:
    """The streams of a running registry."""

    def __init__(self, agent: RegistryAgent) -> None:
        self._agent = agent
        now_ns, connection = agent.clock.monotonic_ns(), agent.connection
        conductor, services = connection.conductor, connection.services
        self._subscriptions: dict[StreamAddress, _native.Subscription] = {}
        self._updaters: dict[StreamAddress, list[IndexUpdater]] = {}
        with ExitStack() as stack:
            self._provider = DiscoveryProvider(
                conductor,
                agent.index,
                agent.discovery.provider,
                agent.counters,
                aeron_dir=connection.aeron_dir,
                reserved=frozenset((services.control, services.status)),
                now_ns=now_ns,
            )
            stack.callback(self._provider.close)
            settings = agent.settings
            self._requests = _subscribe(connection, StreamAddress(settings.channel, settings.stream_id))
            stack.callback(self._requests.close)
            service = RegistryService(agent, instance=agent.instance or None, token=agent.service_token)
            self._service = ServiceAgent(service, conductor, services, clock=agent.clock)
            stack.callback(self._service.on_close)
            self._counter_publisher = CounterPublisher(conductor, agent.counters, clock=agent.clock)
            stack.callback(self._counter_publisher.close)
            stack.callback(self._close_subscriptions)
            self._stack = stack.pop_all()

    @property
    def is_ready(self) -> bool:
        """Whether the media driver has registered all streams."""
        are_ready = all(subscription.is_ready for subscription in self._subscriptions.values())
        return are_ready and self._requests.is_ready and self._service.is_ready()

    def set_drivers(self, drivers: tuple[DriverSource, ...]) -> None:
        """Subscribes to these drivers and drops all others."""
        index = self._agent.index
        instance_ids = {driver.instance_id for driver in drivers}
        for known in index.drivers:
            if known.instance_id not in instance_ids:
                index.remove_driver(known.instance_id)
        self._updaters = {}
        for driver in drivers:
            tags = tuple(map(to_wire, (*driver.tags, *((REACH_LOCAL,) if driver.is_local else ()))))
            identity = DriverIdentity(
                driver.instance_id, driver.control_channel, driver.control_stream_id, tags
            )
            index.set_driver(identity, announce_period_ns=driver.announce_period_ns)
            updater = IndexUpdater(index, driver.instance_id, self._agent.counters, driver.has)
            for address in dict.fromkeys(driver.addresses):
                self._updaters.setdefault(address, []).append(updater)
        for address in self._subscriptions.keys() - self._updaters.keys():
            self._subscriptions.pop(address).close()
        for address in self._updaters.keys() - self._subscriptions.keys():
            self._subscriptions[address] = _subscribe(self._agent.connection, address)

    def do_work(self, now_ns: int) -> int:
        """One duty cycle. Received announces do not count as work: they cause no further work, and would keep
        the idle strategy from idling."""
        for address, subscription in self._subscriptions.items():
            messages = subscription.poll(_POLL_LIMIT)
            for message in messages:
                # Several drivers may share an address: each message is of at most one of them.
                if not any(updater.on_message(message, now_ns) for updater in self._updaters[address]):
                    self._agent.counters.foreign.add()
            if not messages and subscription.failure is not None:
                raise RoleFailed(
                    f"Aeron cannot subscribe to {address.channel} stream {address.stream_id}: "
                    f"{subscription.failure}"
                )
        requests = self._requests.poll(_POLL_LIMIT)
        for message in requests:
            if not self._provider.accept(message, now_ns):
                self._agent.counters.foreign.add()
        if not requests and self._requests.failure is not None:
            where = f"{self._agent.settings.channel} stream {self._agent.settings.stream_id}"
            raise RoleFailed(f"Aeron cannot subscribe to {where}: {self._requests.failure}")
        self._counter_publisher.do_work()
        return len(requests) + self._provider.do_work(now_ns) + self._service.do_work()

    def _close_subscriptions(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.close()

    def close(self) -> None:
        """Closes all streams."""
        self._stack.close()


def _subscribe(connection: Connection, address: StreamAddress) -> _native.Subscription:
    """Untethered on IPC: a registry that polls late must not delay publishers, and announces are repeated."""
    return connection.subscription(address, tethered=not is_ipc(address.channel))
