"""What is behind the endpoint: the newest snapshot, as text."""

from __future__ import annotations

from collections.abc import Callable

from .. import __version__
from ..monitor.snapshot import Snapshot
from .collect import DEFAULT_LIMITS, Limits, collect
from .exposition import Family, render


class MetricsPage:
    """Asks `source` for a snapshot whenever somebody asks for the page; on that one's thread."""

    def __init__(self, source: Callable[[], Snapshot], limits: Limits = DEFAULT_LIMITS) -> None:
        self._source = source
        self._limits = limits

    def families(self) -> list[Family]:
        return collect(self._source(), self._limits, version=__version__)

    def __call__(self) -> str:
        return render(self.families())
