"""The duty cycle of a bridge instance: announces, metadata, QoS, progress and ledgers (bridge §7, §9).

Native threads move the frames. The runner's thread owns the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final, NamedTuple

from .._native import BridgeSenderCounters
from ..clock import SYSTEM_CLOCK, Clock
from ..context.context import Context
from ..errors import ClosedError, ConfigError, RoleFailed
from ..runtime.config import Secret
from ..runtime.counters import CounterPublisher
from ..service import ServiceAgent
from ..transport.connection import NetworkStatus
from .config import BridgeSettings
from .counters import BridgeCounters
from .faults import destination_range, host_faults
from .mappings import resolve_mappings
from .receiver import ReceiverMappings
from .seal import BridgeKeyRing
from .sender import SenderMappings
from .service import BridgeService, MappingRow, ReceiverRow, SenderRow

_LOG = logging.getLogger(__name__)
_SAMPLE_PERIOD_NS: Final = 1_000_000_000
_LOG_AFTER_NS: Final = 5_000_000_000


class WaitLog:
    """Decides which obstacles are logged: each once, after five seconds, and again if it returns. Pure."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._logged: set[str] = set()
        self._next_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether the next sample is due: once a second is enough."""
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + _SAMPLE_PERIOD_NS
        return True

    def sample(self, now_ns: int, obstacles: Iterable[str]) -> list[str]:
        """The obstacles to log now."""
        self._since = {obstacle: self._since.get(obstacle, now_ns) for obstacle in obstacles}
        self._logged &= self._since.keys()
        due = [
            obstacle
            for obstacle, since_ns in self._since.items()
            if now_ns - since_ns >= _LOG_AFTER_NS and obstacle not in self._logged
        ]
        self._logged.update(due)
        return due


class _BridgeEnds(NamedTuple):
    """The sending and the receiving mappings of an instance."""

    sender: SenderMappings
    receiver: ReceiverMappings


class BridgeAgent:
    """The agent of a bridge instance, for a `Runner` or `run_role`. The caller owns the context."""

    name = "bridge"

    def __init__(
        self,
        context: Context,
        settings: BridgeSettings,
        *,
        service_token: Secret | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = settings
        self.counters = BridgeCounters(instance=settings.instance_id)
        self._context = context
        self._clock = clock
        self._service_token = service_token
        self._stack = ExitStack()
        self._open_ends: _BridgeEnds | None = None
        self._wait_log = WaitLog()
        self._rejection_log = WaitLog()
        self._network_connections = 0
        self._network_error: str | None = None
        self._keys: BridgeKeyRing | None = None

    def on_start(self) -> None:
        """Open both ends, the service and the counters. Raises ConfigError for ids that this host uses."""
        for key, reason in host_faults(self.settings, ids_in_use(self._context)):
            raise ConfigError(f"bridge.{key}: {reason}")
        self._network_connections = self.network.connections
        mappings = resolve_mappings(self.settings)
        sending = [mapping for mapping in mappings if mapping.is_sending]
        receiving = [mapping for mapping in mappings if not mapping.is_sending]
        if self.settings.key_file is not None:
            self._keys = BridgeKeyRing(self.settings.key_file, self._clock, self._context.aeron_dir)
        common = (self.counters, self._clock, self._keys)
        sender = SenderMappings(self._context, self.settings, sending, *common)
        self._stack.callback(sender.close)
        receiver = ReceiverMappings(self._context, self.settings, receiving, *common)
        self._stack.callback(receiver.close)
        self._open_ends = _BridgeEnds(sender, receiver)
        self.counters.mappings.set(len(mappings))
        self._service = ServiceAgent(
            BridgeService(self, instance=self.settings.instance_id, token=self._service_token),
            self._context.connection.conductor,
            self._context.service_streams,
            clock=self._clock,
        )
        self._stack.callback(self._service.on_close)
        self._publisher = CounterPublisher(
            self._context.connection.conductor, self.counters, clock=self._clock
        )
        self._stack.callback(self._publisher.on_close)
        self._bind_counters()
        _LOG.info("bridge %s: %s", self.settings.instance_id, "; ".join(map(str, mappings)))

    def _bind_counters(self) -> None:
        sender, receiver = self._ends
        self.counters.sent.bind(lambda: sender.totals().frames)
        self.counters.delivered.bind(lambda: receiver.totals().frames)
        self.counters.bytes.bind(lambda: sender.totals().nbytes + receiver.totals().nbytes)
        self.counters.dropped.bind(lambda: sender.totals().dropped + receiver.totals().dropped)

    def do_work(self) -> int:
        """Forward messages at both ends. Raises RoleFailed if the media driver refuses a channel."""
        sender, receiver = self._ends
        if (failure := sender.failure()) is not None:
            raise RoleFailed(f"the media driver refuses a channel: {failure}; check the channels of [bridge]")
        now_ns = self._clock.monotonic_ns()
        if self._wait_log.is_due(now_ns):
            for obstacle in self._wait_log.sample(now_ns, [*sender.obstacles(), *receiver.obstacles()]):
                _LOG.warning("still waiting: %s", obstacle)
            self._log_network()
            for rejection in self._rejection_log.sample(now_ns, receiver.rejections()):
                _LOG.warning("%s", rejection)
        if self._keys is not None:
            self._keys.do_work()
        return sender.do_work() + receiver.do_work() + self._service.do_work() + self._publisher.do_work()

    def _log_network(self) -> None:
        """Log that the media driver for UDP ended, or is connected again."""
        network = self.network
        # The first connection is the start of this bridge, unless its context had one before.
        if network.connections > max(self._network_connections, 1):
            _LOG.warning("the media driver for UDP ended and was started again, in %s", network.dir)
        elif network.last_error is not None and network.last_error != self._network_error:
            _LOG.warning("%s", network.last_error)
        self._network_connections, self._network_error = network.connections, network.last_error

    def is_ready(self) -> bool:
        """Whether both ends and the service are connected."""
        sender, receiver = self._ends
        return sender.is_ready() and receiver.is_ready() and self._service.is_ready()

    def on_close(self) -> None:
        """Close both ends, the service and the counters."""
        self._open_ends = None
        self._stack.close()

    @property
    def _ends(self) -> _BridgeEnds:
        if self._open_ends is None:
            raise ClosedError("the bridge is not running")
        return self._open_ends

    @property
    def dest_stream_id_range(self) -> str | None:
        """The range from which destinations are taken, as text; None if all mappings name one."""
        ids = destination_range(self.settings)
        return None if ids is None else str(ids)

    @property
    def dest_stream_ids(self) -> list[int]:
        """Destinations that mappings name."""
        mappings = resolve_mappings(self.settings)
        return sorted({mapping.dest_stream_id for mapping in mappings if not mapping.is_sending} - {0})

    @property
    def key_ids(self) -> list[str]:
        """Names of the accepted keys, the one in use first; empty if nothing is sealed."""
        return [] if self._keys is None else self._keys.ids

    @property
    def network(self) -> NetworkStatus:
        """The media driver for UDP."""
        return self._context.connection.network

    def rows(self) -> list[MappingRow]:
        """The status of every mapping, as JSON."""
        return [*self.sender_rows(), *self.receiver_rows()]

    def sender_rows(self) -> list[SenderRow]:
        """The status of the mappings that this instance sends."""
        return [] if self._open_ends is None else self._open_ends.sender.rows()

    def sender_counters(self, source_stream_id: int) -> BridgeSenderCounters:
        """The counters of a stream that this instance sends, for any thread. Raises KeyError for another."""
        return self._ends.sender.counters(source_stream_id)

    def receiver_rows(self) -> list[ReceiverRow]:
        """The status of the mappings that this instance receives."""
        return [] if self._open_ends is None else self._open_ends.receiver.rows()


def ids_in_use(context: Context) -> dict[str, int]:
    """The Aeron stream ids that programs of this host use, by purpose."""
    ids, services = context.stream_ids, context.service_streams
    return {
        "the driver's control stream": ids.control,
        "the announce stream": ids.announce,
        "the descriptor stream": ids.descriptor,
        "the QoS stream": ids.qos,
        "the metadata stream": ids.metadata,
        "the services' control stream": services.control,
        "the services' status stream": services.status,
    }
