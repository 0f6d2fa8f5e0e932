"""A bridge instance at work: frames move on native threads, words about them in the turns here.

What an end still waits for, said once when it has lasted: nobody looks for a fault in silence. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final

from ..clock import SYSTEM_CLOCK, Clock
from ..context.context import Context
from ..errors import ClosedError, ConfigError, RoleFailed
from ..runtime.config import Secret
from ..runtime.counters import CounterPublisher
from ..service import ServiceAgent
from .config import BridgeSettings
from .counters import BridgeCounters
from .mappings import host_faults, resolve_mappings
from .receiver import ReceiverMappings
from .sender import SenderMappings
from .service import BridgeService

_LOOK_NS: Final = 1_000_000_000
_LASTED_NS: Final = 5_000_000_000


class WaitLog:
    """Remembers since when, and what was said already. What came is forgotten, and said again next time."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._said: set[str] = set()
        self._next_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time for another look: now and then is enough."""
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + _LOOK_NS
        return True

    def look(self, now_ns: int, missing: Iterable[str]) -> list[str]:
        """What is to be said now."""
        self._since = {one: self._since.get(one, now_ns) for one in missing}
        self._said &= self._since.keys()
        due = [
            one
            for one, since in self._since.items()
            if now_ns - since >= _LASTED_NS and one not in self._said
        ]
        self._said.update(due)
        return due


_LOG = logging.getLogger(__name__)


class BridgeAgent:
    """Give it to a `Runner`, or to `run_role`. The context is the caller's."""

    name = "bridge"

    def __init__(
        self,
        ctx: Context,
        settings: BridgeSettings,
        *,
        service_token: Secret | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = settings
        self.counters = BridgeCounters(instance=settings.instance_id)
        self._ctx = ctx
        self._clock = clock
        self._token = service_token
        self._stack = ExitStack()
        self._parts: tuple[SenderMappings, ReceiverMappings] | None = None
        self._waiting = WaitLog()

    def on_start(self) -> None:
        """Takes everything up. Raises ConfigError for ids that this host uses for something else."""
        for key, reason in host_faults(self.settings, ids_in_use(self._ctx)):
            raise ConfigError(f"bridge.{key}: {reason}")
        routes = resolve_mappings(self.settings)
        common = (self.counters, self._clock)
        sending = SenderMappings(self._ctx, self.settings, [one for one in routes if one.sends], *common)
        self._stack.callback(sending.close)
        receiving = ReceiverMappings(
            self._ctx, self.settings, [one for one in routes if not one.sends], *common
        )
        self._stack.callback(receiving.close)
        self._parts = (sending, receiving)
        self.counters.mappings.set(len(routes))
        self._service = ServiceAgent(
            BridgeService(self, instance=self.settings.instance_id, token=self._token),
            self._ctx.connection.conductor,
            self._ctx.service_streams,
            clock=self._clock,
        )
        self._stack.callback(self._service.on_close)
        self._shown = CounterPublisher(self._ctx.connection.conductor, self.counters, clock=self._clock)
        self._stack.callback(self._shown.on_close)
        self._bind()
        _LOG.info("bridge %s: %s", self.settings.instance_id, "; ".join(str(route) for route in routes))

    def _bind(self) -> None:
        sending, receiving = self._running
        self.counters.sent.bind(lambda: sending.sums()[0])
        self.counters.delivered.bind(lambda: receiving.sums()[0])
        self.counters.bytes.bind(lambda: sending.sums()[1] + receiving.sums()[1])
        self.counters.dropped.bind(lambda: sending.sums()[2] + receiving.sums()[2])

    def do_work(self) -> int:
        sending, receiving = self._running
        if (why := sending.failure()) is not None:
            raise RoleFailed(f"the media driver refuses a channel: {why}; check the channels of [bridge]")
        now_ns = self._clock.monotonic_ns()
        if self._waiting.is_due(now_ns):
            for words in self._waiting.look(now_ns, [*sending.missing(), *receiving.missing()]):
                _LOG.warning("still waiting: %s", words)
        return sending.do_work() + receiving.do_work() + self._service.do_work() + self._shown.do_work()

    def is_ready(self) -> bool:
        sending, receiving = self._running
        return sending.is_ready() and receiving.is_ready() and self._service.is_ready()

    def on_close(self) -> None:
        self._parts = None
        self._stack.close()

    @property
    def _running(self) -> tuple[SenderMappings, ReceiverMappings]:
        if self._parts is None:
            raise ClosedError("the bridge has not started, or has ended")
        return self._parts

    def rows(self) -> list[dict[str, Any]]:
        """Every mapping and how it stands."""
        if self._parts is None:
            return []
        sending, receiving = self._parts
        return [*sending.rows(), *receiving.rows()]


def ids_in_use(ctx: Context) -> dict[str, int]:
    """What this host's programs use stream ids for."""
    ids, services = ctx.stream_ids, ctx.service_streams
    return {
        "the driver's control stream": ids.control,
        "the announce stream": ids.announce,
        "the descriptor stream": ids.descriptor,
        "the QoS stream": ids.qos,
        "the metadata stream": ids.metadata,
        "the services' control stream": services.control,
        "the services' status stream": services.status,
    }
