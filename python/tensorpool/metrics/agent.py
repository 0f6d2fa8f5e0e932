"""The metrics endpoint and export as parts of a role, and the role `metrics`.

The role receives the same messages as a supervisor and controls nothing. Its agent runs on the role's
thread; the endpoint and the export run on threads of their own and read the newest snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..monitor.listener import SystemMonitor
from ..monitor.model import SharedSnapshot
from ..monitor.snapshot import Snapshot
from .collect import MetricsCollector
from .config import MetricsSettings
from .otel import OtelExport
from .server import Address, MetricsServer

_LOG = logging.getLogger(__name__)
_SNAPSHOT_PERIOD_NS: Final = 1_000_000_000
_POLL_PERIOD_NS: Final = 20_000_000
"""Messages are polled in batches: an idle period between them costs less than polling all the time."""


class MetricsExporter:
    """The endpoint and the export, as far as the settings enable them; both call `source` on their threads.

    with MetricsExporter(settings, model.snapshot):
        ...
    """

    def __init__(self, settings: MetricsSettings, source: Callable[[], Snapshot]) -> None:
        collector = MetricsCollector(source, settings.limits)
        self.server: MetricsServer | None = None
        with ExitStack() as stack:
            if settings.listen is not None:
                address = Address.parse(settings.listen)
                self.server = stack.enter_context(
                    MetricsServer(address, collector.page, hosts=settings.hosts)
                )
                _LOG.info("metrics are at %s", self.server.url)
                if not address.is_loopback:
                    _LOG.warning("the metrics at %s can be read from the network", self.server.address)
            if settings.otlp is not None:
                stack.enter_context(
                    OtelExport(collector.collect, endpoint=settings.otlp, period_ns=settings.otlp_period_ns)
                )
                _LOG.info("metrics go to %s", settings.otlp)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Stops the endpoint and the export."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class MetricsAgent:
    """Keeps a system model and serves its newest snapshot."""

    name = "metrics"

    def __init__(self, context: Context, settings: MetricsSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._context = context
        self._settings = settings
        self._clock = clock
        self._monitor: SystemMonitor | None = None
        self._snapshot: SharedSnapshot | None = None
        self._next_poll_ns = 0
        self.metrics: MetricsExporter | None = None

    def on_start(self) -> None:
        """Opens the subscriptions, the endpoint and the export."""
        self._monitor = SystemMonitor(self._context.connection, clock=self._clock)
        self._snapshot = SharedSnapshot(self._monitor.model, _SNAPSHOT_PERIOD_NS, self._clock)
        self.metrics = MetricsExporter(self._settings, self._snapshot)

    def do_work(self) -> int:
        """Polls the subscriptions once a period. Returns 0: the caller may idle."""
        assert self._monitor is not None, "on_start runs before the first do_work"
        assert self._snapshot is not None
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_poll_ns:
            self._next_poll_ns = now_ns + _POLL_PERIOD_NS
            with self._snapshot.updating():
                self._monitor.poll()
        return 0

    def on_close(self) -> None:
        """Closes the endpoint, the export and the subscriptions."""
        if self.metrics is not None:
            self.metrics.close()
        if self._monitor is not None:
            self._monitor.close()
