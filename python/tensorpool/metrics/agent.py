"""Metrics by themselves: listens like a supervisor, decides nothing."""

from __future__ import annotations

from typing import Final

from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..supervisor.ears import Watcher
from ..supervisor.views import Snapshot
from .config import MetricsSettings
from .endpoint import Metrics

_PERIOD_NS: Final = 1_000_000_000


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
        self._due_ns = 0

    def latest(self) -> Snapshot:
        return self._latest

    def on_start(self) -> None:
        self._watcher = Watcher(self._context, clock=self._clock)
        self.metrics = Metrics(self._settings, self.latest)

    def do_work(self) -> int:
        assert self._watcher is not None, "started before its first turn"
        work = self._watcher.poll()
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _PERIOD_NS
            self._latest = self._watcher.snapshot()
        return work

    def on_close(self) -> None:
        if self.metrics is not None:
            self.metrics.close()
        if self._watcher is not None:
            self._watcher.close()
