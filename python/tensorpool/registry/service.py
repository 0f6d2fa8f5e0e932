"""`service:registry`: the status of a registry. Commands run in the agent's duty cycle, on its thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypedDict

from ..runtime.config import Secret
from ..runtime.counters import CounterSnapshot
from ..service import Service, command
from ..shm.epoch_files import user_name

if TYPE_CHECKING:
    from .agent import DriverSummary, RegistryAgent


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
