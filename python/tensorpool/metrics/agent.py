"""Metrics by themselves: listens like a supervisor, decides nothing.

What is behind the endpoint: the newest snapshot, as text.

Everything of `[metrics]` at once, for a role that has a picture of the system.

with Metrics(settings, picture.snapshot):
    ...
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from .. import __version__
from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..monitor.listener import SystemMonitor
from ..monitor.model import SharedSnapshot
from ..monitor.snapshot import Snapshot
from .collect import DEFAULT_LIMITS, Limits, collect
from .config import MetricsSettings
from .exposition import Family, render
from .otel import OtelExport
from .server import Address, MetricsServer


class MetricsSource:
    """Asks `source` for a snapshot whenever somebody asks for the page; on that one's thread."""

    def __init__(self, source: Callable[[], Snapshot], limits: Limits = DEFAULT_LIMITS) -> None:
        self._source = source
        self._limits = limits

    def families(self) -> list[Family]:
        return collect(self._source(), self._limits, version=__version__)

    def __call__(self) -> str:
        return render(self.families())


_LOG = logging.getLogger(__name__)


class MetricsExporter:
    """The endpoint and the export, as far as they are set. `source` is called on their threads."""

    def __init__(self, settings: MetricsSettings, source: Callable[[], Snapshot]) -> None:
        page = MetricsSource(source, settings.limits)
        self.server: MetricsServer | None = None
        with ExitStack() as stack:
            if settings.listen is not None:
                address = Address.parse(settings.listen)
                self.server = stack.enter_context(MetricsServer(address, page, hosts=settings.hosts))
                _LOG.info("metrics are at %s", self.server.url)
                if not address.is_loopback:
                    _LOG.warning("everybody who reaches %s can read the metrics", self.server.address)
            if settings.otlp is not None:
                stack.enter_context(
                    OtelExport(page.families, endpoint=settings.otlp, period_ns=settings.otlp_period_ns)
                )
                _LOG.info("metrics go to %s", settings.otlp)
            self._stack = stack.pop_all()

    def close(self) -> None:
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


_PERIOD_NS: Final = 1_000_000_000
_LISTEN_NS: Final = 20_000_000
"""In batches, and at rest in between, as a supervisor does."""


class MetricsAgent:
    """Keeps a picture, and serves the newest snapshot of it."""

    name = "metrics"

    def __init__(self, context: Context, settings: MetricsSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._context = context
        self._settings = settings
        self._clock = clock
        self._monitor: SystemMonitor | None = None
        self.metrics: MetricsExporter | None = None
        self._latest: SharedSnapshot | None = None
        self._next_listen_ns = 0

    def on_start(self) -> None:
        self._monitor = SystemMonitor(self._context.connection, clock=self._clock)
        self._latest = SharedSnapshot(self._monitor.model, _PERIOD_NS, self._clock)
        self.metrics = MetricsExporter(self._settings, self._latest)

    def do_work(self) -> int:
        assert self._monitor is not None, "started before its first turn"
        assert self._latest is not None
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_listen_ns:
            self._next_listen_ns = now_ns + _LISTEN_NS
            with self._latest.updating():
                self._monitor.poll()
        return 0

    def on_close(self) -> None:
        if self.metrics is not None:
            self.metrics.close()
        if self._monitor is not None:
            self._monitor.close()
