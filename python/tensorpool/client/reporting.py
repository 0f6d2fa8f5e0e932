"""What attachments tell those who watch, apart from what the wire has messages for."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _native


@dataclass(frozen=True, slots=True)
class Reports:
    """What is told: a latency on the services' status stream, a few counters in the media driver."""

    latency: bool
    counters: bool

    def begin(
        self, endpoint: _native.Producer | _native.Consumer, status: tuple[str, int], period_ns: int
    ) -> _native.Reporter | None:
        """Tells of `endpoint` until it is closed; None if there is nothing to tell."""
        tells = self.latency and isinstance(endpoint, _native.Consumer)
        if not (tells or self.counters):
            return None
        return _native.Reporter(
            endpoint, status=status if tells else None, counters=self.counters, period_ns=period_ns
        )
