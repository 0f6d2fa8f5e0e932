"""What a context has to do with services: clients of them, and services of its own."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..runtime.agent import CompositeAgent
from ..runtime.config import Config, Secret
from ..runtime.counters import CounterPublisher
from ..runtime.logs import Logging
from ..runtime.process import Readiness
from ..runtime.role import LogSettings, RuntimeSettings, reload
from ..runtime.runner import Runner
from ..service import Event as ServiceEvent
from ..service import RunningService, Service, ServiceAgent, ServiceClient, find_services, watch_all
from ..service.client import DEFAULT_TIMEOUT_S
from ..transport.channels import ServiceStreams
from .part import ContextPart


class WithServices(ContextPart):
    """The part of a context that speaks on the service control plane."""

    _running: set[RunningService]
    _service_token: Secret | None
    service_streams: ServiceStreams

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
            shown = CounterPublisher(self._conductor, agent.counters)
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
