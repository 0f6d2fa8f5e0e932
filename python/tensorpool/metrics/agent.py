"""Metrics by themselves: listens like a supervisor, decides nothing."""

from __future__ import annotations

from typing import Final

from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..monitor import LedgerMonitor
from ..monitor.listener import SystemMonitor, model_limits
from ..monitor.model import SharedSnapshot
from .config import MetricsSettings
from .endpoint import Metrics

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
        self._watcher: SystemMonitor | None = None
        self.metrics: Metrics | None = None
        self._latest: SharedSnapshot | None = None
        self._next_listen_ns = 0

    def on_start(self) -> None:
        audit = LedgerMonitor(model_limits(self._context))
        self._watcher = SystemMonitor(self._context, audit=audit, clock=self._clock)
        self._latest = SharedSnapshot(self._watcher.picture, _PERIOD_NS, self._clock)
        self.metrics = Metrics(self._settings, self._latest)

    def do_work(self) -> int:
        assert self._watcher is not None, "started before its first turn"
        assert self._latest is not None
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_listen_ns:
            self._next_listen_ns = now_ns + _LISTEN_NS
            with self._latest.listening():
                self._watcher.poll()
        return 0

    def on_close(self) -> None:
        if self.metrics is not None:
            self.metrics.close()
        if self._watcher is not None:
            self._watcher.close()
