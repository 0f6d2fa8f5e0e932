"""Metrics by themselves: listens like a supervisor, decides nothing."""

from __future__ import annotations

from typing import Final

from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..ledger import LedgerAudit
from ..supervisor.ears import Watcher, bounds_of
from ..supervisor.views import Snapshot
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
        self._watcher: Watcher | None = None
        self.metrics: Metrics | None = None
        # Swapped as a whole: the threads that serve it see one moment or the next, nothing between.
        self._latest = Snapshot(0)
        self._due_ns = self._next_listen_ns = 0

    def latest(self) -> Snapshot:
        return self._latest

    def on_start(self) -> None:
        audit = LedgerAudit(bounds_of(self._context))
        self._watcher = Watcher(self._context, audit=audit, clock=self._clock)
        self.metrics = Metrics(self._settings, self.latest)

    def do_work(self) -> int:
        assert self._watcher is not None, "started before its first turn"
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_listen_ns:
            self._next_listen_ns = now_ns + _LISTEN_NS
            self._watcher.poll()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _PERIOD_NS
            self._latest = self._watcher.snapshot()
        return 0

    def on_close(self) -> None:
        if self.metrics is not None:
            self.metrics.close()
        if self._watcher is not None:
            self._watcher.close()
