"""Everything of `[metrics]` at once, for a role that has a picture of the system.

with Metrics(settings, picture.snapshot):
    ...
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from ..monitor.snapshot import Snapshot
from .address import Address
from .config import MetricsSettings
from .otel import OtelExport
from .page import MetricsPage
from .server import MetricsServer

_LOG = logging.getLogger(__name__)


class Metrics:
    """The endpoint and the export, as far as they are set. `source` is called on their threads."""

    def __init__(self, settings: MetricsSettings, source: Callable[[], Snapshot]) -> None:
        page = MetricsPage(source, settings.limits)
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
